"""Counting what the engine does, cheaply enough to be always on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from knonik_loader.plan.types import BatchPlan

__all__ = ["Statistics"]

STAGES = ("plan", "fetch", "decode", "augment", "assemble")
_RECENT = 4096
_NEAR_FRAMES = 10
"""Two samples of one batch, of one episode and at most so many frames apart, count as near-duplicates."""


class Statistics:
    """Counters of one loader over all its epochs; every method may be called from any thread."""

    def __init__(self, inactive: Sequence[str]) -> None:
        self._inactive = list(inactive)
        self._lock = threading.Lock()
        self._calls = dict.fromkeys(STAGES, 0)
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._totals = dict.fromkeys(("batches", "samples", "frames", "bytes_read", "reads", "errors", "skipped"), 0)
        self._recent = {name: deque[float](maxlen=_RECENT) for name in STAGES}
        self._idle = {name: deque[float](maxlen=_RECENT) for name in STAGES}
        self._idled = dict.fromkeys(STAGES, 0.0)
        self._queued = {name: deque[int](maxlen=_RECENT) for name in STAGES}
        self._waits: deque[float] = deque(maxlen=_RECENT)
        self._waited = 0.0
        self._ready: deque[int] = deque(maxlen=_RECENT)
        self._episodes = self._near = self._planned = self._planned_samples = 0
        self._began: float | None = None
        self._last = 0.0

    def stage(self, name: str, seconds: float, calls: int = 1, **totals: int) -> None:
        """Time that a stage took, and what it added to the totals."""
        with self._lock:
            self._calls[name] += calls
            self._seconds[name] += seconds
            self._recent[name].append(seconds / max(1, calls))
            for total, count in totals.items():
                self._totals[total] += count

    def waited(self, name: str, seconds: float, queued: int) -> None:
        """A thread of a stage waited for work, with so much in the stage's queue when it began to."""
        with self._lock:
            self._idled[name] += seconds
            self._idle[name].append(seconds)
            self._queued[name].append(queued)

    def skipped(self, samples: int) -> None:
        """Samples were replaced by substitutes."""
        with self._lock:
            self._totals["skipped"] += samples

    def planned(self, plan: BatchPlan) -> None:
        """Note how diverse a batch is."""
        key = (plan.dataset << 40) | plan.episodes
        order = np.lexsort((plan.anchors, key))
        same = np.diff(key[order]) == 0
        close = same & (np.diff(plan.anchors[order]) <= _NEAR_FRAMES)
        near = np.zeros(len(order), bool)
        near[1:] |= close
        near[:-1] |= close
        with self._lock:
            self._planned += 1
            self._planned_samples += len(order)
            self._episodes += len(order) - int(same.sum())
            self._near += int(near.sum())

    def handed_out(self, samples: int, waited: float, ready: int) -> None:
        """A batch went to the user after a wait in seconds, with so many others ready."""
        now = time.perf_counter()
        with self._lock:
            self._totals["batches"] += 1
            self._totals["samples"] += samples
            self._waits.append(waited)
            self._waited += waited
            self._ready.append(ready)
            if self._began is None:
                self._began = now - waited
            self._last = now

    def failed(self) -> None:
        """A batch raised its error instead."""
        with self._lock:
            self._totals["errors"] += 1

    def snapshot(self, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - further JSON values
        """Everything as JSON values.

        Times are in seconds summed over threads; ``wait`` is what the consumer waited for batches; ``frames`` are
        pictures decoded, those on the way from a key included and those that several samples share counted once. Of
        each stage: time of its calls and of its threads' waits for work, with percentiles over the latest ones, and
        what was in its queue when a thread looked (``plan``: batches that are made or ready).
        """
        with self._lock:
            span = self._last - self._began if self._began is not None else 0.0
            totals = dict(self._totals)
            waits = np.array(self._waits or [0.0])
            samples = totals["samples"]
            return {
                **totals,
                "seconds": span,
                "throughput": {
                    "batches_per_s": totals["batches"] / span if span else 0.0,
                    "samples_per_s": samples / span if span else 0.0,
                    "frames_per_s": totals["frames"] / span if span else 0.0,
                    "bytes_per_s": totals["bytes_read"] / span if span else 0.0,
                },
                "stages": {name: self._stage(name) for name in STAGES},
                "wait": {"seconds": self._waited, "mean_s": float(waits.mean()), **_percentiles(waits)},
                "queue": {"mean_ready": float(np.mean(self._ready)) if self._ready else 0.0},
                "diversity": {
                    "episodes_per_batch": self._episodes / self._planned if self._planned else 0.0,
                    "near_duplicates": self._near / self._planned_samples if self._planned_samples else 0.0,
                },
                "inactive": list(self._inactive),
                **more,
            }

    def _stage(self, name: str) -> dict[str, Any]:
        queued = self._queued[name]
        return {
            "calls": self._calls[name],
            "seconds": self._seconds[name],
            **_percentiles(self._recent[name]),
            "wait": {"seconds": self._idled[name], **_percentiles(self._idle[name])},
            "queue": {"mean": float(np.mean(queued)) if queued else 0.0, "max": max(queued, default=0)},
        }


def _percentiles(seconds: Iterable[float]) -> dict[str, float]:
    values = np.array(list(seconds) or [0.0])
    return {f"p{share}_s": float(np.percentile(values, share)) for share in (50, 90, 99)}
