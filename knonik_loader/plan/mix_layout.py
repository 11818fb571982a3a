"""Where the samples of each dataset stand in a global batch, so that the part of every rank holds the weights too.

A global batch of G samples is cut into equal parts, one a rank, and the order must not depend on how many there are: so
every aligned block of B = G / R samples should hold the weights to within one sample, for every R that divides G.

Two datasets can always be spread like that (a line of slope c/G). For more, each dataset is spread evenly on its own,
by earliest deadline, which leaves some blocks off by more, though by less than two samples; those are mended by
exchanging samples, the exchange that leaves the fewest wrong first, and not the same ones again for a while (a tabu
search: Glover, 1989). Block sizes that don't divide one another could contradict, but no weights are known where they
do. Of batches of many thousand samples the search may end before the last block is mended.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from knonik_loader.plan.hashing import derive_key, uniform_below

__all__ = ["BatchLayout"]

IntArray = npt.NDArray[np.int64]

_TRIES = 24
_STEPS = 400
"""Exchanges of one try, or as many as half the batch has samples; nearly every batch needs fewer than a hundred."""
_WORK = 1 << 27
"""Counts of all blocks, times exchanges, before the search is given up: a few seconds."""
_CANDIDATES = 4
"""Samples of a wrong block that are weighed against all samples around it."""
_AROUND = 64
"""Samples before and behind a wrong block; an exchange over a short way touches few blocks."""
_EVERYWHERE = 4
"""One of so many exchanges looks at the whole batch."""
_REST = 4
_LONGER_REST = 8
"""Exchanges for which a sample that was moved stays where it is, at least, and how many more at most."""
_HELD = 2
"""Wrong samples that an exchange must save to move one that should stay."""


class BatchLayout:
    """The order of datasets inside a global batch, as a function of how many samples each one has in it.

    Args:
        weights: of the datasets, adding up to one.
        size: samples of a global batch.
    """

    def __init__(self, weights: Sequence[Fraction], size: int) -> None:
        self.weights = tuple(weights)
        self.size = size
        self._kept = functools.lru_cache(1024)(self._find)

    def __reduce__(self) -> tuple[type[BatchLayout], tuple[tuple[Fraction, ...], int]]:
        """What is kept is not worth sending to another process."""
        return BatchLayout, (self.weights, self.size)

    def __call__(self, counts: IntArray) -> IntArray:
        """(D,) samples of each dataset in a batch → (G,) the dataset at each position, not to be changed."""
        return self._kept(tuple(counts.tolist()))

    def _find(self, counts: tuple[int, ...]) -> IntArray:
        present = [at for at, count in enumerate(counts) if count]
        layout: IntArray
        if len(present) <= 2:  # they lie on a line
            steps = np.arange(self.size + 1, dtype=np.int64) * counts[present[0]] // self.size
            layout = np.where(np.diff(steps) > 0, present[0], present[-1])
        else:
            layout = self._search(_spread(counts))
        layout.flags.writeable = False
        return layout

    def _search(self, layout: IntArray) -> IntArray:
        sizes = [block for block in range(2, self.size) if self.size % block == 0]
        if not sizes:
            return layout
        blocks = _Blocks(self.weights, self.size, sizes)
        left = max(1, _WORK // blocks.least.size)
        best, fewest = layout, layout.size
        for number in range(_TRIES):
            steps = min(max(_STEPS, self.size // 2), left)
            found, wrong = _Mending(blocks, layout, number).run(steps)
            if wrong < fewest:
                best, fewest = found, wrong
            left -= steps
            if not wrong or not left:
                break
        return best


class _Blocks:
    """The N aligned blocks of all K sizes, and how many samples of each dataset they may hold."""

    def __init__(self, weights: Sequence[Fraction], size: int, sizes: Sequence[int]) -> None:
        numbers = [size // block for block in sizes]
        firsts = np.cumsum([0, *numbers[:-1]])
        places = np.arange(size, dtype=np.int64)
        self.around = np.stack([first + places // block for first, block in zip(firsts, sizes, strict=True)])
        """(K, G) the block of each size around each position."""
        self.size = np.repeat(np.array(sizes, np.int64), numbers)
        self.start = np.concatenate([np.arange(0, size, block, dtype=np.int64) for block in sizes])
        shares = [[weight * block for weight in weights] for block in sizes]
        self.least = np.repeat(np.array([[math.floor(x) for x in row] for row in shares], np.int64), numbers, axis=0)
        self.most = np.repeat(np.array([[math.ceil(x) for x in row] for row in shares], np.int64), numbers, axis=0)


class _Mending:
    """One try to bring every block within its bounds by exchanging samples.

    Args:
        blocks: with their bounds.
        layout: (G,) to begin with.
        number: of the try, which decides between exchanges that are equally good.
    """

    def __init__(self, blocks: _Blocks, layout: IntArray, number: int) -> None:
        self._blocks = blocks
        self._layout = layout.copy()
        self._number = number
        self._inside = np.zeros_like(blocks.least)  # (N, D)
        for rows in blocks.around:
            np.add.at(self._inside, (rows, layout), 1)
        self._more = np.empty(self._inside.shape, np.int64)
        """(N, D) samples that are wrong more if a block had one more of a dataset."""
        self._less = np.empty(self._inside.shape, np.int64)
        """(N, D) the same for one less."""
        self._weigh(np.arange(len(self._inside)))
        self._free = np.zeros(len(layout), np.int64)
        """(G,) the exchange from which on a position may be changed again."""

    def run(self, steps: int) -> tuple[IntArray, int]:
        """(G,) the best layout on the way, and how often one of its blocks holds too many or too few of a dataset."""
        places = np.arange(steps * (_CANDIDATES + 3), dtype=np.int64)
        draws = uniform_below(derive_key("layout", self._number), places, 1 << 30).reshape(steps, -1)
        best, fewest = self._layout, self._layout.size
        for step in range(steps):
            over = np.argwhere(self._inside > self._blocks.most)
            under = np.argwhere(self._inside < self._blocks.least)
            wrong = len(over) + len(under)
            if wrong < fewest:
                best, fewest = self._layout.copy(), wrong
            if not wrong:
                break
            which, tie, rest = draws[step, :3].tolist()
            which %= wrong
            surplus = which < len(over)
            block, dataset = (over[which] if surplus else under[which - len(over)]).tolist()
            pair = self._choose(step, block, dataset, surplus, draws[step, 3:], tie)
            if pair is not None:
                self._exchange(*pair)
                self._free[list(pair)] = step + _REST + rest % _LONGER_REST
        return best, fewest

    def _choose(
        self, step: int, block: int, dataset: int, surplus: bool, draws: IntArray, tie: int
    ) -> tuple[int, int] | None:
        """A position in a wrong block and another one that takes a sample too many, or gives one that is missing."""
        start, size = int(self._blocks.start[block]), int(self._blocks.size[block])
        # Those of the dataset where it has too many here, else all others.
        firsts = start + np.flatnonzero((self._layout[start : start + size] == dataset) == surplus)
        rested = firsts[self._free[firsts] <= step]
        firsts = rested if len(rested) else firsts
        wide = step % _EVERYWHERE == _EVERYWHERE - 1
        firsts = firsts[np.unique(draws[: 1 if wide else None] % len(firsts))]
        low, high = (0, len(self._layout)) if wide else (max(0, start - _AROUND), start + size + _AROUND)
        others = low + np.flatnonzero((self._layout[low:high] == dataset) != surplus)
        if not len(others):
            return None
        costs = self._costs(firsts, others) + _HELD * (self._free[others] > step)
        costs[self._layout[firsts][:, None] == self._layout[others]] = self._layout.size
        best = np.argwhere(costs == costs.min())
        first, other = best[tie % len(best)].tolist()
        return int(firsts[first]), int(others[other])

    def _costs(self, firsts: IntArray, others: IntArray) -> IntArray:
        """(P,) and (Q,) positions → (P, Q) samples that are wrong more, over all blocks, if two were exchanged."""
        more, less = self._more, self._less
        here, there = self._blocks.around[:, firsts], self._blocks.around[:, others]  # (K, P) and (K, Q)
        mine, theirs = self._layout[firsts], self._layout[others]
        given = less[here, mine][:, :, None] + more[here[:, :, None], theirs]
        taken = less[there, theirs][:, None, :] + more[there[:, None, :], mine[:, None]]
        costs: IntArray = np.where(here[:, :, None] == there[:, None, :], 0, given + taken).sum(0)
        return costs

    def _weigh(self, rows: IntArray) -> None:
        """Bring what one sample more or less costs up to date."""
        inside, least, most = self._inside[rows], self._blocks.least[rows], self._blocks.most[rows]
        self._more[rows] = (inside >= most).astype(np.int64) - (inside < least)
        self._less[rows] = (inside <= least).astype(np.int64) - (inside > most)

    def _exchange(self, one: int, other: int) -> None:
        around, inside, layout = self._blocks.around, self._inside, self._layout
        for place, to in ((one, layout[other]), (other, layout[one])):
            inside[around[:, place], layout[place]] -= 1
            inside[around[:, place], to] += 1
        layout[[one, other]] = layout[[other, one]]
        self._weigh(around[:, [one, other]].ravel())


def _spread(counts: Sequence[int]) -> IntArray:
    """(G,) each dataset as even as the others let it: of those whose next sample may come, the one due first."""
    size, given = sum(counts), [0] * len(counts)
    layout = np.empty(size, np.int64)
    for place in range(1, size + 1):
        # On a line the next sample lies between these places; one that may not come yet comes last.
        at = min(
            (place * count <= done * size, -(-(done + 1) * size // count), (done + 2) * size // count, at)
            for at, (count, done) in enumerate(zip(counts, given, strict=True))
            if done < count
        )[3]
        given[at] += 1
        layout[place - 1] = at
    return layout
