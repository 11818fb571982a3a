"""Shuffles that touch few files or shards at once, and reorderings inside a window of the plan.

A bounded shuffle lays the anchors out as they are stored, files and the shards inside each in an order of the epoch's
own, moves every anchor by noise of up to a range, and sorts: at any time only shards within the range are in use. The
sorted order is computed block by block, so that any position is reachable without those before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from knonik_loader.khlp.index import ShardTable
from knonik_loader.plan.anchors import AnchorTable
from knonik_loader.plan.hashing import derive_key, hash64, uniform_below
from knonik_loader.plan.order import EpochOrder

__all__ = ["GLOBAL_WINDOW_BATCHES", "Arranged", "Bounded", "Locality", "StoredAnchors", "window_anchors"]

IntArray = npt.NDArray[np.int64]
Locality = Literal["hlp_bounded", "low_mem", "ultra_low_mem"]
Locate = Callable[[IntArray, IntArray], tuple[IntArray, IntArray]]

_FILES = {"hlp_bounded": 4}
_SHARDS = {"low_mem": 64, "ultra_low_mem": 16}
# A window is planned at once; this many anchors take some 30 MB and a quarter of a second.
_MOST_ANCHORS = 1 << 19

GLOBAL_WINDOW_BATCHES = 32
"""Global batches inside which block planning may reorder an unbounded shuffle."""


@dataclass(frozen=True)
class StoredAnchors:
    """The anchors of each shard that has any."""

    table: AnchorTable
    at: IntArray
    """(S,) position of the shard's episode in the anchor table."""
    rank: IntArray
    """(S,) number of the shard's first anchor inside its episode."""
    counts: IntArray
    """(S,) anchors in the shard."""
    files: IntArray
    """(S,) file of the shard."""
    shards: IntArray
    """(S,) number of the shard inside its file."""

    @classmethod
    def of(cls, table: AnchorTable, shards: ShardTable) -> StoredAnchors:
        """Count the anchors of every shard."""
        episode = shards.episode.astype(np.int64)
        at = np.minimum(np.searchsorted(table.episodes, episode), len(table.episodes) - 1)
        mine = np.flatnonzero(table.episodes[at] == episode)
        at, first = at[mine], shards.first_frame[mine].astype(np.int64)
        start, stop = table.ranks(at, first), table.ranks(at, first + shards.frames[mine])
        some = np.flatnonzero(stop > start)
        return cls(
            table,
            at[some],
            start[some],
            (stop - start)[some],
            shards.hlp[mine][some].astype(np.int64),
            shards.shard[mine][some].astype(np.int64),
        )


def window_anchors(locality: Locality, stored: StoredAnchors) -> int:
    """Anchors that may be in use at once: those of 4 files, 64 shards or 16 shards on average, at most 2**19."""
    total = int(stored.counts.sum())
    if locality in _FILES:
        units, parts = _FILES[locality], len(np.unique(stored.files))
    else:
        units, parts = _SHARDS[locality], len(stored.counts)
    return max(2, min(-(-total * units // parts), total, _MOST_ANCHORS))


class Bounded:
    """Anchors shuffled within a range of where they are stored.

    Args:
        stored: anchors by shard.
        reach: anchors that noise moves one by, at most.
        seed: of the run.
    """

    def __init__(self, stored: StoredAnchors, reach: int, seed: int) -> None:
        self._stored = stored
        self._reach = reach
        self._seed = seed
        self._total = int(stored.counts.sum())
        self._layout = functools.lru_cache(2)(self._lay_out)
        self._block = functools.lru_cache(4)(self._sort_block)

    def __reduce__(self) -> tuple[Any, ...]:
        """What is kept is not worth sending to another process."""
        return Bounded, (self._stored, self._reach, self._seed)

    def lookup(self, epoch: int, positions: IntArray) -> tuple[IntArray, IntArray]:
        """See `EpochOrder`."""
        # Blocks of sorted keys don't begin at multiples of the reach, but at most one reach before.
        slots = np.empty(len(positions), np.int64)
        missing = np.ones(len(positions), bool)
        if not len(positions):
            return slots, slots
        for number in range(int(positions.min()) // self._reach, int(positions.max()) // self._reach + 2):
            start, members = self._block(epoch, number)
            here = missing & (positions >= start) & (positions < start + len(members))
            slots[here] = members[positions[here] - start]
            missing &= ~here
        order, ends = self._layout(epoch)
        which = np.searchsorted(ends, slots, side="right")
        shard = order[which]
        stored = self._stored
        rank = stored.rank[shard] + slots - (ends[which] - stored.counts[shard])
        return stored.table.episodes[stored.at[shard]], stored.table.frames(stored.at[shard], rank)

    def _lay_out(self, epoch: int) -> tuple[IntArray, IntArray]:
        """(S,) the epoch's order of shards, and (S,) anchors up to the end of each."""
        stored = self._stored
        files = hash64(derive_key("files", self._seed, epoch), stored.files)
        shards = hash64(derive_key("shards", self._seed, epoch), (stored.files << 32) | stored.shards)
        order = np.lexsort((stored.shards, shards, stored.files, files)).astype(np.int64)
        return order, np.cumsum(stored.counts[order])

    def _sort_block(self, epoch: int, number: int) -> tuple[int, IntArray]:
        """The anchors whose keys lie in [number, number + 1) reaches: plan position of the first, and their slots."""
        low, high = number * self._reach, (number + 1) * self._reach
        first = max(0, low - self._reach)
        slots = np.arange(first, min(high, self._total), dtype=np.int64)
        keys = slots + uniform_below(derive_key("noise", self._seed, epoch), slots, self._reach)
        # All slots before `first` have keys below this block, and so have some of those since.
        start = first + int(np.count_nonzero(keys < low))
        inside = (keys >= low) & (keys < high)
        slots = slots[inside]
        return start, slots[np.argsort(keys[inside], kind="stable")]


class Arranged:
    """Another order, rearranged inside windows of plan positions.

    Anchors of one window are grouped by shard, so that a group touches few shards; inside a group those of an episode
    are kept apart.

    Args:
        inner: the order to rearrange.
        total: positions of an epoch.
        window: positions of a window.
        locate: frame → shard.
        max_shards: shards of a group; None: the window is one group.
        apart: positions between two anchors of one episode, as far as the group allows.
    """

    def __init__(
        self, inner: EpochOrder, total: int, window: int, locate: Locate, *, max_shards: int | None, apart: int
    ) -> None:
        self._inner = inner
        self._total = total
        self._window = window
        self._locate = locate
        self._max_shards = max_shards
        self._apart = apart
        self._arranged = functools.lru_cache(4)(self._arrange)

    def __reduce__(self) -> tuple[Any, ...]:
        """What is kept is not worth sending to another process."""
        rebuild = functools.partial(Arranged, max_shards=self._max_shards, apart=self._apart)
        return rebuild, (self._inner, self._total, self._window, self._locate)

    def lookup(self, epoch: int, positions: IntArray) -> tuple[IntArray, IntArray]:
        """See `EpochOrder`."""
        episodes, frames = np.empty(len(positions), np.int64), np.empty(len(positions), np.int64)
        windows = positions // self._window
        for number in np.unique(windows).tolist():
            here = windows == number
            inside = positions[here] - number * self._window
            of_window = self._arranged(epoch, number)
            episodes[here], frames[here] = of_window[0][inside], of_window[1][inside]
        return episodes, frames

    def _arrange(self, epoch: int, number: int) -> tuple[IntArray, IntArray]:
        start = number * self._window
        positions = np.arange(start, min(start + self._window, self._total), dtype=np.int64)
        episodes, frames = self._inner.lookup(epoch, positions)
        groups = np.zeros(len(positions), np.int64)
        if self._max_shards is not None:
            groups = _by_appearance(self._locate(episodes, frames)[0]) // self._max_shards
        grouped = np.argsort(groups, kind="stable")
        order = grouped[_kept_apart(groups[grouped], episodes[grouped], self._apart)]
        return episodes[order], frames[order]


def _by_appearance(values: IntArray) -> IntArray:
    """(n,) values → (n,) numbers from 0 on, in the order in which values are first seen."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse]


def _kept_apart(groups: IntArray, episodes: IntArray, apart: int) -> IntArray:
    """An order of anchors, sorted by group, that brings those of one episode ``apart`` places apart where it can.

    Each anchor is sorted by its own place or, if that is later, ``apart`` places after the last one of its episode:
    what has just been seen comes last within the group.
    """
    count = len(groups)
    apart = min(apart, count)
    # By group and episode, in order of place: key[k] = max(place[k], key[k - 1] + apart), which is k * apart plus the
    # running maximum of place[k] - k * apart.
    order = np.lexsort((episodes, groups))
    begins = np.ones(count, bool)
    begins[1:] = (np.diff(groups[order]) != 0) | (np.diff(episodes[order]) != 0)
    run = np.cumsum(begins) - 1
    turn = np.arange(count) - np.flatnonzero(begins)[run]
    slack = order - turn * apart
    # Each run is lifted above all before it, so that one running maximum serves them all.
    lift = run * (int(slack.max(initial=0)) - int(slack.min(initial=0)) + 1)
    keys = np.empty(count, np.int64)
    keys[order] = np.maximum.accumulate(slack + lift) - lift + turn * apart
    return np.lexsort((keys, groups)).astype(np.int64)
