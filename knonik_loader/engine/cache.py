"""Decoded pictures that later frames are made from, kept within a number of bytes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from knonik_loader.engine.foresight import NEVER

__all__ = ["FrameCache", "Frames", "Future", "GroupKey"]

GroupKey = tuple[int, int, int, int]
"""(dataset, row of the shard table, stream, row of the key inside the shard)."""
Frames = Mapping[int, npt.NDArray[np.uint8]]
"""Row inside the shard → decoded picture, not to be written to."""


class Future(Protocol):
    """What is known of the batches to come."""

    oldest: int
    """The first step that may still ask for something."""

    def next_use(self, place: tuple[int, int, int], first: int, end: int, after: int) -> float:
        """The first step after ``after`` that wants one of some rows of a stream of a shard."""
        ...


@dataclass(slots=True)
class _Held:
    frames: Frames
    size: int
    end: int
    """The first row behind those that decode from the key."""
    use: float
    """The step that needs it next, as far as that is known."""
    seen: int
    """The step that used it last."""


class FrameCache:
    """What is needed last goes first, or not at all in; safe to share between threads.

    What no batch needs as far as they are planned goes before everything else, and of that what was not used for
    longest; without plans that is all there is to go by. What a thread still works with stays alive after it was
    dropped here: in flight there may be as much again as ``prefetch_shards`` allows.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._held: dict[GroupKey, _Held] = {}
        # Step of the next use → what is due then, the one that was not used for longest first.
        self._due: dict[float, dict[GroupKey, None]] = {}
        self._future: Future | None = None
        self._bytes = self._hits = self._misses = self._dropped = 0

    @property
    def limit(self) -> int:
        """Bytes that it may hold."""
        return self._limit

    def foresee(self, future: Future | None) -> None:
        """Go by this from now on; None: by what was used."""
        with self._lock:
            self._future = future
            for key in list(self._held):
                self._expect(key, -1)

    def get(self, key: GroupKey, step: int = -1) -> Frames | None:
        """What is held, counted as a hit or a miss.

        Args:
            key: of the frames.
            step: that wants them.
        """
        with self._lock:
            found = self._held.get(key)
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._expect(key, step)
            return found.frames

    def worth(self, key: GroupKey, end: int, step: int) -> bool:
        """Whether to keep what was not found: there is room for it, or a batch that is planned needs it again."""
        with self._lock:
            full = self._dropped > 0
            return not full or self._future is None or self._next_use(key, end, step) != NEVER

    def put(self, key: GroupKey, frames: Frames, end: int = 0, step: int = -1) -> None:
        """Keep these, and drop what is needed least; what is larger than the limit alone is not kept.

        Args:
            key: of the frames.
            frames: decoded.
            end: the first row behind those that decode from the key.
            step: that wanted them.
        """
        size = sum(frame.nbytes for frame in frames.values())
        if size > self._limit:
            return
        with self._lock:
            self._drop(key)
            self._held[key] = _Held(frames, size, end, NEVER, step)
            self._due.setdefault(NEVER, {})[key] = None
            self._bytes += size
            self._expect(key, step)
            self._forget_past()
            while self._bytes > self._limit:
                self._drop(self._least_needed())
                self._dropped += 1

    def counts(self) -> dict[str, int]:
        """Look-ups that found something and that didn't, what was dropped, bytes held now and at most."""
        with self._lock:
            return {
                "hits": self._hits,
                "misses": self._misses,
                "dropped": self._dropped,
                "bytes": self._bytes,
                "limit_bytes": self._limit,
            }

    def _next_use(self, key: GroupKey, end: int, step: int) -> float:
        return NEVER if self._future is None else self._future.next_use(key[:3], key[3], end, step)

    def _expect(self, key: GroupKey, seen: int) -> None:
        """File what is held under its next use after a step."""
        held = self._held[key]
        self._leave(key, held.use)
        held.seen, held.use = seen, self._next_use(key, held.end, seen)
        self._due.setdefault(held.use, {})[key] = None

    def _leave(self, key: GroupKey, use: float) -> None:
        due = self._due[use]
        del due[key]
        if not due:
            del self._due[use]

    def _drop(self, key: GroupKey) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._leave(key, held.use)
            self._bytes -= held.size

    def _forget_past(self) -> None:
        """What was expected by a batch that is over is expected anew: it may have found it before it was kept."""
        if self._future is None:
            return
        oldest = self._future.oldest
        for use in [use for use in self._due if use < oldest]:
            for key in list(self._due[use]):
                self._expect(key, oldest - 1)

    def _least_needed(self) -> GroupKey:
        while True:
            use = max(self._due)
            key = next(iter(self._due[use]))
            held = self._held[key]
            # More batches are planned by now than when it was put among those without a use.
            if use != NEVER or self._next_use(key, held.end, held.seen) == NEVER:
                return key
            self._expect(key, held.seen)
