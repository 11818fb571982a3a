"""Decoded pictures that later frames are made from, kept within a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

__all__ = ["FrameCache", "Frames", "GroupKey"]

GroupKey = tuple[int, int, int, int]
"""(dataset, row of the shard table, stream, row of the key inside the shard)."""
Frames = Mapping[int, npt.NDArray[np.uint8]]
"""Row inside the shard → decoded picture, not to be written to."""


class FrameCache:
    """Least recently used first out; safe to share between threads.

    What a thread still works with stays alive after it was dropped here: in flight there may be as much again as
    ``prefetch_shards`` allows.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._held: OrderedDict[GroupKey, tuple[Frames, int]] = OrderedDict()
        self._bytes = self._hits = self._misses = self._dropped = 0

    def get(self, key: GroupKey) -> Frames | None:
        """What is held, counted as a hit or a miss."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: GroupKey, frames: Frames) -> None:
        """Keep these, and drop what was not used for longest; what is larger than the limit alone is not kept."""
        size = sum(frame.nbytes for frame in frames.values())
        if size > self._limit:
            return
        with self._lock:
            old = self._held.pop(key, None)
            self._bytes += size - (old[1] if old is not None else 0)
            self._held[key] = (frames, size)
            while self._bytes > self._limit:
                self._bytes -= self._held.popitem(last=False)[1][1]
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
