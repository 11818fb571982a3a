"""Where the samples of each dataset stand in a global batch, so that the part of every rank holds the weights too.

A global batch of G samples is cut into equal parts, one a rank, and the order must not depend on how many there are: so
every aligned block of B = G / R samples should hold the weights to within one sample, for every R that divides G.

Two datasets can always be spread like that (a line of slope c/G). For more, positions are filled by earliest deadline
under the bounds of all block sizes at once, going back where that gets stuck, and anew with other urgencies where that
takes long. Block sizes that don't divide one another can contradict: where no filling is found, the datasets' samples,
sorted, are dealt by reversed digits, which is exact for the blocks of halves of halves (R = 2, 4, 8, ...).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from knonik_loader.plan.hashing import derive_key, uniform_below

__all__ = ["BatchLayout", "digit_reversal"]

IntArray = npt.NDArray[np.int64]

_TRIES = 16
_STEPS = 16_384
"""Positions tried in all before a search is given up: a third of a second, once for each count that batches have."""
_STEPS_A_POSITION = 3
_JITTER = 1000


class BatchLayout:
    """The order of datasets inside a global batch, as a function of how many samples each one has in it.

    Args:
        weights: of the datasets, adding up to one.
        size: samples of a global batch.
    """

    def __init__(self, weights: Sequence[Fraction], size: int) -> None:
        self.weights = tuple(weights)
        self.size = size
        blocks = [block for block in range(2, size) if size % block == 0]
        shares = [[weight * block for weight in self.weights] for block in blocks]
        shape = (len(blocks), len(self.weights))
        self._blocks = np.array(blocks, np.int64)  # (K,)
        self._least = np.array([[math.floor(share) for share in row] for row in shares], np.int64).reshape(shape)
        self._most = np.array([[math.ceil(share) for share in row] for row in shares], np.int64).reshape(shape)
        self._kept = functools.lru_cache(1024)(self._find)

    def __reduce__(self) -> tuple[type[BatchLayout], tuple[tuple[Fraction, ...], int]]:
        """What is kept is not worth sending to another process."""
        return BatchLayout, (self.weights, self.size)

    def __call__(self, counts: IntArray) -> IntArray:
        """(D,) samples of each dataset in a batch → (G,) the dataset at each position, not to be changed."""
        return self._kept(tuple(counts.tolist()))

    def _find(self, counts: tuple[int, ...]) -> IntArray:
        present = [at for at, count in enumerate(counts) if count]
        layout: IntArray | None
        if len(present) <= 2:  # they lie on a line
            steps = np.arange(self.size + 1, dtype=np.int64) * counts[present[0]] // self.size
            layout = np.where(np.diff(steps) > 0, present[0], present[-1])
        else:
            steps_each = _STEPS_A_POSITION * self.size
            tries = (
                _Search(self, counts, number).run(steps_each) for number in range(min(_TRIES, _STEPS // steps_each))
            )
            layout = next((found for found in tries if found is not None), None)
        if layout is None:
            layout = np.empty(self.size, np.int64)
            layout[digit_reversal(self.size)] = np.repeat(np.arange(len(counts)), counts)
        layout.flags.writeable = False
        return layout


class _Search:
    """One depth-first filling of a batch, position by position."""

    def __init__(self, of: BatchLayout, counts: tuple[int, ...], number: int) -> None:
        self._counts = counts
        self._size = of.size
        self._blocks, self._least, self._most = of._blocks, of._least, of._most
        self._left = np.array(counts, np.int64)
        self._inside = np.zeros_like(of._least)  # (K, D) samples in the block of each size that is being filled
        # Later tries blur deadlines, by more and more of the distance between two samples of a dataset.
        places = np.arange(of.size * len(counts), dtype=np.int64)
        blur = uniform_below(derive_key("layout", number), places, _JITTER) * number
        self._blur = (blur.reshape(of.size, -1) / (_JITTER * 6)).tolist()

    def run(self, steps: int) -> IntArray | None:
        """(G,) the dataset at each position; None where there is no filling, or none was found in so many steps."""
        layout: list[int] = []
        undo: list[IntArray] = []
        choices = [iter(self._choices(0))]
        for _ in range(steps):
            choice = next(choices[-1], None)
            if choice is None:
                choices.pop()
                if not layout:
                    return None
                self._left[layout.pop()] += 1
                self._inside = undo.pop()
                continue
            undo.append(self._inside)
            self._inside = self._inside.copy()
            self._inside[:, choice] += 1
            self._left[choice] -= 1
            layout.append(choice)
            if len(layout) == self._size:
                return np.array(layout, np.int64)
            self._inside[len(layout) % self._blocks == 0] = 0
            choices.append(iter(self._choices(len(layout))))
        return None

    def _choices(self, at: int) -> list[int]:
        """Datasets that may stand at a position, the one with the earliest deadline first."""
        after = self._blocks - at % self._blocks - 1  # (K,) positions that the blocks still have after this one
        room = np.minimum(self._most - self._inside, self._left).sum(1)
        if (room <= after).any():
            return []
        owed = np.maximum(self._least - self._inside, 0)
        # A dataset that a block doesn't owe leaves all that it owes to the positions after.
        fits = (self._inside < self._most) & (owed.sum(1, keepdims=True) - (owed > 0) <= after[:, None])
        free = np.flatnonzero(fits.all(0) & (self._left > 0)).tolist()
        return sorted(free, key=functools.partial(self._urgency, at))

    def _urgency(self, at: int, dataset: int) -> tuple[bool, float, int]:
        """Whether it is too early for the next sample of a dataset, and when that and the one after are due."""
        count, size = self._counts[dataset], self._size
        given = count - int(self._left[dataset])
        due = -(-(given + 1) * size // count) + self._blur[at][dataset] * size / count
        return (at + 1) * count <= given * size, due, (given + 2) * size // count


def digit_reversal(size: int) -> IntArray:
    """(size,) a permutation: item i's first digit, i modulo 2 (or the least prime), says which half it goes to, etc.

    Any run of items is spread over the blocks of each level to within one item.
    """
    items = np.arange(size, dtype=np.int64)
    places = np.zeros(size, np.int64)
    block, factor = size, 2
    while block > 1:
        if block % factor:
            factor += 1
            continue
        block //= factor
        places += items % factor * block
        items //= factor
    return places
