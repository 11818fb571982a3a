"""Writing KHLP files: append-only, reproducible, and visible only when whole.

`HlpWriter` never seeks, so its sink may be a pipe or a multipart upload; `write_hlp` adds what a local file needs to
survive a crash at any moment.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from knonik_loader.errors import FormatError, PackError, StorageError, refusal
from knonik_loader.khlp.layout import ALIGN, HEADER_SIZE, KHLP, Section, align, build_header, build_tail, check_header
from knonik_loader.khlp.reader import HlpIndex, open_index
from knonik_loader.khlp.sections import (
    FIDX,
    FIDX_COLUMNS,
    FLAG_INTRA,
    MAX_STREAMS,
    SHRD,
    SHRD_COLUMNS,
    TIME,
    EpisodeRow,
    Schema,
    check_stream,
    encode_columns,
    encode_episodes,
    encode_schema,
)
from knonik_loader.khlp.types import Record, StorageProfile, StreamInfo

__all__ = ["PARTIAL_SUFFIX", "HlpSummary", "HlpWriter", "ShardInput", "atomic_file", "sync_directory", "write_hlp"]

PARTIAL_SUFFIX = ".partial"
"""Ends the name of a file that is being written; one that is left over belongs to a run that died."""

_BLOCK = 1 << 20
"""Bytes that are written at once: page caches take large writes at twice the rate of single pictures."""

_PARTS = 512
"""Pieces that are written at once; systems take 1,024 or more."""

_FLUSH = 32 << 20
"""Bytes behind which the disk begins to write what the page cache has, while more is being added."""
SHARD_ALIGN = 64
MAX_U32 = 0xFFFF_FFFF
MAX_TEXT = 0xFFFF


@dataclass(frozen=True, slots=True)
class HlpSummary:
    """What the manifest says of a finished file."""

    bytes: int
    crc32c: int
    """Of the whole file."""
    num_shards: int
    metadata_offset: int
    num_frames: int
    """Of one stream, over all shards."""


@dataclass(frozen=True, slots=True)
class ShardInput:
    """One shard to be written."""

    episode_id: str
    source_id: str
    episode_digest: bytes
    """32 bytes."""
    first_frame: int
    """Number inside the episode of the shard's first frame."""
    times: npt.NDArray[np.float64]
    """(n,) seconds."""
    records: Mapping[int, Sequence[Record]]
    """Stream number → n records (numeric streams: one)."""


class HlpWriter:
    """Writes one KHLP file onto any binary sink, front to back.

    It only ever calls ``sink.write``, or lets the system write to an unbuffered file what ``write`` would. Memory
    holds 8 to 12 bytes a record and the times, whatever the file's size.

    Raises:
        PackError: streams or shards that the format cannot hold.
    """

    def __init__(
        self, sink: BinaryIO, *, profile: StorageProfile, streams: Sequence[StreamInfo], hlp_id: bytes
    ) -> None:
        if len(hlp_id) != 16:
            raise PackError(f"hlp_id has {len(hlp_id)} bytes, not 16")
        try:
            for position, stream in enumerate(streams):
                check_stream(stream, position, "pack")
        except FormatError as error:
            raise PackError(str(error)) from error
        if not 0 < len(streams) <= MAX_STREAMS or len({stream.key for stream in streams}) != len(streams):
            raise PackError(f"a KHLP file has 1 to {MAX_STREAMS} streams, and each batch key once")
        self._sink = sink
        self._schema = Schema(profile, tuple(streams), hlp_id)
        self._position = 0
        self._crc = 0
        self._parts: list[memoryview] = []  # appended and not written yet: never copied on the way to a file
        self._gathered = 0
        self._episodes: dict[str, tuple[int, EpisodeRow]] = {}
        self._shards: list[tuple[int, int, int, int, int]] = []
        self._times: list[npt.NDArray[np.float64]] = []
        self._num_frames = 0
        self._bases: list[list[int]] = [[] for _ in streams]
        self._rows: list[list[tuple[int, int, int, int]]] = [[] for _ in streams]
        self._append(build_header(KHLP, hlp_id))
        self._drain()

    @property
    def position(self) -> int:
        """Bytes appended so far."""
        return self._position

    def add_shard(
        self,
        *,
        episode_id: str,
        source_id: str,
        episode_digest: bytes,
        first_frame: int,
        times: npt.NDArray[np.float64],
        records: Mapping[int, Sequence[Record]],
    ) -> None:
        """Append one shard.

        Args:
            episode_id: the episode's name.
            source_id: its name in the source.
            episode_digest: 32 bytes; the same for all shards of an episode.
            first_frame: number inside the episode of the shard's first frame.
            times: (n,) seconds, finite.
            records: stream number → its n records (numeric streams: one).

        Raises:
            PackError: the shard does not fit the streams, the episode or the format.
        """
        times = np.ascontiguousarray(times, np.float64)
        label = f"shard {len(self._shards)} (episode {episode_id!r}, frame {first_frame})"
        self._check(label, first_frame, times, records)
        episode = self._episode_row(EpisodeRow(episode_id, source_id, episode_digest), label)
        if self._num_frames + len(times) > MAX_U32:
            raise PackError(f"{label}: a KHLP file holds at most {MAX_U32} frames; give a smaller window_size")
        self._num_frames += len(times)
        self._pad(SHARD_ALIGN)
        start = self._position
        for stream in self._schema.streams:
            self._pad(ALIGN)
            self._bases[stream.stream_id].append(self._position)
            for record in records[stream.stream_id]:
                self._pad(ALIGN)
                flags = FLAG_INTRA if record.intra else 0
                self._rows[stream.stream_id].append((len(record.data), crc32c(record.data), record.key_back, flags))
                self._append(record.data)
        self._pad(ALIGN)
        self._drain()
        self._shards.append((start, self._position - start, episode, first_frame, len(times)))
        self._times.append(times)

    def finish(self) -> HlpSummary:
        """Write the tail; the writer is of no use afterwards.

        Raises:
            PackError: no shard was added.
        """
        if not self._shards:
            raise PackError("a KHLP file needs at least one shard")
        shards = dict(zip((name for name, _ in SHRD_COLUMNS), zip(*self._shards, strict=True), strict=True))
        times = np.concatenate(self._times)
        sections = [
            encode_schema(self._schema),
            encode_episodes([row for _, row in self._episodes.values()]),
            Section(SHRD, encode_columns(SHRD_COLUMNS, shards), len(self._shards)),
            Section(TIME, encode_columns((("time", "<f8"),), {"time": times}), len(times)),
        ]
        for stream, bases, rows in zip(self._schema.streams, self._bases, self._rows, strict=True):
            columns = dict(zip((name for name, _ in FIDX_COLUMNS), zip(*rows, strict=True), strict=True))
            data = np.array(bases, "<u8").tobytes() + encode_columns(FIDX_COLUMNS, columns)
            sections.append(Section(FIDX, data, len(rows), stream.stream_id))
        metadata_offset = self._position
        self._append(build_tail(KHLP, sections, metadata_offset, self._schema.hlp_id))
        self._drain()
        return HlpSummary(self._position, self._crc, len(self._shards), metadata_offset, len(times))

    def _append(self, data: bytes | memoryview) -> None:
        self._position += len(data)
        self._crc = crc32c(data, self._crc)
        self._parts.append(memoryview(data))
        self._gathered += len(data)
        if self._gathered >= _BLOCK or len(self._parts) >= _PARTS:
            self._drain()

    def _drain(self) -> None:
        """Hand what was appended to the sink; the records that it came from may change afterwards."""
        parts, self._parts, self._gathered = self._parts, [], 0
        # Not one that was derived from it: it may look at what is written.
        if type(self._sink) is io.FileIO and hasattr(os, "writev"):
            _write_all(self._sink.fileno(), parts)
            return
        rest = memoryview(b"".join(parts))
        while len(rest):
            # an unbuffered sink, such as a pipe, may take a part only
            written = self._sink.write(rest)
            if not written:
                raise _takes_nothing()
            rest = rest[written:]

    def _pad(self, to: int) -> None:
        padding = align(self._position, to) - self._position
        if padding:
            self._append(bytes(padding))

    def _episode_row(self, row: EpisodeRow, label: str) -> int:
        if len(row.digest) != 32:
            raise PackError(f"{label}: the episode's digest has {len(row.digest)} bytes, not 32")
        try:
            lengths = [len(text.encode()) for text in (row.episode_id, row.source_id)]
        except UnicodeEncodeError as error:
            raise PackError(f"{label}: its id or its source's, {error.object!r}, is not Unicode text") from error
        if not lengths[0] or max(lengths) > MAX_TEXT:
            raise PackError(f"{label}: an episode's id has 1 to {MAX_TEXT} bytes and its source's at most as many")
        position, known = self._episodes.setdefault(row.episode_id, (len(self._episodes), row))
        if known != row:
            raise PackError(f"{label}: an earlier shard of this episode has another source or digest")
        return position

    def _check(
        self, label: str, first_frame: int, times: npt.NDArray[np.float64], records: Mapping[int, Sequence[Record]]
    ) -> None:
        if times.ndim != 1 or not len(times) or not np.isfinite(times).all():
            raise PackError(f"{label}: times must be finite seconds, one a frame, not {times.shape}")
        if first_frame < 0 or first_frame + len(times) > MAX_U32:
            raise PackError(f"{label}: frames {first_frame} to {first_frame + len(times)} do not fit 32 bits")
        if set(records) != {stream.stream_id for stream in self._schema.streams}:
            raise PackError(f"{label}: has streams {sorted(records)}, the file has {len(self._schema.streams)}")
        for stream in self._schema.streams:
            rows = records[stream.stream_id]
            if stream.kind == "numeric":
                size = 4 * len(times) * stream.shape[0]
                if len(rows) != 1 or len(rows[0].data) != size or rows[0].key_back:
                    raise PackError(f"{label}: {stream.key!r} must be one block of {size} bytes")
                continue
            if len(rows) != len(times):
                raise PackError(f"{label}: {len(rows)} records of {stream.key!r} for {len(times)} frames")
            for row, record in enumerate(rows):
                back = record.key_back
                if memoryview(record.data).nbytes != len(record.data):
                    raise PackError(f"{label}: record {row} of {stream.key!r} is given as numbers, not as bytes")
                if not 0 <= back <= min(row, 0xFFFF) or rows[row - back].key_back or len(record.data) > MAX_U32:
                    raise PackError(f"{label}: record {row} of {stream.key!r} refers {back} back, where no key is")


def write_hlp(
    path: Path, *, profile: StorageProfile, streams: Sequence[StreamInfo], hlp_id: bytes, shards: Iterable[ShardInput]
) -> HlpSummary:
    """Write a KHLP file that appears under ``path`` whole and checked, or not at all.

    Args:
        path: the file; must not exist.
        profile: storage profile, for the schema.
        streams: the streams, by number.
        hlp_id: 16 bytes, a digest of what the file is made from.
        shards: in file order; taken one at a time.

    Raises:
        PackError: ``path`` exists, or the shards cannot be written as asked.
        StorageError: the disk or its permissions stand in the way.
    """
    with atomic_file(path) as (sink, partial), _FlushBehind(sink) as flush:
        writer = HlpWriter(sink, profile=profile, streams=streams, hlp_id=hlp_id)
        for shard in shards:
            writer.add_shard(
                episode_id=shard.episode_id,
                source_id=shard.source_id,
                episode_digest=shard.episode_digest,
                first_frame=shard.first_frame,
                times=shard.times,
                records=shard.records,
            )
            flush.reached(writer.position)
        summary = writer.finish()
        flush.finish()
        _reopen(partial, summary, hlp_id)
    return summary


def _write_all(file: int, parts: list[memoryview]) -> None:
    """Write all of them, in order, to a file descriptor; ``parts`` is used up.

    Raises:
        OSError: of the system.
        StorageError: the file takes nothing more, and doesn't wait until it does.
    """
    first = 0
    while first < len(parts):
        try:
            written = os.writev(file, parts[first:])
        except BlockingIOError:
            raise _takes_nothing() from None
        if not written and any(map(len, parts[first:])):
            raise _takes_nothing()
        while first < len(parts) and written >= len(parts[first]):
            written -= len(parts[first])
            first += 1
        if written:
            parts[first] = parts[first][written:]


def _takes_nothing() -> StorageError:
    return StorageError("the sink of a KHLP file takes nothing more; it must be one that blocks until it does")


class _FlushBehind:
    """Lets the disk write while more is being prepared: at the end there is little left to wait for.

    Raises:
        OSError: what the disk says, from whichever call learns of it: the kernel tells a failed write only once.
    """

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._pool = ThreadPoolExecutor(1, "flush-behind")
        self._flushing: Future[None] | None = None
        self._asked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def reached(self, position: int) -> None:
        """So many bytes were written."""
        if position - self._asked >= _FLUSH and (self._flushing is None or self._flushing.done()):
            self._wait()
            self._asked = position
            self._flushing = self._pool.submit(os.fdatasync, self._sink.fileno())

    def finish(self) -> None:
        """Wait until everything is on the disk."""
        self._wait()
        self._sink.flush()
        os.fsync(self._sink.fileno())

    def _wait(self) -> None:
        if self._flushing is not None:
            self._flushing.result()
            self._flushing = None


@contextmanager
def atomic_file(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A file that gets its name only when the block ends well; it never replaces another one.

    Yields the open file and the name that it has meanwhile. A crash leaves that one behind, which ends in
    `PARTIAL_SUFFIX` and may be deleted at any time.

    Raises:
        PackError: ``path`` exists.
        StorageError: the disk or its permissions stand in the way.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}")
    try:
        if path.exists():
            raise PackError(f"{path} exists, and packed files are never replaced; choose another directory")
        with partial.open("xb", buffering=0) as sink:
            yield sink, partial
            sink.flush()
            os.fsync(sink.fileno())
        _claim(partial, path)
        sync_directory(path.parent)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"cannot write {path}: {refusal(error)}") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _claim(partial: Path, path: Path) -> None:
    """Give a file its name unless another has it: a hard link refuses that atomically, where a rename replaces."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise PackError(f"{path} was written by another process meanwhile; nothing was replaced") from None
    except OSError:
        # no hard links here (some network and FAT file systems): a check and a rename must do
        if path.exists():
            raise PackError(f"{path} was written by another process meanwhile; nothing was replaced") from None
        partial.rename(path)


def sync_directory(folder: Path) -> None:
    """Make names that came to a folder, or left it, survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reopen(path: Path, summary: HlpSummary, hlp_id: bytes) -> HlpIndex:
    """Read a finished file's header and tail from the disk and compare them with what was meant."""
    where = str(path)
    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        try:
            file_id = check_header(KHLP, read(0, HEADER_SIZE), where)
            index = open_index(read, path.stat().st_size, summary.metadata_offset, where)
        except FormatError as error:
            raise StorageError(f"{where}: what was written cannot be read back: {error}") from error
    found = (file_id, index.num_shards, index.num_frames, index.file_length)
    if found != (hlp_id, summary.num_shards, summary.num_frames, summary.bytes):
        raise StorageError(f"{where}: what was written reads back differently; check the disk")
    return index
