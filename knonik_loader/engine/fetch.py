"""From a job to bytes: which records its frames need, the reads that bring them, and the decode tasks they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from knonik_loader.engine.dataset import PackedDataset, Source
from knonik_loader.engine.work import TIMES, BatchWork, Dest, FileJob, Segment
from knonik_loader.errors import KnonikError
from knonik_loader.khlp.codecs import dependency_of
from knonik_loader.khlp.planning import closure
from knonik_loader.khlp.reader import HlpIndex, RecordTable
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.plan.reads import coalesce

__all__ = ["DecodeTask", "GroupWork", "ReadPolicy", "fetch"]


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """How reads and tasks are sized for a storage and a dataset."""

    max_gap: int
    """Bytes between two records that are read for nothing rather than asked for separately."""
    max_read: int
    """Bytes of one joined read."""
    task_pixels: int
    """Values of decoded frames that a task stops at: enough to outweigh its overhead, few enough to share out."""
    task_frames: int | None = None
    """Frames of one task; None: as ``task_pixels`` says."""

    @classmethod
    def of(cls, remote: bool, task_frames: int | None) -> ReadPolicy:
        """Wide gaps where a request costs milliseconds, narrow ones where it costs microseconds."""
        if remote:
            return cls(256 << 10, 8 << 20, 3_000_000, task_frames)
        return cls(16 << 10, 4 << 20, 3_000_000, task_frames)


@dataclass(slots=True)
class GroupWork:
    """Frames of one stream that are decoded together, and where each goes."""

    dataset: int
    shard_row: int
    stream: int
    table: RecordTable
    rows: list[int]
    """Records that the codec needs, ascending; numeric streams: the block, row 0."""
    wanted: list[tuple[int, list[Dest]]]
    """Row → every place that wants its frame, ascending."""
    records: dict[int, memoryview] = field(default_factory=dict)

    @property
    def first(self) -> tuple[int, int]:
        """What its failures sort by: the first position that it fills, and its stream."""
        return min(at for _, dests in self.wanted for _, at in dests), self.stream


@dataclass(slots=True)
class DecodeTask:
    """A few groups for one decode thread."""

    works: Sequence[BatchWork]
    groups: list[GroupWork]
    slots: list[int]
    shards: int = 0
    """Shards whose payloads it is the last to hold."""


@dataclass(slots=True)
class Fetched:
    """What a job brought."""

    tasks: list[DecodeTask]
    bytes: int
    reads: int


def fetch(job: FileJob, source: Source, policy: ReadPolicy) -> Fetched:
    """Open the job's file if need be, fill in the anchors' times, read the records, and make the decode tasks.

    Raises:
        KnonikError: the file can't be opened or read; the whole job has then failed.
    """
    dataset, streams = source.dataset, source.streams
    index = dataset.hlp_index(job.hlp)
    groups: list[GroupWork] = []
    for shard_row, segments in job.shards:
        shard = int(dataset.index.shards.shard[shard_row])
        for segment in segments:
            if segment.stream == TIMES:
                times = index.times(shard)
                for row, slot, at in zip(segment.rows, segment.slots, segment.at, strict=True):
                    job.works[slot].timestamps[at] = times[row]
            else:
                groups += _groups(index, shard, shard_row, segment, streams[segment.stream], job.dataset)
    if not groups:
        return Fetched([], 0, 0)
    try:
        total, reads = _read(groups, dataset, job.hlp, policy)
    except KnonikError as error:
        more = f" and {len(job.shards) - 1} further shards" if len(job.shards) > 1 else ""
        raise type(error)(f"{error} (wanted: {dataset.where(job.shards[0][0])}{more})") from error
    return Fetched(_tasks(groups, job, streams, policy), total, reads)


def _groups(
    index: HlpIndex, shard: int, shard_row: int, segment: Segment, stream: StreamInfo, dataset: int
) -> list[GroupWork]:
    table = index.records(shard, stream.stream_id)
    dests: dict[int, list[Dest]] = {}
    for row, slot, at in zip(segment.rows, segment.slots, segment.at, strict=True):
        dests.setdefault(row, []).append((slot, at))
    if stream.kind == "numeric":
        return [GroupWork(dataset, shard_row, segment.stream, table, [0], list(dests.items()))]
    return [
        GroupWork(
            dataset,
            shard_row,
            segment.stream,
            table,
            group.rows.tolist(),
            [(row, dests[row]) for row in group.wanted.tolist()],
        )
        for group in closure(table, dependency_of(stream.codec), list(dests))
    ]


def _read(groups: list[GroupWork], dataset: PackedDataset, hlp: int, policy: ReadPolicy) -> tuple[int, int]:
    """Bring the records of all groups by as few reads as pay; gives bytes and reads."""
    owners = [(group, row) for group in groups for row in group.rows]
    offsets = np.concatenate([group.table.offsets[group.rows] for group in groups]).astype(np.int64)
    sizes = np.concatenate([group.table.sizes[group.rows] for group in groups]).astype(np.int64)
    reads = coalesce(offsets, sizes, max_gap=policy.max_gap, max_size=policy.max_read)
    parts = dataset.storage.read_ranges(dataset.hlp_key(hlp), [(read.offset, read.length) for read in reads])
    starts, lengths = offsets.tolist(), sizes.tolist()
    for read, part in zip(reads, parts, strict=True):
        for member in read.members.tolist():
            group, row = owners[member]
            begin = starts[member] - read.offset
            group.records[row] = part[begin : begin + lengths[member]]
    return sum(read.length for read in reads), len(reads)


def _tasks(
    groups: list[GroupWork], job: FileJob, streams: Sequence[StreamInfo], policy: ReadPolicy
) -> list[DecodeTask]:
    """Share groups out to tasks of about equal work, in file order."""
    tasks: list[DecodeTask] = []
    task: list[GroupWork] = []
    pixels = frames = 0
    for group in groups:
        task.append(group)
        stream = streams[group.stream]
        if stream.kind != "numeric":
            frames += len(group.rows)
        pixels += len(group.rows) * int(np.prod(stream.shape))
        full = frames >= policy.task_frames if policy.task_frames else pixels >= policy.task_pixels
        if full:
            tasks.append(DecodeTask(job.works, task, _slots(task)))
            task, pixels, frames = [], 0, 0
    if task:
        tasks.append(DecodeTask(job.works, task, _slots(task)))
    tasks[-1].shards = len(job.shards)
    return tasks


def _slots(groups: list[GroupWork]) -> list[int]:
    return sorted({slot for group in groups for _, dests in group.wanted for slot, _ in dests})
