"""HDF5 datasets and groups as arrays and trees."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from knonik_assets.sources.arrays import Array, Path, Tree, as_bytes, bounded
from knonik_assets.sources.hdf5_paths import find, reading, walk
from knonik_loader.errors import EpisodeError

__all__ = ["Hdf5Array", "Hdf5Tree", "check_written", "hash_dataset"]

_MOST_ROWS = 16
_MOST_BYTES = 4 << 20
"""Rows of bytes are read a few at once: a call of the library costs more than a small row."""


class Hdf5Tree(Tree):
    """The datasets below one group."""

    def __init__(self, root: h5py.Group, where: str) -> None:
        self._root, self._where = root, where

    def walk(self) -> Sequence[tuple[Path, Array]]:
        """See `Tree.walk`."""
        return [(path, self._array(path, dataset)) for path, dataset in walk(self._root, self._where)]

    def find(self, key: str) -> tuple[Path, Array] | None:
        """See `Tree.find`."""
        found = find(self._root, key, self._where)
        return None if found is None else (found[0], self._array(*found))

    def _array(self, path: Path, dataset: h5py.Dataset) -> Array:
        return Hdf5Array(dataset, f"{self._where}: {'.'.join(path)}")


class Hdf5Array(Array):
    """One dataset; readable as long as its file is open."""

    def __init__(self, dataset: h5py.Dataset, where: str) -> None:
        with reading(where):
            shape = tuple(int(side) for side in dataset.shape or ())
            block = dataset.chunks[0] if dataset.chunks else 1
            holds_bytes = len(shape) == 1 and _is_bytes(dataset.dtype)
            super().__init__(where, dataset.dtype, shape, block=block, holds_bytes=holds_bytes)
            if dataset.chunks and len(shape) and not holds_bytes:
                self._chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
            else:
                self._chunk_bytes = 0
        self._dataset = dataset

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`."""
        size = (stop - start) * math.prod(self.shape[1:]) * self.dtype.itemsize
        bounded(max(size, self._chunk_bytes), self.where)
        with reading(f"{self.where}, rows from {start}"):
            found: npt.NDArray[Any] = self._dataset[start:stop]
        return found

    def row_bytes(self, index: int) -> bytes:
        """See `Array.row_bytes`."""
        with reading(f"{self.where}, row {index}"):
            return as_bytes(self._dataset[index])

    def each_row_bytes(self) -> Iterator[bytes]:
        """See `Array.each_row_bytes`."""
        at, count = 0, 1
        while at < self.shape[0]:
            stop = min(at + count, self.shape[0])
            try:
                with reading(f"{self.where}, row {at}"):
                    found = [as_bytes(row) for row in self._dataset[at:stop]]
            except EpisodeError:
                # one of them is damaged: those before it come first
                for index in range(at, stop):
                    yield self.row_bytes(index)
            else:
                yield from found
                count = max(1, min(_MOST_ROWS, 2 * count, _MOST_BYTES // max(1, *map(len, found))))
            at = stop

    def check_complete(self, *, numeric: bool) -> str | None:
        """See `Array.check_complete`."""
        return check_written(self._dataset, self.where, numeric=numeric)

    def hash_into(self, digest: hashlib._Hash) -> None:
        """See `Array.hash_into`."""
        hash_dataset(self._dataset, digest, self.where)


def _is_bytes(dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "SV" and not dtype.names:
        return True
    return h5py.check_vlen_dtype(dtype) in (np.uint8, np.int8) or h5py.check_string_dtype(dtype) is not None


def check_written(dataset: h5py.Dataset, where: str, *, numeric: bool) -> str | None:
    """Refuse what nobody wrote: HDF5 reads it as zeros without a word.

    Args:
        dataset: to look at.
        where: for messages.
        numeric: whether it is read as numbers: a column that nobody wrote to but now and then, or an array that was
            made and never used, may be meant.

    Returns:
        A warning, or None.

    Raises:
        EpisodeError: parts of the dataset were never written.
    """
    with reading(where):
        if dataset.is_virtual or not dataset.size:
            return None
        if dataset.chunks is None:
            missing, wanted = (0, 1) if dataset.id.get_storage_size() else (1, 1)
        else:
            wanted = math.prod(-(-side // chunk) for side, chunk in zip(dataset.shape, dataset.chunks, strict=True))
            missing = wanted - dataset.id.get_num_chunks()
        if missing <= 0:
            return None
        what = f"{where}: {f'{missing} of {wanted} chunks were' if dataset.chunks else 'was'} never written"
        if numeric and (missing == wanted or math.prod(dataset.shape[1:]) == 1):
            return f"{what} and read{'' if dataset.chunks else 's'} as {dataset.fillvalue}"
    raise EpisodeError(f"{what} (an interrupted recording).")


def hash_dataset(dataset: h5py.Dataset, digest: hashlib._Hash, where: str) -> None:
    """Feed type, shape and content to a digest; compressed chunks as they lie, so nothing is decompressed."""
    with reading(where):
        digest.update(f"{dataset.dtype.str}{dataset.shape}{dataset.chunks}".encode())
        if dataset.chunks is not None and dataset.dtype.kind != "O":
            places: list[tuple[int, ...]] = []
            dataset.id.chunk_iter(lambda info: places.append(info.chunk_offset))
            for place in sorted(places):
                _, chunk = dataset.id.read_direct_chunk(place)
                digest.update(f"{place}{len(chunk)}".encode())
                digest.update(chunk)
            return
    for index in range(dataset.shape[0] if dataset.shape else 0):
        with reading(f"{where}, row {index}"):
            row = (
                as_bytes(dataset[index])
                if dataset.dtype.kind == "O"
                else np.ascontiguousarray(dataset[index]).tobytes()
            )
        digest.update(len(row).to_bytes(8, "little"))
        digest.update(row)
