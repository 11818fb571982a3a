"""The map-style dataset: any sample by its number, in any order that a sampler likes."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import ConfigError
from knonik_loader.plan.anchors import AnchorTable
from knonik_loader.plan.hashing import derive_key, hash64
from knonik_loader.torch.collation import split_batch
from knonik_loader.torch.epochs import SharedNumber, epoch_number
from knonik_loader.torch.meta import LerobotMeta
from knonik_loader.torch.need import Dataset, torch
from knonik_loader.torch.packed import DatasetOptions, Packed

__all__ = ["KhlpDataset"]


IntArray = npt.NDArray[np.int64]


class KhlpDataset(Packed, Dataset):  # type: ignore[misc]
    """Samples of a packed dataset by number, for `torch.utils.data.DataLoader`.

    A sample is a dictionary of tensors without the batch axis, with the keys of the loaders' batches: streams
    (T, ...), ``<key>_valid_mask`` under ``pad_missing``, and what says where it comes from. PyTorch's own collation
    makes the loaders' batches of them. With ``keys="lerobot"`` it has LeRobot's keys instead.

    Nothing is open until a process asks for its first sample, and what the parent has opened stays there: workers may
    be forked or spawned at any time. `__getitems__`, which DataLoader calls by itself, reads and decodes what the
    samples of a batch share once.

    Args:
        hlp_manifest: path or URL of ``hlp_manifest.json``.
        options: see `DatasetOptions`.

    Raises:
        ConfigError: a mistake in the options.
        StorageError: the manifest or its index can't be read.
        FormatError: they are damaged.
        PlanError: the dataset has no sample as asked for.
        LoginRequired: an issuer is configured and there is no valid token.
    """

    def __init__(self, hlp_manifest: str | os.PathLike[str], **options: Unpack[DatasetOptions]) -> None:
        plan = {"batch_size": 1, "shuffle_mode": "none", "rank": 0, "world_size": 1}
        super().__init__(hlp_manifest, options, plan)
        self._epoch = SharedNumber(-1)

    def __repr__(self) -> str:
        opened = self.opened
        shapes = ", ".join(f"{stream.key} {stream.shape}" for stream in opened.streams)
        return f"KhlpDataset({opened.name!r}, {len(self)} samples of {self.num_episodes} episodes, {shapes})"

    def __len__(self) -> int:
        """Samples."""
        return len(self.anchors)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One sample; negative numbers count from the end.

        Raises:
            IndexError: there is no such sample.
            KnonikError: it can't be read.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples, in the order asked for, made together; raises as `__getitem__` does."""
        ids = np.array([self._checked(index) for index in indices], np.int64)
        plan = self.opened.sampler.at(ids, self._seeds(ids))
        return split_batch(self.made(plan), len(ids))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All samples in order, one by one."""
        return (self[index] for index in range(len(self)))

    def set_epoch(self, epoch: int) -> None:
        """Let seeds of augmentations follow from (seed, epoch, sample), in this process and in running workers.

        Without it they come from the random state of the process that makes the sample. `EpisodeDistributedSampler`
        calls it for every pass.
        """
        self._epoch.set(epoch_number(epoch))

    @property
    def anchors(self) -> AnchorTable:
        """The frames that samples are built around, numbered as the samples are."""
        return self.opened.sampler.anchors

    @property
    def num_episodes(self) -> int:
        """Episodes that have samples."""
        return len(self.anchors.episodes)

    @property
    def num_frames(self) -> int:
        """Frames of the episodes that have samples."""
        return int(self.opened.index.episodes.length[self.anchors.episodes].sum())

    @property
    def episodes(self) -> list[str]:
        """Their ids."""
        names = self.opened.index.episodes.episode_id
        return [names[row] for row in self.anchors.episodes.tolist()]

    @property
    def fps(self) -> float:
        """Nominal frame rate."""
        return self.opened.manifest.fps

    @property
    def features(self) -> Mapping[str, Any]:
        """LeRobot's description of the streams; with ``keys="lerobot"``."""
        return self.meta.features

    @cached_property
    def meta(self) -> LerobotMeta:
        """Facts and statistics as LeRobot's training code asks for them; with ``keys="lerobot"``.

        Raises:
            ConfigError: the samples have the loaders' keys.
        """
        if self.opened.shape is None:
            raise ConfigError("KhlpDataset.meta is there with keys='lerobot'; see also normalization_stats(dataset)")
        return LerobotMeta(self)

    def __getstate__(self) -> dict[str, Any]:
        """See `Packed`; what can be computed again doesn't travel."""
        state = super().__getstate__()
        state.pop("meta", None)
        return state

    def _checked(self, index: int) -> int:
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of a dataset of {len(self)}")
        return number % len(self)

    def _seeds(self, ids: IntArray) -> npt.NDArray[np.uint64]:
        config = self.opened.config
        if config.augment_fn is None:
            return np.zeros(len(ids), np.uint64)
        epoch = self._epoch.get()
        if epoch < 0:
            draw = int(torch.randint(2**62, (1,)))
            return hash64(derive_key("augment", config.seed, "drawn", draw), np.arange(len(ids)))
        return hash64(derive_key("augment", config.seed, epoch), ids)
