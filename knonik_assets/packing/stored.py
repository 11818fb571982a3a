"""Packed files, on a local disk or at a URL: opening, checking whole, and reading single frames back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from knonik_assets.storage.files import Location, Reader, open_reader, stat
from knonik_loader.errors import FormatError
from knonik_loader.khlp.codecs import dependency_of, make_codec
from knonik_loader.khlp.layout import HEADER_SIZE, KHLP, check_header
from knonik_loader.khlp.planning import closure
from knonik_loader.khlp.reader import HlpIndex, check_payload, open_index
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.khlp.verify import Damage, verify_hlp
from knonik_loader.khlp.writer import HlpSummary

__all__ = ["PackedFile", "check_whole", "crc_of_file", "damage_of", "open_packed", "stored_id", "stream_bytes"]

_BLOCK = 1 << 22


class PackedFile:
    """An open KHLP file; use `open_packed`."""

    def __init__(self, read: Reader, where: str, metadata_offset: int | None = None) -> None:
        self.read = read
        """The bytes of a range, by offset and length; fewer where the file ends."""
        self.where = where
        self.index: HlpIndex = open_index(read, read.size, metadata_offset, where)

    def frames(self, shard: int, stream: StreamInfo, rows: Sequence[int]) -> dict[int, npt.NDArray[Any]]:
        """Decoded frames (numeric: rows) of one shard, by row, every payload checked.

        Raises:
            ChecksumError: a payload is damaged.
            DecodeError: a payload does not decode.
        """
        table = self.index.records(shard, stream.stream_id)
        codec = make_codec(stream)
        out = {row: np.empty(stream.shape, stream.dtype) for row in rows}
        if stream.kind == "numeric":
            codec.decode({0: memoryview(self.payload(shard, stream, 0))}, rows, out)
            return out
        for group in closure(table, dependency_of(stream.codec), rows):
            records = {int(row): memoryview(self.payload(shard, stream, int(row))) for row in group.rows}
            wanted = [int(row) for row in group.wanted]
            codec.decode(records, wanted, {row: out[row] for row in wanted})
        return out

    def payload(self, shard: int, stream: StreamInfo, row: int) -> bytes:
        """The checked bytes of one record.

        Raises:
            ChecksumError: they are damaged.
        """
        table = self.index.records(shard, stream.stream_id)
        size = int(table.sizes[row])
        data = self.read(int(table.offsets[row]), size)
        entry = self.index.shard(shard)
        check_payload(
            data,
            size,
            int(table.crcs[row]),
            f"{self.where}: shard {shard} ({entry.episode_id}), stream {stream.key!r}, "
            f"frame {entry.first_frame + (0 if stream.kind == 'numeric' else row)}",
        )
        return data


@contextmanager
def open_packed(path: Location, metadata_offset: int | None = None) -> Iterator[PackedFile]:
    """Open a KHLP file.

    Raises:
        FormatError: it is none, or is damaged.
        StorageError: it cannot be read.
    """
    with open_reader(path) as read:
        yield PackedFile(read, str(path), metadata_offset)


def stored_id(path: Location) -> bytes | None:
    """The id in a file's header; None where there is no such file or it is no KHLP file.

    Raises:
        StorageError: it cannot be read.
    """
    if stat(path) is None:
        return None
    with open_reader(path) as read:
        try:
            return check_header(KHLP, read(0, HEADER_SIZE), str(path))
        except FormatError:
            return None


def check_whole(path: Location) -> HlpSummary | None:
    """What the manifest says of a file whose every byte was found undamaged; None where one was not.

    Raises:
        StorageError: it cannot be read.
    """
    if damage_of(path):
        return None
    with open_packed(path) as packed:
        index = packed.index
    return HlpSummary(index.file_length, crc_of_file(path), index.num_shards, index.metadata_offset, index.num_frames)


def damage_of(path: Location, metadata_offset: int | None = None) -> list[Damage]:
    """Everything wrong with a KHLP file; empty when it is whole.

    Args:
        path: the file.
        metadata_offset: where its tail should begin, if a manifest says so.

    Raises:
        StorageError: it cannot be read.
    """
    with open_reader(path) as read:
        return verify_hlp(read, read.size, metadata_offset, str(path))


def crc_of_file(path: Location) -> int:
    """The crc32c of a whole file, read block by block.

    Raises:
        StorageError: it cannot be read.
    """
    value = 0
    with open_reader(path) as read:
        for start in range(0, read.size, _BLOCK):
            value = crc32c(read(start, _BLOCK), value)
    return value


def stream_bytes(index: HlpIndex) -> Mapping[str, int]:
    """Payload bytes of each stream, by batch key."""
    return {
        stream.key: sum(int(index.records(shard, stream.stream_id).sizes.sum()) for shard in range(index.num_shards))
        for stream in index.streams
    }
