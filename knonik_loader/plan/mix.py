"""The plan of a weighted mix: which dataset each sample of each batch comes from, and which of its anchors it is.

All is counted over the run, not the epoch: batch T of a run follows T others whose counts are known in closed form, so
that weights hold over epochs too, and a dataset that an epoch leaves off in the middle goes on there in the next one.
A dataset that was seen whole begins anew with another permutation.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.config import LoaderConfig
from knonik_loader.errors import ConfigError, PlanError
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.plan.anchors import AnchorTable
from knonik_loader.plan.hashing import derive_key, hash64
from knonik_loader.plan.mix_draws import Draws
from knonik_loader.plan.mix_layout import BatchLayout
from knonik_loader.plan.mixing import Mixture, exact_weights
from knonik_loader.plan.order import Parts, SampleParts, episodes_of_rank
from knonik_loader.plan.sampler import Sampler
from knonik_loader.plan.types import BatchPlan, StreamWindow

__all__ = ["MixSampler", "MixedDataset"]

IntArray = npt.NDArray[np.int64]


class MixedDataset(Sampler):
    """The anchors of one dataset of a mix, in an order of its own for every time it is gone through.

    Args:
        name: as batches call the dataset.
        index: of the dataset.
        streams: those of the batch that the dataset has, under the batch's names.
        config: the dataset's own, with its stream names resolved.
        share: samples of a rank's batch that are the dataset's, which is what a bounded locality plans with.
    """

    def __init__(
        self, name: str, index: DatasetIndex, streams: Sequence[StreamInfo], config: LoaderConfig, share: Fraction
    ) -> None:
        self.name = name
        self._share = share
        super().__init__(index, streams, config.model_copy(update={"batch_size": max(1, math.ceil(share))}))

    def _planned_batch(self) -> int:
        # Rounded once, for all ranks together: the order is the same whatever the number that share it.
        return max(1, math.ceil(self._share * (1 if self._config.shard_by == "episode" else self.world_size)))

    def _partition(self) -> tuple[Parts, AnchorTable]:
        # A dataset smaller than its share of one batch is no mistake here: it is gone through more than once.
        config, mine = self._config, self.anchors
        self.totals = np.array([len(mine)], np.int64)
        """(R,) anchors of each rank that has a plan of its own; (1,) where all ranks share one."""
        if config.shard_by == "episode":
            ranks = episodes_of_rank(mine.counts, self.world_size)
            self.totals = np.bincount(ranks, mine.counts, self.world_size).astype(np.int64)
            mine = mine.subset(ranks == self.rank)
        self.total = len(mine)
        """Anchors that this rank's plan goes through."""
        return SampleParts(self.total, config.batch_size, 0, 1, drop_last=False), mine

    def lookup(self, rounds: IntArray, positions: IntArray) -> tuple[IntArray, IntArray]:
        """(n,) times the dataset was gone through before and (n,) positions → (n,) episode rows and (n,) anchors."""
        episodes, anchors = np.empty(len(rounds), np.int64), np.empty(len(rounds), np.int64)
        for number in np.unique(rounds).tolist():
            at = rounds == number
            episodes[at], anchors[at] = self._order.lookup(number, positions[at])
        return episodes, anchors

    def windows_of(self, episodes: IntArray, anchors: IntArray) -> dict[str, StreamWindow]:
        """(n,) episode rows and (n,) anchors → batch key → frames and masks."""
        return self._resolver(episodes, anchors)


@dataclass(frozen=True, slots=True)
class _Passes:
    """How a dataset's samples are numbered."""

    fresh: bool
    """Every epoch begins with a permutation of its own; otherwise the run goes on where the last epoch left off."""
    rounds: int
    """Numbers of permutations that an epoch may use."""


class MixSampler:
    """Says which frames of which datasets make which batch; the counterpart of `Sampler`, and as pure.

    Args:
        datasets: in the order in which batches count them.
        weights: one for each.
        config: of the whole mix.

    Raises:
        ConfigError: weights without meaning.
        PlanError: an epoch without a whole batch.
    """

    def __init__(self, datasets: Sequence[MixedDataset], weights: Sequence[Any], config: LoaderConfig) -> None:
        self.datasets = tuple(datasets)
        _check_lengths(self.datasets)
        self.weights = exact_weights(weights)
        self._config = config
        self.rank, self.world_size = config.topology
        self._by_episode = config.shard_by == "episode"
        # Ranks with plans of their own mix their own batches, by one and the same schedule.
        self._global = config.batch_size * (1 if self._by_episode else self.world_size)
        self._mixture = Mixture(self.weights, self._global)
        self._layout = BatchLayout(self.weights, self._global)
        self._draws = Draws(self.weights, config.seed) if config.multi_mix == "per_sample" else None
        self.num_batches, deciding = self._epoch()
        """Batches of an epoch, the same on every rank."""
        self._passes = [self._numbering(at, at in deciding) for at in range(len(self.datasets))]
        self.keys = list(dict.fromkeys(key for dataset in self.datasets for key in dataset.windows))
        """Streams that any of the datasets has."""

    def __repr__(self) -> str:
        parts = ", ".join(f"{d.name} {w}" for d, w in zip(self.datasets, self.weights, strict=True))
        return f"MixSampler({parts}; {self.num_batches} batches, rank {self.rank} of {self.world_size})"

    def __len__(self) -> int:
        """Batches of one pass on this rank."""
        return self.num_batches

    @property
    def sources(self) -> Sequence[MixedDataset]:
        """What the ``dataset`` column of plans counts."""
        return self.datasets

    @property
    def epoch_batches(self) -> int:
        """The same as a pass has."""
        return self.num_batches

    @property
    def epochs_per_pass(self) -> int:
        """One: a mix cycles through its datasets, so that ``max_steps`` is simply the length of its epoch."""
        return 1

    def _epoch(self) -> tuple[int, set[int]]:
        """Batches of an epoch, and the datasets that decide it by being seen whole."""
        config = self._config
        if config.max_steps is not None:
            return config.max_steps, set()
        longest = config.multi_epoch != "shortest"
        lengths = []
        for dataset, weight in zip(self.datasets, self.weights, strict=True):
            share = weight * self._global
            # An epoch may begin anywhere in the schedule, which moves a count that is no whole number by one.
            slack = int(share.denominator > 1)
            total = int(dataset.totals.max() if longest else dataset.totals.min())
            lengths.append((total - slack) // share if config.drop_last else math.ceil((total + slack) / share))
        length = (max if longest else min)(lengths)
        if length < 1:
            name = self.datasets[lengths.index(length)].name
            raise PlanError(
                f"an epoch of the mix has no whole batch: {name!r} is used up before one is full; use drop_last=false, "
                "a smaller batch_size, or multi_epoch='longest'"
            )
        return length, {at for at, own in enumerate(lengths) if own == length}

    def _numbering(self, at: int, fresh: bool) -> _Passes:
        most = math.ceil(self.num_batches * self._global * self.weights[at]) + 2
        if self._draws is not None:
            most = self.num_batches * self._global
        return _Passes(fresh or self._draws is not None, most // self.datasets[at].total + 1)

    def batch(self, epoch: int, step: int) -> BatchPlan:
        """This rank's batch ``step`` of an epoch, in time and memory of one batch.

        Raises:
            IndexError: no such batch in an epoch.
        """
        if epoch < 0 or not 0 <= step < self.num_batches:
            raise IndexError(f"a pass has batches 0 to {self.num_batches - 1}, got epoch {epoch}, batch {step}")
        dataset, number = self._mine(epoch, step)  # (B,) each
        size = len(dataset)
        episodes, anchors = np.empty(size, np.int64), np.empty(size, np.int64)
        windows: dict[str, StreamWindow] = {}
        for at, source in enumerate(self.datasets):
            mine = np.flatnonzero(dataset == at)
            rounds, positions = np.divmod(number[mine], source.total)
            if self._passes[at].fresh:
                rounds += epoch * self._passes[at].rounds
            episodes[mine], anchors[mine] = source.lookup(rounds, positions)
            for key, window in source.windows_of(episodes[mine], anchors[mine]).items():
                whole = windows.get(key)
                if whole is None:
                    steps = window.frames.shape[1]
                    whole = StreamWindow(np.zeros((size, steps), np.int64), np.zeros((size, steps), np.bool_))
                    windows[key] = whole
                whole.frames[mine], whole.valid[mine] = window.frames, window.valid
        return BatchPlan(
            epoch=epoch,
            step=step,
            dataset=dataset,
            episodes=episodes,
            anchors=anchors,
            sample_seeds=self._seeds(epoch, step, size),
            windows={key: windows[key] for key in self.keys},
        )

    def _mine(self, epoch: int, step: int) -> tuple[IntArray, IntArray]:
        """(B,) dataset of each of this rank's samples, and (B,) how many samples that dataset gave before it."""
        count = len(self.datasets)
        if self._draws is not None:
            layout = self._draws.datasets(epoch, step * self._global, (step + 1) * self._global)
            before = self._draws.before(epoch, step * self._global)
        else:
            run = epoch * self.num_batches + step
            counts = self._mixture.counts(run)
            layout = self._layout(counts)
            if run % 2:
                layout = layout[::-1]  # so that no rank always gets the sample that doesn't divide
            before = self._mixture.before(run)
            begun = self._mixture.before(epoch * self.num_batches)
            before -= np.where([passes.fresh for passes in self._passes], begun, 0)
        number = np.empty(self._global, np.int64)
        for at in range(count):
            places = np.flatnonzero(layout == at)
            number[places] = before[at] + np.arange(len(places))
        first = 0 if self._by_episode else self.rank * self._config.batch_size
        part = slice(first, first + self._config.batch_size)
        return layout[part].copy(), number[part]

    def _seeds(self, epoch: int, step: int, size: int) -> npt.NDArray[np.uint64]:
        # Ranks that have plans of their own must not share seeds.
        ranks = (1, 0) if not self._by_episode else (self.world_size, self.rank)
        first = step * self._global + (0 if self._by_episode else self.rank * size)
        positions = np.arange(first, first + size, dtype=np.int64) * ranks[0] + ranks[1]
        return hash64(derive_key("augment", self._config.seed, epoch), positions)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the order depends on but the epoch, as JSON values; the same on every rank of a run."""
        config = self._config
        result: dict[str, Any] = {
            "plan_version": 2,
            "datasets": [dataset.name for dataset in self.datasets],
            "weights": [str(weight) for weight in self.weights],
            "multi_mix": config.multi_mix or "per_batch",
            "max_steps": config.max_steps,
            "multi_epoch": None if config.max_steps else config.multi_epoch or "longest",
            "seed": config.seed,
            "global_batch": config.batch_size * self.world_size,
            "drop_last": config.drop_last and config.max_steps is None,
            "shard_by": config.shard_by,
            "world_size": self.world_size if self._by_episode else None,
        }
        shared = set(result)
        for dataset in self.datasets:
            own = dataset.identity
            # A dataset's seed may be its own; the other keys of the same name are of the whole mix.
            result |= {f"{dataset.name}.{key}": own[key] for key in own if key == "seed" or key not in shared}
        return result | {"epoch_batches": self.num_batches}

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 of `identity`."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()


def _check_lengths(datasets: Sequence[MixedDataset]) -> None:
    """Refuse datasets whose windows of one stream have another number of frames."""
    known: dict[str, MixedDataset] = {}
    for dataset in datasets:
        for key, window in dataset.windows.items():
            first = known.setdefault(key, dataset)
            if len(first.windows[key]) != len(window):
                raise ConfigError(
                    f"stream {key!r} has {len(first.windows[key])} frames a sample in {first.name!r} and {len(window)} "
                    f"in {dataset.name!r}; give both the same chunk_len, or as many delta_timestamps"
                )
