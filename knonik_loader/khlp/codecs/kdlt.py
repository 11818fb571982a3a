"""KDLT: a key JPEG every few frames, and between them only the blocks that changed.

A frame is at most two JPEG decodes, its key and its changed blocks, and frames of one key share the first. This module
reads; `kdlt_encode` decides which blocks count as changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import DecodeError
from knonik_loader.khlp.codecs import exposure, jpeg
from knonik_loader.khlp.codecs.common import choice, expect_kind, number, payload
from knonik_loader.khlp.codecs.exposure import Exposure
from knonik_loader.khlp.types import Dependency, FrameInput, Record, StreamInfo

__all__ = ["BLOCK", "DELTA_MAGIC", "KdltCodec", "block_grid", "blocks_per_row", "delta_head", "is_delta", "runs"]

BLOCK = 16
DELTA_MAGIC = b"D\x02"
"""Begins a delta; a JPEG, which begins with FF D8, stands for the whole frame."""

HEAD = Struct("<2shh")
"""Magic, and the gain and offset of the key's exposure."""

MAX_ROW_BLOCKS = 4093
"""JPEGs are at most 65500 pixels wide, so that a strip of more blocks than this wraps into further rows."""

Image = npt.NDArray[np.uint8]


def block_grid(height: int, width: int) -> tuple[int, int]:
    """Blocks down and across; those at the lower and right edge may reach past the picture."""
    return -(-height // BLOCK), -(-width // BLOCK)


def blocks_per_row(count: int) -> int:
    """Blocks side by side in a strip of ``count`` blocks."""
    return min(count, MAX_ROW_BLOCKS)


def is_delta(data: bytes | memoryview) -> bool:
    """Whether a record refers to its key."""
    return bytes(data[: len(DELTA_MAGIC)]) == DELTA_MAGIC


def delta_head(light: Exposure) -> bytes:
    """What stands in front of a delta's bitmap."""
    return HEAD.pack(DELTA_MAGIC, light.gain, light.offset)


def runs(changed: npt.NDArray[np.int64], across: int) -> list[tuple[int, int, int, int, int]]:
    """Rectangles to copy between picture and strip: neighbours in one lie side by side in the other as well.

    Args:
        changed: numbers of the changed blocks, row by row, ascending.
        across: blocks across the picture.

    Returns:
        (picture y, picture x, strip y, strip x, width), in pixels; each is `BLOCK` pixels high.
    """
    count = len(changed)
    strip = np.arange(count)
    begins = np.ones(count, bool)
    begins[1:] = (np.diff(changed) != 1) | (changed[1:] % across == 0) | (strip[1:] % blocks_per_row(count) == 0)
    first = np.flatnonzero(begins)
    widths = np.diff(first, append=count) * BLOCK
    y, x = np.divmod(changed[first], across)
    strip_y, strip_x = np.divmod(first, blocks_per_row(count))
    columns = (y * BLOCK, x * BLOCK, strip_y * BLOCK, strip_x * BLOCK, widths)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _place(strip: Image, changed: npt.NDArray[np.int64], image: npt.NDArray[Any]) -> None:
    """Copy the blocks of a strip to where they belong in an (H, W, 3) picture."""
    height, width, channels = image.shape
    across = -(-width // BLOCK)
    if width % BLOCK or len(strip) > BLOCK:
        for top, left, sy, sx, wide in runs(changed, across):
            place = image[top : top + BLOCK, left : left + wide]
            place[...] = strip[sy : sy + place.shape[0], sx : sx + place.shape[1]]
        return
    # one row of one block as one item: a single assignment instead of one for each run
    item = np.dtype((np.void, BLOCK * channels))
    y, x = np.divmod(changed, across)
    rows = np.arange(BLOCK)[:, None] + y * BLOCK  # (16, c)
    pieces, places = strip.reshape(BLOCK, -1).view(item), rows * across + x
    if rows[-1, -1] >= height:
        inside = rows < height
        pieces, places = pieces[inside], places[inside]
    image.reshape(height, -1).view(item).reshape(-1)[places] = pieces


class KdltCodec:
    """Keys and changed blocks.

    Parameters: ``gop`` (most frames from key to key, default 10; another scene begins a new key sooner), ``quality`` of
    keys (default 95), ``delta_quality`` of blocks and of frames stored whole (default 5 below), ``chroma`` (420 or
    444), ``threshold`` (levels that a low-passed block may differ by, default 6).
    """

    name: ClassVar[str] = "kdlt"
    dependency: ClassVar[Dependency] = "key"

    def __init__(self, info: StreamInfo) -> None:
        expect_kind(info, "rgb", 3)
        self._info = info
        self.gop = int(number(info, "gop", 10, 1, 65_535))
        self.quality = int(number(info, "quality", 95, 1, 100))
        self.delta_quality = int(number(info, "delta_quality", max(1, self.quality - 5), 1, 100))
        self.threshold = float(number(info, "threshold", 6, 0, 255))
        self.chroma = choice(info, "chroma", "420", ("420", "444"))
        self._grid = block_grid(*info.shape[:2])
        self._scratch: Image = np.empty(0, np.uint8)

    def encode(self, frames: Iterable[FrameInput]) -> list[Record]:
        """One record a frame; frames are uint8 (H, W, 3) RGB or JPEG bytes, which pass through as keys."""
        from knonik_loader.khlp.codecs.kdlt_encode import KdltEncoder

        return KdltEncoder(self._info, self).encode(frames)

    def decode(
        self,
        records: Mapping[int, memoryview],
        wanted: Sequence[int],
        out: Mapping[int, npt.NDArray[Any]],
        key: Image | None = None,
    ) -> None:
        """Decode one key and the wanted frames that refer to it, the key once.

        Args:
            records: the key's row (not needed with ``key``) and the wanted rows.
            wanted: rows to write, ascending.
            out: wanted row → C-contiguous (H, W, 3) uint8 array.
            key: the decoded key, where the caller has it already.
        """
        deltas = []
        base = key
        for row in wanted:
            data = payload(self._info, records, row)
            if is_delta(data):
                deltas.append(row)
                continue
            jpeg.decode_into(data, out[row], self._where(row))
            base = out[row] if base is None else base
        if not deltas:
            return
        if base is None:
            base = self._decode_key(records, deltas, out)
        # a frame whose memory holds the key comes last: the others are copies of it
        deltas.sort(key=lambda row: out[row] is base)
        for row in deltas:
            self._expose(records[row], base, out[row], self._where(row))
        for row in deltas:
            self._scatter(records[row], out[row], self._where(row))

    def _decode_key(
        self, records: Mapping[int, memoryview], deltas: list[int], out: Mapping[int, npt.NDArray[Any]]
    ) -> Image:
        """The key, decoded into the first frame that needs it: its blocks are scattered only after all have copied."""
        row = min(records)
        if is_delta(records[row]):
            raise DecodeError(f"{self._where(deltas[0])}: its key was not read")
        return jpeg.decode_into(records[row], out[deltas[0]], self._where(row))

    def _expose(self, data: memoryview, key: Image, image: npt.NDArray[Any], where: str) -> None:
        """Fill a frame with its key at the delta's exposure."""
        down, across = self._grid
        if len(data) < HEAD.size + -(-down * across // 8):
            raise DecodeError(f"{where}: a delta of {len(data)} bytes is cut off")
        _, gain, offset = HEAD.unpack_from(data)
        exposure.apply(Exposure(gain, offset), key, image)

    def _scatter(self, data: memoryview, image: npt.NDArray[Any], where: str) -> None:
        """Put a delta's blocks in their places."""
        down, across = self._grid
        bits = -(-down * across // 8)
        at = HEAD.size + bits
        changed = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8, bits, HEAD.size)))
        count = len(changed)
        if not count:
            if len(data) != at:
                raise DecodeError(f"{where}: a delta without blocks has bytes behind its bitmap")
            return
        if changed[-1] >= down * across:
            raise DecodeError(f"{where}: a delta marks block {changed[-1]} of {down * across}")
        wide = blocks_per_row(count)
        shape = (-(-count // wide) * BLOCK, wide * BLOCK, 3)
        size = shape[0] * shape[1] * 3
        if self._scratch.size < size:
            self._scratch = np.empty(size, np.uint8)
        strip = self._scratch[:size].reshape(shape)
        # plain upsampling: a smooth one would bleed colours between blocks that are neighbours only in the strip
        jpeg.decode_into(data[at:], strip, where, fast_upsample=True)
        _place(strip, changed, image)

    def _where(self, row: int) -> str:
        return f"stream {self._info.key!r}, row {row}"
