"""Compressed chunks are looked at before a decoder believes what they say of their own size."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import zstandard

from knonik_assets.sources.arrays import MOST_BYTES
from knonik_loader.errors import EpisodeError

__all__ = ["Guard"]

_STRONGEST = {"gzip": 1100, "zlib": 1100, "zstd": 100_000, "bz2": 100_000, "lzma": 10_000}
"""Bytes that one compressed byte can become at most, about: small chunks need no look."""
_STEP = 4 << 20


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
