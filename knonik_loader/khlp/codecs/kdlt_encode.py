"""Which frames become keys, which blocks of the others differ from theirs, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from knonik_loader.khlp.codecs import exposure, jpeg
from knonik_loader.khlp.codecs.common import check_array
from knonik_loader.khlp.codecs.exposure import IDENTITY, Exposure
from knonik_loader.khlp.codecs.kdlt import BLOCK, Image, block_grid, blocks_per_row, delta_head, runs
from knonik_loader.khlp.codecs.kimg import jpeg_pixels
from knonik_loader.khlp.types import FrameInput, Record, StreamInfo

__all__ = ["KdltEncoder", "block_error", "estimate_exposure", "low_pass"]

Low = npt.NDArray[np.int16]

CELL = 4
# A block is what the noise of the frame's own JPEG explains as long as its squared error stays below FACTOR times that
# JPEG's, plus FLOOR: what was measured to keep static scenes small without freezing what moves.
FACTOR, FLOOR = 1.6, 2.0
SENSOR, MOST_SENSOR = 1.35, 24.0
"""A frame that came as a JPEG loses next to nothing in its own, yet its noise is as new: where the picture mostly is
still, SENSOR times the usual error of its still blocks counts as noise too, up to MOST_SENSOR squared levels."""
MOST_CHANGED = 0.5
"""Share of blocks beyond which a delta is no faster than a whole JPEG: it costs a share of its key as well."""

LEAST_GAIN = 0.5
"""Squared levels that another exposure must bring nearer on average, to be worth moving every pixel."""


class _Settings(Protocol):
    gop: int
    quality: int
    delta_quality: int
    threshold: float
    chroma: str


def low_pass(image: Image) -> Low:
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


def estimate_exposure(key: Low, frame: Low) -> Exposure:
    """The exposure that brings a key nearest to a frame where nothing moved; the key's own where that gains little.

    A line through pairs of low-passed values, fitted twice more to those that lie near it: what moved is left out as
    long as it is less than half of the picture.

    Args:
        key: (H/4, W/4, 3) as `low_pass` gives it.
        frame: the same of the frame.
    """
    cells = CELL * CELL
    x, y = (low[::2, ::2].ravel().astype(np.float32) / cells for low in (key, frame))
    usable = (x > 8) & (x < 247) & (y > 8) & (y < 247)
    x, y = x[usable], y[usable]
    if x.size < 64:
        return IDENTITY
    gain, offset = float(np.median(y / x)), 0.0
    near = np.zeros(0, np.bool_)
    for reach in (4.0, 2.5):
        near = np.abs(y - (gain * x + offset)) < reach
        if np.count_nonzero(near) < 0.3 * x.size:
            return IDENTITY
        some, seen = x[near], y[near]
        mean, spread = float(some.mean()), float(some.var())
        if spread > 16:
            gain = float(np.mean((some - mean) * (seen - seen.mean()))) / spread
        offset = float(seen.mean()) - gain * mean
    gained = float(np.mean((y[near] - x[near]) ** 2) - np.mean((y[near] - gain * x[near] - offset) ** 2))
    if gained < LEAST_GAIN or not 0.5 < gain < 2 or abs(offset) > 256:
        return IDENTITY
    found = Exposure(round((gain - 1) * exposure.ONE), round(offset * 64))
    # so strong a change is better told by another key
    return IDENTITY if exposure.plan_of(found) is None else found


def _sensor_noise(still: npt.NDArray[np.float64], blocks: int) -> float:
    """Error that sensor noise explains, from that of the blocks whose low pass stands still; 0 where too few do."""
    if still.size < (1 - MOST_CHANGED) * blocks:
        return 0.0
    return min(SENSOR * float(np.median(still)), MOST_SENSOR)


class _Frame:
    """A frame on its way through the encoder; what several decisions need is worked out once."""

    def __init__(self, encoder: KdltEncoder, data: bytes | None, image: Image) -> None:
        self._encoder = encoder
        self.data = data
        """The JPEG it came as."""
        self.image = image
        self.padded = encoder.pad(image)

    @cached_property
    def _plain(self) -> bytes:
        return self._encoder.jpeg(self.image, key=False)

    @property
    def whole(self) -> bytes:
        """As a JPEG of its own."""
        return self.data if self.data is not None and len(self.data) <= len(self._plain) else self._plain

    @property
    def key(self) -> bytes:
        """As a JPEG that others refer to: the one it came as, unless that is finer than asked for."""
        encoded = self._encoder.jpeg(self.image, key=True)
        return self.data if self.data is not None and len(self.data) <= len(encoded) else encoded

    @cached_property
    def own(self) -> Image:
        """What a JPEG of the quality of deltas makes of it, padded."""
        return self._encoder.decoded(self._plain)

    @cached_property
    def low(self) -> Low:
        return low_pass(self.padded)

    @cached_property
    def noise(self) -> npt.NDArray[np.float64]:
        """Error of its own JPEG, a block."""
        return block_error(self.padded, self.own)

    @cached_property
    def lost(self) -> Low:
        """What its own JPEG loses of its cells (colour at sharp edges)."""
        return np.asarray(np.abs(self.low - low_pass(self.own)), np.int16)


@dataclass(frozen=True, slots=True)
class _Key:
    """What frames are compared with: pixels as a reader will have them, padded."""

    row: int
    image: Image
    low: Low


def _with_lone_keys(records: Sequence[Record]) -> list[Record]:
    """The records, with keys that no delta came to refer to said to be none, so that no cache keeps them."""
    keys = {row - record.key_back for row, record in enumerate(records) if record.key_back}
    return [
        record if record.key_back or record.intra or row in keys else replace(record, intra=True)
        for row, record in enumerate(records)
    ]


class KdltEncoder:
    """Encodes the frames of one shard."""

    def __init__(self, info: StreamInfo, settings: _Settings) -> None:
        self._info = info
        self._set = settings
        self._height, self._width = info.shape[:2]
        self._down, self._across = block_grid(self._height, self._width)

    def encode(self, frames: Iterable[FrameInput]) -> list[Record]:
        """One record a frame.

        A frame becomes a key when it cannot be told by the last one, or that is too old, and the next frame can be told
        by it. Where nothing stands still, every frame is a JPEG of its own: no worse than without keys.
        """
        records: list[Record] = []
        key: _Key | None = None
        for frame, following in self._with_following(frames):
            row = len(records)
            alive = key is not None and row - key.row < self._set.gop
            delta = self._delta(frame, key) if key is not None and alive else None
            if key is not None and delta is not None:
                records.append(Record(delta, key_back=row - key.row))
                continue
            lives_on = key is not None and row + 1 - key.row < self._set.gop
            if following is None or (key is not None and lives_on and self._tells(key, following)):
                records.append(Record(frame.whole, intra=True))  # a flash: the frames around it share their key
            elif self._tells(_Key(row, frame.own, low_pass(frame.own)), following):
                data = frame.key
                image = self.decoded(data)
                key = _Key(row, image, low_pass(image))
                records.append(Record(data))
            else:
                records.append(Record(frame.whole, intra=True))
        return _with_lone_keys(records)

    def _with_following(self, frames: Iterable[FrameInput]) -> Iterator[tuple[_Frame, _Frame | None]]:
        previous: _Frame | None = None
        for row, data in enumerate(frames):
            frame = self._take(data, row)
            if previous is not None:
                yield previous, frame
            previous = frame
        if previous is not None:
            yield previous, None

    def _take(self, frame: FrameInput, row: int) -> _Frame:
        """The frame's pixels, and its JPEG where it came as one."""
        if isinstance(frame, bytes):
            return _Frame(self, frame, jpeg_pixels(self._info, frame, row))
        return _Frame(self, None, check_array(self._info, frame, self._info.shape, "uint8"))

    def _tells(self, key: _Key, frame: _Frame) -> bool:
        """Whether a frame is near enough to a key to be a delta."""
        return bool(self._compare(frame, key)[1].mean() <= MOST_CHANGED)

    def _compare(self, frame: _Frame, key: _Key) -> tuple[Exposure, npt.NDArray[np.bool_]]:
        """At which exposure the key is nearest to a frame, and (H/16, W/16) which blocks differ even so."""
        light = estimate_exposure(key.low, frame.low)
        image, low = key.image, key.low
        if light != IDENTITY:
            image = np.empty_like(key.image)
            exposure.apply(light, key.image, image)
            low = low_pass(image)
        # what the frame's own JPEG loses as well is no movement
        moved = np.abs(frame.low - low) - frame.lost
        side = BLOCK // CELL
        most = moved.max(2).reshape(self._down, side, self._across, side).max((1, 3))
        error = block_error(frame.padded, image)
        moves = most > self._set.threshold * (CELL * CELL)
        noise = FACTOR * frame.noise + FLOOR
        if frame.data is not None:
            noise = np.maximum(noise, _sensor_noise(error[~moves], error.size))
        return light, (error > noise) | moves

    def _delta(self, frame: _Frame, key: _Key) -> bytes | None:
        """Head, bitmap, and the changed blocks side by side as one JPEG; None where the frame is better off whole."""
        light, changed = self._compare(frame, key)
        if changed.mean() > MOST_CHANGED:
            return None
        head = delta_head(light) + np.packbits(changed).tobytes()
        numbers = np.flatnonzero(changed)
        if not len(numbers):
            return head
        wide = blocks_per_row(len(numbers))
        tall = -(-len(numbers) // wide)
        # places of a last strip row that no block fills stay mid-grey, which costs next to nothing
        strip = np.full((tall * BLOCK, wide * BLOCK, 3), 128, np.uint8)
        for y, x, sy, sx, width in runs(numbers, self._across):
            strip[sy : sy + BLOCK, sx : sx + width] = frame.padded[y : y + BLOCK, x : x + width]
        delta = head + self.jpeg(strip, key=False)
        return delta if len(delta) < len(frame.whole) else None

    def jpeg(self, image: Image, *, key: bool) -> bytes:
        """A picture at the quality of keys or of what lies between them."""
        return jpeg.encode(image, self._set.quality if key else self._set.delta_quality, self._set.chroma)

    def decoded(self, data: bytes) -> Image:
        """The pixels of a whole frame's JPEG, padded."""
        return self.pad(jpeg.decode_into(data, np.empty(self._info.shape, np.uint8), f"stream {self._info.key!r}"))

    def pad(self, image: Image) -> Image:
        """The picture with its last row and column repeated up to whole blocks."""
        below, right = self._down * BLOCK - self._height, self._across * BLOCK - self._width
        if not below and not right:
            return image
        return np.pad(image, ((0, below), (0, right), (0, 0)), mode="edge")
