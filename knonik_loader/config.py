"""``loader_cfg`` and ``stream_cfg``: what keys mean together, with the dataset, and with the process they run in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from knonik_loader.config_models import (
    AzureParams,
    GcsParams,
    LoaderConfig,
    LocalParams,
    S3Params,
    StreamOptions,
)
from knonik_loader.config_rules import (
    FS_OF_SCHEME,
    check_frame_shapes,
    check_payload,
    check_together,
    find_topology,
    idle_keys,
)
from knonik_loader.config_streams import load_stream_config, resolve_stream
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.types import StorageProfile, StreamInfo
from knonik_loader.validation import plain, validate

__all__ = [
    "MIX_WIDE",
    "LoaderConfig",
    "StreamOptions",
    "load_loader_config",
    "load_stream_config",
    "resolve_stream",
    "select_streams",
]

MIX_WIDE: tuple[str, ...] = (
    "decode_mode",
    "batch_size",
    "framework",
    "shuffle_mode",
    "epoch",
    "drop_last",
    "rank",
    "world_size",
    "shard_by",
    "max_steps",
    "hlps_in_flight",
    "prefetch_shards",
    "ram_cache_bytes",
    "low_memory",
    "num_decoders",
    "num_fetchers",
    "decode_concurrency",
    "partial_decode_coalesce_batches",
    "partial_decode_window_prefetch",
    "io_loops",
    "num_orch_threads",
    "batch_prefetch_timeout_s",
    "batch_prefetch_daemon",
    "kdelta_direct_bundle_target_frames",
    "kdelta_direct_single_consumer",
    "augment_fn",
    "augment_execution",
    "augment_workers",
    "precollate_batches",
    "zerocopy",
    "zerocopy_frame_shapes",
    "zerocopy_slots",
    "pin_memory",
    "on_error",
    "verify_checksums",
    "metrics_path",
    "image_key",
    "multi_epoch",
    "multi_mix",
)
"""Keys that a mix has once: its datasets can't differ in them. All others each dataset may have for itself."""

_FS_PARAMS: dict[str, type[BaseModel]] = {"local": LocalParams, "s3": S3Params, "gcs": GcsParams, "azure": AzureParams}
_AUTO = {
    "hlps_in_flight",
    "num_decoders",
    "num_fetchers",
    "decode_concurrency",
    "partial_decode_coalesce_batches",
    "partial_decode_window_prefetch",
    "io_loops",
    "num_orch_threads",
    "shard_max_size",
    "batch_prefetch_timeout_s",
    "batch_prefetch_daemon",
    "kdelta_direct_local_decode",
    "kdelta_direct_bundle_decode",
    "kdelta_direct_bundle_target_frames",
    "kdelta_direct_single_consumer",
    "zerocopy_slots",
}


def load_loader_config(
    cfg: Mapping[str, Any],
    *,
    profile: StorageProfile | None = None,
    streams: Sequence[StreamInfo] | None = None,
    mix: bool = False,
) -> LoaderConfig:
    """Check a ``loader_cfg``.

    Called twice for a dataset: without ``profile`` and ``streams`` to find the manifest, then with them.

    Args:
        cfg: what the user gave; None as a value means the default.
        profile: of the manifest; None: not known yet.
        streams: of the manifest; None: not known yet, stream names are then left as they were given.
        mix: whether the dataset is one of a mix, to which some keys belong.

    Returns:
        The config with stream names turned to batch keys, rank and world size found, and inactive keys listed.

    Raises:
        ConfigError: a key or value that can't be meant, or keys that contradict each other or the dataset.
    """
    if not isinstance(cfg, Mapping):
        raise ConfigError(f"loader_cfg is a mapping of keys to values, got {type(cfg).__name__}")
    given = {key: value for key, value in _prepare(cfg).items() if value is not None}
    config = validate(LoaderConfig, given, "loader_cfg")
    check_together(config, given, mix=mix)
    if profile is not None:
        check_payload(config, profile)
    if streams is not None:
        config = _with_streams(config, streams)
    config._topology = find_topology(config)
    idle = idle_keys(config, profile)
    config._inactive = tuple(key for key in LoaderConfig.model_fields if key in idle and key in given)
    return config


def select_streams(
    config: LoaderConfig, options: Mapping[str, StreamOptions], streams: Sequence[StreamInfo]
) -> list[StreamInfo]:
    """The streams to load, in the manifest's order: all or those of ``stream_cfg``, RGB ones cut to ``image_key``.

    Raises:
        ConfigError: a stream that another key names is not among them.
    """
    images = set(config.image_key or ())
    chosen = [
        stream
        for stream in streams
        if (not options or stream.key in options) and (stream.kind != "rgb" or not images or stream.key in images)
    ]
    keys = {stream.key for stream in chosen}
    needed = {"image_key": images, "delta_timestamps": set(config.delta_timestamps or ())}
    needed["action_key"] = {config.action_key} if config.action_key else set()
    needed["zerocopy_frame_shapes"] = set(config.zerocopy_frame_shapes or ())
    for key, names in needed.items():
        for name in sorted(names - keys):
            raise ConfigError(
                f"loader_cfg.{key}: stream {name!r} is not loaded; add it to stream_cfg or image_key, or leave it out"
            )
    if not chosen:
        raise ConfigError("no stream is left to load; name at least one in stream_cfg, or give {} for all")
    return chosen


def _prepare(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values, with what is short for something written out."""
    given: dict[str, Any] = {}
    for key, value in cfg.items():
        if key == "augment_fn":
            given[key] = value
        elif value == "auto" and key in _AUTO:
            given[key] = None
        else:
            given[key] = plain(os.fspath(value) if isinstance(value, os.PathLike) else value)
    if isinstance(given.get("image_key"), str):
        given["image_key"] = [given["image_key"]]
    if isinstance(given.get("delta_cache_block_planning"), bool):
        # An unquoted on or off in YAML arrives as a truth value.
        given["delta_cache_block_planning"] = "on" if given["delta_cache_block_planning"] else "off"
    if given.get("decode_mode") == "sequential" and given.get("shuffle_mode") is None:
        given["shuffle_mode"] = "none"
    scheme = str(given.get("hlp_manifest")).partition("://")[0]
    if given.get("fs_type") is None and scheme in FS_OF_SCHEME:
        given["fs_type"] = FS_OF_SCHEME[scheme]
    return _with_fs_params(given)


def _with_fs_params(given: dict[str, Any]) -> dict[str, Any]:
    fs_type, params = given.get("fs_type") or "local", given.get("fs_params")
    model = _FS_PARAMS.get(fs_type) if isinstance(fs_type, str) else None
    if model is None:  # an unknown fs_type, which the model will say
        return {key: value for key, value in given.items() if key != "fs_params"}
    if params is not None and not isinstance(params, dict):
        raise ConfigError(f"loader_cfg.fs_params: a mapping of the parameters of fs_type {fs_type!r}, got {params!r}")
    present = {key: value for key, value in (params or {}).items() if value is not None}
    return {**given, "fs_params": validate(model, present, f"loader_cfg.fs_params (fs_type {fs_type!r})")}


def _with_streams(config: LoaderConfig, streams: Sequence[StreamInfo]) -> LoaderConfig:
    """The same with every stream named by its batch key."""
    changes: dict[str, Any] = {}
    if config.image_key is not None:
        where = "loader_cfg.image_key"
        changes["image_key"] = [resolve_stream(name, streams, where=where, kind="rgb") for name in config.image_key]
    if config.action_key is not None:
        where = "loader_cfg.action_key"
        changes["action_key"] = resolve_stream(config.action_key, streams, where=where, kind="numeric")
    for field, kind in (("delta_timestamps", None), ("zerocopy_frame_shapes", "rgb")):
        value = getattr(config, field)
        if value is not None:
            changes[field] = _rekeyed(value, streams, f"loader_cfg.{field}", kind)
    config = config.model_copy(update=changes)
    if config.zerocopy:
        check_frame_shapes(config, streams)
    return config


def _rekeyed(value: Mapping[str, Any], streams: Sequence[StreamInfo], where: str, kind: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, item in value.items():
        key = resolve_stream(name, streams, where=where, kind=kind)
        if key in result:
            raise ConfigError(f"{where}: the stream {key!r} is there twice, with and without its prefix; keep one")
        result[key] = item
    return result
