"""What an array holds (pictures, depth, numbers) and how to read it frame by frame in bounded memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from knonik_assets.sources.arrays import Array, Path, bounded
from knonik_assets.sources.images import cut_encoded, image_shape, picture_layout, sniff
from knonik_loader.errors import EpisodeError

__all__ = ["Content", "called_depth", "classify", "first_shape", "float_scale", "is_map", "read_numbers", "read_rows"]

_BLOCK_BYTES = 64 << 20
"""Most that is read at once of a dataset whose chunks hold many frames."""
_WIDEST_ROW = 4096
"""Numbers a row at most; wider arrays are no vectors."""
_LEAST_SIDE = 8
_ALL_DEPTH = re.compile(r"depths?([_-]?(image|frame|map|obs)s?)?", re.IGNORECASE)
"""What holds depth alone; a depth camera has infrared pictures of 8 bits, too."""
_COARSE_FROM = 2.0**17
"""Numbers from here on are rounded to hundredths or worse by float32; what robots measure is smaller."""


@dataclass(frozen=True, slots=True)
class Content:
    """What one array holds."""

    kind: Literal["encoded", "picture", "depth", "encoded_depth", "numeric", "other"]
    length: int
    shape: tuple[int, ...]
    """Of one frame as stored; for encoded rows (H, W, 3) is not known yet, so ()."""
    format: Literal["jpeg", "png"] | None = None


def classify(array: Array, path: Path) -> Content:
    """What an array holds, by its shape, type and, for rows of bytes, their first bytes.

    Args:
        array: of rows.
        path: its place, some part of which may call it depth.

    Raises:
        EpisodeError: its first row cannot be read.
    """
    dtype, shape = array.dtype, array.shape
    if not shape:
        return Content("other", 0, ())
    length, frame = shape[0], shape[1:]
    if array.holds_bytes or (dtype == np.uint8 and len(shape) == 2):
        first = _first_bytes(array)
        kind = sniff(first)
        if kind is not None:
            deep = kind == "png" and first[24:26] == b"\x10\x00"  # 16 bits, grey
            return Content("encoded_depth" if deep else "encoded", length, (), kind)
        if array.holds_bytes:
            return Content("other", length, ())
    if dtype.kind not in "biuf" or 0 in frame:
        return Content("other", length, frame)
    named = called_depth(path[-1:]) or any(map(_ALL_DEPTH.fullmatch, path))
    return Content(_array_kind(frame, dtype, named if dtype == np.uint8 else called_depth(path)), length, frame)


def called_depth(path: Path) -> bool:
    """Whether an array or what holds it is called depth."""
    return any("depth" in part.lower() for part in path)


def _first_bytes(array: Array) -> bytes:
    """The first row that isn't empty: a camera that came too late makes pictures all the same."""
    length = array.shape[0]
    rows = (array.row_bytes(place) for place in sorted({0, length // 2, length - 1}) if place < length)
    return next((row for row in rows if row.strip(b"\0")), b"") if length else b""


def _array_kind(
    frame: tuple[int, ...], dtype: np.dtype[Any], depth: bool
) -> Literal["picture", "depth", "numeric", "other"]:
    small = math.prod(frame) <= _WIDEST_ROW
    if dtype.kind != "b" and is_map(frame):
        if depth or dtype == np.uint16:
            return "depth"
        if dtype == np.uint8:
            return "picture"
        return "numeric" if small else "depth"  # small matrices: actions ahead, a tactile pad, a covariance
    sides = frame[1:] if picture_layout(frame) == "chw" else frame[:2]
    is_picture = len(frame) == 3 and picture_layout(frame) is not None and min(sides) >= _LEAST_SIDE
    if is_picture and (dtype == np.uint8 or dtype.kind == "f"):
        return "picture"
    return "numeric" if small else "other"


def is_map(frame: tuple[int, ...]) -> bool:
    """Whether a frame of this shape could be a map of one channel: depth, or a grey picture."""
    layout = picture_layout(frame)
    sides = {"hw": frame, "hwc": frame[:2], "chw": frame[1:]}.get(layout or "", ())
    return layout is not None and min(sides) >= _LEAST_SIDE and math.prod(frame) == math.prod(sides)


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
    coarse = _Coarse(width)
    bounded(length * width * 4, array.where)
    out = np.empty((length, width), np.float32)
    for start, stop in _runs(array, width):
        values = array.rows(start, stop).reshape(-1, width)
        with np.errstate(over="ignore"):  # said below, in words
            out[start : start + len(values)] = values
        rows = out[start : start + len(values)]
        if values.dtype.kind == "f":
            infinite += int(np.isinf(rows).sum() - np.isinf(values).sum())
            coarse.add(values, rows)
        elif values.dtype.kind in "iu" and values.dtype.itemsize > 2:
            inexact = inexact or not np.array_equal(rows.astype(np.float64), values)
    lost = []
    if infinite:
        lost.append(f"{array.where}: {infinite} values beyond what float32 holds become infinite")
    if inexact:
        lost.append(f"{array.where}: integers beyond 2**24 lose their last digits in float32")
    if coarse.found():
        lost.append(
            f"{array.where}: values as large as {coarse.largest:.4g} lose their last digits in float32, which move"
        )
    return out, lost


class _Coarse:
    """Whether what float32 rounds away of large numbers is a part of how they change: times since 1970 stand still."""

    def __init__(self, width: int) -> None:
        self._low, self._high, self._away = np.full(width, np.inf), np.full(width, -np.inf), np.zeros(width)
        self.largest = 0.0

    def add(self, values: npt.NDArray[Any], rows: npt.NDArray[np.float32]) -> None:
        """(N, D) as stored, and in float32."""
        if values.dtype.itemsize <= 4 or not (np.abs(rows) >= _COARSE_FROM).any():
            return
        known = np.where(np.isfinite(values) & np.isfinite(rows), values, np.nan)
        largest = np.fmax.reduce(np.abs(known), axis=None)
        if not largest >= _COARSE_FROM:
            return
        self.largest = max(self.largest, float(largest))
        self._low = np.fmin(self._low, np.fmin.reduce(known, axis=0))
        self._high = np.fmax(self._high, np.fmax.reduce(known, axis=0))
        self._away = np.fmax(self._away, np.fmax.reduce(np.abs(known - rows), axis=0))

    def found(self) -> bool:
        """Whether a column is rounded by more than a hundredth of its range."""
        if not self.largest:
            return False
        large = np.fmax(np.abs(self._low), np.abs(self._high)) >= _COARSE_FROM
        return bool((large & (self._high > self._low) & (self._away > (self._high - self._low) / 100)).any())


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
