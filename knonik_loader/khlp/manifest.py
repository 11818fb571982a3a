"""``hlp_manifest.json``: the one file that names a packed dataset.

The manifest is small and readable; the tables that grow with the dataset (episodes and shards) are in the sidecar that
``index`` names, see `knonik_loader.khlp.index`. A reader needs these two files and nothing else to plan an epoch.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from knonik_loader.khlp.types import StorageProfile, StreamInfo, StreamKind

__all__ = ["FORMAT_VERSION", "HlpEntry", "IndexEntry", "Manifest", "StreamEntry", "StreamStats"]

FORMAT_VERSION = 1
MANIFEST_NAME = "hlp_manifest.json"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StreamEntry(_Strict):
    """A stream as the manifest describes it; the fields of `StreamInfo`."""

    stream_id: int
    kind: StreamKind
    name: str
    codec: str
    shape: tuple[int, ...]
    dtype: str
    fps: float
    channel_names: tuple[str, ...] | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    psnr_y: float | None = None
    """Sampled luma PSNR in dB against the episodes' frames, the worst episode; None for what is lossless."""

    def info(self) -> StreamInfo:
        """The same as the dataclass that codecs and planner use."""
        return StreamInfo(**self.model_dump(exclude={"psnr_y"}))


class StreamStats(_Strict):
    """Statistics of one numeric stream over the train split, one value a channel."""

    count: int
    """Rows, whether all their values are finite or not."""
    non_finite: list[int] = Field(default_factory=list)
    """NaN and infinite values of each channel: counted here, left out everywhere else."""
    min: list[float]
    max: list[float]
    mean: list[float]
    std: list[float]
    q01: list[float]
    q99: list[float]


class HlpEntry(_Strict):
    """One KHLP file."""

    uri: str
    """Relative to the manifest, with forward slashes."""
    bytes: int
    crc32c: int
    num_shards: int
    metadata_offset: int
    """Where the tail begins that holds index, schema, directory and footer: one ranged read opens the file."""


class IndexEntry(_Strict):
    """The sidecar with the episode and shard tables."""

    uri: str
    bytes: int
    crc32c: int


class Manifest(_Strict):
    """The whole manifest."""

    dataset: str
    format_version: Literal[1] = 1
    generation: int = 1
    storage_profile: StorageProfile
    pack_mode: Literal["shard_batch", "episode"]
    shard_size: int
    window_size: int
    fps: float
    seed: int
    num_hlps: int
    num_episodes: int
    num_shards: int
    num_frames: int
    streams: list[StreamEntry]
    splits: dict[str, float]
    """Name → fraction asked for; empty when the dataset is not split. Who is where stands in the index."""
    stats: dict[str, StreamStats]
    source_config_fingerprint: str
    """Digest of the ingest configuration that the episodes were written with."""
    pack_fingerprint: str
    """Digest of everything that decides the packed bytes: episodes, options, packer version."""
    index: IndexEntry
    hlps: list[HlpEntry]

    def to_json(self) -> str:
        """The text of the file: stable key order, one trailing newline; whole numbers of fps without a fraction."""
        data = self.model_dump(mode="json")
        return json.dumps(_plain(data), indent=2, ensure_ascii=False) + "\n"

    def digest(self) -> str:
        """Sha256 over the manifest's content; what a saved loader state is tied to."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
