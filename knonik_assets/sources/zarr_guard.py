"""Compressed chunks are looked at before a decoder believes what they say of their own size."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

from knonik_assets.sources.arrays import MOST_BYTES
from knonik_loader.errors import EpisodeError

__all__ = ["ABSENT", "Guard", "ShardGuard"]

_STRONGEST = {"gzip": 1100, "zlib": 1100, "zstd": 100_000, "bz2": 100_000, "lzma": 10_000}
"""Bytes that one compressed byte can become at most, about: small chunks need no look."""
_STEP = 4 << 20
ABSENT = 2**64 - 1
"""Offset and length of a chunk that a shard leaves out."""
_MOST_INNER = 1 << 18
"""Chunks of one shard at most: a library holds an object for each of them."""


def _inflate(data: io.BytesIO) -> io.BytesIO:
    """Zlib's format counted as gzip's: the first bytes of the output are enough for that."""
    return io.BytesIO(zlib.decompressobj().decompress(data.read(), MOST_BYTES + 1))


_OPENERS: Mapping[str, Callable[[io.BytesIO], Any]] = {
    "gzip": lambda data: gzip.GzipFile(fileobj=data),
    "zlib": _inflate,
    "bz2": bz2.BZ2File,
    "lzma": lzma.LZMAFile,
    "zstd": lambda data: zstandard.ZstdDecompressor().stream_reader(data),
}


class Guard:
    """Refuses compressed chunks whose header promises another size than a chunk has, before memory is taken for it.

    Args:
        codec: what compressed them last.
        most: bytes of a decoded chunk.
    """

    def __init__(self, codec: str, most: int) -> None:
        self._codec, self._most = codec, most

    def check(self, data: bytes, where: str) -> None:
        """Look at the header of one chunk.

        Raises:
            EpisodeError: it claims more than a chunk holds.
        """
        claimed = self._claimed(data)
        if claimed is not None and claimed > self._most:
            raise EpisodeError(f"{where}: damaged: it claims {claimed} bytes, a chunk has {self._most}.")

    def _claimed(self, data: bytes) -> int | None:
        if self._codec == "blosc" and len(data) >= 16:
            return int.from_bytes(data[4:8], "little")
        if self._codec == "lz4" and len(data) >= 4:
            return int.from_bytes(data[:4], "little")
        if self._codec == "zstd":
            try:
                size = zstandard.frame_content_size(data)
            except zstandard.ZstdError:
                return None  # the decoder says what is wrong with it
            if size >= 0:
                return int(size)
        if len(data) * _STRONGEST.get(self._codec, 0) > MOST_BYTES:
            return self._counted(data)
        return None

    def _counted(self, data: bytes) -> int:
        """Bytes that come out, counted no further than is accepted."""
        total = 0
        try:
            with _OPENERS[self._codec](io.BytesIO(data)) as stream:
                while total <= self._most and (piece := stream.read(_STEP)):
                    total += len(piece)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, zstandard.ZstdError):
            return total  # the decoder says what is wrong with it
        return total


class ShardGuard:
    """Looks at the index of a shard before anybody goes where it points, and at each chunk that it holds.

    A shard of format 3 is many chunks in one file and a table of (offset, length), little- or big-endian, at its
    beginning or end; both numbers 2**64 - 1 mean that a chunk isn't there.

    Args:
        inner: what is checked of each chunk.
        shape: chunks of a shard along each axis.
        checksum: whether a check sum of four bytes follows the table.
        first: whether the table is at the beginning.
        order: ``<`` or ``>``.
        where: for messages.

    Raises:
        EpisodeError: a shard would hold an absurd number of chunks.
    """

    def __init__(
        self, inner: Guard, shape: tuple[int, ...], *, checksum: bool, first: bool, order: str, where: str
    ) -> None:
        self.inner, self.shape = inner, shape
        self._first, self._type = first, np.dtype(f"{order}u8")
        self._count = int(np.prod(shape, dtype=object))
        if self._count > _MOST_INNER:
            raise EpisodeError(f"{where}: {self._count} chunks in one shard; at most {_MOST_INNER} are accepted.")
        self._length = 16 * self._count + 4 * checksum

    def index_range(self, size: int, where: str) -> tuple[int, int]:
        """Where the table lies in a file of a size.

        Raises:
            EpisodeError: the file is too short to hold it.
        """
        if size < self._length:
            raise EpisodeError(
                f"{where}: damaged: {size} bytes cannot hold the index of a shard of {self._count} chunks."
            )
        return (0, self._length) if self._first else (size - self._length, size)

    def index(self, table: bytes, size: int, where: str) -> npt.NDArray[np.uint64]:
        """(..., 2) offsets and lengths, held against the size of the file.

        Raises:
            EpisodeError: a chunk would lie outside of the file.
        """
        found = np.frombuffer(table[: 16 * self._count], self._type).astype(np.uint64).reshape(*self.shape, 2)
        offset, length = found[..., 0], found[..., 1]
        there = ~((offset == ABSENT) & (length == ABSENT))
        wrong = there & ((offset > size) | (length > size - np.minimum(offset, np.uint64(size))))
        if wrong.any():
            begin, count = found[wrong][0].tolist()
            raise EpisodeError(f"{where}: damaged: its index puts {count} bytes at {begin}; the file has {size}.")
        return found

    def check(self, data: bytes, where: str) -> None:
        """Look at a whole shard.

        Raises:
            EpisodeError: its index or one of its chunks claims what cannot be.
        """
        start, stop = self.index_range(len(data), where)
        for begin, count in self.index(data[start:stop], len(data), where).reshape(-1, 2).tolist():
            if begin != ABSENT:
                self.inner.check(data[begin : begin + count], where)

    def check_part(self, data: bytes, start: int, size: int, where: str) -> None:
        """Look at what was read of a shard from ``start`` on: its index, or one chunk.

        Raises:
            EpisodeError: it claims what cannot be.
        """
        if (start, start + len(data)) == self.index_range(size, where):
            self.index(data, size, where)
        else:
            self.inner.check(data, where)
