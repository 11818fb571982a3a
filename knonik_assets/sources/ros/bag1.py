"""ROS 1 bags, format 2.0 (http://wiki.ros.org/Bags/Format/2.0), indexed or not, whole or cut off."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from knonik_assets.sources.ros.chunked import ChunkedFile
from knonik_assets.sources.ros.files import MAX_BLOCK, Channel, Cursor, EndOfDataError, Found, Need
from knonik_loader.errors import EpisodeError

__all__ = ["MAGIC", "Bag1"]

MAGIC = b"#ROSBAG V2.0\n"
_MESSAGE, _BAG, _CHUNK, _CHUNK_INFO, _CONNECTION = 2, 3, 5, 6, 7
_LONGEST_HEADER = 1 << 20
_U32 = struct.Struct("<I")
_TIME = struct.Struct("<II")

Fields = dict[bytes, bytes]


class Bag1(ChunkedFile):
    """See the module."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._declared: dict[int, int] = {}
        self._index_at = 0

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
        yield from self._records(cursor, need)
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
        if not self._declared and self._counts and not self.warnings:
            self.warnings.append(f"{self.path}: was not closed by its recorder (no index); all its messages are read")
        self._compare(self._declared, "its index counts", "connection")

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
            inner = self._cut(at, cursor.left, how, content)
            while True:
                yield from self._record(inner, need, at)
        inner = self._unpacked(at, size, how, content)
        try:
            while inner.left:
                yield from self._record(inner, need, at)
        except EndOfDataError as error:
            raise EpisodeError(f"{self.path}: damaged: the chunk at byte {at} ends inside a record.") from error
        cursor.skip(size)

    def _check_size(self, stored: int, content: int) -> None:
        if stored > MAX_BLOCK:
            raise EpisodeError(f"{self.path}: a compressed chunk of {stored:,} bytes; up to {MAX_BLOCK:,} are read.")


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
