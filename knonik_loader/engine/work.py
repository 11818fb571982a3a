"""A window of batches in progress: the arrays to fill, and the frames to fill them with, sorted by where they lie."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.engine.dataset import Source
from knonik_loader.engine.memory import BatchMemory
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.plan.types import BatchPlan

__all__ = ["BatchWork", "Dest", "Failure", "FileJob", "Segment", "divide", "place_anchors", "start_batch"]

IntArray = npt.NDArray[np.int64]
Dest = tuple[int, int]
"""(slot of the batch inside its window, position in its flattened (B x T) frames)."""

TIMES = -1
"""Stands in a job for the anchors' times, where a stream's position would be."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that a batch wanted and did not get."""

    samples: frozenset[int]
    """Positions in the batch that wanted it."""
    stream: int
    """Position among the loaded streams, or `TIMES`."""
    error: BaseException

    @property
    def order(self) -> tuple[int, int]:
        """The user sees the failure of the first sample and stream, whichever thread saw one first."""
        return min(self.samples, default=0), self.stream


@dataclass(slots=True, eq=False)
class BatchWork:
    """One batch while it is made."""

    plan: BatchPlan
    arrays: dict[str, npt.NDArray[Any]]
    """Batch key → (B, T, ...) in its final memory."""
    flat: list[npt.NDArray[Any]]
    """Stream position → (B * T, ...) view of the same."""
    timestamps: npt.NDArray[np.float64]
    """(B,) seconds of the anchors."""
    places: npt.NDArray[np.int64]
    """(3, B) of the anchors: KHLP file, shard in it, row in the shard."""
    pending: int = 0
    """Jobs and tasks that still write into it."""
    failures: list[Failure] = field(default_factory=list)
    only: IntArray | None = None
    """Positions of the samples that are still to be read; None: all."""
    attempts: int = 0
    """How often samples were exchanged for substitutes."""
    result: dict[str, Any] | None = None
    samples: list[Any] = field(default_factory=list)
    """Augmented samples, by position, while they are collected."""
    ready: bool = False

    @property
    def error(self) -> BaseException | None:
        """The first failure in the order of samples and streams."""
        return min(self.failures, key=lambda failure: failure.order).error if self.failures else None

    def fail(self, stream: int, at: Iterable[int], error: BaseException) -> None:
        """Note that some positions of a stream's flattened frames (of `TIMES`: samples) were not filled."""
        steps = 1 if stream == TIMES else len(self.flat[stream]) // len(self.plan)
        self.failures.append(Failure(frozenset(place // steps for place in at), stream, error))


@dataclass(slots=True)
class Segment:
    """What a window wants of one stream of one shard."""

    stream: int
    """Position among the loaded streams, or `TIMES`."""
    rows: list[int]
    """Ascending rows inside the shard, with repeats."""
    slots: list[int]
    """Batch of the window that wants each row."""
    at: list[int]
    """Position in that batch's flattened frames."""


@dataclass(slots=True)
class FileJob:
    """What a window wants of some shards of one KHLP file."""

    dataset: int
    hlp: int
    shards: list[tuple[int, list[Segment]]]
    """(row of the shard table, segments), in the order in which they lie in the file."""
    works: Sequence[BatchWork]
    """The window's batches, by slot."""
    slots: list[int] = field(default_factory=list)
    """Those of them that want something here."""

    def fail(self, error: BaseException) -> None:
        """Note that nothing of it was read."""
        for _, segments in self.shards:
            for part in segments:
                for slot in set(part.slots):
                    at = [at for s, at in zip(part.slots, part.at, strict=True) if s == slot]
                    self.works[slot].fail(part.stream, at, error)


def start_batch(
    plan: BatchPlan, sources: Sequence[Source], streams: Sequence[StreamInfo], memory: BatchMemory, turn: int
) -> BatchWork:
    """The arrays of a batch, from reused memory where there is some, and where its anchors lie."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    flat: list[npt.NDArray[Any]] = []
    for stream in streams:
        frames = plan.windows[stream.key].frames
        array = memory.take(turn, stream.key, (*frames.shape, *stream.shape), stream.dtype)
        for number, source in enumerate(sources):
            if source.lacks(len(flat)):
                array[plan.dataset == number] = 0
        arrays[stream.key] = array
        flat.append(array.reshape(-1, *stream.shape))
    return BatchWork(plan, arrays, flat, np.empty(len(plan), np.float64), place_anchors(plan, sources))


def place_anchors(plan: BatchPlan, sources: Sequence[Source]) -> IntArray:
    """(3, B): KHLP file, shard in it and row in the shard of a batch's anchors."""
    places = np.empty((3, len(plan)), np.int64)
    for number, source in enumerate(sources):
        dataset = source.dataset
        mine = np.flatnonzero(plan.dataset == number)
        shard, row = dataset.locate(plan.episodes[mine], plan.anchors[mine])
        table = dataset.index.shards
        places[:, mine] = np.stack([table.hlp[shard].astype(np.int64), table.shard[shard].astype(np.int64), row])
    return places


def divide(
    works: Sequence[BatchWork], sources: Sequence[Source], streams: Sequence[StreamInfo], max_shards: int
) -> list[FileJob]:
    """Sort everything that a window of batches wants by file, shard, stream and row, and cut it into jobs.

    Args:
        works: the window's batches.
        sources: that the plans' ``dataset`` columns count.
        streams: of the batch; positions in this list are what segments call ``stream``.
        max_shards: shards of one job at most.
    """
    jobs: list[FileJob] = []
    for number, source in enumerate(sources):
        dataset = source.dataset
        stream, slot, at, episode, frame = _wanted(works, number, source, streams)
        if not len(stream):
            continue
        shard, row = dataset.locate(episode, frame)
        table = dataset.index.shards
        hlp, inside = table.hlp[shard].astype(np.int64), table.shard[shard].astype(np.int64)
        order = np.lexsort((at, slot, row, stream, inside, hlp))
        columns = np.stack([hlp, shard, stream, row, slot, at])[:, order]  # (6, n)
        jobs += _cut(columns, number, works, max_shards)
    return jobs


def _wanted(
    works: Sequence[BatchWork], dataset: int, source: Source, streams: Sequence[StreamInfo]
) -> tuple[IntArray, ...]:
    """Columns (stream, slot, at, episode, frame) of everything that a window wants of one dataset."""
    parts: list[tuple[IntArray, ...]] = []
    for slot, work in enumerate(works):
        plan = work.plan
        mine = np.flatnonzero(plan.dataset == dataset)
        if work.only is not None:
            mine = np.intersect1d(mine, work.only)
        episodes = plan.episodes[mine]
        parts.append((*(np.full(len(mine), value) for value in (TIMES, slot)), mine, episodes, plan.anchors[mine]))
        for position, stream in enumerate(streams):
            if source.lacks(position):
                continue
            frames = plan.windows[stream.key].frames[mine]  # (b, T)
            steps = frames.shape[1]
            at = (mine[:, None] * steps + np.arange(steps)).ravel()
            constant = (np.full(frames.size, value) for value in (position, slot))
            parts.append((*constant, at, np.repeat(episodes, steps), frames.ravel()))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _cut(columns: IntArray, dataset: int, works: Sequence[BatchWork], max_shards: int) -> list[FileJob]:
    """Sorted columns (file, shard row, stream, row, slot, at) → jobs of one file and at most ``max_shards`` shards."""
    hlps, shards, streams = columns[:3]
    changes = np.flatnonzero((np.diff(shards) != 0) | (np.diff(streams) != 0)) + 1
    bounds = [0, *changes.tolist(), len(shards)]
    rows, slots, at = (column.tolist() for column in columns[3:])
    jobs: list[FileJob] = []
    job: FileJob | None = None
    last_shard = -1
    for first, end in itertools.pairwise(bounds):
        hlp, shard = int(hlps[first]), int(shards[first])
        if job is None or hlp != job.hlp or (shard != last_shard and len(job.shards) >= max_shards):
            job = FileJob(dataset, hlp, [], works)
            jobs.append(job)
            last_shard = -1
        if shard != last_shard:
            job.shards.append((shard, []))
            last_shard = shard
        job.shards[-1][1].append(Segment(int(streams[first]), rows[first:end], slots[first:end], at[first:end]))
    for job in jobs:
        job.slots = sorted({slot for _, segments in job.shards for part in segments for slot in part.slots})
    return jobs
