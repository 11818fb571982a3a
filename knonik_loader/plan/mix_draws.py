"""Which dataset a sample comes from where each is drawn independently: a hash of its position against the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.plan.hashing import derive_key, hash64

__all__ = ["Draws"]

IntArray = npt.NDArray[np.int64]

_BLOCK = 1 << 16
"""Positions between two remembered counts: any position of an epoch is reached by drawing the blocks before it once."""


class Draws:
    """An endless sequence of datasets for every epoch, each position drawn by itself. Threads may share it.

    Args:
        weights: of the datasets, adding up to one.
        seed: of the run.
    """

    def __init__(self, weights: Sequence[Fraction], seed: int) -> None:
        self._weights = tuple(weights)
        self._seed = seed
        ends = [sum(self._weights[: at + 1], Fraction()) for at in range(len(self._weights))]
        # A draw is a 64-bit word; each dataset has as many of them as its weight says, to within one in 2**64.
        self._ends = np.array([min(math.floor(end * 2**64), 2**64 - 1) for end in ends[:-1]], np.uint64)
        # Replaced whole and never changed, so that threads need no lock, which a fork could find taken.
        self._counted: tuple[int, tuple[IntArray, ...]] = (-1, ())

    def __reduce__(self) -> tuple[Any, ...]:
        """What was counted is not worth sending to another process."""
        return Draws, (self._weights, self._seed)

    def datasets(self, epoch: int, start: int, stop: int) -> IntArray:
        """(stop - start,) the dataset at each position of an epoch."""
        words = hash64(derive_key("mix", self._seed, epoch), np.arange(start, stop, dtype=np.int64))
        return np.searchsorted(self._ends, words, side="right").astype(np.int64)

    def before(self, epoch: int, position: int) -> IntArray:
        """(D,) samples of each dataset before a position of an epoch."""
        block, inner = divmod(position, _BLOCK)
        known, sums = self._counted
        if known != epoch:
            sums = (np.zeros(len(self._weights), np.int64),)
        if len(sums) <= block:
            more = list(sums)
            while len(more) <= block:
                first = (len(more) - 1) * _BLOCK
                more.append(more[-1] + self._count(epoch, first, first + _BLOCK))
            sums = tuple(more)
        self._counted = epoch, sums
        return sums[block] + self._count(epoch, block * _BLOCK, block * _BLOCK + inner)

    def _count(self, epoch: int, start: int, stop: int) -> IntArray:
        return np.bincount(self.datasets(epoch, start, stop), minlength=len(self._weights)).astype(np.int64)
