"""From episodes to KHLP files, a file or a shard at a time: work is done side by side, and a killed run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from knonik_assets.episodes.storing import storage_errors
from knonik_assets.packing.facts import kept_reader, read_facts
from knonik_assets.packing.frames import FrameFeed
from knonik_assets.packing.stored import check_whole, stored_id
from knonik_loader.errors import EpisodeError, PackError
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.types import Record, StorageProfile, StreamInfo
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

    input_dir: Path
    target: Path
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


def write_file(task: FileTask, done: Callable[[int], None] = lambda _: None) -> FileResult:
    """Write one file, or check and keep the one that a killed run left.

    Args:
        task: what to write.
        done: is told of so many more frames.

    Raises:
        EpisodeError: an episode is damaged.
        PackError: a frame does not suit its stream, or a shard does not fit into memory.
        StorageError: the disk stands in the way.
    """
    stored = stored_file(task)
    if stored is not None:
        return stored
    shards = _encoded(task, done)
    # Reading JPEGs that pass takes about as long as writing them; where there is something to encode, it takes longest.
    return assemble(task, one_ahead(shards) if task.profile == "training_fast" else shards)


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
    if stored_id(task.target) != task.hlp_id:
        return None
    whole = check_whole(task.target)
    if whole is None:
        with storage_errors("remove", task.target):
            task.target.unlink()
        return None
    return FileResult(whole, reused=True, seconds=time.monotonic() - began)


def assemble(task: FileTask, shards: Iterable[ShardInput]) -> FileResult:
    """Write one file of its encoded shards, which come in the task's order.

    Raises:
        StorageError: the disk stands in the way.
    """
    began = time.monotonic()
    summary = write_hlp(task.target, profile=task.profile, streams=task.streams, hlp_id=task.hlp_id, shards=shards)
    return FileResult(summary, reused=False, seconds=time.monotonic() - began)


def one_by_one(task: FileTask) -> list[FileTask]:
    """A task for `encode_shard` for each shard of a file."""
    return [replace(task, shards=(shard,)) for shard in task.shards]


def encode_shard(task: FileTask) -> ShardInput:
    """Encode a task's only shard, for `assemble` to write in another process.

    Raises:
        EpisodeError, PackError: as for `write_file`.
    """
    (shard,) = _encoded(task, lambda _: None)
    return shard


def _encoded(task: FileTask, done: Callable[[int], None]) -> Iterator[ShardInput]:
    codecs = [make_codec(stream) for stream in task.streams]
    for shards in _by_episode(task.shards):
        reader = kept_reader(task.input_dir / shards[0].episode_id, shards[0].digest)
        times = reader.frame_time()
        spans = [(shard.first_frame, shard.first_frame + shard.frames) for shard in shards]
        feeds = [FrameFeed(reader, stream, spans, reencode=task.reencode) for stream in task.streams]
        for shard, (start, stop) in zip(shards, spans, strict=True):
            records: dict[int, Sequence[Record]] = {}
            for stream, codec, feed in zip(task.streams, codecs, feeds, strict=True):
                try:
                    records[stream.stream_id] = feed.records(codec, start, stop)
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
        # An ingest may have replaced the episode meanwhile; the file then never gets its name.
        if read_facts(reader.path).digest != shards[0].digest:
            raise EpisodeError(f"{reader.path} was replaced while it was packed; pack again when ingest has ended.")


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
