"""Every key that the loader takes, with its type, range and default; what keys mean together is in `config`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

__all__ = [
    "AzureParams",
    "GcsParams",
    "LoaderConfig",
    "LocalParams",
    "S3Params",
    "StreamOptions",
]

# What counts something is an index somewhere below, so it has to fit one.
_HIGHEST = 2**31 - 1
Count = Annotated[int, Field(strict=True, ge=1, le=_HIGHEST)]
Whole = Annotated[int, Field(strict=True, ge=0, le=_HIGHEST)]
Bytes = Annotated[int, Field(strict=True, ge=0, le=2**62)]
Threads = Annotated[int, Field(strict=True, ge=1, le=1024)]
Queued = Annotated[int, Field(strict=True, ge=0, le=1024)]
Flag = Annotated[bool, Field(strict=True)]
Seconds = Annotated[float, Field(strict=True, allow_inf_nan=False)]

# Anything longer is a mistake of unit, and would overflow nothing but sense.
_LONGEST_OFFSET_S = 1e6
# Of a picture, and of a numeric row: what JPEG can hold, rounded up.
_LONGEST_SIDE = 65_535
# FFmpeg makes no picture of more than about twice as many.
_MOST_PIXELS = 1 << 27


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class LocalParams(_Block):
    """``fs_params`` of ``fs_type: local``."""

    root: str | None = None
    """Folder that relative paths start from; the working directory where it is not given."""


class S3Params(_Block):
    """``fs_params`` of ``fs_type: s3``. Credentials come from the standard chain."""

    bucket: str | None = None
    """Where keys that are no URL live."""
    prefix: str = ""
    """Put before keys that are no URL."""
    region: str | None = None
    """Of the bucket."""
    endpoint_url: str | None = None
    """Of a store that speaks S3 but isn't Amazon's."""
    max_pool_connections: Count | None = None
    """Requests at once."""
    anonymous: Flag = False
    """Send unsigned requests."""


class GcsParams(_Block):
    """``fs_params`` of ``fs_type: gcs``. Credentials are Google's application default ones."""

    bucket: str | None = None
    """Where keys that are no URL live."""
    prefix: str = ""
    """Put before keys that are no URL."""
    endpoint_url: str | None = None
    """Of a store that speaks Google's protocol but isn't Google's."""
    anonymous: Flag = False
    """Send unsigned requests."""


class AzureParams(_Block):
    """``fs_params`` of ``fs_type: azure``. Credentials come from the environment or a managed identity."""

    account: str | None = None
    """Storage account; the environment's AZURE_STORAGE_ACCOUNT_NAME where it is not given."""
    container: str | None = None
    """Where keys that are no URL live."""
    prefix: str = ""
    """Put before keys that are no URL."""
    endpoint_url: str | None = None
    """Of the account's blob service, where it isn't Microsoft's public one."""
    anonymous: Flag = False
    """Send unsigned requests."""


class StreamOptions(_Block):
    """What ``stream_cfg`` may say about one stream."""

    source: Annotated[str, Field(min_length=1)] | None = None
    """The packed stream to take, where the batch shall call it differently."""
    resize: tuple[Count, Count] | None = None
    """[H, W] of the pictures in the batch: RGB by area (enlarged linearly), depth by its nearest value."""
    dtype: Literal["uint8", "float16", "float32", "float64"] | None = None
    """Of the values in the batch; RGB in a floating type lies in [0, 1]."""
    normalize: Literal["mean_std", "min_max", "quantile"] | None = None
    """Scale a numeric stream by the manifest's statistics of the train split; constant channels become 0."""
    pad_to: Count | tuple[Count, Count] | None = None
    """Width that a numeric stream, or [H, W] that pictures are filled up to with zeros at their end."""
    optional: Flag = False
    """The dataset may lack the stream: its samples then have zeros and an all-false mask."""

    @field_validator("resize", mode="before")
    @classmethod
    def _resize_is_a_size(cls, value: Any) -> Any:  # noqa: ANN401 - whatever was given
        if value is not None and not _is_size(value):
            raise ValueError(
                f"must be [H, W], two whole numbers from 1 to {_LONGEST_SIDE} and at most {_MOST_PIXELS} pixels, "
                f"got {value!r}"
            )
        return value

    @field_validator("pad_to", mode="before")
    @classmethod
    def _padding_is_a_width_or_a_size(cls, value: Any) -> Any:  # noqa: ANN401 - whatever was given
        if value is not None and not _is_size(value) and not _is_side(value):
            raise ValueError(
                f"must be a width or, for pictures, [H, W]: whole numbers from 1 to {_LONGEST_SIDE} and at most "
                f"{_MOST_PIXELS} pixels, got {value!r}"
            )
        return value


def _is_side(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LONGEST_SIDE


def _is_size(value: object) -> bool:
    if not isinstance(value, list | tuple) or len(value) != len(("H", "W")) or not all(map(_is_side, value)):
        return False
    return int(value[0]) * int(value[1]) <= _MOST_PIXELS


class LoaderConfig(_Block):
    """``loader_cfg``, checked. Build it with `knonik_loader.config.load_loader_config`."""

    # What to load, and the shape of a sample.
    decode_mode: Literal["random_access", "sequential"]
    """``random_access``, or ``sequential``: episodes in order, for evaluation."""
    hlp_manifest: Annotated[str, Field(min_length=1)]
    """Path or URL of ``hlp_manifest.json``."""
    chunk_len: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    """Frames in a contiguous window."""
    batch_size: Count
    """Samples a batch on each rank."""
    framework: Literal["numpy", "torch"] = "numpy"
    """Of the arrays in a batch; ``torch``: CPU tensors that share the batch's memory."""
    fs_type: Literal["local", "s3", "gcs", "azure"] = "local"
    """Where the files are; a URL in ``hlp_manifest`` implies it."""
    fs_params: LocalParams | S3Params | GcsParams | AzureParams = Field(default_factory=LocalParams)
    """How to reach them."""

    # Which frames, in which order.
    shuffle_mode: Literal["none", "global_triplet", "global_triplet_fast"] = "global_triplet"
    """``none``: episodes in order; the other two give one and the same order."""
    seed: Annotated[int, Field(strict=True, ge=-(2**63), lt=2**64)] = 0
    """Of the order and of augmentations."""
    epoch: Whole = 0
    """The first epoch."""
    stride: Count = 1
    """Frames between anchors of an episode."""
    delta_timestamps: dict[str, Annotated[list[Seconds], Field(min_length=1)]] | None = None
    """Stream → offsets in seconds from the anchor; streams that are not listed have a window of ``chunk_len``."""
    delta_rounding: Literal["nearest", "floor", "ceil"] = "nearest"
    """Which frame an offset between two frames means."""
    pad_missing: Flag = False
    """Clamp windows to the episode and add masks, instead of leaving such anchors out."""
    drop_last: Flag = False
    """Leave out an epoch's last, partial global batch."""
    split: Annotated[str, Field(min_length=1)] | None = None
    """Take only the episodes of this split."""
    rank: Whole | None = None
    """Of this process; None: from torch.distributed or the environment."""
    world_size: Count | None = None
    """Processes that share each global batch; None: from torch.distributed or the environment."""
    shard_by: Literal["sample", "episode"] = "sample"
    """``sample``: one order for every world size; ``episode``: every episode on one rank."""
    max_steps: Count | None = None
    """Exactly so many batches: an epoch is cut, or the run goes on into the next ones."""
    planner_locality: Literal["global", "hlp_bounded", "low_mem", "ultra_low_mem"] = "global"
    """How many files and shards the shuffle may touch at once."""
    planner_recent_batches: Whole = 4
    """Bounded localities: an episode seen in so many recent batches comes last within the window."""
    delta_cache_block_planning: Literal["auto", "on", "off"] = "auto"
    """Reorder inside a planned window so that a decoded shard or keyframe serves several anchors."""
    delta_cache_block_max_shards: Count = 16
    """Shards of such a block."""

    # How fast, and in how much memory.
    hlps_in_flight: Count | None = None
    """Files open at once."""
    prefetch_shards: Count = 12
    """Shards read ahead."""
    ram_cache_bytes: Bytes = 0
    """Of decoded shards (compact_video) or keyframes (training_compressed) kept."""
    low_memory: Flag = False
    """Halve every queue and pool."""
    num_decoders: Threads | None = None
    """Parallelism of fetching and decoding; None: cores."""
    num_fetchers: Threads | None = None
    """Of fetching alone."""
    decode_concurrency: Threads | None = None
    """Of decoding alone."""
    partial_decode_coalesce_batches: Count | None = None
    """Batches merged to one window of reads and decodes."""
    partial_decode_window_prefetch: Count | None = None
    """Such windows ahead."""
    io_loops: Threads | None = None
    """Accepted; the one engine has no such stage."""
    num_orch_threads: Threads | None = None
    """Accepted; the one engine has no such stage."""
    batch_prefetch_timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Accepted; waits end by a condition, not by a timeout."""
    batch_prefetch_daemon: Flag | None = None
    """Accepted; no thread outlives its loader."""
    kdelta_direct_local_decode: Flag | None = None
    """Accepted; byte ranges are always read directly."""
    kdelta_direct_bundle_decode: Flag | None = None
    """Accepted; frames of a key are always decoded together."""
    kdelta_direct_bundle_target_frames: Count | None = None
    """Frames of a planned window."""
    kdelta_direct_single_consumer: Flag | None = None
    """Accepted; the one engine has no such stage."""
    shard_max_size: Annotated[int, Field(strict=True, ge=1, le=2**62)] | None = None
    """Bytes that a decode slot may hold."""

    # What happens to a sample, and how batches are handed out.
    augment_fn: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    """Called with each sample before it joins the batch."""
    augment_execution: Literal["inline", "threaded", "process"] = "threaded"
    """Where."""
    augment_workers: Threads = 4
    """Threads or processes for it."""
    precollate_batches: Queued = 2
    """Ready batches kept; 0: assembled when asked for."""
    zerocopy: Flag = False
    """Batches are views of pooled, reused buffers."""
    zerocopy_frame_shapes: dict[str, tuple[Count, Count, Count]] | None = None
    """RGB stream → [H, W, C]."""
    zerocopy_slots: Annotated[int, Field(strict=True, ge=2, le=1024)] | None = None
    """Buffers; None: ``precollate_batches`` + 2."""
    pin_memory: Flag = False
    """Pinned torch memory."""
    on_error: Literal["raise", "skip"] = "raise"
    """``skip``: count a bad sample, log it, and put a planned one in its place."""
    verify_checksums: Flag = True
    """Check every payload that is read."""
    metrics_path: Annotated[str, Field(min_length=1)] | None = None
    """File for JSON lines about throughput, stages and memory."""

    # What the dataset must be.
    payload: Literal["shdr", "kimg", "kdelta"] | None = None
    """How the manifest's pictures must be stored."""
    image_key: Annotated[list[str], Field(min_length=1)] | None = None
    """The RGB streams to load; None: all."""
    action_key: Annotated[str, Field(min_length=1)] | None = None
    """A numeric stream that must be there."""

    # Mixes only.
    multi_epoch: Literal["longest", "shortest", "steps"] | None = None
    """When the epoch of a mix ends."""
    multi_mix: Literal["per_batch", "per_sample"] | None = None
    """How a mix holds its weights."""

    _inactive: tuple[str, ...] = PrivateAttr(default=())
    _topology: tuple[int, int] = PrivateAttr(default=(0, 1))

    @field_validator("delta_timestamps")
    @classmethod
    def _offsets_are_seconds(cls, value: dict[str, list[float]] | None) -> dict[str, list[float]] | None:
        for key, offsets in (value or {}).items():
            if any(math.fabs(offset) > _LONGEST_OFFSET_S for offset in offsets):
                raise ValueError(f"offsets of {key!r} are in seconds, got {max(offsets, key=math.fabs)}")
        return value

    @property
    def topology(self) -> tuple[int, int]:
        """(rank, world size), as configured or found at load time."""
        return self._topology

    @property
    def shuffled(self) -> bool:
        """Whether anchors are shuffled at all."""
        return self.shuffle_mode != "none"

    @property
    def block_planning(self) -> bool:
        """Whether anchors are regrouped by shard: asked for, or left open in a bounded locality."""
        bounded = self.planner_locality != "global"
        return self.shuffled and self.delta_cache_block_planning in ({"auto", "on"} if bounded else {"on"})

    @property
    def inactive(self) -> list[str]:
        """Keys that were given but can have no effect in this mode, profile or version."""
        return list(self._inactive)
