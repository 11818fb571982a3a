"""How many samples of each batch of a mix come from each dataset: exactly by weight, no batch off by more than one.

What a batch should hold is rarely a whole number. Each dataset gets the whole part; who gets one more is scheduled so
that the count of every dataset over all batches so far is never a full sample off its weight. The j-th extra sample of
a dataset must fall between the first batch where it may come and the last where it must (earliest deadline first).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import ConfigError

__all__ = ["Mixture", "exact_weights"]

IntArray = npt.NDArray[np.int64]

# Batches between two remembered states: any batch is reached by planning at most so many anew.
_MEMORY = 16


_FURTHEST = 1_000_000_000
"""An epoch of a mix waits for its rarest dataset."""


def exact_weights(weights: Sequence[float | int | str | Fraction]) -> list[Fraction]:
    """Weights as fractions that add up to one: 0.1 is a tenth, not the nearest binary number.

    Raises:
        ConfigError: no weight, one that is negative, not finite, or zero, or two that are too far from each other.
    """
    result = []
    for weight in weights:
        try:
            exact = weight if isinstance(weight, Fraction) else Fraction(str(weight))
        except (ValueError, ZeroDivisionError) as error:
            raise ConfigError(f"weights are positive numbers, got {weight!r}") from error
        if exact <= 0:
            raise ConfigError(f"weights are positive numbers, got {weight!r}; leave a dataset out of the mix instead")
        result.append(exact)
    if not result:
        raise ConfigError("a mix needs at least one weight")
    if max(result) > _FURTHEST * min(result):
        raise ConfigError(
            f"weights are at most a factor of {_FURTHEST:,} apart, got {weights[result.index(min(result))]!r} and "
            f"{weights[result.index(max(result))]!r}; leave the rare dataset out of the mix instead"
        )
    return [weight / sum(result) for weight in result]


class Mixture:
    """Counts of every batch of an endless mix, a pure function of weights, batch size and batch number.

    Threads may share it: the feeders of two passes do while one of them ends.

    Args:
        weights: one for each dataset, in any unit.
        batch: samples in a batch.
    """

    def __init__(self, weights: Sequence[float | int | str | Fraction], batch: int) -> None:
        self.weights = exact_weights(weights)
        self.batch = batch
        shares = [weight * batch for weight in self.weights]
        self._whole = np.array([math.floor(share) for share in shares], np.int64)
        rests = [share - math.floor(share) for share in shares]
        self._extra = batch - int(self._whole.sum())
        # After so many batches every dataset has exactly its weight, and the counts begin again.
        self.period = math.lcm(*(rest.denominator for rest in rests))
        # Parts of a sample that a batch holds beyond the whole ones, counted in 1 / period.
        self._rest = [int(rest * self.period) for rest in rests]
        # By number, not in a list that grows: two threads that plan the same states put equal ones in the same places,
        # and no lock is there that a fork could find taken.
        self._states: dict[int, tuple[int, ...]] = {0: (0,) * len(shares)}
        self._known = 0

    def __repr__(self) -> str:
        return f"Mixture({', '.join(map(str, self.weights))}; batch={self.batch})"

    def before(self, step: int) -> IntArray:
        """(D,) samples of each dataset in all batches before ``step``."""
        cycles, inner = divmod(step, self.period)
        extras = [cycles * rest + extra for rest, extra in zip(self._rest, self._extras(inner), strict=True)]
        return step * self._whole + np.array(extras, np.int64)

    def counts(self, step: int) -> IntArray:
        """(D,) samples of each dataset in batch ``step``."""
        return self.before(step + 1) - self.before(step)

    def _extras(self, step: int) -> tuple[int, ...]:
        """Samples beyond the whole parts that each dataset has had before a batch of the first period."""
        wanted = step // _MEMORY
        for number in range(self._known + 1, wanted + 1):
            self._states[number] = self._advance(self._states[number - 1], (number - 1) * _MEMORY, _MEMORY)
            self._known = max(self._known, number)
        return self._advance(self._states[wanted], wanted * _MEMORY, step - wanted * _MEMORY)

    def _advance(self, state: tuple[int, ...], start: int, steps: int) -> tuple[int, ...]:
        given, period = list(state), self.period
        datasets = [(at, rest) for at, rest in enumerate(self._rest) if rest]
        for number in range(start + 1, start + steps + 1):
            # The next extra of a dataset may come in the first batch with number * rest > given, and has to come by
            # the first one with number * rest >= given + 1 (rest being a fraction of a sample here).
            ready = [
                (-(-(given[at] + 1) * period // rest), (given[at] + 2) * period / rest, at)
                for at, rest in datasets
                if number * rest > given[at] * period
            ]
            ready.sort()
            for _, _, at in ready[: self._extra]:
                given[at] += 1
        return tuple(given)
