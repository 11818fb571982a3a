"""From episodes to KHLP files, a file or a shard at a time: work is done side by side, and a killed run goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.packing.episodes import check_digest
from knonik_assets.packing.facts import read_facts
from knonik_assets.packing.frames import FrameFeed
from knonik_assets.packing.staging import Desk, Staging
from knonik_assets.packing.stored import check_whole, stored_id
from knonik_assets.storage.files import stat
from knonik_loader.errors import EpisodeError, PackError
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.types import Codec, Record, StorageProfile, StreamInfo
from knonik_loader.khlp.writer import HlpSummary, ShardInput, write_hlp

__all__ = [
    "MAX_SHARD_BYTES",
    "FileResult",
    "FileTask",
    "TaskShard",
    "assemble",
    "encode_shard",
    "one_ahead",
    "one_by_one",
    "stored_file",
    "write_file",
]

Item = TypeVar("Item")

MAX_SHARD_BYTES = 2 << 30
"""Encoded bytes of one shard, which is held in memory whole before it is written."""


@dataclass(frozen=True, slots=True)
class TaskShard:
    """One shard of a task, with all that the file says of its episode."""

    episode_id: str
    source_id: str
    digest: bytes
    first_frame: int
    frames: int


@dataclass(frozen=True, slots=True)
class FileTask:
    """Everything that makes one KHLP file; picklable, and small whatever the dataset's size."""

    staging: Staging
    name: str
    """Of the file, in ``staging.folder``."""
    profile: StorageProfile
    streams: tuple[StreamInfo, ...]
    hlp_id: bytes
    shards: tuple[TaskShard, ...]
    """Sorted by episode and frame."""
    reencode: bool


@dataclass(frozen=True, slots=True)
class FileResult:
    """A finished file."""

    summary: HlpSummary
    reused: bool
    """It was there already, whole, from a run that was killed."""
    seconds: float
    etag: str = ""
    """Of the object that it became; empty on a local disk."""


def write_file(
    task: FileTask, done: Callable[[int], None] = lambda _: None, verified: Callable[[], None] = lambda: None
) -> FileResult:
    """Write one file, or check and keep the one that a killed run left.

    Args:
        task: what to write.
        done: is told of so many more frames.
        verified: returns when the episodes were found whole, or raises: only then the file gets its name.

    Raises:
        EpisodeError: an episode is damaged.
        PackError: a frame does not suit its stream, or a shard does not fit into memory.
        StorageError: the disk stands in the way.
    """
    stored = stored_file(task)
    if stored is not None:
        return stored

    def write(desk: Desk) -> FileResult:
        if task.profile != "training_fast":
            return assemble(task, desk, _verified(_encoded(task, desk, done), verified))
        # Reading JPEGs that pass takes about as long as writing them; encoding takes longer than either.
        with ThreadPoolExecutor(os.cpu_count() or 1, "streams") as pool:
            return assemble(task, desk, one_ahead(_verified(_encoded(task, desk, done, pool), verified)))

    return task.staging.work(task.name, write)


def _verified(shards: Iterator[ShardInput], verified: Callable[[], None]) -> Iterator[ShardInput]:
    yield from shards
    verified()


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, the next one made in a thread while the last one is being used."""
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        coming = pool.submit(lambda: next(items, None))
        while (item := coming.result()) is not None:
            coming = pool.submit(lambda: next(items, None))
            yield item


def stored_file(task: FileTask) -> FileResult | None:
    """The file that a killed run left, checked; None where there is none, and it may be written.

    Raises:
        StorageError: the disk stands in the way.
    """
    began = time.monotonic()
    place = task.staging.folder / task.name
    if stored_id(place) != task.hlp_id:
        return None
    before = stat(place)
    whole = task.staging.fetched(task.name, check_whole)
    if whole is None or before is None:
        task.staging.remove(task.name)
        return None
    return FileResult(whole, reused=True, seconds=time.monotonic() - began, etag=before.etag)


def assemble(task: FileTask, desk: Desk, shards: Iterable[ShardInput]) -> FileResult:
    """Write one file of its encoded shards, which come in the task's order, and put it in its place.

    Raises:
        StorageError: the disk stands in the way.
    """
    began = time.monotonic()
    shards = desk.shards(shards, task.name)
    path = desk.path(task.name)
    summary = write_hlp(path, profile=task.profile, streams=task.streams, hlp_id=task.hlp_id, shards=shards)
    info = desk.publish(task.name)
    return FileResult(summary, reused=False, seconds=time.monotonic() - began, etag=info.etag if info else "")


def one_by_one(task: FileTask) -> list[FileTask]:
    """A task for `encode_shard` for each shard of a file."""
    return [replace(task, shards=(shard,)) for shard in task.shards]


def encode_shard(task: FileTask) -> ShardInput:
    """Encode a task's only shard, for `assemble` to write in another process.

    Raises:
        EpisodeError, PackError: as for `write_file`.
    """

    def encode(desk: Desk) -> ShardInput:
        (shard,) = _encoded(task, desk, lambda _: None)
        return shard

    return task.staging.work(task.name, encode)


def _encoded(
    task: FileTask, desk: Desk, done: Callable[[int], None], pool: Executor | None = None
) -> Iterator[ShardInput]:
    """The shards of a task, the streams of each one after the other or side by side on a pool."""
    codecs = [make_codec(stream) for stream in task.streams]
    for shards in _by_episode(task.shards):
        with desk.episode(shards[0].episode_id, shards[0].digest, task.streams) as reader:
            yield from _of_episode(task, codecs, reader, shards, done, pool)


def _of_episode(
    task: FileTask,
    codecs: Sequence[Codec],
    reader: EpisodeReader,
    shards: Sequence[TaskShard],
    done: Callable[[int], None],
    pool: Executor | None,
) -> Iterator[ShardInput]:
    times = reader.frame_time()
    spans = [(shard.first_frame, shard.first_frame + shard.frames) for shard in shards]
    feeds = [FrameFeed(reader, stream, spans, reencode=task.reencode) for stream in task.streams]
    for shard, (start, stop) in zip(shards, spans, strict=True):
        records: dict[int, Sequence[Record]] = {}
        works = [partial(feed.records, codec, start, stop) for codec, feed in zip(codecs, feeds, strict=True)]
        running = [work if pool is None else pool.submit(work).result for work in works]
        for stream, finish in zip(task.streams, running, strict=True):
            try:
                records[stream.stream_id] = finish()
            except (EpisodeError, PackError) as error:
                raise EpisodeError(
                    f"{reader.path}, frames {start} to {stop - 1}: {str(error).rstrip('.')}; "
                    f"mend the episode, or leave it out with --exclude {shard.episode_id}."
                ) from error
            _check_size(records, shard)
        done(shard.frames)
        yield ShardInput(
            shard.episode_id,
            shard.source_id,
            shard.digest,
            start,
            np.ascontiguousarray(times[start:stop], np.float64),
            records,
        )
    # An ingest may have replaced the episode meanwhile; the file then never gets its name. A copy stays what it is.
    if not task.staging.source.is_remote:
        check_digest(read_facts(reader.path), shards[0].digest, str(reader.path))


def _check_size(records: Mapping[int, Sequence[Record]], shard: TaskShard) -> None:
    size = sum(len(record.data) for rows in records.values() for record in rows)
    if size > MAX_SHARD_BYTES:
        raise PackError(
            f"{shard.episode_id}: a shard of {shard.frames} frames has more than the {MAX_SHARD_BYTES} bytes that are "
            "held in memory at once; give a smaller --shard-size."
        )


def _by_episode(shards: Sequence[TaskShard]) -> Iterator[list[TaskShard]]:
    group: list[TaskShard] = []
    for shard in shards:
        if group and shard.episode_id != group[0].episode_id:
            yield group
            group = []
        group.append(shard)
    if group:
        yield group
