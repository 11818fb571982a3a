"""The loader of one packed dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knonik_loader import access
from knonik_loader.base import DataLoader
from knonik_loader.opening import align, finish, open_one
from knonik_loader.plan.sampler import Sampler

__all__ = ["ShardedDataLoader"]


class ShardedDataLoader(DataLoader):
    """Training batches from one packed dataset.

    Every ``iter()`` is one pass over an epoch, and the next ``iter()`` goes on with the next epoch; after
    `load_state_dict` the first one goes on in the middle. A loader has one pass at a time: a new one ends the last.

    Args:
        loader_cfg: what to load and how; see the configuration reference.
        stream_cfg: stream → options; empty takes every stream of the manifest.
        dataset_name: what batches call the dataset; None: the name in the manifest.

    Raises:
        ConfigError: a mistake in the configuration.
        StorageError: the manifest or its index can't be read.
        FormatError: they are damaged.
        PlanError: the dataset has no sample as asked for.
        LoginRequired: an issuer is configured and there is no valid token.
    """

    def __init__(
        self,
        loader_cfg: Mapping[str, Any],
        stream_cfg: Mapping[str, Any] | None = None,
        dataset_name: str | None = None,
    ) -> None:
        access.require("multidataloader")
        opened, known = align([open_one(dataset_name, loader_cfg, {} if stream_cfg is None else stream_cfg)])
        arguments = (dict(loader_cfg), dict(stream_cfg or {}), dataset_name)
        (self._part,), streams = finish(opened, known)
        dataset, config = self._part.dataset, self._part.config
        self._index = dataset.index
        sampler = Sampler(dataset.index, self._part.present, config)
        super().__init__(self._part.name, config, [self._part], streams, sampler, arguments)
