"""What several codecs check in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import ConfigError, DecodeError, FormatError, PackError
from knonik_loader.khlp.types import StreamInfo

__all__ = ["check_array", "choice", "expect_kind", "number", "payload"]


def expect_kind(info: StreamInfo, kind: str, ndim: int) -> None:
    """Refuse a stream that a codec cannot hold.

    Raises:
        FormatError: the stream's kind or number of axes is another one.
    """
    if info.kind != kind or len(info.shape) != ndim:
        raise FormatError(f"stream {info.key!r}: codec {info.codec!r} cannot hold {info.kind} frames of {info.shape}")


def number(info: StreamInfo, name: str, default: float, low: float, high: float) -> float:
    """A numeric parameter of a stream within its range.

    Raises:
        ConfigError: it is no number, or out of range.
    """
    value = info.params.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"stream {info.key!r}: {name} must be from {low:g} to {high:g}, not {value!r}")
    return value


def choice(info: StreamInfo, name: str, default: str, options: Iterable[str]) -> str:
    """A parameter of a stream that is one of a few words (numbers such as 420 may be given as such).

    Raises:
        ConfigError: it is another one.
    """
    value = info.params.get(name)
    text = default if value is None else str(value)
    if text not in options:
        raise ConfigError(f"stream {info.key!r}: {name} must be one of {', '.join(options)}, not {value!r}")
    return text


def check_array(info: StreamInfo, frame: object, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """The frame as a C-contiguous array, if it is what the stream holds.

    Raises:
        PackError: another type, shape or dtype.
    """
    if not isinstance(frame, np.ndarray) or frame.shape != shape or frame.dtype != dtype:
        got = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise PackError(f"stream {info.key!r}: frames must be {dtype} {shape}, not {got}")
    return np.ascontiguousarray(frame)


def payload(info: StreamInfo, records: Mapping[int, memoryview], row: int) -> memoryview:
    """The record of a row.

    Raises:
        DecodeError: the caller did not bring it.
    """
    try:
        return records[row]
    except KeyError:
        raise DecodeError(f"stream {info.key!r}: row {row} is needed to decode, but was not read") from None
