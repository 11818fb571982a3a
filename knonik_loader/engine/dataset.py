"""An opened packed dataset: manifest, tables of its sidecar, and the indexes of its KHLP files as they are needed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from knonik_loader.config_streams import LoadedStream
from knonik_loader.engine.storage import Storage
from knonik_loader.errors import (
    ChecksumError,
    FormatError,
    TruncatedError,
)
from knonik_loader.khlp.agreement import check_file, check_tables, shards_of_files
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.manifest import Manifest, load_manifest
from knonik_loader.khlp.reader import HlpIndex, open_index
from knonik_loader.khlp.types import StreamInfo

__all__ = ["PackedDataset", "Source", "open_dataset", "read_manifest"]

T = TypeVar("T")
IntArray = npt.NDArray[np.int64]

_INDEX_BYTES = 256 << 20
"""Tails of KHLP files kept in memory where ``hlps_in_flight`` doesn't say how many."""


class PackedDataset:
    """Manifest and tables in memory, KHLP files opened when a frame of theirs is wanted; safe to share between threads.

    Args:
        storage: where the files are.
        key: of the manifest.
        manifest: checked.
        index: its tables, checked against it.
        hlps_in_flight: KHLP files whose index is kept; None: as many as `_INDEX_BYTES` hold.
    """

    def __init__(
        self, storage: Storage, key: str, manifest: Manifest, index: DatasetIndex, hlps_in_flight: int | None = None
    ) -> None:
        self.storage = storage
        self.key = key
        self.manifest = manifest
        self.index = index
        self.streams: tuple[StreamInfo, ...] = tuple(entry.info() for entry in manifest.streams)
        self.has_language = any(index.episodes.language)
        self._limit = hlps_in_flight
        self._lock = threading.Lock()
        self._opening: dict[int, threading.Lock] = {}
        self._open: OrderedDict[int, HlpIndex] = OrderedDict()
        # Numbers all frames of the dataset through; shards tile their episodes in order.
        lengths, frames = index.episodes.length, index.shards.frames
        self._episode_start = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self._shard_start = np.concatenate([[0], np.cumsum(frames, dtype=np.int64)])

    def __repr__(self) -> str:
        return f"PackedDataset({self.key!r}, {self.index!r}, profile={self.manifest.storage_profile!r})"

    def locate(self, episodes: IntArray, frames: IntArray) -> tuple[IntArray, IntArray]:
        """(n,) episode rows and (n,) frames inside them → (n,) rows of the shard table, (n,) rows inside the shards."""
        number = self._episode_start[episodes] + frames
        shard = np.searchsorted(self._shard_start, number, side="right") - 1
        return shard, number - self._shard_start[shard]

    def hlp_key(self, hlp: int) -> str:
        """Storage key of a KHLP file."""
        return self.storage.resolve(self.manifest.hlps[hlp].uri, self.key)

    def hlp_index(self, hlp: int) -> HlpIndex:
        """The index of a KHLP file, by one read of its end where it isn't open yet.

        Raises:
            FormatError: of the fitting kind: the file is damaged, or not the one that the manifest names.
            StorageError: it can't be read.
        """
        with self._lock:
            found = self._open.get(hlp)
            if found is not None:
                self._open.move_to_end(hlp)
                return found
            opening = self._opening.setdefault(hlp, threading.Lock())
        with opening:  # two threads that want one file read its end once
            with self._lock:
                found = self._open.get(hlp)
            if found is None:
                found = self._read_index(hlp)
                with self._lock:
                    self._open[hlp] = found
                    self._opening.pop(hlp, None)
                    self._evict()
        return found

    @cached_property
    def _rows_of_hlp(self) -> list[IntArray]:
        """For each file, its rows of the shard table."""
        return shards_of_files(self.index, len(self.manifest.hlps))

    def where(self, shard_row: int) -> str:
        """Manifest, file, shard and episode of a row of the shard table, for messages."""
        shards = self.index.shards
        hlp = int(shards.hlp[shard_row])
        episode = self.index.episodes.episode_id[int(shards.episode[shard_row])]
        return (
            f"{self.key}: HLP {hlp} ({self.manifest.hlps[hlp].uri}), shard {int(shards.shard[shard_row])}, "
            f"episode {episode!r}"
        )

    def close(self) -> None:
        """Forget open files."""
        with self._lock:
            self._open.clear()
        self.storage.close()

    def _read_index(self, hlp: int) -> HlpIndex:
        entry, key = self.manifest.hlps[hlp], self.hlp_key(hlp)

        def read(offset: int, length: int) -> memoryview:
            # Memory of its own: an index stays for long, and would keep the storage from using its buffers again.
            return memoryview(self.storage.read(key, offset, length))

        index = checked(self.storage, lambda: open_index(read, entry.bytes, entry.metadata_offset, key))
        check_file(self.manifest, hlp, index, self.index, self._rows_of_hlp[hlp], self.key)
        return index

    def _evict(self) -> None:
        if self._limit is not None:
            while len(self._open) > self._limit:
                self._open.popitem(last=False)
            return
        held = sum(index.nbytes for index in self._open.values())
        while held > _INDEX_BYTES and len(self._open) > 1:
            held -= self._open.popitem(last=False)[1].nbytes


@dataclass(frozen=True, slots=True)
class Source:
    """One dataset as a loader uses it."""

    name: str
    """As batches call it."""
    dataset: PackedDataset
    streams: tuple[StreamInfo, ...]
    """What is loaded, in the order of the batch's streams; as this dataset stores it."""
    bound: tuple[LoadedStream, ...] = ()
    """What becomes of each of them in the batch; empty: they stay as they are, and none is missing."""

    @classmethod
    def of(cls, name: str, dataset: PackedDataset, bound: Sequence[LoadedStream]) -> Source:
        """A dataset whose streams are changed on their way."""
        return cls(name, dataset, tuple(stream.stored or stream.batch for stream in bound), tuple(bound))

    @property
    def batch_streams(self) -> tuple[StreamInfo, ...]:
        """The streams as the batch has them."""
        return tuple(stream.batch for stream in self.bound) if self.bound else self.streams

    def lacks(self, position: int) -> bool:
        """Whether the batch has a stream that this dataset hasn't."""
        return bool(self.bound) and self.bound[position].stored is None


def open_dataset(storage: Storage, uri: str, hlps_in_flight: int | None = None) -> PackedDataset:
    """Open a packed dataset by two reads: its manifest, and the sidecar that the manifest names.

    Raises:
        StorageError: one of them can't be read.
        FormatError: of the fitting kind: one of them is damaged, or they don't belong together.
    """
    key = storage.resolve(uri)
    manifest = read_manifest(storage, key)
    index_key = storage.resolve(manifest.index.uri, key)
    index = checked(storage, lambda: _read_tables(storage, manifest, key, index_key))
    check_tables(manifest, index, key)
    return PackedDataset(storage, key, manifest, index, hlps_in_flight)


def _read_tables(storage: Storage, manifest: Manifest, key: str, index_key: str) -> DatasetIndex:
    data = storage.read_all(index_key)
    if len(data) != manifest.index.bytes:
        raise TruncatedError(
            f"{index_key} has {len(data)} bytes, {key} says {manifest.index.bytes}; copy the dataset again, as a whole."
        )
    found = crc32c(data)
    if found != manifest.index.crc32c:
        raise ChecksumError(
            f"{index_key}: crc32c is {found:08x}, {key} says {manifest.index.crc32c:08x}; copy the dataset again, as a "
            "whole."
        )
    return DatasetIndex.from_bytes(data, index_key)


def read_manifest(storage: Storage, key: str) -> Manifest:
    """Read and check a manifest.

    Raises:
        StorageError: it can't be read.
        FormatError: it isn't a manifest, contradicts itself, or is of a version that this reader doesn't know.
    """
    return checked(storage, lambda: load_manifest(storage.read_all(key), key))


def checked(storage: Storage, read: Callable[[], T]) -> T:
    """A read with its checks, done once more where a network lies between: the damage may have been done on the way.

    Raises:
        FormatError: the checks failed again.
    """
    try:
        return read()
    except FormatError:
        if not storage.remote:
            raise
    return read()
