"""From episodes to KHLP files: one task a file, so that files are written side by side and a killed run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.packing.facts import read_facts
from knonik_assets.packing.frames import FrameFeed
from knonik_assets.packing.stored import check_whole, stored_id
from knonik_loader.errors import EpisodeError, PackError
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.types import Record, StorageProfile, StreamInfo
from knonik_loader.khlp.writer import HlpSummary, ShardInput, write_hlp

__all__ = ["FileResult", "FileTask", "TaskShard", "write_file"]


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
        PackError: a frame does not suit its stream.
        StorageError: the disk stands in the way.
    """
    began = time.monotonic()
    if stored_id(task.target) == task.hlp_id:
        whole = check_whole(task.target)
        if whole is not None:
            return FileResult(whole, reused=True, seconds=time.monotonic() - began)
        task.target.unlink()
    shards = _encoded(task, done)
    summary = write_hlp(task.target, profile=task.profile, streams=task.streams, hlp_id=task.hlp_id, shards=shards)
    return FileResult(summary, reused=False, seconds=time.monotonic() - began)


def _encoded(task: FileTask, done: Callable[[int], None]) -> Iterator[ShardInput]:
    codecs = [make_codec(stream) for stream in task.streams]
    for shards in _by_episode(task.shards):
        reader = EpisodeReader(task.input_dir / shards[0].episode_id)
        times = reader.frame_time()
        spans = [(shard.first_frame, shard.first_frame + shard.frames) for shard in shards]
        feeds = [FrameFeed(reader, stream, spans, reencode=task.reencode) for stream in task.streams]
        for shard, (start, stop) in zip(shards, spans, strict=True):
            records: dict[int, Sequence[Record]] = {}
            for stream, codec, feed in zip(task.streams, codecs, feeds, strict=True):
                try:
                    records[stream.stream_id] = codec.encode(feed.take(start, stop))
                except (EpisodeError, PackError) as error:
                    raise EpisodeError(
                        f"{reader.path}, frames {start} to {stop - 1}: {str(error).rstrip('.')}; "
                        f"mend the episode, or leave it out with --exclude {shard.episode_id}."
                    ) from error
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


def _by_episode(shards: Sequence[TaskShard]) -> Iterator[list[TaskShard]]:
    group: list[TaskShard] = []
    for shard in shards:
        if group and shard.episode_id != group[0].episode_id:
            yield group
            group = []
        group.append(shard)
    if group:
        yield group
