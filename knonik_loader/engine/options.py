"""From the keys of a configuration to the sizes of the engine's stages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from knonik_loader.config import LoaderConfig
from knonik_loader.engine.augment_process import WorkerPool, pickled_function
from knonik_loader.engine.batch import import_torch
from knonik_loader.engine.cache import FrameCache
from knonik_loader.engine.dataset import PackedDataset
from knonik_loader.engine.engine import EngineOptions
from knonik_loader.engine.memory import BatchMemory, PinnedMemory, RecyclingPool, SlotRing
from knonik_loader.engine.storage import open_storage
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.codecs import dependency_of
from knonik_loader.khlp.types import StreamInfo

__all__ = ["batch_memory", "check_shard_size", "engine_options", "files_open", "frame_cache", "reopened", "worker_pool"]


def engine_options(config: LoaderConfig, remote: bool) -> EngineOptions:
    """Sizes as configured; what is not, from the cores at hand and from where the data lies."""
    half = 2 if config.low_memory else 1
    cores = len(os.sched_getaffinity(0))
    workers = config.num_decoders or cores
    # A local read is a copy out of the page cache; a remote one waits for most of its time.
    fetchers = max(workers, 8) if remote else min(4, -(-workers // 2))
    window = config.partial_decode_coalesce_batches or 1
    ahead = max(1, config.precollate_batches // half) if config.precollate_batches else 0
    if config.partial_decode_window_prefetch is not None:
        ahead = max(ahead, window * config.partial_decode_window_prefetch)
    shards_ahead = max(1, config.prefetch_shards // half)
    apart = config.augment_fn is not None and config.augment_execution != "inline"
    return EngineOptions(
        fetchers=config.num_fetchers or max(1, fetchers // half),
        decoders=config.decode_concurrency or max(1, workers // half),
        ahead=ahead,
        window=window,
        shards_ahead=shards_ahead,
        job_shards=max(1, min(8, shards_ahead // 2)),
        verify=config.verify_checksums,
        files=files_open(config),
        augment_fn=config.augment_fn,
        # One thread a worker process, which waits for it.
        augment_threads=max(1, config.augment_workers // half) if apart else 0,
    )


def files_open(config: LoaderConfig) -> int | None:
    """KHLP files open at once, as configured; None: not bounded by number."""
    kept = config.hlps_in_flight
    return max(1, kept // 2) if kept is not None and config.low_memory else kept


def frame_cache(config: LoaderConfig, streams: Sequence[StreamInfo]) -> FrameCache | None:
    """The cache that ``ram_cache_bytes`` asks for, where a stream has something to keep in it."""
    limit = config.ram_cache_bytes // (2 if config.low_memory else 1)
    useful = any(dependency_of(stream.codec) != "none" for stream in streams)
    return FrameCache(limit) if limit and useful else None


def worker_pool(config: LoaderConfig) -> WorkerPool | None:
    """Worker processes for ``augment_execution="process"``; none is started yet.

    Raises:
        ConfigError: the function can't be sent to them.
    """
    if config.augment_fn is None or config.augment_execution != "process":
        return None
    keep = max(1, config.augment_workers // (2 if config.low_memory else 1))
    return WorkerPool(pickled_function(config.augment_fn), keep)


def batch_memory(config: LoaderConfig, options: EngineOptions) -> BatchMemory:
    """Slots under ``zerocopy``, PyTorch's pool where memory is pinned, else a pool that reuses what nobody holds.

    Raises:
        ConfigError: ``pin_memory`` without a device to pin for.
    """
    if config.zerocopy:
        slots = config.zerocopy_slots or config.precollate_batches + 2
        # A batch must stay whole while ``slots - precollate_batches`` more are asked for, so what is started beyond
        # ``precollate_batches`` needs slots of its own.
        slots += max(0, options.ahead - config.precollate_batches) + options.window - 1
        return SlotRing(slots, poison=bool(os.environ.get("KNONIK_POISON")))
    if config.pin_memory and config.framework == "torch" and config.augment_fn is None:
        return _pinned()
    # Batches in the queue and in work, the one asked for, and a few that the user still holds.
    return RecyclingPool(options.ahead + options.window + 4)


def _pinned() -> PinnedMemory:
    torch = import_torch()
    if not torch.cuda.is_available():
        raise ConfigError("loader_cfg.pin_memory: PyTorch sees no CUDA device to pin memory for; set it to false.")

    def allocate(shape: Sequence[int], dtype: str) -> Any:  # noqa: ANN401 - torch is not typed here
        return torch.empty(shape, dtype=getattr(torch, dtype), pin_memory=True)

    return PinnedMemory(allocate)


def reopened(config: LoaderConfig, dataset: PackedDataset) -> PackedDataset:
    """The same dataset over a storage of its own, for an engine: connections don't survive a fork.

    What the given one holds open is closed: it was needed to plan.
    """
    dataset.close()
    files = files_open(config)
    storage = open_storage(config.fs_type, config.fs_params, files)
    return PackedDataset(storage, dataset.key, dataset.manifest, dataset.index, files)


def check_shard_size(config: LoaderConfig, dataset: PackedDataset, streams: tuple[StreamInfo, ...]) -> None:
    """Hold ``shard_max_size`` against the largest decoded shard.

    Raises:
        ConfigError: it is too small; the message has the needed value.
    """
    if config.shard_max_size is None:
        return
    frames = int(dataset.index.shards.frames.max())
    sizes = {stream.key: frames * int(np.prod(stream.shape)) * np.dtype(stream.dtype).itemsize for stream in streams}
    key = max(sizes, key=lambda name: sizes[name])
    if sizes[key] > config.shard_max_size:
        raise ConfigError(
            f"loader_cfg.shard_max_size={config.shard_max_size} is less than the largest decoded shard of {key!r}; set "
            f"it to at least {sizes[key]}, or leave it out."
        )
