"""What stands in for a sample that can't be read: drawn from the same dataset, and known before anything fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from knonik_loader.plan.types import BatchPlan, StreamWindow

__all__ = ["Drawn", "SubstituteSource", "with_substitutes"]

IntArray = npt.NDArray[np.int64]
Drawn = tuple[IntArray, IntArray, Mapping[str, StreamWindow]]
"""(n,) episode rows, (n,) anchors, and their windows by batch key."""


class SubstituteSource(Protocol):
    """One dataset that samples can be drawn from."""

    def substitutes(self, seeds: npt.NDArray[np.uint64], attempt: int) -> Drawn:
        """(n,) seeds of the samples to replace → what takes their places; a pure function of both arguments."""
        ...


def with_substitutes(plan: BatchPlan, at: IntArray, attempt: int, sources: Sequence[SubstituteSource]) -> BatchPlan:
    """A batch with some of its samples exchanged.

    A substitute depends on its sample's seed, which depends on seed, epoch and plan position: it is the same whichever
    rank reads it, and after a resume. It comes from the sample's own dataset, so that a mix keeps its weights, and the
    place keeps its seed.

    Args:
        plan: the batch.
        at: (n,) positions of the samples to exchange.
        attempt: 1 for the first substitutes of these samples, 2 for theirs, and so on.
        sources: what the plan's ``dataset`` column counts.
    """
    episodes, anchors = plan.episodes.copy(), plan.anchors.copy()
    windows = {key: StreamWindow(window.frames.copy(), window.valid.copy()) for key, window in plan.windows.items()}
    for number in np.unique(plan.dataset[at]).tolist():
        mine = at[plan.dataset[at] == number]
        episodes[mine], anchors[mine], drawn = sources[number].substitutes(plan.sample_seeds[mine], attempt)
        for key, window in drawn.items():
            windows[key].frames[mine], windows[key].valid[mine] = window.frames, window.valid
    return dataclasses.replace(plan, episodes=episodes, anchors=anchors, windows=windows)
