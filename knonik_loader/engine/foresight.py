"""What the coming batches will ask for, so that the cache lets go of what they need last, or not at all."""

from __future__ import annotations

import itertools
import math
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from knonik_loader.engine.dataset import Source
from knonik_loader.khlp.codecs import dependency_of
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.plan.types import BatchPlan

__all__ = ["NEVER", "Foresight", "horizon_of"]

NEVER = math.inf
"""A step beyond all that are foreseen."""

_TIMES_HELD = 4
"""What is foreseen would fill the cache so often: what is needed later than that would not have been kept anyhow."""
_MOST = 64
_EAGERNESS = 2
"""Batches that are planned ahead for each one that is started, so that the first one does not wait for them all."""

Place = tuple[int, int, int]
"""(dataset, row of the shard table, stream)."""


def horizon_of(limit: int, batch: int, streams: Sequence[StreamInfo]) -> int:
    """Batches to foresee for a cache of ``limit`` bytes, where each sample of a batch wants another picture of each."""
    picture = sum(math.prod(s.shape) for s in streams if s.kind == "rgb" and dependency_of(s.codec) != "none")
    return max(2, min(_MOST, -(-_TIMES_HELD * limit // max(1, batch * picture))))


class Foresight:
    """Plans of a pass ahead of the batches that are started, and which frames they want.

    One thread plans; any may ask.

    Args:
        plan: step → batch; pure.
        sources: that the plans' ``dataset`` columns count.
        streams: of the batch.
        limit: bytes of the cache.
        start: first step.
        stop: end of the pass.
    """

    def __init__(
        self,
        plan: Callable[[int], BatchPlan],
        sources: Sequence[Source],
        streams: Sequence[StreamInfo],
        limit: int,
        start: int,
        stop: int,
    ) -> None:
        self._plan, self._sources, self._streams = plan, sources, streams
        self._limit, self._stop = limit, stop
        self._horizon = 1
        self._lock = threading.Lock()
        self._plans: deque[BatchPlan] = deque()
        self._next = start
        self._wants: dict[Place, deque[tuple[int, list[int]]]] = {}
        self._places: deque[tuple[int, list[Place]]] = deque()
        self.oldest = start
        """The first step that may still ask for something."""

    def plan(self, step: int, oldest: int) -> BatchPlan:
        """The batch of a step; steps are asked for in order, each once.

        Args:
            step: of the pass.
            oldest: the first step that is not finished.
        """
        self._forget(oldest)
        made = 0
        while not self._plans or (made < _EAGERNESS and self._next < min(self._stop, step + self._horizon)):
            plan = self._plan(self._next)
            self._horizon = max(self._horizon, horizon_of(self._limit, len(plan), self._streams))
            self._plans.append(plan)
            self._note(self._next, plan)
            self._next += 1
            made += 1
        return self._plans.popleft()

    def next_use(self, place: Place, first: int, end: int, after: int) -> float:
        """The first step after ``after`` that wants one of the rows from ``first`` to before ``end``; else `NEVER`."""
        with self._lock:
            for step, rows in self._wants.get(place, ()):
                if step > after:
                    at = bisect_left(rows, first)
                    if at < len(rows) and rows[at] < end:
                        return step
        return NEVER

    def _note(self, step: int, plan: BatchPlan) -> None:
        found: list[tuple[Place, list[int]]] = []
        for number, source in enumerate(self._sources):
            mine = np.flatnonzero(plan.dataset == number)
            for position, stream in enumerate(self._streams):
                if not len(mine) or source.lacks(position) or dependency_of(source.streams[position].codec) == "none":
                    continue
                frames = plan.windows[stream.key].frames[mine]  # (b, T)
                shards, rows = source.dataset.locate(np.repeat(plan.episodes[mine], frames.shape[1]), frames.ravel())
                both = np.unique(np.stack([shards, rows]), axis=1)
                bounds = np.flatnonzero(np.diff(both[0], prepend=-1, append=-1)).tolist()
                for begin, end in itertools.pairwise(bounds):
                    found.append(((number, int(both[0, begin]), position), both[1, begin:end].tolist()))
        with self._lock:
            for place, wanted in found:
                self._wants.setdefault(place, deque()).append((step, wanted))
        self._places.append((step, [place for place, _ in found]))

    def _forget(self, oldest: int) -> None:
        self.oldest = max(self.oldest, oldest)
        with self._lock:
            while self._places and self._places[0][0] < self.oldest:
                for place in self._places.popleft()[1]:
                    left = self._wants[place]
                    left.popleft()
                    if not left:
                        del self._wants[place]
