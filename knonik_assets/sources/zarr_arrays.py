"""Zarr arrays, format 2 and 3, as arrays of rows."""

from __future__ import annotations

import hashlib
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from lzma import LZMAError
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zarr

from knonik_assets.sources.arrays import MOST_BYTES, Array, Path, bounded
from knonik_assets.sources.read_ahead import read_ahead
from knonik_assets.sources.store_files import Files
from knonik_assets.sources.zarr_codecs import check_codecs, chunk_guard
from knonik_assets.sources.zarr_files import FilesStore
from knonik_assets.sources.zarr_guard import ABSENT, ShardGuard
from knonik_assets.sources.zarr_pictures import PictureArray, picture_codec
from knonik_assets.sources.zarr_plain import Chunk, PlainChunks, plain_chunks
from knonik_loader.errors import EpisodeError, KnonikError

__all__ = ["ZarrArray", "attributes", "has_array", "scan", "single_values"]

_FAULTS = (
    OSError, EOFError, RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError,
    AssertionError, MemoryError, zlib.error, LZMAError, struct.error,
)  # fmt: skip
"""What Zarr and its codecs raise on damaged data, whichever layer notices."""
_READ_BYTES = 8 << 20
"""Several small chunks are read at once, up to this much."""
_AHEAD_BYTES = 16 << 20
"""Decoded chunks that wait for whoever reads the stream, about; chunks twice as large wait in pairs."""
_CALL_BYTES = 2 << 20
"""Small chunks that one thread decodes in a row."""
_CHUNK = re.compile(r"\d+(\.\d+)*")
_DEEPEST, _MOST_ARRAYS, _MOST_AXES = 16, 4096, 16


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what Zarr raises on damaged data into an `EpisodeError` that says where."""
    try:
        yield
    except KnonikError:
        raise
    except _FAULTS as error:
        reason = str(error).strip("'\"") or type(error).__name__
        raise EpisodeError(f"{where}: damaged or unreadable Zarr data: {reason[:300]}.") from error


def attributes(files: Files, folder: str = "") -> Mapping[str, Any]:
    """What a group says about itself; empty where it says nothing.

    Raises:
        EpisodeError: its metadata is damaged.
    """
    at = f"{folder}/" if folder else ""
    three = files.json(f"{at}zarr.json")
    found = three.get("attributes") if three is not None else files.json(f"{at}.zattrs")
    return found if isinstance(found, dict) else {}


def has_array(files: Files, folder: str) -> bool:
    """Whether a folder is that of an array."""
    if files.size(f"{folder}/.zarray") is not None:
        return True
    return files.size(f"{folder}/zarr.json") is not None and _format(files, folder) == 3


def _format(files: Files, folder: str) -> Literal[2, 3] | None:
    """The Zarr format of the array in a folder; None where there is no array."""
    three = files.json(f"{folder}/zarr.json")
    if three is not None:
        return 3 if three.get("node_type") == "array" else None
    return 2 if files.size(f"{folder}/.zarray") is not None else None


def scan(files: Files, where: str, folder: str = "") -> dict[Path, Array]:
    """Every array below a folder by its path, in natural order.

    Raises:
        EpisodeError: damaged metadata, or a link leads out of the store.
    """
    store = FilesStore(files)
    found: dict[Path, Array] = {}

    def visit(path: Path) -> None:
        at = "/".join(part for part in (folder, *path) if part)
        if len(path) > _DEEPEST or len(found) > _MOST_ARRAYS:
            raise EpisodeError(f"{where}: more than {_MOST_ARRAYS} arrays, or folders {_DEEPEST} deep; no episode.")
        for name in files.children(at)[0]:
            here = f"{at}/{name}" if at else name
            version = _format(files, here)
            if version is not None:
                found[(*path, name)] = open_array(store, files, here, version, f"{where}: {'.'.join((*path, name))}")
            elif not name.startswith((".", "__")):
                if any(_CHUNK.fullmatch(file) for file in files.children(here)[1]):
                    raise EpisodeError(
                        f"{where}: {'.'.join((*path, name))} holds chunks of an array, but what describes them "
                        "(.zarray or zarr.json) is missing (an interrupted copy?)."
                    )
                visit((*path, name))

    visit(())
    return found


def single_values(arrays: Mapping[Path, Array]) -> Callable[[str], Any]:
    """What arrays of one number or text at the top say, by their names: some recorders have no attributes."""

    def value(name: str) -> Any:  # noqa: ANN401 - a number or text
        array = arrays.get((name,))
        return array.value() if isinstance(array, ZarrArray) else None

    return value


def open_array(store: FilesStore, files: Files, folder: str, version: Literal[2, 3], where: str) -> Array:
    """One array. Its codecs are looked up now, its chunks are read later.

    Raises:
        EpisodeError: damaged or absurd metadata.
    """
    meta = files.json(f"{folder}/{'zarr.json' if version == 3 else '.zarray'}") or {}
    shape = meta.get("shape")
    if not (isinstance(shape, list) and len(shape) <= _MOST_AXES and all(_is_count(side) for side in shape)):
        raise EpisodeError(f"{where}: damaged metadata: shape is {str(shape)[:80]}.")
    if version == 2 and (codec := picture_codec(meta)) is not None:
        return PictureArray(files, folder, meta, codec, where)
    check_codecs(meta, version, where)
    with reading(where):
        array = zarr.open_array(store=store, path=folder, mode="r", zarr_format=version)
        return ZarrArray(array, files, folder, store, meta, version, where)


def _is_count(value: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48


def _all(calls: list[Callable[[], npt.NDArray[Any]]]) -> list[npt.NDArray[Any]]:
    return [call() for call in calls]


class ZarrArray(Array):
    """An array that zarr-python opens; what is stored the usual way is decoded here, the rest by zarr-python."""

    def __init__(
        self,
        array: zarr.Array,
        files: Files,
        folder: str,
        store: FilesStore,
        meta: Mapping[str, Any],
        version: int,
        where: str,
    ) -> None:
        dtype = np.dtype(array.dtype)
        shape = tuple(int(side) for side in array.shape)
        grid = tuple(int(side) for side in (array.shards or array.chunks))
        self._grid = tuple(max(1, side) for side in grid)
        itemsize = max(1, dtype.itemsize)
        self._chunk_bytes = math.prod(self._grid) * itemsize
        along = self._grid[0] if self._grid else 1
        if array.shards and files.cheap_parts:
            along = max(1, int(array.chunks[0]))  # a shard may hold hundreds of pictures
        row_bytes = itemsize * math.prod(shape[1:])
        at_once = max(1, _READ_BYTES // max(1, along * row_bytes)) * along
        texts = dtype.kind in "OTSV" and len(shape) == 1 and not dtype.names
        super().__init__(where, dtype, shape, block=at_once, holds_bytes=texts)
        self._array, self._files, self._folder = array, files, folder
        inner = math.prod(int(side) for side in array.chunks) * itemsize
        most = MOST_BYTES if dtype.kind in "OT" else min(MOST_BYTES, 8 * inner + 4096)
        self._guard = store.guards[f"{folder}/"] = chunk_guard(array, meta, version, most, where)
        self._fill: Any = array.metadata.fill_value
        self._plain = plain_chunks(array, meta, version, files, folder, self._guard)

    def _files_of(self, start: int, stop: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Files of the chunks (or shards) that hold some rows, and their places in the grid."""
        along = self._grid[0]
        others = [range(-(-side // chunk)) for side, chunk in zip(self.shape[1:], self._grid[1:], strict=True)]
        for first in range(start // along, -(-stop // along)):
            for rest in np.ndindex(*(len(axis) for axis in others)):
                yield f"{self._folder}/{self._array.metadata.encode_chunk_key((first, *rest))}", (first, *rest)

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`."""
        bounded(max(self._chunk_bytes, (stop - start) * math.prod(self.shape[1:]) * self.dtype.itemsize), self.where)
        if self._plain is not None and start < min(stop, self.shape[0]):
            pieces = _all(list(self._plain_rows(self._plain, start, min(stop, self.shape[0]))))
            return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        with reading(f"{self.where}, rows from {start}"):
            found = np.asarray(self._array[start:stop])
        if found.dtype.kind == "T":
            found = found.astype(object)
        return found

    def _plain_rows(self, plain: PlainChunks, start: int, stop: int) -> Iterator[Callable[[], npt.NDArray[Any]]]:
        """What reads and decodes the wanted rows of each chunk."""
        for first, load in plain.chunks(start, stop):
            yield partial(self._plain_chunk, load, first, max(start, first), min(stop, first + plain.along))

    def _plain_chunk(self, load: Callable[[], Chunk], first: int, start: int, stop: int) -> npt.NDArray[Any]:
        with reading(f"{self.where}, rows from {start}"):
            found = load()
            if found is None:  # zarr knows what a chunk that isn't there means
                found, first = np.asarray(self._array[start:stop]), start
        return found[start - first : stop - first]

    def stream_rows(self, start: int, stop: int) -> Iterator[npt.NDArray[Any]]:
        """See `Array.stream_rows`. Chunks are decoded ahead, several at once."""
        if self._plain is None:
            yield from super().stream_rows(start, stop)
            return
        calls = self._plain_rows(self._plain, start, stop)
        many = max(1, _CALL_BYTES // self._plain.nbytes)
        size = many * self._plain.nbytes
        groups = iter(lambda: list(islice(calls, many)), [])
        held = max(2, _AHEAD_BYTES // size) if size <= 2 * _AHEAD_BYTES else 1
        for pieces in read_ahead((partial(_all, group) for group in groups), held):
            for piece in pieces:
                yield from piece

    def absent(self, start: int, stop: int) -> tuple[int, int]:
        """How many of the chunks that hold some rows are missing, and how many there should be."""
        wanted, missing = 0, 0
        for key, place in self._files_of(start, stop):
            size = self._files.size(key)
            if isinstance(self._guard, ShardGuard):
                absent, there = self._absent_inner(self._guard, key, place, size, start, stop)
            else:
                absent, there = int(size is None), 1
            missing, wanted = missing + absent, wanted + there
        return missing, wanted

    def _absent_inner(
        self, guard: ShardGuard, key: str, place: tuple[int, ...], size: int | None, start: int, stop: int
    ) -> tuple[int, int]:
        """`absent` within one shard; chunks beyond the array's end don't count."""
        inner = [outer // count for outer, count in zip(self._grid, guard.shape, strict=True)]
        origin = [at * outer for at, outer in zip(place, self._grid, strict=True)]
        ends = (min(stop, self.shape[0]), *self.shape[1:])
        begins = (start, *(0 for _ in self.shape[1:]))
        box = tuple(
            slice(max(0, begin - first) // own, min(count, -(-(end - first) // own)))
            for begin, end, first, own, count in zip(begins, ends, origin, inner, guard.shape, strict=True)
        )
        there = math.prod(side.stop - side.start for side in box)
        if size is None:
            return there, there
        where = f"{self._files.where}/{key}"
        table = self._files.part(key, *guard.index_range(size, where)) or b""
        index = guard.index(table, size, where)[box]
        return int((index[..., 0] == ABSENT).sum()), there

    def value(self) -> Any:  # noqa: ANN401 - a number or text
        """The value of an array of one element; None where it has more, or isn't there."""
        if math.prod(self.shape) != 1 or self.ndim > 1 or self.dtype.itemsize > 1 << 20 or not self._is_present():
            return None
        with reading(self.where):
            found = np.asarray(self._array[...]).reshape(1)[0]
        plain = found.item() if isinstance(found, np.generic) else found
        return plain.decode("utf-8", "replace") if isinstance(plain, bytes) else plain

    def _is_present(self) -> bool:
        key = self._array.metadata.encode_chunk_key((0,) * self.ndim)
        return self._files.size(f"{self._folder}/{key}") is not None

    def _is_absent(self) -> bool:
        """Whether no chunk of the whole array is there."""
        if isinstance(self._guard, ShardGuard):
            missing, wanted = self.absent(0, self.shape[0])
            return missing == wanted
        return all(self._files.size(key) is None for key, _ in self._files_of(0, self.shape[0]))

    def check_complete(self, *, numeric: bool) -> str | None:
        """See `Array.check_complete`."""
        return self.check_rows(0, self.shape[0], numeric=numeric, where=self.where)

    def check_rows(self, start: int, stop: int, *, numeric: bool, where: str) -> str | None:
        """`check_complete` for some rows.

        A writer may leave out chunks that hold nothing but zeros, as zarr-python 3 does; a store that was copied in
        part looks just the same. Zeros are believed of numbers only, and only of a single column or of a whole array.
        """
        if not self.shape or stop <= start:
            return None
        if math.prod(-(-side // chunk) for side, chunk in zip(self.shape, self._grid, strict=True)) > 1 << 26:
            raise EpisodeError(f"{where}: damaged metadata: {self.shape} in chunks of {self._grid}.")
        missing, wanted = self.absent(start, stop)
        if not missing:
            return None
        what = f"{where}: {missing} of {wanted} chunks are missing"
        meant = math.prod(self.shape[1:]) == 1 or (missing == wanted and self._is_absent())
        if numeric and self._fill is not None and meant:
            return f"{what} and read as {self._fill}: left out by the writer as such, or lost in a copy"
        raise EpisodeError(
            f"{what} (an interrupted recording or copy) and would read as {self._fill or 'zero'}; copy the store "
            "again, or if these values are meant, write it with write_empty_chunks."
        )

    def hash_rows(self, digest: hashlib._Hash, start: int, stop: int) -> None:
        """See `Array.hash_rows`. Chunks are taken as they lie where they hold these rows alone."""
        if (start, stop) != (0, self.shape[0]) and self._grid[0] != 1:
            super().hash_rows(digest, start, stop)
            return
        for key, _ in self._files_of(start, stop):
            data = self._files.read(key)
            digest.update(b"none" if data is None else len(data).to_bytes(8, "little"))
            digest.update(data or b"")
