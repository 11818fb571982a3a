"""MCAP files (https://mcap.dev/spec) of any profile, with or without footer, whole or cut off."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from knonik_assets.sources.ros.chunked import ChunkedFile
from knonik_assets.sources.ros.files import MAX_BLOCK, Channel, Cursor, EndOfDataError, Found, Need
from knonik_loader.errors import EpisodeError

__all__ = ["MAGIC", "Mcap"]

MAGIC = b"\x89MCAP0\r\n"
_FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _STATISTICS, _DATA_END = 0x02, 0x03, 0x04, 0x05, 0x06, 0x0B, 0x0F
_RECORD = struct.Struct("<BQ")
_MESSAGE_HEAD = struct.Struct("<HIQQ")
_CHUNK_HEAD = struct.Struct("<QQQI")
_LONGEST_SCHEMA = 1 << 24


class _Schema(NamedTuple):
    name: str
    encoding: str
    data: bytes


class Mcap(ChunkedFile):
    """See the module."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._schemas: dict[int, _Schema] = {0: _Schema("", "", b"")}
        self._declared: dict[int, int] = {}
        self._closed = self._ended = False

    def scan(self, need: Need) -> Iterator[Found]:
        """See `Container.scan`."""
        self._counts, self._declared, self._orphans, self._ended = {}, {}, 0, False
        size = self._file.size
        self._closed = size >= 2 * len(MAGIC) and bytes(self._file.read(size - len(MAGIC), len(MAGIC))) == MAGIC
        cursor = self._file.cursor(0, size - len(MAGIC) if self._closed else size)
        magic = bytes(cursor.take(min(len(MAGIC), cursor.left)))
        if magic != MAGIC:
            raise EpisodeError(f"{self.path}: no MCAP file; it begins with {magic!r}.")
        whole = yield from self._records(cursor, need)
        if whole and not self._closed:
            self._cut_off(size)
        self._compare(self._declared, "its statistics say", "channel")

    def _cut_off(self, start: int) -> None:
        if self._closed:
            raise EpisodeError(
                f"{self.path}: damaged: the record at byte {start} leads beyond the file, which was closed as a whole."
            )
        count = sum(self._counts.values())
        self.warnings.append(
            f"{self.path}: has no footer and is cut off at byte {start} of {self._file.size}; the {count} messages "
            "before it are read"
        )

    def _record(self, cursor: Cursor, need: Need, block: int) -> Iterator[Found]:
        kind, size = _RECORD.unpack(cursor.take(_RECORD.size))
        if size > cursor.left and (kind != _CHUNK or block >= 0):
            raise EndOfDataError
        if kind == _MESSAGE:
            yield from self._message(cursor, size, need, block)
        elif kind in (_SCHEMA, _CHANNEL):
            if size > _LONGEST_SCHEMA:
                raise ValueError(size)
            data = cursor.take(size)
            self._schema(data) if kind == _SCHEMA else self._channel(data)
        elif kind == _CHUNK and block < 0 and not self._ended:
            yield from self._chunk(cursor, size, need)
        elif kind == _STATISTICS and block < 0 and size < _LONGEST_SCHEMA:
            self._statistics(cursor.take(size))
        else:
            self._ended |= kind in (_DATA_END, _FOOTER) and block < 0
            cursor.skip(size)

    def _message(self, cursor: Cursor, size: int, need: Need, block: int) -> Iterator[Found]:
        number, _, time, _ = _MESSAGE_HEAD.unpack(cursor.take(_MESSAGE_HEAD.size))
        length = size - _MESSAGE_HEAD.size
        if length > MAX_BLOCK:
            raise EpisodeError(
                f"{self.path}: a message of {length:,} bytes at byte {cursor.pos}; too large to be read."
            )
        if length < 0:
            raise ValueError(size)
        channel = self._channels.get(number)
        offset = cursor.pos
        data = cursor.head(length, 0 if channel is None else need(channel))
        if channel is None:
            self._orphans += 1
            return
        self._counts[number] = self._counts.get(number, 0) + 1
        yield Found(channel, time, block, offset, length, data)

    def _schema(self, data: memoryview) -> None:
        number = struct.unpack_from("<H", data)[0]
        name, at = _text(data, 2)
        encoding, at = _text(data, at)
        content = _sized(data, at)
        schema = _Schema(name, encoding, bytes(content))
        if number == 0 or self._schemas.setdefault(number, schema) != schema:
            raise EpisodeError(f"{self.path}: schema {number} is defined in two ways.")

    def _channel(self, data: memoryview) -> None:
        number, schema_number = struct.unpack_from("<HH", data)
        topic, at = _text(data, 4)
        encoding, _ = _text(data, at)
        schema = self._schemas[schema_number]
        channel = Channel(topic, schema.name, encoding, schema.encoding, schema.data)
        if self._channels.setdefault(number, channel) != channel:
            raise EpisodeError(f"{self.path}: channel {number} is defined in two ways.")

    def _statistics(self, data: memoryview) -> None:
        length = struct.unpack_from("<I", data, 8 + 2 + 4 + 4 + 4 + 4 + 8 + 8)[0]
        pairs = data[46 : 46 + length]
        if len(pairs) != length:
            raise ValueError(length)
        self._declared = dict(struct.iter_unpack("<HQ", pairs))

    def _chunk(self, cursor: Cursor, size: int, need: Need) -> Iterator[Found]:
        start, end = cursor.pos, cursor.pos + size
        _, _, content, crc = _CHUNK_HEAD.unpack(cursor.take(_CHUNK_HEAD.size))
        length = struct.unpack("<I", cursor.take(4))[0]
        how = bytes(cursor.take(length)).decode()
        stored = struct.unpack("<Q", cursor.take(8))[0]
        if cursor.pos + stored > end:
            raise ValueError(stored)
        where = f"{self.path}, chunk at byte {start}"
        at = cursor.pos if how else -1
        if how and end > cursor.stop:
            inner = self._cut(at, cursor.left, how, content)
        elif how:
            inner = self._unpacked(at, stored, how, content)
        else:
            inner = self._file.nested(cursor, stored)
        if end > cursor.stop:  # the file ends inside this chunk: what is before that is read
            while True:
                yield from self._record(inner, need, at)
        if crc:
            inner.crc = 0
        try:
            while inner.left:
                yield from self._record(inner, need, at)
        except EndOfDataError as error:
            raise EpisodeError(f"{where}: damaged: it ends inside a record.") from error
        if crc and inner.crc != crc:
            raise EpisodeError(f"{where}: damaged: its checksum is {inner.crc:08x}, {crc:08x} is stated.")
        cursor.skip(end - cursor.pos)

    def _check_size(self, stored: int, content: int) -> None:
        if stored > MAX_BLOCK or content > MAX_BLOCK:
            raise EpisodeError(
                f"{self.path}: a compressed chunk of {content:,} bytes; up to {MAX_BLOCK:,} are read. Rewrite the file "
                "in smaller chunks."
            )


def _sized(data: memoryview, at: int) -> memoryview:
    length = struct.unpack_from("<I", data, at)[0]
    found = data[at + 4 : at + 4 + length]
    if len(found) != length:
        raise ValueError(length)
    return found


def _text(data: memoryview, at: int) -> tuple[str, int]:
    found = _sized(data, at)
    return bytes(found).decode(), at + 4 + len(found)
