"""Numeric streams: one block of raw float32 values a shard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import DecodeError
from knonik_loader.khlp.codecs.common import check_array, expect_kind, payload
from knonik_loader.khlp.types import Dependency, FrameInput, Record, StreamInfo

__all__ = ["NumericCodec", "numeric_block"]


def numeric_block(data: bytes | memoryview, dim: int) -> npt.NDArray[np.float32]:
    """(n, D) view of a shard's block; nothing is copied.

    Raises:
        DecodeError: the bytes are not whole rows of ``dim`` values.
    """
    if len(data) % (4 * dim):
        raise DecodeError(f"a numeric block of {len(data)} bytes does not hold rows of {dim} float32 values")
    return np.frombuffer(data, "<f4").reshape(-1, dim)


class NumericCodec:
    """Rows as they are: n x D little-endian float32, one record a shard, which stands at row 0."""

    name: ClassVar[str] = "numeric"
    dependency: ClassVar[Dependency] = "none"

    def __init__(self, info: StreamInfo) -> None:
        expect_kind(info, "numeric", 1)
        self._info = info

    def encode(self, frames: Iterable[FrameInput]) -> list[Record]:
        """One record of all rows; each row is float32 (D,)."""
        rows = [check_array(self._info, frame, self._info.shape, "float32") for frame in frames]
        block = np.stack(rows).astype("<f4") if rows else np.empty((0, *self._info.shape), "<f4")
        return [Record(block.tobytes())]

    def decode(
        self, records: Mapping[int, memoryview], wanted: Sequence[int], out: Mapping[int, npt.NDArray[Any]]
    ) -> None:
        """Copy the wanted rows; ``records`` holds the block as row 0."""
        block = numeric_block(payload(self._info, records, 0), self._info.shape[0])
        for row in wanted:
            if not 0 <= row < len(block):
                raise DecodeError(f"stream {self._info.key!r}: row {row} is not in a block of {len(block)} rows")
            out[row][...] = block[row]
