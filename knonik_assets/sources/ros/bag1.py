"""ROS 1 bags, format 2.0 (http://wiki.ros.org/Bags/Format/2.0), indexed or not, whole or cut off."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from knonik_assets.sources.ros.compression import decompress, recover
from knonik_assets.sources.ros.files import MAX_BLOCK, BagFile, BlockCache, Channel, Cursor, EndOfDataError, Found, Need
from knonik_loader.errors import EpisodeError

__all__ = ["MAGIC", "Bag1"]

MAGIC = b"#ROSBAG V2.0\n"
_MESSAGE, _BAG, _CHUNK, _CHUNK_INFO, _CONNECTION = 2, 3, 5, 6, 7
_LONGEST_HEADER = 1 << 20
_U32 = struct.Struct("<I")
_TIME = struct.Struct("<II")

Fields = dict[bytes, bytes]


class Bag1:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._file = BagFile(path)
        self._channels: dict[int, Channel] = {}
        self._counts: dict[int, int] = {}
        self._declared: dict[int, int] = {}
        self._blocks: dict[int, tuple[int, str, int]] = {}
        self._cache = BlockCache(self._load)
        self._index_at = 0
        self._rest: dict[int, bytes] = {}
        """Of a chunk in which the file ends, what can be decompressed."""
        self._orphans = 0

    def scan(self, need: Need) -> Iterator[Found]:
        """See `Container.scan`."""
        self._counts, self._declared, self._orphans = {}, {}, 0
        cursor = self._file.cursor(0, self._file.size)
        try:
            magic = bytes(cursor.take(len(MAGIC)))
        except EndOfDataError:
            magic = b""
        if magic != MAGIC:
            raise EpisodeError(f"{self.path}: no ROS 1 bag of format 2.0; it begins with {magic[:13]!r}.")
        start = cursor.pos
        try:
            while cursor.left:
                start = cursor.pos
                yield from self._record(cursor, need, -1)
        except EndOfDataError:
            self._cut_off(start)
        except EpisodeError:
            raise
        except (struct.error, KeyError, ValueError) as error:
            raise EpisodeError(f"{self.path}: damaged: the record at byte {start} makes no sense.") from error
        self._check()

    def _cut_off(self, start: int) -> None:
        """The file ends inside a record: recording was killed or the copy is partial. Or a length is wrong."""
        if 0 < self._index_at < self._file.size:
            raise EpisodeError(
                f"{self.path}: damaged: the record at byte {start} leads beyond the file, which was closed as a whole."
            )
        count = sum(self._counts.values())
        self.warnings.append(
            f"{self.path}: is cut off in the record at byte {start} of {self._file.size}; the {count} messages before "
            "it are read"
        )

    def _check(self) -> None:
        for number, declared in self._declared.items():
            found = self._counts.get(number, 0)
            if found != declared:
                topic = self._channels[number].topic if number in self._channels else f"connection {number}"
                raise EpisodeError(f"{self.path}: its index counts {declared} messages of {topic}, {found} are there.")
        if not self._declared and self._counts and not self.warnings:
            self.warnings.append(f"{self.path}: was not closed by its recorder (no index); all its messages are read")
        if self._orphans:
            self.warnings.append(f"{self.path}: {self._orphans} messages belong to no connection and are left out")

    def _record(self, cursor: Cursor, need: Need, block: int) -> Iterator[Found]:
        length = _U32.unpack(cursor.take(4))[0]
        if length > _LONGEST_HEADER:
            if length > cursor.left:
                raise EndOfDataError
            raise ValueError(length)
        fields = _fields(cursor.take(length))
        size = _U32.unpack(cursor.take(4))[0]
        kind = fields[b"op"][0]
        if kind == _MESSAGE:
            number = _U32.unpack(fields[b"conn"])[0]
            channel = self._channels.get(number)
            offset = cursor.pos
            if size > MAX_BLOCK and size <= cursor.left:
                raise EpisodeError(f"{self.path}: a message of {size:,} bytes at byte {offset}; too large to be read.")
            data = cursor.head(size, 0 if channel is None else need(channel))
            if channel is None:
                self._orphans += 1
                return
            seconds, nanoseconds = _TIME.unpack(fields[b"time"])
            self._counts[number] = self._counts.get(number, 0) + 1
            yield Found(channel, seconds * 1_000_000_000 + nanoseconds, block, offset, size, data)
        elif kind == _CONNECTION:
            self._connect(fields, _fields(cursor.take(size)))
        elif kind == _CHUNK and block < 0:
            yield from self._chunk(cursor, fields, size, need)
        else:
            if kind == _CHUNK_INFO:
                self._count(cursor.take(size))
            else:
                if kind == _BAG:
                    self._opening(fields)
                cursor.skip(size)

    def _opening(self, fields: Fields) -> None:
        if fields.get(b"encryptor"):
            raise EpisodeError(f"{self.path}: is encrypted by {fields[b'encryptor'].decode(errors='replace')}.")
        self._index_at = struct.unpack("<Q", fields[b"index_pos"])[0]

    def _count(self, data: memoryview) -> None:
        for number, count in struct.iter_unpack("<II", data):
            self._declared[number] = self._declared.get(number, 0) + count

    def _connect(self, fields: Fields, about: Fields) -> None:
        number = _U32.unpack(fields[b"conn"])[0]
        topic = fields[b"topic"].decode()
        channel = Channel(
            topic="/" * topic.startswith("/") + "/".join(filter(None, topic.split("/"))),
            type=about[b"type"].decode(),
            encoding="ros1",
            schema_encoding="ros1msg",
            definition=about[b"message_definition"],
        )
        known = self._channels.setdefault(number, channel)
        if known != channel:
            raise EpisodeError(f"{self.path}: connection {number} is both {known.topic} and {channel.topic}.")

    def _chunk(self, cursor: Cursor, fields: Fields, size: int, need: Need) -> Iterator[Found]:
        how = fields[b"compression"].decode()
        at = cursor.pos
        if how == "none":
            inner = self._file.nested(cursor, size)
            while inner.left:
                yield from self._record(inner, need, -1)
            cursor.skip(size)
            return
        content = _U32.unpack(fields[b"size"])[0]
        if size > cursor.left:  # the file ends inside this chunk: what is before that is read
            self._rest[at] = recover(self._file.read(at, cursor.left), how, content)
            inner = Cursor(memoryview(self._rest[at]), 0, len(self._rest[at]))
            while True:
                yield from self._record(inner, need, at)
        self._blocks[at] = (size, how, content)
        data = memoryview(self._cache.get(at))
        inner = Cursor(data, 0, len(data))
        try:
            while inner.left:
                yield from self._record(inner, need, at)
        except EndOfDataError as error:
            raise EpisodeError(f"{self.path}: damaged: the chunk at byte {at} ends inside a record.") from error
        cursor.skip(size)

    def _load(self, block: int) -> bytes:
        size, how, content = self._blocks[block]
        if size > MAX_BLOCK:
            raise EpisodeError(f"{self.path}: a compressed chunk of {size:,} bytes; up to {MAX_BLOCK:,} are read.")
        return decompress(self._file.read(block, size), how, content, f"{self.path}, chunk at byte {block}")

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


def _fields(data: memoryview) -> Fields:
    """``name=value`` fields of a record header."""
    raw, at, out = bytes(data), 0, {}
    while at < len(raw):
        length = _U32.unpack_from(raw, at)[0]
        name, found, value = raw[at + 4 : at + 4 + length].partition(b"=")
        if not found or at + 4 + length > len(raw):
            raise ValueError(name)
        out[name] = value
        at += 4 + length
    return out
