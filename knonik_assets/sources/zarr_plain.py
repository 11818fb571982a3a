"""Chunks of Zarr arrays that are stored the usual way, decoded without the event loop and the copies of zarr-python.

The usual way: numbers in C order and of this machine's byte order, whole rows along time in each chunk, at most one
compressor, no filters; in files of their own or in shards. Everything else is left to zarr-python.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import zarr
from crc32c import crc32c

from knonik_assets.sources.arrays import bounded
from knonik_assets.sources.store_files import Files
from knonik_assets.sources.zarr_codecs import sharding_of
from knonik_assets.sources.zarr_guard import ABSENT, Guard, ShardGuard
from knonik_loader.errors import EpisodeError

__all__ = ["PlainChunks", "plain_chunks"]

Chunk = npt.NDArray[Any] | None
"""Rows as stored; None where the chunk is not there."""
_Decode = Callable[[bytes], Any]
_CODECS: Mapping[str, Callable[[], Any]] = {
    "blosc": numcodecs.Blosc,
    "gzip": numcodecs.GZip,
    "zstd": numcodecs.Zstd,
}
"""Of format 3: what is in the metadata matters to the encoder alone."""


def plain_chunks(
    array: zarr.Array, meta: Mapping[str, Any], version: int, files: Files, folder: str, guard: Guard | ShardGuard
) -> PlainChunks | None:
    """How to decode an array's chunks; None where zarr-python has to.

    Args:
        array: as zarr-python opened it.
        meta: its metadata.
        version: of the format.
        files: of the store.
        folder: of the array.
        guard: looks at chunks before they are decoded.
    """
    dtype, shape = np.dtype(array.dtype), array.shape
    chunk = tuple(int(side) for side in array.chunks)
    outer = tuple(int(side) for side in (array.shards or array.chunks))
    if not shape or 0 in chunk or chunk[1:] != tuple(shape[1:]) or outer[1:] != chunk[1:]:
        return None
    if dtype.kind not in "biuf" or not dtype.isnative:
        return None
    sharding = sharding_of(meta) if version == 3 else None
    if (sharding is None) != (array.shards is None):
        return None
    decode = _format_2(meta) if version == 2 else _format_3((sharding or meta)["codecs"], dtype)
    return None if decode is None else PlainChunks(array, files, folder, guard, decode)


def _format_2(meta: Mapping[str, Any]) -> _Decode | None:
    compressor = meta.get("compressor")
    if meta.get("order", "C") != "C" or meta.get("filters"):
        return None
    if compressor is None:
        return _as_it_is
    if compressor.get("id") not in ("blosc", "gzip", "lz4", "zlib", "zstd"):
        return None
    found: _Decode = numcodecs.get_codec(dict(compressor)).decode
    return found


def _format_3(chain: Sequence[Mapping[str, Any]], dtype: np.dtype[Any]) -> _Decode | None:
    names = [codec.get("name") for codec in chain]
    endian = (chain[0].get("configuration") or {}).get("endian") if chain else None
    if names[:1] != ["bytes"] or (dtype.itemsize > 1 and endian != sys.byteorder):
        return None
    if names[1:] == []:
        return _as_it_is
    if len(names) != 2 or names[1] not in _CODECS:
        return None
    found: _Decode = _CODECS[str(names[1])]().decode
    return found


def _as_it_is(data: bytes) -> bytes:
    return data


class PlainChunks:
    """Decodes chunks of whole rows, one after another along time. Thread-safe."""

    def __init__(
        self, array: zarr.Array, files: Files, folder: str, guard: Guard | ShardGuard, decode: _Decode
    ) -> None:
        self.along = int(array.chunks[0])
        """Rows of a chunk."""
        self._dtype, self._shape = np.dtype(array.dtype), tuple(int(side) for side in array.chunks)
        self.nbytes = math.prod(self._shape) * self._dtype.itemsize
        """Of a decoded chunk."""
        self._key = array.metadata.encode_chunk_key
        self._rest = (0,) * (len(self._shape) - 1)
        self._files, self._folder, self._guard, self._decode = files, folder, guard, decode

    def chunks(self, start: int, stop: int) -> Iterator[tuple[int, Callable[[], Chunk]]]:
        """The first row of every chunk that holds some rows, and what reads and decodes it.

        What is called raises `EpisodeError`, or what a codec raises on damaged data.
        """
        shard: tuple[int, _Shard] | None = None
        for chunk in range(start // self.along, -(-stop // self.along)):
            first = chunk * self.along
            if isinstance(self._guard, ShardGuard):
                many = math.prod(self._guard.shape)
                if shard is None or shard[0] != chunk // many:
                    shard = chunk // many, _Shard(self._files, self._name(chunk // many), self._guard)
                yield first, self._of_shard(shard[1], chunk % many)
            else:
                yield first, self._of_file(self._name(chunk), self._guard)

    def _name(self, place: int) -> str:
        return f"{self._folder}/{self._key((place, *self._rest))}"

    def _of_file(self, name: str, guard: Guard) -> Callable[[], Chunk]:
        def load() -> Chunk:
            data = self._files.read(name)
            return None if data is None else self._decoded(data, guard, f"{self._files.where}/{name}")

        return load

    def _of_shard(self, shard: _Shard, place: int) -> Callable[[], Chunk]:
        def load() -> Chunk:
            data = shard.part(place)
            return None if data is None else self._decoded(data, shard.guard.inner, shard.where)

        return load

    def _decoded(self, data: bytes, guard: Guard, where: str) -> npt.NDArray[Any]:
        guard.check(data, where)
        bounded(self.nbytes, where)
        raw = memoryview(self._decode(data)).cast("B")
        if len(raw) != self.nbytes:
            raise EpisodeError(f"{where}: damaged: {len(raw)} bytes come out of it, a chunk has {self.nbytes}.")
        return np.frombuffer(raw, self._dtype).reshape(self._shape)


class _Shard:
    """One shard: its table is read once, when the first of its chunks is wanted."""

    def __init__(self, files: Files, name: str, guard: ShardGuard) -> None:
        self.guard = guard
        self.where = f"{files.where}/{name}"
        self._files, self._name = files, name
        self._lock = threading.Lock()
        self._table: npt.NDArray[np.uint64] | None = None
        self._size: int | None = None
        self._whole: bytes | None = None

    def part(self, place: int) -> bytes | None:
        """The bytes of one chunk as stored; None where it is not there.

        Raises:
            EpisodeError: damaged.
        """
        with self._lock:
            if self._table is None:
                self._open()
            table = self._table
        if table is None:
            return None
        begin, count = table[place].tolist()
        if begin == ABSENT:
            return None
        if self._whole is not None:
            return self._whole[begin : begin + count]
        return self._files.part(self._name, begin, begin + count)

    def _open(self) -> None:
        """Read the table; where a part of a file costs as much as all of it, all of it is kept."""
        if not self._files.cheap_parts:
            self._whole = self._files.read(self._name)
        size = self._files.size(self._name)
        if size is None:
            return
        start, stop = self.guard.index_range(size, self.where)
        table = self._whole[start:stop] if self._whole is not None else self._files.part(self._name, start, stop)
        if table is None:
            return
        self._table = self.guard.index(table, size, self.where).reshape(-1, 2)
        said = table[16 * len(self._table) :]
        if said and int.from_bytes(said, "little") != crc32c(table[: -len(said)]):
            raise EpisodeError(f"{self.where}: damaged: its index fails its check sum.")
