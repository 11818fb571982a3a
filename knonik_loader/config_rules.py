"""What keys of a `LoaderConfig` mean together, with the dataset's profile, and with the process they run in."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from knonik_loader.config_models import LoaderConfig
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.types import PAYLOAD_OF_PROFILE, StorageProfile, StreamInfo

__all__ = [
    "FS_OF_SCHEME",
    "check_frame_shapes",
    "check_payload",
    "check_together",
    "find_topology",
    "idle_keys",
    "topology",
]

FS_OF_SCHEME = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""Scheme of a URL → ``fs_type``."""

_WITHOUT_STAGE = (
    "io_loops",
    "num_orch_threads",
    "batch_prefetch_timeout_s",
    "batch_prefetch_daemon",
    "kdelta_direct_local_decode",
    "kdelta_direct_bundle_decode",
    "kdelta_direct_single_consumer",
)


def check_together(config: LoaderConfig, given: Mapping[str, Any], *, mix: bool = False) -> None:
    """Refuse keys that contradict each other; ``mix``: of a dataset of a mix."""

    def refuse(problem: str) -> None:
        raise ConfigError(f"loader_cfg: {problem}")

    if config.decode_mode == "sequential" and config.shuffled:
        refuse(
            f"decode_mode='sequential' plays episodes in order, shuffle_mode={config.shuffle_mode!r} shuffles them; "
            "use shuffle_mode='none', or decode_mode='random_access'"
        )
    for key in ("multi_epoch", "multi_mix"):
        if key in given and not mix:
            refuse(f"{key} is about a mix of datasets, and this loader reads one; leave it out")
    if config.multi_epoch == "steps" and config.max_steps is None:
        refuse("multi_epoch='steps' needs max_steps, the batches of an epoch; give it, or use 'longest' or 'shortest'")
    if config.zerocopy:
        _check_zerocopy(config, refuse)
    scheme = config.hlp_manifest.partition("://")[0] if "://" in config.hlp_manifest else None
    if scheme is not None and FS_OF_SCHEME.get(scheme) != config.fs_type:
        known = FS_OF_SCHEME.get(scheme)
        fix = f"use fs_type={known!r}, or leave it out" if known else "URLs begin with s3://, gs:// or az://"
        refuse(f"hlp_manifest={config.hlp_manifest!r} is not a path of fs_type={config.fs_type!r}; {fix}")
    if (config.rank is None) != (config.world_size is None):
        one, other = ("rank", "world_size") if config.world_size is None else ("world_size", "rank")
        refuse(f"{one} is given without {other}; give both, or neither to take them from the environment")
    if config.rank is not None and config.world_size is not None and config.rank >= config.world_size:
        refuse(f"rank={config.rank} must be below world_size={config.world_size}; ranks count from 0")


def _check_zerocopy(config: LoaderConfig, refuse: Callable[[str], None]) -> None:
    if config.augment_fn is not None:
        refuse("augment_fn can't run with zerocopy=true; transform the batch in the training loop, or zerocopy=false")
    if not config.shuffled:
        refuse("zerocopy=true needs shuffle_mode='global_triplet' or 'global_triplet_fast'; set one, or zerocopy=false")
    if config.zerocopy_slots is not None and config.zerocopy_slots < config.precollate_batches + 2:
        refuse(
            f"zerocopy_slots={config.zerocopy_slots} is too few for precollate_batches={config.precollate_batches}; "
            f"use at least {config.precollate_batches + 2}"
        )


def check_payload(config: LoaderConfig, profile: StorageProfile) -> None:
    """Refuse a ``payload`` that is not what the dataset stores."""
    stored = PAYLOAD_OF_PROFILE[profile]
    if config.payload is not None and config.payload != stored:
        raise ConfigError(
            f"loader_cfg.payload={config.payload!r}, but {config.hlp_manifest} stores {stored!r} ({profile}); "
            f"use payload={stored!r}, or another manifest"
        )


def check_frame_shapes(config: LoaderConfig, streams: Sequence[StreamInfo]) -> None:
    """Refuse ``zerocopy_frame_shapes`` that aren't those of the RGB streams; warn of an ignored ``pin_memory``."""
    if config.pin_memory:
        warnings.warn("pin_memory is ignored under zerocopy", UserWarning, stacklevel=5)
    shapes = config.zerocopy_frame_shapes or {}
    for stream in streams:
        if stream.kind != "rgb" or (config.image_key and stream.key not in config.image_key):
            continue
        shape = shapes.get(stream.key)
        if shape is None or tuple(shape) != tuple(stream.shape):
            got = "is missing" if shape is None else f"is {list(shape)}"
            raise ConfigError(
                f"loader_cfg.zerocopy_frame_shapes[{stream.key!r}] {got}; the dataset's frames are {list(stream.shape)}"
            )


def idle_keys(config: LoaderConfig, profile: StorageProfile | None) -> set[str]:
    """Keys that can have no effect in this mode or profile."""
    idle = set(_WITHOUT_STAGE)
    if config.augment_fn is None:
        idle |= {"augment_execution", "augment_workers"}
    elif config.augment_execution == "inline":
        idle.add("augment_workers")
    if not config.shuffled:
        idle.add("planner_locality")
    if not config.shuffled or config.planner_locality == "global":
        idle.add("planner_recent_batches")
    if not config.shuffled or (config.planner_locality == "global" and config.delta_cache_block_planning != "on"):
        idle |= {"delta_cache_block_planning", "delta_cache_block_max_shards"}
    if config.delta_cache_block_planning == "off":
        idle.add("delta_cache_block_max_shards")
    if not config.zerocopy:
        idle |= {"zerocopy_frame_shapes", "zerocopy_slots"}
    if config.zerocopy or config.framework == "numpy" or config.augment_fn is not None:
        idle.add("pin_memory")  # augmented samples are stacked into memory of their own
    if config.delta_timestamps is None:
        idle.add("delta_rounding")
    if profile == "training_fast":
        idle.add("ram_cache_bytes")
    if profile is not None and profile != "training_compressed":
        idle.add("kdelta_direct_bundle_target_frames")
    if config.num_fetchers is not None and config.decode_concurrency is not None:
        idle.add("num_decoders")
    return idle


def find_topology(config: LoaderConfig) -> tuple[int, int]:
    """(rank, world size): as configured, else of torch.distributed where it runs, else of the environment."""
    if config.rank is not None and config.world_size is not None:
        return config.rank, config.world_size
    return topology()


def topology() -> tuple[int, int]:
    """(rank, world size) of this process: of torch.distributed where it runs, else of the environment, else (0, 1).

    Raises:
        ConfigError: the environment contradicts itself.
    """
    # Only asked for when somebody has imported it already: a numpy loader never pays for torch.
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    texts = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    if not any(texts):
        return 0, 1
    try:
        rank, world_size = (int(text) for text in texts)
    except ValueError as error:
        raise ConfigError(
            f"the environment has RANK={texts[0]!r} and WORLD_SIZE={texts[1]!r}, which must both be whole numbers; "
            "unset them, or give rank and world_size in loader_cfg"
        ) from error
    if not 0 <= rank < world_size:
        raise ConfigError(f"the environment has RANK={rank}, which must lie in [0, WORLD_SIZE={world_size})")
    return rank, world_size
