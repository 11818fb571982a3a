"""What all runs of one loader share: its datasets, its plan, its memory and the sizes of its stages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.engine.augment import AugmentFn
from knonik_loader.engine.augment_process import WorkerPool
from knonik_loader.engine.batch import Assembler
from knonik_loader.engine.cache import FrameCache
from knonik_loader.engine.dataset import Source
from knonik_loader.engine.fetch import ReadPolicy
from knonik_loader.engine.foresight import Foresight
from knonik_loader.engine.memory import BatchMemory
from knonik_loader.engine.metrics import MetricsFile
from knonik_loader.engine.stats import Statistics
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.plan.types import BatchPlan

__all__ = ["Engine", "EngineOptions"]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes of the engine's stages, resolved from the configuration."""

    fetchers: int
    decoders: int
    ahead: int
    """Batches started before they are asked for; 0: assembled when asked."""
    window: int
    """Batches that are read and decoded together."""
    shards_ahead: int
    """Shards whose payloads may wait for a decoder."""
    job_shards: int
    """Shards of one read job."""
    verify: bool
    files: int | None = None
    """KHLP files that are read at once; None: as many as there are fetchers."""
    augment_fn: AugmentFn | None = None
    augment_threads: int = 0
    """0: in the thread that asks for the batch."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What all runs of one loader share."""

    sources: tuple[Source, ...]
    streams: tuple[StreamInfo, ...]
    """Of the batch."""
    plan: Callable[[int, int], BatchPlan]
    """(epoch, step) → batch."""
    assembler: Assembler
    memory: BatchMemory
    stats: Statistics
    options: EngineOptions
    policy: ReadPolicy
    metrics: MetricsFile | None = None
    cache: FrameCache | None = None
    processes: WorkerPool | None = None
    """Where ``augment_execution`` is ``process``."""
    substitute: Callable[[BatchPlan, npt.NDArray[np.int64], int], BatchPlan] | None = None
    """(batch, positions, attempt) → the batch with other samples there; None: a bad sample is an error."""

    def foresight(self, epoch: int, start: int, stop: int) -> Foresight | None:
        """What a pass is going to ask for, which the cache goes by from now on; None without a cache."""
        if self.cache is None:
            return None
        plan = functools.partial(self.plan, epoch)
        found = Foresight(plan, self.sources, self.streams, self.cache.limit, start, stop)
        self.cache.foresee(found)
        return found

    def snapshot(self, epoch: int, step: int) -> dict[str, Any]:
        """Statistics of all runs so far, as JSON values."""
        options = self.options
        threads = {"fetch": options.fetchers, "decode": options.decoders, "augment": options.augment_threads}
        return self.stats.snapshot(
            memory=self.memory.counts(),
            cache=(self.cache or FrameCache(0)).counts(),
            metrics_lost=self.metrics.lost if self.metrics is not None else 0,
            threads=threads,
            epoch=epoch,
            step=step,
        )
