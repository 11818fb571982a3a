"""Opening a KHLP file: one small read at its end says where every frame is.

Nothing here decodes or opens a file; the caller gives a function that reads ranges, so that the same code serves disks
and object stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from knonik_loader.errors import ChecksumError, FormatError, TruncatedError
from knonik_loader.khlp.layout import (
    ALIGN,
    FOOTER_SIZE,
    HEADER_SIZE,
    KHLP,
    Section,
    check_known,
    parse_footer,
    parse_tail,
)
from knonik_loader.khlp.sections import (
    EPIS,
    FIDX,
    FIDX_COLUMNS,
    SCHM,
    SHRD,
    SHRD_COLUMNS,
    TIME,
    Columns,
    EpisodeRow,
    decode_episodes,
    decode_schema,
    split_columns,
)
from knonik_loader.khlp.types import StorageProfile, StreamInfo

__all__ = ["TAIL_GUESS", "HlpIndex", "RecordTable", "ShardEntry", "check_payload", "open_index"]

TAIL_GUESS = 256 * 1024
"""Bytes read at the end of a file whose metadata offset is not known."""

_PADDING = np.uint64(ALIGN - 1)


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard of a file."""

    episode_id: str
    first_frame: int
    """Number inside the episode of the shard's first frame."""
    frames: int
    data_offset: int
    data_length: int


@dataclass(frozen=True, slots=True)
class RecordTable:
    """Where the records of one stream of one shard are; n rows, one a frame (numeric streams: one in all)."""

    offsets: npt.NDArray[np.uint64]
    """(n,) from the beginning of the file, in bytes."""
    sizes: npt.NDArray[np.uint32]
    """(n,) bytes."""
    crcs: npt.NDArray[np.uint32]
    """(n,) crc32c of each payload."""
    key_back: npt.NDArray[np.uint16]
    """(n,) how many rows back the record lies that decodes alone."""
    flags: npt.NDArray[np.uint16]
    """(n,) bit 0: decodes alone although its codec usually refers to a key."""

    def __len__(self) -> int:
        """Records in the table."""
        return len(self.sizes)


class HlpIndex:
    """The parsed and checked tail of a KHLP file; columns are views of the bytes that it was made from.

    Attributes:
        profile: storage profile of the file.
        streams: its streams, by number.
        hlp_id: 16 bytes that name its content.
        episodes: the episodes that have shards in it.
        num_shards: shards.
        num_frames: frames of one stream, over all shards.
        metadata_offset: where the tail begins.
        file_length: bytes of the file.
    """

    def __init__(
        self, tail: bytes | bytearray | memoryview, tail_offset: int, file_length: int, where: str = "KHLP file"
    ) -> None:
        parsed = parse_tail(KHLP, memoryview(tail), tail_offset, file_length, where)
        check_known(parsed, {SCHM, EPIS, SHRD, TIME, FIDX}, where)
        self.where = where
        self.file_length = file_length
        self.metadata_offset = parsed.footer.metadata_offset
        schema = decode_schema(parsed.take(SCHM, where), where)
        if schema.hlp_id[:8] != parsed.footer.id_prefix:
            raise FormatError(f"{where}: section SCHM and footer belong to different files; pack or copy it again")
        self.profile: StorageProfile = schema.profile
        self.streams: tuple[StreamInfo, ...] = schema.streams
        self.hlp_id = schema.hlp_id
        self.episodes: tuple[EpisodeRow, ...] = decode_episodes(parsed.take(EPIS, where), where)
        shards = parsed.take(SHRD, where)
        self._shards = split_columns(shards, SHRD_COLUMNS, where)
        self.num_shards = shards.rows
        self._check_shards()
        # (S + 1,) first row of each shard in columns that have one row a frame, and the number of rows
        self._first_row = np.concatenate([[0], np.cumsum(self._shards["frames"], dtype=np.int64)])
        self.num_frames = int(self._first_row[-1])
        self._times = split_columns(parsed.take(TIME, where), (("time", "<f8"),), where)["time"]
        if len(self._times) != self.num_frames or not np.isfinite(self._times).all():
            raise FormatError(f"{where}: section TIME has {len(self._times)} finite times for {self.num_frames} frames")
        self._records = [self._stream_records(parsed.take(FIDX, where, s.stream_id), s) for s in self.streams]

    @classmethod
    def from_tail(
        cls, tail: bytes | bytearray | memoryview, tail_offset: int, file_length: int, where: str = "KHLP file"
    ) -> HlpIndex:
        """Parse and check the bytes from ``tail_offset`` to the end of a file of ``file_length`` bytes.

        Raises:
            FormatError: of the fitting kind, naming ``where`` and the place.
        """
        return cls(tail, tail_offset, file_length, where)

    def __repr__(self) -> str:
        """Shapes at a glance."""
        return (
            f"HlpIndex({self.where!r}, profile={self.profile!r}, shards={self.num_shards}, frames={self.num_frames}, "
            f"streams={[stream.key for stream in self.streams]})"
        )

    def shard(self, shard: int) -> ShardEntry:
        """Facts of one shard."""
        row = {name: int(column[shard]) for name, column in self._shards.items()}
        episode = self.episodes[row["episode"]].episode_id
        return ShardEntry(episode, row["first_frame"], row["frames"], row["data_offset"], row["data_length"])

    def episode(self, shard: int) -> EpisodeRow:
        """The episode of one shard."""
        return self.episodes[int(self._shards["episode"][shard])]

    def times(self, shard: int) -> npt.NDArray[np.float64]:
        """(n,) seconds: the clock of one shard's frames, as the episode has it."""
        first, end = self._first_row[shard : shard + 2]
        times: npt.NDArray[np.float64] = self._times[first:end]
        return times

    def records(self, shard: int, stream_id: int) -> RecordTable:
        """Where the records of one stream of one shard are."""
        bases, columns = self._records[stream_id]
        if self.streams[stream_id].kind == "numeric":
            one = slice(shard, shard + 1)
            return RecordTable(bases[one], *(columns[name][one] for name, _ in FIDX_COLUMNS))
        first, end = int(self._first_row[shard]), int(self._first_row[shard + 1])
        sizes, crcs, key_back, flags = (columns[name][first:end] for name, _ in FIDX_COLUMNS)
        # payloads follow each other at multiples of 8: the offsets are an exclusive sum of the padded sizes
        padded = (sizes.astype(np.uint64) + _PADDING) & ~_PADDING
        offsets = padded.cumsum(dtype=np.uint64)
        offsets -= padded
        offsets += bases[shard]
        return RecordTable(offsets, sizes, crcs, key_back, flags)

    def _check_shards(self) -> None:
        """Shards lie behind each other inside the data and belong to episodes that the file lists."""
        column, where = self._shards, self.where
        if self.num_shards == 0:
            raise FormatError(f"{where}: has no shard")
        if (column["frames"] == 0).any() or (column["episode"] >= len(self.episodes)).any():
            raise FormatError(f"{where}: section SHRD has a shard without frames or of an unknown episode")
        last = column["first_frame"].astype(np.uint64) + column["frames"]
        if (last > 0xFFFF_FFFF).any():
            raise FormatError(f"{where}: section SHRD counts more than 2^32 frames in an episode")
        starts, lengths = column["data_offset"], column["data_length"]
        limit = np.uint64(self.metadata_offset)
        # compare without adding first, so that no sum can wrap
        inside = (starts >= HEADER_SIZE) & (starts <= limit) & (lengths <= limit - np.minimum(starts, limit))
        if not inside.all() or (starts[1:] < starts[:-1] + lengths[:-1]).any():
            raise FormatError(f"{where}: section SHRD places a shard outside the data or into another shard")

    def _stream_records(self, section: Section, stream: StreamInfo) -> tuple[npt.NDArray[np.uint64], Columns]:
        """A stream's FIDX section: (S,) where its first record is in each shard, and its columns."""
        where = f"{self.where}: stream {stream.key!r}"
        numeric = stream.kind == "numeric"
        expected = self.num_shards if numeric else self.num_frames
        if section.rows != expected:
            raise FormatError(f"{where}: section FIDX has {section.rows} rows for {expected} records")
        columns = split_columns(section, FIDX_COLUMNS, where, skip=8 * self.num_shards)
        bases: npt.NDArray[np.uint64] = np.frombuffer(section.data, "<u8", self.num_shards)
        first = np.arange(self.num_shards) if numeric else self._first_row[:-1]
        # a sum over u32 sizes of less than 2^32 rows cannot wrap in u64
        padded = (columns["size"].astype(np.uint64) + np.uint64(7)) & ~np.uint64(7)
        room = np.add.reduceat(padded, first)
        starts, lengths = self._shards["data_offset"], self._shards["data_length"]
        skipped = bases - np.minimum(starts, bases)
        inside = (bases >= starts) & (skipped <= lengths) & (room <= lengths - np.minimum(skipped, lengths))
        if not inside.all() or (bases % 8).any():
            shard = int(np.argmin(inside & (bases % 8 == 0)))
            raise FormatError(f"{where}: section FIDX places records of shard {shard} outside that shard")
        if numeric:
            _check_numeric(columns, self._shards["frames"], stream, where)
        else:
            _check_keys(columns["key_back"], self._first_row, where)
        return bases, columns

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the tail that this object keeps alive, about."""
        return self.file_length - self.metadata_offset


def _check_numeric(columns: Columns, frames: npt.NDArray[Any], stream: StreamInfo, where: str) -> None:
    """A numeric block has 4 bytes for every value of every frame."""
    wrong = columns["size"] != frames.astype(np.uint64) * np.uint64(4 * stream.shape[0])
    if wrong.any() or columns["key_back"].any():
        raise FormatError(f"{where}: the block of shard {int(np.argmax(wrong))} does not have its frames' size")


def _check_keys(key_back: npt.NDArray[Any], first_row: npt.NDArray[np.int64], where: str) -> None:
    """Every record's key lies in the same shard and is a key itself."""
    back = key_back.astype(np.int64)
    row = np.arange(len(back))
    start = np.repeat(first_row[:-1], np.diff(first_row))
    key = row - back
    wrong = (key < start) | (back[np.maximum(key, 0)] != 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise FormatError(f"{where}: record {at} refers {back[at]} records back, where no key is")


def open_index(
    read: Callable[[int, int], bytes | bytearray | memoryview],
    file_length: int,
    metadata_offset: int | None,
    where: str = "KHLP file",
) -> HlpIndex:
    """Open a KHLP file by ranged reads.

    Args:
        read: ``read(offset, length)`` gives the bytes of that range.
        file_length: bytes of the file.
        metadata_offset: where the tail begins, from the manifest: then one read suffices. None: one read of
            `TAIL_GUESS` bytes, and a second one if the tail is longer.
        where: name of the file for messages.

    Raises:
        FormatError: of the fitting kind, naming ``where`` and the place.
    """
    if file_length < HEADER_SIZE + FOOTER_SIZE:
        raise TruncatedError(f"{where}: {file_length} bytes are too few for a KHLP file")
    if metadata_offset is None:
        start = max(0, file_length - TAIL_GUESS)
        tail = read(start, file_length - start)
        # at least a footer must be there to ask it where the tail begins
        footer = parse_footer(KHLP, memoryview(tail), file_length, where)
        if footer.metadata_offset < start:
            start = footer.metadata_offset
            tail = read(start, file_length - start)
        return HlpIndex(tail, start, file_length, where)
    if not HEADER_SIZE <= metadata_offset <= file_length - FOOTER_SIZE:
        raise TruncatedError(f"{where}: has {file_length} bytes, too few for metadata at byte {metadata_offset}")
    index = HlpIndex(read(metadata_offset, file_length - metadata_offset), metadata_offset, file_length, where)
    if index.metadata_offset != metadata_offset:
        raise FormatError(
            f"{where}: its metadata begins at byte {index.metadata_offset}, not at {metadata_offset} as the manifest "
            f"says; the file is not the one that was packed"
        )
    return index


def check_payload(data: bytes | memoryview, size: int, crc: int, where: str) -> None:
    """Check one record's bytes against the index.

    Raises:
        TruncatedError: fewer bytes than the index says.
        ChecksumError: other bytes than those that were packed.
    """
    if len(data) != size:
        raise TruncatedError(f"{where}: {len(data)} bytes were read where the index says {size}")
    actual = crc32c(data)
    if actual != crc:
        raise ChecksumError(f"{where}: damaged: crc32c is {actual:08x}, packed as {crc:08x}; pack or copy it again")
