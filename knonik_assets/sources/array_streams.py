"""What an array holds (pictures, depth, numbers) and how to read it frame by frame in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from knonik_assets.sources.arrays import Array, bounded
from knonik_assets.sources.images import cut_encoded, image_shape, picture_layout, sniff
from knonik_loader.errors import EpisodeError

__all__ = ["Content", "classify", "first_shape", "float_scale", "read_numbers", "read_rows"]

_BLOCK_BYTES = 64 << 20
"""Most that is read at once of a dataset whose chunks hold many frames."""
_WIDEST_ROW = 4096
"""Numbers a row at most; wider arrays are no vectors."""
_LEAST_SIDE = 8


@dataclass(frozen=True, slots=True)
class Content:
    """What one array holds."""

    kind: Literal["encoded", "picture", "depth", "encoded_depth", "numeric", "other"]
    length: int
    shape: tuple[int, ...]
    """Of one frame as stored; for encoded rows (H, W, 3) is not known yet, so ()."""
    format: Literal["jpeg", "png"] | None = None


def classify(array: Array, name: str) -> Content:
    """What an array holds, by its shape, type and, for rows of bytes, their first bytes.

    Raises:
        EpisodeError: its first row cannot be read.
    """
    dtype, shape = array.dtype, array.shape
    if not shape:
        return Content("other", 0, ())
    length, frame = shape[0], shape[1:]
    if array.holds_bytes or (dtype == np.uint8 and len(shape) == 2):
        first = array.row_bytes(0) if length else b""
        kind = sniff(first)
        if kind is not None:
            deep = kind == "png" and first[24:26] == b"\x10\x00"  # 16 bits, grey
            return Content("encoded_depth" if deep else "encoded", length, (), kind)
        if array.holds_bytes:
            return Content("other", length, ())
    if dtype.kind not in "biuf":
        return Content("other", length, frame)
    return Content(_array_kind(frame, dtype, "depth" in name.lower()), length, frame)


def _array_kind(
    frame: tuple[int, ...], dtype: np.dtype[Any], called_depth: bool
) -> Literal["picture", "depth", "numeric", "other"]:
    layout = picture_layout(frame)
    sides = {"hw": frame[:2], "hwc": frame[:2], "chw": frame[1:]}.get(layout or "", ())
    if layout is not None and min(sides) >= _LEAST_SIDE and dtype.kind in "iuf":
        channels = {"hw": 1, "hwc": frame[-1], "chw": frame[0]}[layout]
        if channels == 1 and (called_depth or dtype != np.uint8):
            return "depth"
        if dtype == np.uint8 or dtype.kind == "f":
            return "picture"
    return "numeric" if math.prod(frame) <= _WIDEST_ROW else "other"


def first_shape(array: Array, content: Content) -> tuple[int, int]:
    """(H, W) of a picture or depth stream; (0, 0) when it has no frame.

    Raises:
        EpisodeError: the first picture is damaged.
    """
    if content.kind in ("encoded", "encoded_depth"):
        if not content.length:
            return 0, 0
        where = f"{array.where}, row 0"
        return image_shape(cut_encoded(array.row_bytes(0), where), where)
    height, width = content.shape[1:] if picture_layout(content.shape) == "chw" else content.shape[:2]
    return height, width


def read_rows(array: Array, content: Content) -> Iterator[Any]:
    """The frames one after another: `EncodedImage`, or arrays as stored. Reads single frames or whole chunks."""
    if content.kind in ("encoded", "encoded_depth"):
        for index, data in enumerate(array.each_row_bytes()):
            yield cut_encoded(data, f"{array.where}, row {index}")
        return
    yield from array.stream()


def read_numbers(array: Array, width: int) -> tuple[npt.NDArray[np.float32], list[str]]:
    """(T, width) float32 of a numeric array, and what was lost on the way, in words.

    Raises:
        EpisodeError: damaged, or absurdly large.
    """
    length, infinite, inexact = array.shape[0], 0, False
    bounded(length * width * 4, array.where)
    out = np.empty((length, width), np.float32)
    for start, stop in _runs(array, width):
        values = array.rows(start, stop).reshape(-1, width)
        with np.errstate(over="ignore"):  # said below, in words
            out[start : start + len(values)] = values
        rows = out[start : start + len(values)]
        if values.dtype.kind == "f":
            infinite += int(np.isinf(rows).sum() - np.isinf(values).sum())
        elif values.dtype.kind in "iu" and values.dtype.itemsize > 2:
            inexact = inexact or not np.array_equal(rows.astype(np.float64), values)
    lost = []
    if infinite:
        lost.append(f"{array.where}: {infinite} values beyond what float32 holds become infinite")
    if inexact:
        lost.append(f"{array.where}: integers beyond 2**24 lose their last digits in float32")
    return out, lost


def _runs(array: Array, width: int) -> Iterator[tuple[int, int]]:
    """Several of the array's blocks at once, as rows of numbers are small."""
    most = max(1, _BLOCK_BYTES // max(1, width * array.dtype.itemsize))
    start = 0
    for first, stop in array.blocks():
        if stop - start > most and first > start:
            yield start, first
            start = first
    if start < array.shape[0]:
        yield start, array.shape[0]


def float_scale(array: Array) -> float | None:
    """What floats of a picture array are multiplied by: 255 for [0, 1], 1 for 0..255; None for integers.

    Decided once for the stream from pictures spread over it, as one dark picture says nothing; a picture that
    contradicts it fails later instead of coming out wrong.

    Raises:
        EpisodeError: values are neither.
    """
    if array.dtype.kind != "f":
        return None
    low, high = 0.0, 0.0
    for picture in array.spread_rows():
        low, high = min(low, float(picture.min())), max(high, float(picture.max()))
    scale = 255.0 if high <= 1.001 else 1.0
    top = 255.0 / scale
    if not (low >= -0.001 * top and high <= 1.001 * top):
        raise EpisodeError(f"{array.where}: floats from {low:g} to {high:g} are neither in [0, 1] nor in 0..255.")
    return scale
