"""The loader of one packed dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knonik_loader import access
from knonik_loader.base import DataLoader
from knonik_loader.config import load_loader_config, load_stream_config, select_streams
from knonik_loader.engine.dataset import Source, open_dataset
from knonik_loader.engine.options import check_shard_size, reopened
from knonik_loader.engine.storage import open_storage
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
        arguments = (dict(loader_cfg), dict(stream_cfg or {}), dataset_name)
        config = load_loader_config(loader_cfg)
        dataset = open_dataset(open_storage(config.fs_type, config.fs_params), config.hlp_manifest)
        chosen = load_stream_config(stream_cfg or {}, dataset.streams)
        # Under zerocopy every stream needs its shape, but only those that are loaded.
        known = [stream for stream in dataset.streams if not (config.zerocopy and chosen) or stream.key in chosen]
        config = load_loader_config(loader_cfg, profile=dataset.manifest.storage_profile, streams=known)
        streams = tuple(select_streams(config, chosen, dataset.streams))
        check_shard_size(config, dataset, streams)
        self._index, self._dataset = dataset.index, dataset
        name = dataset_name if dataset_name is not None else dataset.manifest.dataset
        super().__init__(name, config, streams, Sampler(dataset.index, streams, config), arguments)

    def _open_sources(self) -> tuple[Source, ...]:
        return (Source(self._name, reopened(self._config, self._dataset), self._streams),)

    def _manifests(self) -> Mapping[str, tuple[str, str]]:
        return {"manifest": (self._dataset.key, self._dataset.manifest.digest())}
