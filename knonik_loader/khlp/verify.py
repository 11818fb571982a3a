"""Checking a whole KHLP file: structure, every payload's checksum, and the bytes between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from knonik_loader.errors import FormatError, StorageError, refusal
from knonik_loader.khlp.layout import ALIGN, HEADER_SIZE, KHLP, align, check_header
from knonik_loader.khlp.reader import HlpIndex, check_payload, open_index

__all__ = ["Damage", "verify_file", "verify_hlp"]

Read = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong with a file."""

    kind: str
    """Name of the error class: ``ChecksumError``, ``TruncatedError``, ..."""
    message: str
    """What is wrong, with file and place."""

    @classmethod
    def of(cls, error: FormatError) -> Damage:
        """From the error that a reader would have raised."""
        return cls(type(error).__name__, str(error))


def verify_file(path: Path, metadata_offset: int | None = None) -> list[Damage]:
    """Everything wrong with a local KHLP file; empty when it is whole.

    Args:
        path: the file.
        metadata_offset: where its tail should begin, if a manifest says so.

    Raises:
        StorageError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:

            def read(offset: int, length: int) -> bytes:
                file.seek(offset)
                return file.read(length)

            return verify_hlp(read, path.stat().st_size, metadata_offset, str(path))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {refusal(error)}") from error


def verify_hlp(
    read: Read, file_length: int, metadata_offset: int | None = None, where: str = "KHLP file"
) -> list[Damage]:
    """Everything wrong with a KHLP file that is read by ranges; memory stays within one shard's bytes.

    Args:
        read: ``read(offset, length)`` gives the bytes of that range.
        file_length: bytes of the file.
        metadata_offset: where its tail should begin, if a manifest says so.
        where: name of the file for messages.
    """
    damage: list[Damage] = []
    file_id = b""
    try:
        file_id = check_header(KHLP, read(0, min(HEADER_SIZE, file_length)), where)
    except FormatError as error:
        damage.append(Damage.of(error))
    try:
        index = open_index(read, file_length, metadata_offset, where)
    except FormatError as error:
        # header damage, found above already, is met again where the whole file fits one read
        found = Damage.of(error)
        return damage if found in damage else [*damage, found]
    if file_id and file_id != index.hlp_id:
        damage.append(Damage("FormatError", f"{where}: header and schema belong to different files"))
    return damage + list(_data_damage(index, read))


def _data_damage(index: HlpIndex, read: Read) -> Iterator[Damage]:
    """Payloads that differ from their checksum, and padding that is not zero."""
    end = HEADER_SIZE
    for shard in range(index.num_shards):
        entry = index.shard(shard)
        yield from _padding(read(end, entry.data_offset - end), end, index.where)
        data = memoryview(read(entry.data_offset, entry.data_length))
        end = entry.data_offset + entry.data_length
        at = entry.data_offset
        for stream in index.streams:
            table = index.records(shard, stream.stream_id)
            for row, (offset, size, crc) in enumerate(zip(table.offsets, table.sizes, table.crcs, strict=True)):
                start = int(offset) - entry.data_offset
                if int(offset) >= at:
                    yield from _padding(data[at - entry.data_offset : start], at, index.where)
                place = (
                    f"{index.where}: shard {shard} (episode {entry.episode_id!r}), {stream.key}, record {row} "
                    f"(frame {entry.first_frame + row})"
                )
                try:
                    check_payload(data[start : start + int(size)], int(size), int(crc), place)
                except FormatError as error:
                    yield Damage.of(error)
                at = align(int(offset) + int(size), ALIGN)
                yield from _padding(data[start + int(size) : at - entry.data_offset], int(offset + size), index.where)
        yield from _padding(data[at - entry.data_offset :], at, index.where)
    yield from _padding(read(end, index.metadata_offset - end), end, index.where)


def _padding(data: bytes | memoryview, at: int, where: str) -> Iterator[Damage]:
    if any(data):
        yield Damage("FormatError", f"{where}: the padding of {len(data)} bytes at byte {at} is not zero")
