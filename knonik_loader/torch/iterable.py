"""The iterable dataset: the loaders' own order, dealt to ranks and workers, and resumed exactly."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Unpack

from knonik_loader.errors import ConfigError, ResumeMismatchError
from knonik_loader.plan.types import BatchPlan
from knonik_loader.state import STATE_VERSION, check_state, described, whole_number
from knonik_loader.torch.collation import split_batch
from knonik_loader.torch.epochs import MOST_EPOCHS, PassCounter, SharedNumber, epoch_number
from knonik_loader.torch.need import IterableDataset, get_worker_info
from knonik_loader.torch.packed import DatasetOptions, Packed

__all__ = ["KhlpIterableDataset"]

_ITEM_BITS = 32
_ITEM = (1 << _ITEM_BITS) - 1


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a pass is."""

    epoch: int
    item: int
    """The next item, counted over the whole rank: of any worker, or of ``worker``."""
    worker: int | None = None
    workers: int = 1


class _Joined(Iterator[dict[str, Any]]):
    """Iterators one behind the other.

    One that fails ends alone: a generator over all of them would end with it, and whoever passes over the error would
    miss the rest of the pass without a word.
    """

    def __init__(self, parts: Iterator[Iterator[dict[str, Any]]]) -> None:
        self._parts = parts
        self._part: Iterator[dict[str, Any]] = iter(())

    def __next__(self) -> dict[str, Any]:
        while True:
            for item in self._part:
                return item
            self._part = next(self._parts)


class KhlpIterableDataset(Packed, IterableDataset):  # type: ignore[misc]
    """A packed dataset as a stream, in the order of the loaders: the same whatever the number of workers.

    With ``batch_size`` it yields whole batches, for ``DataLoader(dataset, batch_size=None)``: worker ``w`` of ``W``
    makes this rank's batches w, w + W, …, which the DataLoader hands out in turn, so that batches and their order are
    those of `ShardedDataLoader`. Otherwise it yields samples, dealt to the workers one by one; with ``batched=False``
    and the DataLoader's own ``batch_size`` they are dealt so that its batches, too, are the same for every number of
    workers.

    Every pass is the next epoch, as with the loaders; `set_epoch` chooses one, also for workers that live on.

    Args:
        hlp_manifest: path or URL of ``hlp_manifest.json``.
        batch_size: samples of a batch on each rank; None: single samples.
        batched: whether whole batches are yielded; None: when there is a ``batch_size``.
        shuffle: another order every epoch; otherwise episodes in order.
        drop_last: leave out an epoch's last, partial global batch.
        rank: of this process; None: from torch.distributed or the environment, else 0.
        world_size: processes that share an epoch; None: the same, else 1.
        shard_by: ``sample``: one global order for every world size; ``episode``: every episode on one rank.
        epoch: the first one.
        options: see `DatasetOptions`.

    Raises:
        ConfigError: a mistake in the options.
        StorageError: the manifest or its index can't be read.
        FormatError: they are damaged.
        PlanError: the dataset has no sample as asked for, or fewer episodes than ranks under ``shard_by="episode"``.
        LoginRequired: an issuer is configured and there is no valid token.
    """

    def __init__(
        self,
        hlp_manifest: str | os.PathLike[str],
        *,
        batch_size: int | None = None,
        batched: bool | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        shard_by: Literal["sample", "episode"] = "sample",
        epoch: int = 0,
        **options: Unpack[DatasetOptions],
    ) -> None:
        if batched and batch_size is None:
            raise ConfigError("KhlpIterableDataset: batched=True needs a batch_size")
        self._batched = batch_size is not None if batched is None else batched
        plan = {
            "batch_size": 1 if batch_size is None else batch_size,
            "shuffle_mode": "global_triplet" if shuffle else "none",
            "drop_last": drop_last,
            "rank": rank,
            "world_size": world_size,
            "shard_by": shard_by,
        }
        super().__init__(hlp_manifest, options, plan)
        self._per_step = 1 if self._batched or batch_size is None else batch_size
        self._counter = PassCounter(epoch_number(epoch))
        # Where an epoch begins if not at its first item, for workers that run already, too: epoch and item.
        self._begin = SharedNumber(0)
        self._loaded: _Place | None = None
        self._now: _Place | None = None

    def __repr__(self) -> str:
        opened = self.opened
        what = f"{len(self)} {'batches' if self._batched else 'samples'}"
        rank, world_size = opened.config.topology
        shapes = ", ".join(f"{stream.key} {stream.shape}" for stream in opened.streams)
        return f"KhlpIterableDataset({opened.name!r}, {what} on rank {rank} of {world_size}, {shapes})"

    def __len__(self) -> int:
        """Items of an epoch on this rank: batches, the same number on every rank, or samples."""
        sampler = self.opened.sampler
        return sampler.num_batches if self._batched else sampler.rank_samples

    @property
    def dropped(self) -> int:
        """Samples that no rank sees in an epoch."""
        sampler = self.opened.sampler
        return len(sampler.anchors) - sampler.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be this epoch, in this process and in running workers; a loaded state keeps its place.

        Raises:
            ConfigError: no epoch number.
        """
        number = epoch_number(epoch)
        untouched = self._counter.coming == number and not self._counter.in_workers and self._now is None
        if not untouched:
            self._begin.set(0)
        self._now = self._loaded = None
        self._counter.set(number)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The items of a pass that belong to this worker."""
        info = get_worker_info()
        worker, workers = (None, 1) if info is None else (info.id, info.num_workers)
        place, self._loaded = self._loaded, None
        if place is not None:
            if (place.worker, place.workers) != (worker, workers):
                raise ResumeMismatchError(
                    f"the state is that of worker {place.worker} of {place.workers}, this is {worker} of {workers}; "
                    "keep num_workers as it was, or resume with a state of the whole rank."
                )
            self._counter.begin(place.epoch)
            self._now = place
            return self._items(place.epoch, *divmod(place.item, self._per_step))
        epoch, begin = self._counter.begin(), self._begin.get()
        step, skip = divmod(begin & _ITEM if begin >> _ITEM_BITS == epoch else 0, self._per_step)
        # DataLoaders take items from worker 0 first, so it has what is left of the step in which the run stopped.
        step, skip = step + (worker or 0), 0 if worker else skip
        self._now = _Place(epoch, step * self._per_step + skip, worker, workers)
        return self._items(epoch, step, skip)

    def _items(self, epoch: int, first: int, skip: int) -> Iterator[dict[str, Any]]:
        """The items of this worker's steps from ``first`` on, without that one's first ``skip``."""
        worker, workers = (self._now.worker, self._now.workers) if self._now is not None else (None, 1)
        steps = range(first, self.opened.sampler.num_batches, workers)
        return _Joined(self._of_step(epoch, step, skip if step == first else 0, worker, workers) for step in steps)

    def _of_step(self, epoch: int, step: int, skip: int, worker: int | None, workers: int) -> Iterator[dict[str, Any]]:
        items, per = self._made(self.opened.sampler.batch(epoch, step)), self._per_step
        for at in range(skip, len(items)):
            following = (step + workers) * per if at + 1 == len(items) else step * per + at + 1
            self._now = _Place(epoch, following, worker, workers)
            yield items[at]

    def _made(self, plan: BatchPlan) -> list[dict[str, Any]]:
        batch = self.made(plan)
        return [batch] if self._batched else split_batch(batch, len(plan))

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Where this process is, as JSON values: the place after the last item handed out.

        Inside a worker, where torchdata's StatefulDataLoader asks, it is the worker's own place. With PyTorch's own
        DataLoader and workers nothing in the main process knows how far they are, so ``step`` must say it.

        Args:
            step: items of the latest pass that the training loop used, batches or samples as they are yielded.

        Raises:
            ConfigError: ``step`` is needed, or no number of items of an epoch.
        """
        now = self._now or self._loaded
        workers = now is None and self._counter.in_workers
        if step is not None:
            number = whole_number(step, len(self))
            if number is None:
                raise ConfigError(f"state_dict: step={step!r} must lie in 0 to {len(self)}, the items of an epoch")
            epoch = now.epoch if now is not None else self._counter.coming - workers
            now = _Place(epoch, number)
        elif workers:
            raise ConfigError(
                "state_dict: workers make the items, and only the training loop knows how many it used; give it as "
                "state_dict(step=...), or use torchdata's StatefulDataLoader"
            )
        elif now is None:
            begin, epoch = self._begin.get(), self._counter.coming
            now = _Place(epoch, begin & _ITEM if begin >> _ITEM_BITS == epoch else 0)
        if now.worker is None and now.item >= len(self):
            now = _Place(now.epoch + 1, 0)
        opened = self.opened
        return {
            "version": STATE_VERSION,
            "epoch": now.epoch,
            "step": now.item,
            "worker": now.worker,
            "workers": now.workers,
            "batched": self._batched,
            "manifest": opened.manifest.digest(),
            "digest": opened.sampler.digest,
            "order": dict(opened.sampler.identity),
            "streams": described(opened.bound),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on where ``state`` was taken, also with another number of workers or another world size.

        The state of a single worker, which torchdata's StatefulDataLoader keeps, goes on in that worker only.

        Raises:
            ResumeMismatchError: the state belongs to another dataset or order; the message names what differs.
        """
        opened = self.opened
        mine = {
            "version": STATE_VERSION,
            "batched": self._batched,
            "manifest": opened.manifest.digest(),
            "digest": opened.sampler.digest,
            "order": opened.sampler.identity,
            "streams": described(opened.bound),
        }
        anything: object = state
        given = anything if isinstance(anything, Mapping) else {}  # what it is then, check_state says
        worker, workers = given.get("worker"), whole_number(given.get("workers", 1), 1 << 16)
        if workers is None or (worker is not None and whole_number(worker, workers - 1) is None):
            raise ResumeMismatchError(
                f"the state's worker is {worker!r} of {given.get('workers')!r}; pass what state_dict() gave."
            )
        furthest = len(self) if worker is None else (opened.sampler.num_batches + workers) * self._per_step
        digests = dict.fromkeys(("manifest", "digest"), opened.key)
        epoch, item = check_state(state, mine, digests, epochs=MOST_EPOCHS, steps=furthest)
        self._now = None
        if worker is not None:
            self._loaded = _Place(epoch, item, worker, workers)
            return
        self._loaded = None
        self._counter.set(epoch)
        self._begin.set(epoch << _ITEM_BITS | item)
