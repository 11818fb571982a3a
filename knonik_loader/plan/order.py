"""The order of an epoch: which plan positions each rank's batches hold, and which anchor stands at each position.

Batch ``g`` of an epoch is plan positions [gG, (g+1)G) for a global batch of G samples; a rank takes a contiguous part
of it. Worker counts, caches and storage never enter, and neither does the world size but through G.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import PlanError
from knonik_loader.plan.anchors import AnchorTable
from knonik_loader.plan.hashing import derive_key
from knonik_loader.plan.permutation import Permutation

__all__ = ["EpisodeParts", "EpochOrder", "Parts", "SampleParts", "Shuffled", "Stored", "episodes_of_rank"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


class EpochOrder(Protocol):
    """Which anchor stands at a position of an epoch's plan."""

    def lookup(self, epoch: int, positions: IntArray) -> tuple[IntArray, IntArray]:
        """(n,) plan positions → (n,) episode rows and (n,) anchor frames."""
        ...


@dataclass(frozen=True)
class Stored:
    """Episodes in order, frames in order, the same in every epoch."""

    anchors: AnchorTable

    def lookup(self, epoch: int, positions: IntArray) -> tuple[IntArray, IntArray]:
        """See `EpochOrder`."""
        del epoch
        return self.anchors.lookup(positions)


@dataclass(frozen=True)
class Shuffled:
    """All anchors permuted by (seed, epoch), every order as likely as any other."""

    anchors: AnchorTable
    seed: int

    def lookup(self, epoch: int, positions: IntArray) -> tuple[IntArray, IntArray]:
        """See `EpochOrder`."""
        permutation = Permutation(len(self.anchors), derive_key("order", self.seed, epoch))
        return self.anchors.lookup(permutation(positions))


class Parts(Protocol):
    """How an epoch's plan is cut into batches and ranks."""

    @property
    def batches(self) -> int:
        """Batches of an epoch, on every rank."""
        ...

    @property
    def samples(self) -> int:
        """Samples of an epoch, over all ranks."""
        ...

    def span(self, batch: int) -> tuple[int, int]:
        """Plan positions [start, stop) of this rank's part of a batch."""
        ...


@dataclass(frozen=True)
class SampleParts:
    """One plan for all ranks: each takes its contiguous part of every global batch.

    The last, partial global batch is kept unless ``drop_last``, split over the ranks to within one sample; with fewer
    samples than ranks it is dropped all the same, so that no rank is left without a batch.
    """

    total: int
    batch_size: int
    rank: int
    world_size: int
    drop_last: bool

    @property
    def global_batch(self) -> int:
        """Samples of a batch over all ranks."""
        return self.batch_size * self.world_size

    @property
    def _tail(self) -> int:
        tail = self.total % self.global_batch
        return 0 if self.drop_last or tail < self.world_size else tail

    @property
    def batches(self) -> int:
        """See `Parts`."""
        return self.total // self.global_batch + bool(self._tail)

    @property
    def samples(self) -> int:
        """See `Parts`."""
        return self.total // self.global_batch * self.global_batch + self._tail

    def span(self, batch: int) -> tuple[int, int]:
        """See `Parts`."""
        start = batch * self.global_batch
        if start + self.global_batch <= self.total:
            return start + self.rank * self.batch_size, start + (self.rank + 1) * self.batch_size
        share, extra = divmod(self._tail, self.world_size)
        start += self.rank * share + min(self.rank, extra)
        return start, start + share + (self.rank < extra)


@dataclass(frozen=True)
class EpisodeParts:
    """A plan for each rank over its own episodes; the epoch ends for all with the rank that has fewest samples.

    What other ranks have beyond that is not seen in this epoch. Without ``drop_last`` the last batches may be partial,
    none is empty.
    """

    totals: IntArray
    """(R,) anchors on each rank."""
    batch_size: int
    rank: int
    drop_last: bool

    @property
    def batches(self) -> int:
        """See `Parts`."""
        least = int(self.totals.min())
        return least // self.batch_size if self.drop_last else -(-least // self.batch_size)

    @property
    def samples(self) -> int:
        """See `Parts`."""
        return int(np.minimum(self.totals, self.batches * self.batch_size).sum())

    def span(self, batch: int) -> tuple[int, int]:
        """See `Parts`."""
        start = batch * self.batch_size
        return start, min(start + self.batch_size, int(self.totals[self.rank]))


def episodes_of_rank(counts: IntArray, world_size: int) -> IntArray:
    """Deal episodes to ranks so that each holds about as many anchors: largest first, to and fro.

    Args:
        counts: (E,) anchors of each episode.
        world_size: ranks.

    Returns:
        (E,) the rank of each episode.

    Raises:
        PlanError: fewer episodes than ranks.
    """
    if len(counts) < world_size:
        raise PlanError(
            f"shard_by='episode' gives every episode to one rank, but {len(counts)} episodes can't serve "
            f"world_size={world_size}; use shard_by='sample', or at most {len(counts)} ranks"
        )
    turn = np.arange(len(counts), dtype=np.int64) % (2 * world_size)
    ranks = np.empty(len(counts), np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.where(turn < world_size, turn, 2 * world_size - 1 - turn)
    return ranks
