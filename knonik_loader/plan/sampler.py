"""The whole plan behind one object: any batch of any epoch, decided without reading anything."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.config import LoaderConfig
from knonik_loader.errors import PlanError
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.plan.anchors import AnchorTable, build_anchors
from knonik_loader.plan.frames import WindowResolver
from knonik_loader.plan.hashing import derive_key, hash64
from knonik_loader.plan.locality import GLOBAL_WINDOW_BATCHES, Arranged, Bounded, StoredAnchors, window_anchors
from knonik_loader.plan.order import EpisodeParts, EpochOrder, Parts, SampleParts, Shuffled, Stored, episodes_of_rank
from knonik_loader.plan.substitutes import Drawn
from knonik_loader.plan.types import BatchPlan
from knonik_loader.plan.windows import Window, windows_for

__all__ = ["Sampler", "rows_of_split"]

IntArray = npt.NDArray[np.int64]


class Sampler:
    """Says which frames make which batch. Pure: no I/O, no wall clock, no state; threads may share it.

    Args:
        index: episodes, clocks and shards of the packed dataset.
        streams: those that are loaded; their windows decide which anchors are possible.
        config: with its stream names resolved (`load_loader_config` with ``streams``).
        rows: (n,) the episodes to sample from, ascending; None: those of ``config.split``.

    Raises:
        PlanError: nothing can be sampled as asked; the message names the key and what to change.
    """

    def __init__(
        self,
        index: DatasetIndex,
        streams: Sequence[StreamInfo],
        config: LoaderConfig,
        rows: IntArray | None = None,
    ) -> None:
        self._index = index
        self._config = config
        self.rank, self.world_size = config.topology
        self.windows: dict[str, Window] = windows_for(
            [stream.key for stream in streams], config.chunk_len, config.delta_timestamps or {}, config.delta_rounding
        )
        self._resolver = WindowResolver(index, self.windows)
        # Two sorted columns in one: an episode's shards follow each other by their first frame.
        self._shard_keys = _shard_key(index.shards.episode, index.shards.first_frame)
        self.anchors = build_anchors(
            index,
            self.windows,
            pad_missing=config.pad_missing,
            stride=config.stride,
            rows=rows_of_split(index, config.split) if rows is None else rows,
        )
        self._parts, self._mine = self._partition()
        self.window_anchors: int | None = None
        """Anchors that a bounded locality may use at once; None where the shuffle is not bounded."""
        self._order = self._make_order(self._mine)

    def __repr__(self) -> str:
        return (
            f"Sampler({len(self.anchors)} anchors in {len(self.anchors.episodes)} episodes, {self.num_batches} batches "
            f"of {self._config.batch_size} on rank {self.rank} of {self.world_size})"
        )

    def __len__(self) -> int:
        """Batches of one pass on this rank."""
        return self.num_batches

    def _partition(self) -> tuple[Parts, AnchorTable]:
        """This rank's cut of the plan, and the anchors that the plan numbers."""
        size, drop = self._config.batch_size, self._config.drop_last
        mine = self.anchors
        parts: Parts
        if self._config.shard_by == "episode":
            ranks = episodes_of_rank(self.anchors.counts, self.world_size)
            totals = np.bincount(ranks, self.anchors.counts, self.world_size).astype(np.int64)
            parts, mine = EpisodeParts(totals, size, self.rank, drop), self.anchors.subset(ranks == self.rank)
        else:
            parts = SampleParts(len(self.anchors), size, self.rank, self.world_size, drop)
        if not parts.batches:
            change = "drop_last=false, a smaller batch_size" if drop else "fewer ranks"
            raise PlanError(
                f"an epoch has {len(self.anchors)} samples, too few for one batch of batch_size={size} on "
                f"world_size={self.world_size}; use {change} or a smaller stride"
            )
        return parts, mine

    def _make_order(self, mine: AnchorTable) -> EpochOrder:
        config = self._config
        order: EpochOrder
        if not config.shuffled:
            return Stored(mine)
        batch, apart = self._planned_batch(), 0
        if config.planner_locality == "global":
            order, window = Shuffled(mine, config.seed), GLOBAL_WINDOW_BATCHES * batch
        else:
            stored = StoredAnchors.of(mine, self._index.shards)
            self.window_anchors = window_anchors(config.planner_locality, stored)
            # The range of the shuffle and a window of its order together touch what the locality allows.
            window = max(1, self.window_anchors // 2)
            # Where it allows all, there is nothing to bound.
            everything = self.window_anchors == len(mine)
            order = Shuffled(mine, config.seed) if everything else Bounded(stored, window, config.seed)
            recent = config.planner_recent_batches
            apart = (recent + 1) * batch if recent else 0
        blocks = config.delta_cache_block_max_shards if config.block_planning else None
        if blocks is None and not apart:
            return order
        return Arranged(order, len(mine), window, self.locate, max_shards=blocks, apart=apart)

    def _planned_batch(self) -> int:
        """Samples of a batch of the plan, over all ranks that share it."""
        return self._config.batch_size * (1 if self._config.shard_by == "episode" else self.world_size)

    @property
    def sources(self) -> Sequence[Sampler]:
        """What the ``dataset`` column of plans counts: this dataset alone."""
        return (self,)

    @property
    def window_frames(self) -> int | None:
        """Frames of every stream that a bounded locality may use at once, on average; None where it is not bounded."""
        if self.window_anchors is None:
            return None
        frames = int(self._index.episodes.length[self.anchors.episodes].sum())
        return -(-frames * self.window_anchors // len(self.anchors))

    @property
    def epoch_batches(self) -> int:
        """Batches of a whole epoch on this rank, whatever ``max_steps``."""
        return self._parts.batches

    @property
    def epochs_per_pass(self) -> int:
        """Epochs that one pass enters: more than one where ``max_steps`` runs on; the next pass starts after them."""
        return -(-self.num_batches // self._parts.batches)

    @property
    def num_batches(self) -> int:
        """Batches of one pass on this rank, the same on every rank: an epoch, or ``max_steps``."""
        return self._config.max_steps or self._parts.batches

    @property
    def num_samples(self) -> int:
        """Samples of one whole epoch over all ranks."""
        return self._parts.samples

    @property
    def rank_samples(self) -> int:
        """Samples of one whole epoch on this rank; only the last batch may be smaller than the others."""
        first, stop = self._parts.span(self._parts.batches - 1)
        return (self._parts.batches - 1) * self._config.batch_size + stop - first

    def batch(self, epoch: int, step: int) -> BatchPlan:
        """This rank's batch ``step`` of the pass that starts with ``epoch``, in time and memory of one batch.

        With ``max_steps`` beyond an epoch's batches, later steps belong to the epochs after ``epoch``.

        Raises:
            IndexError: no such batch in a pass.
        """
        if epoch < 0 or not 0 <= step < self.num_batches:
            raise IndexError(f"a pass has batches 0 to {self.num_batches - 1}, got epoch {epoch}, batch {step}")
        later, inner = divmod(step, self._parts.batches)
        positions = np.arange(*self._parts.span(inner), dtype=np.int64)
        episodes, anchors = self._order.lookup(epoch + later, positions)
        return BatchPlan(
            epoch=epoch,
            step=step,
            dataset=np.zeros(len(positions), np.int64),
            episodes=episodes,
            anchors=anchors,
            sample_seeds=self._seeds(epoch + later, positions),
            windows=self._resolver(episodes, anchors),
        )

    def substitutes(self, seeds: npt.NDArray[np.uint64], attempt: int) -> Drawn:
        """Samples in the place of others; see `knonik_loader.plan.substitutes`."""
        words = hash64(derive_key("substitute", attempt), seeds)
        episodes, anchors = self._mine.lookup((words % np.uint64(len(self._mine))).astype(np.int64))
        return episodes, anchors, self._resolver(episodes, anchors)

    def at(self, ids: IntArray, seeds: npt.NDArray[np.uint64]) -> BatchPlan:
        """A batch of chosen anchors in the order given, whatever an epoch's order.

        Args:
            ids: (B,) numbers of anchors, in the order of episodes and frames.
            seeds: (B,) for augmentation.
        """
        episodes, anchors = self.anchors.lookup(ids)
        zeros = np.zeros(len(ids), np.int64)
        return BatchPlan(0, 0, zeros, episodes, anchors, seeds, self._resolver(episodes, anchors))

    def locate(self, episodes: IntArray, frames: IntArray) -> tuple[IntArray, IntArray]:
        """(n,) episode rows and (n,) frames → (n,) rows of the shard table and (n,) rows inside those shards."""
        shards = np.searchsorted(self._shard_keys, _shard_key(episodes, frames), side="right") - 1
        return shards, frames - self._index.shards.first_frame[shards].astype(np.int64)

    def _seeds(self, epoch: int, positions: IntArray) -> npt.NDArray[np.uint64]:
        # Ranks that have plans of their own must not share seeds.
        if self._config.shard_by == "episode":
            positions = positions * self.world_size + self.rank
        return hash64(derive_key("augment", self._config.seed, epoch), positions)

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that the order depends on but the epoch, as JSON values; the same on every rank of a run.

        A saved state whose identity differs belongs to another order; the first key that differs says why.
        """
        config = self._config
        by_episode = config.shard_by == "episode"
        return {
            "plan_version": 1,
            "seed": config.seed,
            "shuffle": config.shuffled,
            "global_batch": config.batch_size * self.world_size,
            "drop_last": config.drop_last,
            "stride": config.stride,
            "split": config.split,
            "pad_missing": config.pad_missing,
            "windows": {
                key: {"chunk": window.chunk, "deltas_us": list(window.deltas_us), "rounding": window.rounding}
                for key, window in sorted(self.windows.items())
            },
            "shard_by": config.shard_by,
            "world_size": self.world_size if by_episode else None,
            "planner_locality": config.planner_locality if config.shuffled else None,
            "planner_recent_batches": config.planner_recent_batches if self.window_anchors is not None else None,
            "delta_cache_block_max_shards": config.delta_cache_block_max_shards if config.block_planning else None,
            "shards": self._shards_digest() if self.window_anchors is not None or config.block_planning else None,
            "episodes": self._episodes_digest(),
        }

    @functools.cached_property
    def digest(self) -> str:
        """Sha256 of `identity`."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

    def _episodes_digest(self) -> str:
        """Of the sampled episodes' lengths and clocks, and of where their anchors lie."""
        table = self._index.episodes
        sha = hashlib.sha256()
        for column in (self.anchors.episodes, self.anchors.first, self.anchors.counts, table.length):
            sha.update(np.ascontiguousarray(column, "<i8").tobytes())
        sha.update(np.ascontiguousarray(table.fps, "<f8").tobytes())
        for row in sorted(self._index.clocks):
            sha.update(np.ascontiguousarray(self._index.clocks[row], "<f8").tobytes())
        return sha.hexdigest()

    def _shards_digest(self) -> str:
        """Of where the shards lie, which bounded localities and block planning follow."""
        sha = hashlib.sha256()
        shards = self._index.shards
        for column in (shards.hlp, shards.shard, shards.episode, shards.first_frame):
            sha.update(np.ascontiguousarray(column, "<u4").tobytes())
        return sha.hexdigest()


def _shard_key(episodes: npt.NDArray[Any], frames: npt.NDArray[Any]) -> IntArray:
    return (episodes.astype(np.int64) << 32) | frames.astype(np.int64)


def rows_of_split(index: DatasetIndex, split: str | None) -> IntArray | None:
    """(n,) rows of the episodes of a split; None for all.

    Raises:
        PlanError: the dataset has no episode in it.
    """
    if split is None:
        return None
    names = np.asarray(index.episodes.split, dtype=str)
    rows = np.flatnonzero(names == split).astype(np.int64)
    if not len(rows):
        present = sorted({name for name in index.episodes.split if name})
        known = f"it has the splits {', '.join(map(repr, present))}" if present else "it was packed without splits"
        raise PlanError(f"the dataset has no episode in split={split!r}: {known}; choose another, or leave split out")
    return rows
