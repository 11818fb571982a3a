"""What ROS 1 bags and MCAP files share: records, some of them in compressed chunks, in a file that may be cut off."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from pathlib import Path

from knonik_assets.sources.ros.compression import decompress, recover
from knonik_assets.sources.ros.files import BagFile, BlockCache, Channel, Cursor, EndOfDataError, Found, Need
from knonik_loader.errors import EpisodeError

__all__ = ["ChunkedFile"]

_BAD = (struct.error, ValueError, KeyError)


class ChunkedFile(ABC):
    """One file of records; see `Container` for what is public."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._file = BagFile(path)
        self._channels: dict[int, Channel] = {}
        self._counts: dict[int, int] = {}
        """Messages of each channel."""
        self._orphans = 0
        """Messages of no channel."""
        self._blocks: dict[int, tuple[int, str, int]] = {}
        """Place of a compressed chunk → bytes stored, how, and bytes when unpacked."""
        self._cache = BlockCache(self._load)
        self._rest: dict[int, bytes] = {}
        """Of a chunk in which the file ends, what can be decompressed."""

    @abstractmethod
    def _record(self, cursor: Cursor, need: Need, block: int) -> Iterator[Found]:
        """Take one record; ``block`` is the place of the compressed chunk it is in, or -1.

        Raises:
            EndOfDataError: the data ends within it.
            EpisodeError: damaged.
            ValueError, KeyError, struct.error: it makes no sense.
        """

    @abstractmethod
    def _cut_off(self, start: int) -> None:
        """The file ends inside the record at ``start``: warn, or raise `EpisodeError` where that cannot be."""

    @abstractmethod
    def _check_size(self, stored: int, content: int) -> None:
        """Raise `EpisodeError` where a compressed chunk is too large to be held."""

    def _records(self, cursor: Cursor, need: Need) -> Generator[Found, None, bool]:
        """The messages of all records; returns whether the last one ends where it should."""
        start = cursor.pos
        try:
            while cursor.left:
                start = cursor.pos
                yield from self._record(cursor, need, -1)
        except EndOfDataError:
            self._cut_off(start)
            return False
        except EpisodeError:
            raise
        except _BAD as error:
            raise EpisodeError(f"{self.path}: damaged: the record at byte {start} makes no sense.") from error
        return True

    def _compare(self, declared: dict[int, int], what: str, noun: str) -> None:
        """Hold counts that the file states against its messages.

        Raises:
            EpisodeError: they differ.
        """
        for number, count in declared.items():
            found = self._counts.get(number, 0)
            if found != count:
                topic = self._channels[number].topic if number in self._channels else f"{noun} {number}"
                raise EpisodeError(f"{self.path}: {what} {count} messages of {topic}, {found} are there.")
        if self._orphans:
            self.warnings.append(f"{self.path}: {self._orphans} messages belong to no {noun} and are left out")

    def _unpacked(self, at: int, stored: int, how: str, content: int) -> Cursor:
        """The records of a compressed chunk."""
        self._blocks[at] = (stored, how, content)
        data = memoryview(self._cache.get(at))
        return Cursor(data, 0, len(data))

    def _cut(self, at: int, left: int, how: str, content: int) -> Cursor:
        """The records of a chunk in which the file ends, as far as they can be unpacked."""
        self._rest[at] = recover(self._file.read(at, left), how, content)
        return Cursor(memoryview(self._rest[at]), 0, len(self._rest[at]))

    def _load(self, block: int) -> bytes:
        stored, how, content = self._blocks[block]
        self._check_size(stored, content)
        return decompress(self._file.read(block, stored), how, content, f"{self.path}, chunk at byte {block}")

    def read(self, block: int, offset: int, length: int) -> memoryview:
        """See `Container.read`."""
        if block < 0:
            return self._file.read(offset, length)
        content = self._rest[block] if block in self._rest else self._cache.get(block)
        return memoryview(content)[offset : offset + length]

    def close(self) -> None:
        """See `Container.close`."""
        self._file.close()
        self._cache.clear()
