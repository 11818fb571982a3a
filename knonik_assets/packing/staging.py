"""Where the work of a pack reads and writes: a desk for each piece, with episodes at hand and a place for its file.

On local disks a desk is nothing: episodes are read and files written where they are. What is at a URL goes through a
room of scratch space: one episode at a time with the streams that are packed, checked against its checksums when it
comes, gone when the next one is wanted; a KHLP file grows there, is uploaded whole, and is gone as well.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.episodes.remote import download_all, retelling
from knonik_assets.packing.episodes import check_digest
from knonik_assets.packing.facts import annotated, check_files, kept_reader, packed_files, read_facts
from knonik_assets.storage import ObjectFolder, ObjectInfo, Place, Room, Scratch, ScratchBusyError, check_lease, files
from knonik_loader.errors import StorageError
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.khlp.writer import ShardInput

__all__ = ["Desk", "Staging"]

Value = TypeVar("Value")

_RECORD_BYTES = 64
"""More than a record's padding and row of the index take."""
_SHARD_BYTES = 2048
"""More than a shard's padding and rows take, and of a file's only shard the rest of its tail."""


@dataclass(frozen=True, slots=True)
class Staging:
    """The ends of a pack; picklable, and small."""

    source: Place
    """The folder of episodes."""
    out: Place
    """The output directory."""
    folder: Place
    """Where the KHLP files of this generation go."""
    scratch: Scratch | None = None
    """None: both ends are local."""
    holder: str = ""
    """Of the lease on the output, where that is remote."""

    def work(self, what: str, do: Callable[[Desk], Value], *, pinned: bool = False) -> Value:
        """Do a piece of work at a desk of its own, and again from the start where scratch space was too crowded.

        Args:
            what: the name of the file that is made, or of the episode that is looked at.
            do: the work.
            pinned: see `Scratch.room`.

        Raises:
            StorageError: there is not enough scratch space for it alone.
        """
        size = 0
        while True:
            try:
                with self._room(size, what, pinned=pinned) as room:
                    return do(Desk(self, room))
            except ScratchBusyError as busy:
                size = busy.size

    @contextmanager
    def _room(self, size: int, what: str, *, pinned: bool) -> Iterator[Room | None]:
        if self.scratch is None:
            yield None
            return
        with self.scratch.room(size, str(self.folder / what), pinned=pinned) as room:
            yield room

    def fetched(self, name: str, look: Callable[[Path], Value]) -> Value:
        """Look at a file of the output that is there already, on a local disk.

        Raises:
            StorageError: it is gone, or cannot be read.
        """
        place = self.folder / name
        if not place.is_remote:
            return look(place.path)

        def fetch_and_look(desk: Desk) -> Value:
            folder = ObjectFolder(self.folder)
            info = folder.head(name)
            if info is None:
                raise StorageError(f"{place} was removed while it was looked at.")
            desk.claim(info.size, str(place))
            path = desk.path(name)
            folder.download(name, path, info)
            with retelling(path, str(place)):
                return look(path)

        return self.work(name, fetch_and_look)

    def remove(self, name: str) -> None:
        """Remove a file of this generation."""
        files.remove([self.folder / name])


class Desk:
    """One piece of work; made by `Staging.work`."""

    def __init__(self, staging: Staging, room: Room | None) -> None:
        self._staging, self._room = staging, room
        self._used = 0
        self._lock = threading.Lock()

    def claim(self, size: int, what: str) -> None:
        """Make room for so many bytes more.

        Raises:
            StorageError: see `Room.grow`.
        """
        if self._room is not None:
            with self._lock:  # one thread may read ahead while another writes
                if self._used + size > self._room.size:
                    self._room.grow(self._used + size - self._room.size, what)
                self._used += size

    @contextmanager
    def episode(self, name: str, digest: bytes, streams: Sequence[StreamInfo]) -> Iterator[EpisodeReader]:
        """An episode to read while the block runs: its clock, annotations and these streams.

        Args:
            name: the episode's.
            digest: of its `EpisodeFacts`.
            streams: what is going to be read.

        Raises:
            EpisodeError: it was replaced, or differs from its checksums.
            StorageError: it cannot be read, or does not fit into scratch space.
        """
        source = self._staging.source
        if not source.is_remote:
            yield kept_reader(source.path / name, digest)
            return
        assert self._room is not None
        url, folder = str(source / name), ObjectFolder(source)
        there = {info.key[len(name) + 1 :]: info for info in folder.objects(name)}
        begin = packed_files(streams)
        wanted = [info for file, info in there.items() if file == METADATA or annotated(file) or file.startswith(begin)]
        size = sum(info.size for info in wanted)
        self.claim(size, url)
        staged = self._room.folder / name
        try:
            download_all(folder, wanted, self._room.folder)
            with retelling(staged, url):
                facts = read_facts(staged, {file: info.size for file, info in there.items()})
                check_digest(facts, digest, url)
                reader = EpisodeReader(staged)
                check_files(reader, begin)
                yield reader
        finally:
            shutil.rmtree(staged, ignore_errors=True)
            with self._lock:
                self._used -= size

    def path(self, name: str) -> Path:
        """Where to write a file of this generation."""
        folder = self._staging.folder
        if not folder.is_remote:
            return folder.path / name
        assert self._room is not None
        return self._room.folder / name

    def shards(self, shards: Iterable[ShardInput], name: str) -> Iterable[ShardInput]:
        """The same shards, with room made for each before the file that they go into grows."""
        return self._with_room(shards, name) if self._staging.folder.is_remote else shards

    def _with_room(self, shards: Iterable[ShardInput], name: str) -> Iterator[ShardInput]:
        for shard in shards:
            records = [record for rows in shard.records.values() for record in rows]
            size = sum(len(record.data) + _RECORD_BYTES for record in records) + 8 * len(shard.times) + _SHARD_BYTES
            self.claim(size, str(self._staging.folder / name))
            yield shard

    def publish(self, name: str) -> ObjectInfo | None:
        """Put a finished file in its place; None where it was written there.

        Raises:
            StorageError: another run took the output over, or the store refuses.
        """
        staging = self._staging
        if not staging.folder.is_remote:
            return None
        check_lease(ObjectFolder(staging.out), staging.holder)
        return ObjectFolder(staging.folder).upload(self.path(name), name)
