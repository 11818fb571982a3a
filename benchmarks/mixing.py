"""A mix holds its weights in every batch of every rank: every mix of two to five datasets, not a sample of them.

Weights: every way to divide 12, 20 and 36 parts among the datasets, and a few that are no round numbers. Global
batches: `SIZES`. For each, every batch that the mix can have is cut for 1, 2, 3, 4, 6 and 8 ranks, and for every other
number of ranks that divides it. Held: each part has the whole part of its share of each dataset, or one more.
``KNONIK_MIXING_PARTS``: comma-separated, in place of 12,20,36.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from benchmarks.common import Ratio
from knonik_loader.plan.mix_layout import BatchLayout
from knonik_loader.plan.mixing import Mixture, exact_weights

RANKS = (1, 2, 3, 4, 6, 8)
SIZES = (24, 48, 72, 96, 120)
ODD = ((0.55, 0.25, 0.12, 0.05, 0.03), (0.34, 0.33, 0.33), (97, 61, 29, 7), (1, 2, 25), (50, 20, 13, 11, 6), (0.7, 0.3))
PREFIX = 10_000


@dataclass
class Counted:
    """Mixes of one number of datasets."""

    mixes: int = 0
    batches: int = 0
    held: int = 0
    held_by_all: int = 0
    furthest: float = 0.0
    slowest: float = 0.0


def divisions(parts: int, datasets: int, least: int = 1) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as a sum of so many, in ascending order."""
    if datasets == 1:
        yield (parts,)
        return
    for first in range(least, parts // datasets + 1):
        yield from ((first, *rest) for rest in divisions(parts - first, datasets - 1, first))


def furthest(layout: np.ndarray, weights: Sequence[Fraction], ranks: int) -> float:
    """Samples that any part is off the weights, where it has not the whole part of its share or one more; else 0."""
    size, worst = len(layout) // ranks, 0.0
    for at, weight in enumerate(weights):
        counts, share = (layout == at).reshape(ranks, size).sum(1), weight * size
        low, high = int(counts.min()), int(counts.max())
        if low < math.floor(share) or high > math.ceil(share):
            worst = max(worst, float(share - low), float(high - share))
    return worst


def one_mix(weights: Sequence[Fraction], size: int, found: Counted) -> None:
    mixture, layout = Mixture(weights, size), BatchLayout(weights, size)
    counts = {tuple(mixture.counts(step).tolist()) for step in range(min(mixture.period, 500))}
    found.mixes += 1
    for each in sorted(counts):
        began = time.perf_counter()
        one = layout(np.array(each))
        found.slowest = max(found.slowest, time.perf_counter() - began)
        if np.bincount(one, minlength=len(each)).tolist() != list(each):
            raise AssertionError(f"{one.tolist()} does not hold {each}")
        off = {ranks: furthest(one, weights, ranks) for ranks in range(1, size) if size % ranks == 0}
        found.batches += 1
        found.held += not any(off[ranks] for ranks in RANKS)
        found.held_by_all += not any(off.values())
        found.furthest = max(found.furthest, *off.values())


def prefixes() -> tuple[float, int]:
    """Samples that any dataset is off its weight at any prefix of `PREFIX` batches, at most, and how many mixes."""
    worst, number = 0.0, 0
    for weights, batch in itertools.product(ODD, (7, 24, 64)):
        mixture = Mixture(weights, batch)
        total = [0] * len(weights)
        for step in range(PREFIX):
            total = [have + new for have, new in zip(total, mixture.counts(step).tolist(), strict=True)]
            shares = [weight * batch * (step + 1) for weight in mixture.weights]
            worst = max(worst, *(float(abs(have - share)) for have, share in zip(total, shares, strict=True)))
        number += 1
    return worst, number


def run() -> list[Ratio]:
    rows = []
    parts = [int(each) for each in os.environ.get("KNONIK_MIXING_PARTS", "12,20,36").split(",")]
    for datasets in (2, 3, 4, 5):
        found = Counted()
        weights = [division for number in parts for division in divisions(number, datasets)]
        weights += [odd for odd in ODD if len(odd) == datasets]
        for each, size in itertools.product(weights, SIZES):
            one_mix(exact_weights(each), size, found)
        detail = f"{found.batches} batches of {found.mixes} mixes; off by {found.furthest:.2f} at most where not held"
        detail += f"; arranged in {found.slowest * 1e3:.0f} ms at most"
        named = ", ".join(map(str, RANKS))
        rows.append(Ratio(f"{datasets} datasets, {named} ranks", "batches", found.held / found.batches, "1.00", detail))
        share = found.held_by_all / found.batches
        rows.append(Ratio(f"{datasets} datasets, every number of ranks", "batches", share, "1.00", "of the same"))
    worst, number = prefixes()
    detail = f"samples off at any of {PREFIX} prefixes of {number} mixes"
    rows.append(Ratio("every prefix of a run", "one sample", worst, "< 1", detail))
    return rows
