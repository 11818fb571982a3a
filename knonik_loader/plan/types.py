"""What planning hands to the engine: which frames make which batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BatchPlan", "StreamWindow"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """The frames of one stream in a batch."""

    frames: IntArray
    """(B, T) frame number inside each sample's episode, clamped to the episode; always readable."""
    valid: BoolArray
    """(B, T) True where the frame is the one asked for, False where it was clamped or is missing."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One batch of one rank, fully decided; nothing later changes which frames it holds."""

    epoch: int
    step: int
    """Batches of this epoch before this one (the same number on every rank)."""
    dataset: IntArray
    """(B,) which dataset of a mix each sample comes from; zeros for a single one."""
    episodes: IntArray
    """(B,) row in that dataset's episode table."""
    anchors: IntArray
    """(B,) anchor frame inside the episode."""
    sample_seeds: npt.NDArray[np.uint64]
    """(B,) a seed for random augmentation: a function of seed, epoch and plan position."""
    windows: Mapping[str, StreamWindow]
    """Batch key → window. With a mix, keys are the common ones."""

    def __len__(self) -> int:
        """Samples in the batch."""
        return len(self.anchors)
