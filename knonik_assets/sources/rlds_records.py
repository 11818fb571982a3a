"""TFRecord files and the ``tf.train.Example`` messages in them, without TensorFlow.

A record is its length (8 bytes, little-endian), a check sum of that, the message, and a check sum of the message;
check sums are CRC-32C, rotated and offset (the "masking" of TensorFlow's ``record_writer``). A message is a map from
names to lists of bytes, floats or integers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import crc32c
import numpy as np
import numpy.typing as npt

from knonik_assets.sources.arrays import bounded
from knonik_loader.errors import EpisodeError

__all__ = ["Leaf", "Record", "index_records", "parse_example", "read_record"]

_HEAD = struct.Struct("<QI")
_TAIL = 4
_MOST_RECORD = 1 << 31
_GZIP = b"\x1f\x8b"
_LONGEST = 10
"""Bytes of the longest integer."""
_BLOCK = 1 << 20
"""Bytes of integers that are worked on at once: what is needed on the way is many times as much."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Leaf = list[bytes] | npt.NDArray[np.int64] | npt.NDArray[np.float32]
"""What a feature holds: encoded values one after another, or numbers in one row."""


@dataclass(frozen=True, slots=True)
class Record:
    """Where a message lies in its file."""

    offset: int
    length: int


def _masked(data: bytes | memoryview) -> int:
    crc = int(crc32c.crc32c(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def index_records(path: Path) -> tuple[list[Record], str | None]:
    """The records of a file, and why there are no more where it doesn't end behind the last one.

    Raises:
        EpisodeError: the file cannot be read.
    """
    found: list[Record] = []
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            at = 0
            while at < size:
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    return found, "it is cut off"
                length, crc = _HEAD.unpack(head)
                if _masked(head[:8]) != crc:
                    if not found and head[:2] == _GZIP:
                        return found, "it is compressed with gzip; decompress it"
                    return found, f"the length of record {len(found)} fails its check sum"
                at += _HEAD.size + length + _TAIL
                if at > size:
                    return found, "it is cut off"
                found.append(Record(at - length - _TAIL, length))
                file.seek(at)
    except OSError as error:
        raise EpisodeError(f"{path}: unreadable: {error.strerror or error}.") from error
    return found, None


def read_record(path: Path, record: Record, where: str) -> bytes:
    """One message, held against its check sum.

    Raises:
        EpisodeError: damaged, cut off or absurdly large.
    """
    if record.length > _MOST_RECORD:
        raise EpisodeError(f"{where}: a record of {record.length} bytes; at most {_MOST_RECORD} are accepted.")
    try:
        with path.open("rb") as file:
            file.seek(record.offset)
            data = file.read(record.length)
            tail = file.read(_TAIL)
    except OSError as error:
        raise EpisodeError(f"{path}: unreadable: {error.strerror or error}.") from error
    if len(data) != record.length or len(tail) != _TAIL:
        raise EpisodeError(f"{where}: the record is cut off.")
    if _masked(data) != int.from_bytes(tail, "little"):
        raise EpisodeError(f"{where}: the record fails its check sum; it is damaged.")
    return data


def parse_example(data: bytes, where: str) -> dict[str, Leaf]:
    """The features of a message by name.

    Raises:
        EpisodeError: malformed, or a ``SequenceExample``.
    """
    found: dict[str, Leaf] = {}
    lists = False
    try:
        for number, wire, value in _fields(memoryview(data)):
            if number == 1 and wire == _BYTES:
                for field, kind, entry in _fields(_view(value)):
                    if field == 1 and kind == _BYTES:
                        name, leaf = _entry(_view(entry))
                        found[name] = leaf
            elif number == 2:
                lists = True
    except EpisodeError as error:
        raise EpisodeError(f"{where}: {error}") from error
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise EpisodeError(f"{where}: no readable tf.train.Example: {error}.") from error
    if lists:
        raise EpisodeError(f"{where}: a tf.train.SequenceExample, which TFDS does not write; convert it with TFDS.")
    return found


def _view(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message is wanted")  # noqa: TRY004 - it is the data that is wrong
    return value


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Number, wire type and value of every field of a message."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            length, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire}")
        if length > end - at:
            raise ValueError("a field is cut off")
        yield number, wire, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _entry(data: memoryview) -> tuple[str, Leaf]:
    name, leaf = "", _EMPTY
    for number, wire, value in _fields(data):
        if wire != _BYTES:
            continue
        if number == 1:
            name = bytes(_view(value)).decode("utf-8")
        elif number == 2:
            leaf = _feature(_view(value))
    return name, leaf


_EMPTY: Leaf = []


def _feature(data: memoryview) -> Leaf:
    leaf: Leaf = _EMPTY
    for number, wire, value in _fields(data):
        if wire != _BYTES:
            continue
        if number == 1:
            leaf = [bytes(_view(one)) for field, kind, one in _fields(_view(value)) if (field, kind) == (1, _BYTES)]
        elif number == 2:
            leaf = _floats(_view(value))
        elif number == 3:
            leaf = _integers(_view(value))
    return leaf


def _floats(data: memoryview) -> npt.NDArray[np.float32]:
    parts = [_view(value) for number, wire, value in _fields(data) if number == 1 and wire in (_BYTES, _FIXED32)]
    if any(len(part) % 4 for part in parts):
        raise ValueError("floats are cut off")
    return np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), "<f4").astype(np.float32, copy=False)


def _integers(data: memoryview) -> npt.NDArray[np.int64]:
    parts: list[npt.NDArray[np.int64]] = []
    singles: list[int] = []
    for number, _, value in _fields(data):
        if number != 1:
            continue
        if isinstance(value, int):
            singles.append(value)
        else:
            parts.append(_varints(value))
    if singles:
        parts.append(np.array(singles, np.uint64).view(np.int64))
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.int64)


def _varints(data: memoryview) -> npt.NDArray[np.int64]:
    """(N,) integers from packed variable-length bytes, block by block: seven bits a byte, the lowest first."""
    raw = np.frombuffer(data, np.uint8)
    if len(raw) and raw[-1] >= 0x80:
        raise ValueError("integers are cut off")
    many = int(np.count_nonzero(raw < 0x80))
    bounded(8 * many, f"{many} integers of one feature")
    found = np.empty(many, np.int64)
    at = count = 0
    while at < len(raw):
        stop = min(at + _BLOCK, len(raw))
        if stop < len(raw):  # a block ends with a number
            ends = np.flatnonzero(raw[max(at, stop - _LONGEST) : stop] < 0x80)
            if not len(ends):
                raise ValueError("a number of more than 64 bits")
            stop = max(at, stop - _LONGEST) + int(ends[-1]) + 1
        values = _block_of_varints(raw[at:stop])
        found[count : count + len(values)] = values
        at, count = stop, count + len(values)
    return found


def _block_of_varints(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    stops = np.flatnonzero(raw < 0x80)
    starts = np.concatenate([[0], stops[:-1] + 1])
    lengths = stops - starts + 1
    if lengths.max() > _LONGEST:
        raise ValueError("a number of more than 64 bits")
    values = np.zeros(len(stops), np.uint64)
    for place in range(int(lengths.max())):
        has = lengths > place
        byte = raw[starts[has] + place].astype(np.uint64) & np.uint64(0x7F)
        values[has] |= byte << np.uint64(7 * place)
    return values.view(np.int64)
