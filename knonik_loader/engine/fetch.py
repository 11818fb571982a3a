"""From a job to bytes: which records its frames need, the reads that bring them, and the decode tasks they make."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from knonik_loader.engine.cache import FrameCache, Frames, GroupKey
from knonik_loader.engine.dataset import PackedDataset, Source
from knonik_loader.engine.work import TIMES, BatchWork, Dest, FileJob, Segment
from knonik_loader.errors import KnonikError, StorageError, reworded
from knonik_loader.khlp.codecs import dependency_of
from knonik_loader.khlp.planning import check_rows, closure
from knonik_loader.khlp.reader import RecordTable
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.plan.reads import coalesce

IntArray = npt.NDArray[np.int64]

__all__ = ["DecodeTask", "Fetched", "GroupWork", "ReadPolicy", "fetch"]

_TOGETHER = 4
"""Frames that need no others are taken together so many at a time: what a group costs is shared, and a task can still
be about as small as the frames that a thread decodes in some milliseconds."""


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
    cache_key: GroupKey | None = None
    """Under which decoded frames are to be kept; None: they are not."""
    cache_end: int = 0
    """The first row behind those that decode from its key."""
    held: Frames | None = None
    """What the cache had when the reads were planned."""

    def fail(self, works: Sequence[BatchWork], error: BaseException) -> None:
        """Note in the batches that want its frames that these are missing."""
        for slot in {slot for _, dests in self.wanted for slot, _ in dests}:
            works[slot].fail(self.stream, [at for _, dests in self.wanted for s, at in dests if s == slot], error)


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
    bytes: int = 0
    reads: int = 0
    failed: list[tuple[GroupWork, KnonikError]] = field(default_factory=list)
    """Groups whose records could not be read, where others of the file could."""


def fetch(job: FileJob, source: Source, policy: ReadPolicy, cache: FrameCache | None = None) -> Fetched:
    """Open the job's file if need be, fill in the anchors' times, read the records, and make the decode tasks.

    Raises:
        KnonikError: the file can't be opened or nothing of it be read; the whole job has then failed.
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
                table = index.records(shard, streams[segment.stream].stream_id)
                groups += _groups(table, shard_row, segment, streams[segment.stream], job, policy, cache)
    if not groups:
        return Fetched([])
    found, groups = _read(groups, source, job.hlp, policy)
    found.tasks = _tasks(groups, job, streams, policy) if groups else []
    return found


def _groups(
    table: RecordTable,
    shard_row: int,
    segment: Segment,
    stream: StreamInfo,
    job: FileJob,
    policy: ReadPolicy,
    cache: FrameCache | None,
) -> list[GroupWork]:
    dataset = job.dataset
    dests: dict[int, list[Dest]] = {}
    for row, slot, at in zip(segment.rows, segment.slots, segment.at, strict=True):
        dests.setdefault(row, []).append((slot, at))
    if stream.kind == "numeric":
        return [GroupWork(dataset, shard_row, segment.stream, table, [0], list(dests.items()))]
    dependency = dependency_of(stream.codec)
    if dependency == "none":
        rows, most = list(dests), min(_TOGETHER, policy.task_frames or _TOGETHER)
        check_rows(table, rows)
        parts = (rows[first : first + most] for first in range(0, len(rows), most))
        return [
            GroupWork(dataset, shard_row, segment.stream, table, part, [(row, dests[row]) for row in part])
            for part in parts
        ]
    groups = []
    for group in closure(table, dependency, list(dests)):
        wanted = [(row, dests[row]) for row in group.wanted.tolist()]
        work = GroupWork(dataset, shard_row, segment.stream, table, group.rows.tolist(), wanted)
        # A frame stored whole between keys (bit 0) helps no other frame.
        if cache is not None and not int(table.flags[group.key_row]) & 1:
            key, step = (dataset, shard_row, segment.stream, group.key_row), job.works[-1].plan.step
            work.cache_end = _chain_end(table, group.key_row)
            work.held = cache.get(key, step)
            work.cache_key = key if work.held is not None or cache.worth(key, work.cache_end, step) else None
            if work.held is not None:
                work.rows = [row for row in work.rows if row not in work.held]
            elif work.cache_key is not None and dependency == "chain":
                work.rows = list(range(group.key_row, work.cache_end))  # what is kept shall serve every frame of it
        groups.append(work)
    return groups


def _chain_end(table: RecordTable, key: int) -> int:
    """The first row behind all that refer to a key."""
    back = table.key_back[key:]
    return key + 1 + int(np.flatnonzero(back == np.arange(len(back)))[-1])


def _read(groups: list[GroupWork], source: Source, hlp: int, policy: ReadPolicy) -> tuple[Fetched, list[GroupWork]]:
    """Bring the records of all groups; where that fails for one of several, of each one alone.

    Returns:
        What was read and what was not, and the groups that have their records now.

    Raises:
        KnonikError: the store is out of reach, or no group could be read.
    """
    dataset, loaded = source.dataset, len(source.streams)
    try:
        return Fetched([], *_read_together(groups, dataset, hlp, policy, loaded)), groups
    except KnonikError as error:
        alone = [part for group in groups for part in _alone(group, source.streams[group.stream])]
        if len(alone) == 1 or (isinstance(error, StorageError) and error.outage):
            raise _wanted_by(groups, dataset, error) from error
    found = Fetched([])
    whole: list[GroupWork] = []
    for group in alone:
        try:
            read, reads = _read_together([group], dataset, hlp, policy, loaded)
        except KnonikError as error:
            found.failed.append((group, _wanted_by([group], dataset, error)))
        else:
            whole.append(group)
            found.bytes, found.reads = found.bytes + read, found.reads + reads
    if not whole:
        raise _wanted_by(groups, dataset, found.failed[0][1].__cause__ or found.failed[0][1])
    return found, whole


def _alone(group: GroupWork, stream: StreamInfo) -> list[GroupWork]:
    """A group as several that can do without each other's records: a frame each, where frames need no others."""
    if stream.kind == "numeric" or dependency_of(stream.codec) != "none":
        return [group]
    return [dataclasses.replace(group, rows=[row], wanted=[(row, dests)], records={}) for row, dests in group.wanted]


def _wanted_by(groups: list[GroupWork], dataset: PackedDataset, error: BaseException) -> KnonikError:
    """The error of a read, and what was to be read."""
    shards = {group.shard_row for group in groups}
    more = f" and {len(shards) - 1} further shards" if len(shards) > 1 else ""
    reason = error if isinstance(error, KnonikError) else StorageError(str(error))
    told = reworded(reason, f"{error} (wanted: {dataset.where(groups[0].shard_row)}{more})")
    told.__cause__ = error
    return told


def _read_together(
    groups: list[GroupWork], dataset: PackedDataset, hlp: int, policy: ReadPolicy, loaded: int
) -> tuple[int, int]:
    """Bring the records of all groups by as few reads as pay; gives bytes and reads.

    ``loaded``: how many of the dataset's streams are.
    """
    owners = [(group, row) for group in groups for row in group.rows]
    if not owners:
        return 0, 0
    places = [_places(list(some)) for _, some in itertools.groupby(groups, lambda group: id(group.table))]
    offsets, sizes = np.concatenate(places, axis=1)
    # Between two frames of one stream of one shard lie frames of that stream; any other gap may hold streams that
    # nobody asked for, whose bytes are never read.
    whole = loaded == len(dataset.streams)
    runs = None if whole else np.array([group.shard_row * loaded + group.stream for group, _ in owners], np.int64)
    reads = coalesce(offsets, sizes, max_gap=policy.max_gap, max_size=policy.max_read, runs=runs)
    parts = dataset.storage.read_ranges(dataset.hlp_key(hlp), [(read.offset, read.length) for read in reads])
    starts, lengths = offsets.tolist(), sizes.tolist()
    for read, part in zip(reads, parts, strict=True):
        for member in read.members.tolist():
            group, row = owners[member]
            begin = starts[member] - read.offset
            group.records[row] = part[begin : begin + lengths[member]]
    return sum(read.length for read in reads), len(reads)


def _places(groups: Sequence[GroupWork]) -> IntArray:
    """(2, n): offsets and sizes of the records of groups that share a table."""
    rows, table = [row for group in groups for row in group.rows], groups[0].table
    return np.array([table.offsets[rows], table.sizes[rows]], np.int64)


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
        pixels += len(group.rows) * math.prod(stream.shape)
        full = frames >= policy.task_frames if policy.task_frames else pixels >= policy.task_pixels
        if full:
            tasks.append(DecodeTask(job.works, task, _slots(task, job)))
            task, pixels, frames = [], 0, 0
    if task:
        tasks.append(DecodeTask(job.works, task, _slots(task, job)))
    tasks[-1].shards = len(job.shards)
    return tasks


def _slots(groups: list[GroupWork], job: FileJob) -> list[int]:
    if len(job.slots) == 1:
        return job.slots
    return sorted({slot for group in groups for _, dests in group.wanted for slot, _ in dests})
