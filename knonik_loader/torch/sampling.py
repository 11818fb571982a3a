"""Which rank sees what in which order, and random streams that differ between ranks, workers and epochs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from knonik_loader.config_rules import topology
from knonik_loader.errors import ConfigError, PlanError
from knonik_loader.plan.anchors import AnchorTable
from knonik_loader.plan.hashing import derive_key
from knonik_loader.plan.order import EpisodeParts, Parts, SampleParts, episodes_of_rank
from knonik_loader.plan.permutation import Permutation
from knonik_loader.state import whole_number
from knonik_loader.torch.epochs import epoch_number
from knonik_loader.torch.need import Sampler, torch

if TYPE_CHECKING:
    from knonik_loader.torch.dataset import KhlpDataset

__all__ = ["EpisodeDistributedSampler", "worker_init_fn"]


def worker_init_fn(worker_id: int) -> None:
    """Seed ``random``, numpy and torch of a DataLoader's worker, differently for every rank, worker and epoch.

    The seed follows from the one that the DataLoader drew for this pass, so it is the same in two runs with one
    ``generator``, from the worker's number, and from the rank, as ranks usually seed their generators alike.
    """
    rank, _ = topology()
    key = derive_key("worker", torch.initial_seed(), worker_id, rank)
    random.seed(key)
    np.random.seed(key % 2**32)
    torch.manual_seed(key >> 1)


class EpisodeDistributedSampler(Sampler):  # type: ignore[misc]
    """The indices of one rank: disjoint between ranks, equally many on each, nothing twice.

    Each pass is the next epoch; `set_epoch` chooses one, or goes on inside it.

    Args:
        dataset: to sample from.
        num_replicas: ranks; None: from torch.distributed or the environment, else 1.
        rank: of this process; None: the same.
        shuffle: another order every epoch; otherwise episodes in order.
        seed: of the order, the same on every rank.
        drop_last: leave out the last, partial batch of ``batch_size``.
        shard_by: ``episode``: every episode on one rank; what ranks have beyond the one with fewest samples is left
            out. ``sample``: one order over all episodes, dealt to the ranks.
        batch_size: of the DataLoader. With it ``shard_by="sample"`` deals whole batches, as the loaders do, and the
            epoch's last samples are shared out to within one sample; without it up to ``num_replicas`` - 1 are left
            out.

    Raises:
        ConfigError: a rank outside the replicas, or no number.
        PlanError: fewer episodes than ranks under ``shard_by="episode"``, or fewer samples than ranks.
    """

    def __init__(
        self,
        dataset: KhlpDataset,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        shard_by: Literal["episode", "sample"] = "episode",
        batch_size: int = 1,
    ) -> None:
        if (num_replicas is None) != (rank is None):
            raise ConfigError("EpisodeDistributedSampler: give both num_replicas and rank, or neither")
        self.rank, self.num_replicas = topology() if rank is None else (rank, int(num_replicas or 1))
        if not 0 <= self.rank < self.num_replicas:
            raise ConfigError(f"rank={self.rank} must lie in [0, num_replicas={self.num_replicas})")
        if shard_by not in ("episode", "sample"):
            raise ConfigError(f"shard_by={shard_by!r} is not 'episode' or 'sample'")
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size} must be at least 1")
        if not isinstance(getattr(dataset, "anchors", None), AnchorTable):
            raise ConfigError(f"EpisodeDistributedSampler: it orders a KhlpDataset, got a {type(dataset).__name__}")
        if not isinstance(seed, int):
            raise ConfigError(f"seed is a whole number, got {seed!r}")
        anchors = dataset.anchors
        self._dataset, self._shuffle, self._seed, self._batch_size = dataset, shuffle, seed, batch_size
        self._ends = self._shift = np.zeros(0, np.int64)
        parts: Parts
        if shard_by == "episode":
            ranks = episodes_of_rank(anchors.counts, self.num_replicas)
            totals = np.bincount(ranks, anchors.counts, self.num_replicas).astype(np.int64)
            parts = EpisodeParts(totals, batch_size, self.rank, drop_last)
            self._total = int(totals[self.rank])
            # This rank's anchors are numbered through; where each of its episodes ends, and how far from there to the
            # numbers of the whole.
            first = np.cumsum(anchors.counts) - anchors.counts
            mine = anchors.counts[ranks == self.rank]
            self._ends = np.cumsum(mine)
            self._shift = first[ranks == self.rank] - (self._ends - mine)
        else:
            parts = SampleParts(len(anchors), batch_size, self.rank, self.num_replicas, drop_last)
            self._total = len(anchors)
        if not parts.batches:
            change = "drop_last=False, a smaller batch_size" if drop_last else "fewer ranks"
            raise PlanError(
                f"an epoch has {len(anchors)} samples, too few for one batch of {batch_size} on each of "
                f"{self.num_replicas} ranks; use {change} or a smaller stride"
            )
        self._parts = parts
        self._epoch, self._start = 0, 0

    def __len__(self) -> int:
        """Samples of a whole epoch on this rank."""
        begin, end = self._parts.span(self._parts.batches - 1)
        return (self._parts.batches - 1) * self._batch_size + end - begin

    @property
    def dropped(self) -> int:
        """Samples of the dataset that no rank sees in an epoch."""
        return len(self._dataset) - self._parts.samples

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Let the next pass be this epoch, without its first ``start`` samples on this rank: where a run goes on.

        Raises:
            ConfigError: no epoch, or no place in it.
        """
        number = epoch_number(epoch)
        if whole_number(start, len(self)) is None:
            raise ConfigError(f"set_epoch: start={start!r} must lie in 0 to {len(self)}, the samples of this rank")
        self._epoch, self._start = number, start

    def __iter__(self) -> Iterator[int]:
        """The indices of a pass; the epoch moves on when the first one is asked for."""
        epoch, start = self._epoch, self._start
        self._epoch, self._start = epoch + 1, 0
        self._dataset.set_epoch(epoch)
        order = Permutation(self._total, derive_key("order", self._seed, epoch)) if self._shuffle else None
        for batch in range(start // self._batch_size, self._parts.batches):
            positions = np.arange(*self._parts.span(batch), dtype=np.int64)
            ids = order(positions) if order is not None else positions
            if len(self._ends):
                ids = ids + self._shift[np.searchsorted(self._ends, ids, side="right")]
            yield from ids[start % self._batch_size if batch == start // self._batch_size else 0 :].tolist()
