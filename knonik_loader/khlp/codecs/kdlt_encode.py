"""Which blocks of a frame differ from its key, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from knonik_loader.khlp.codecs import jpeg
from knonik_loader.khlp.codecs.common import check_array
from knonik_loader.khlp.codecs.kdlt import BLOCK, DELTA_MAGIC, Image, block_grid, blocks_per_row, runs
from knonik_loader.khlp.codecs.kimg import check_jpeg
from knonik_loader.khlp.types import FrameInput, Record, StreamInfo

__all__ = ["KdltEncoder", "block_error", "low_pass"]

CELL = 4
# A block is what the noise of the frame's own JPEG explains as long as its squared error stays below FACTOR times that
# JPEG's, plus FLOOR: what was measured to keep static scenes small without freezing what moves.
FACTOR, FLOOR = 2.0, 3.0


class _Settings(Protocol):
    gop: int
    quality: int
    delta_quality: int
    threshold: float
    chroma: str


def low_pass(image: Image) -> npt.NDArray[np.int16]:
    """(H/4, W/4, 3) sums over cells of 4x4 pixels; H and W are multiples of 4."""
    height, width, _ = image.shape
    rows = image.reshape(height // CELL, CELL, width * 3)
    # whole rows first: long contiguous sums are what numpy does fast; 16 values of a byte fit 16 bits
    sums = np.add(rows[:, 0], rows[:, 1], dtype=np.int16)
    for row in range(2, CELL):
        np.add(sums, rows[:, row], out=sums)
    cells = sums.reshape(height // CELL, width // CELL, CELL, 3)
    return cells[:, :, 0] + cells[:, :, 1] + cells[:, :, 2] + cells[:, :, 3]


def block_error(a: Image, b: Image) -> npt.NDArray[np.float64]:
    """(H/16, W/16) mean squared difference of each block over its pixels and channels."""
    height, width, _ = a.shape
    difference = np.maximum(a, b)
    difference -= np.minimum(a, b)
    squares = np.multiply(difference, difference, dtype=np.uint16)
    # (H/16, W * 3) over the 16 rows of a block, then over its 16 columns and 3 channels
    rows = squares.reshape(height // BLOCK, BLOCK, width * 3).sum(1, dtype=np.uint32)
    blocks = rows.reshape(height // BLOCK, width // BLOCK, BLOCK * 3).sum(2)
    return np.asarray(blocks / (BLOCK * BLOCK * 3), np.float64)


class KdltEncoder:
    """Encodes the frames of one shard; all pictures inside are padded to whole blocks."""

    def __init__(self, info: StreamInfo, settings: _Settings) -> None:
        self._info = info
        self._set = settings
        self._height, self._width = info.shape[:2]
        self._down, self._across = block_grid(self._height, self._width)
        self._decoded: Image = np.empty(info.shape, np.uint8)
        self._key = self._decoded
        self._key_low = np.empty(0, np.int16)

    def encode(self, frames: Iterable[FrameInput]) -> list[Record]:
        """One record a frame."""
        records = []
        for row, frame in enumerate(frames):
            data, image = self._take(frame, row)
            back = row % self._set.gop
            if back == 0:
                key = data or jpeg.encode(image, self._set.quality, self._set.chroma)
                self._key = self._pad(jpeg.decode_into(key, self._decoded, f"key {row}")).copy()
                self._key_low = low_pass(self._key)
                records.append(Record(key))
            else:
                records.append(self._between(data, image, back))
        return records

    def _take(self, frame: FrameInput, row: int) -> tuple[bytes | None, Image]:
        """The frame's JPEG, where it came as one, and its pixels."""
        if isinstance(frame, bytes):
            check_jpeg(self._info, frame, row)
            pixels = np.empty(self._info.shape, np.uint8)
            return frame, jpeg.decode_into(frame, pixels, f"stream {self._info.key!r}, frame {row}")
        return None, check_array(self._info, frame, self._info.shape, "uint8")

    def _between(self, data: bytes | None, image: Image, back: int) -> Record:
        """A frame that has a key: its changed blocks, or the whole frame where these are no smaller."""
        whole = jpeg.encode(image, self._set.delta_quality, self._set.chroma)
        own = self._pad(jpeg.decode_into(whole, self._decoded, "own JPEG"))
        padded = self._pad(image)
        noise = block_error(padded, own)
        low = low_pass(padded)
        # what the frame's own JPEG loses as well (colour at sharp edges) is no movement
        moved = np.abs(low - self._key_low) - np.abs(low - low_pass(own))  # (H/4, W/4, 3)
        side = BLOCK // CELL
        moved = moved.max(2).reshape(self._down, side, self._across, side).max((1, 3))
        changed = (block_error(padded, self._key) > FACTOR * noise + FLOOR) | (
            moved > self._set.threshold * (CELL * CELL)
        )
        delta = self._delta(padded, changed)
        if data is not None and len(data) <= len(whole):
            whole = data
        return Record(whole, intra=True) if len(delta) >= len(whole) else Record(delta, key_back=back)

    def _delta(self, padded: Image, changed: npt.NDArray[np.bool_]) -> bytes:
        """Magic, bitmap, and the changed blocks side by side as one JPEG."""
        head = DELTA_MAGIC + np.packbits(changed).tobytes()
        numbers = np.flatnonzero(changed)
        if not len(numbers):
            return head
        wide = blocks_per_row(len(numbers))
        tall = -(-len(numbers) // wide)
        # places of a last strip row that no block fills stay mid-grey, which costs next to nothing
        strip = np.full((tall * BLOCK, wide * BLOCK, 3), 128, np.uint8)
        for y, x, sy, sx, width in runs(numbers, self._across):
            strip[sy : sy + BLOCK, sx : sx + width] = padded[y : y + BLOCK, x : x + width]
        return head + jpeg.encode(strip, self._set.delta_quality, self._set.chroma)

    def _pad(self, image: Image) -> Image:
        """The picture with its last row and column repeated up to whole blocks."""
        below, right = self._down * BLOCK - self._height, self._across * BLOCK - self._width
        if not below and not right:
            return image
        return np.pad(image, ((0, below), (0, right), (0, 0)), mode="edge")
