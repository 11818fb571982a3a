"""``hlp_manifest.json``: the one file that names a packed dataset.

The manifest is small and readable; the tables that grow with the dataset (episodes and shards) are in the sidecar that
``index`` names, see `knonik_loader.khlp.index`. A reader needs these two files and nothing else to plan an epoch.
"""

from __future__ import annotations

import hashlib
import json
from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from knonik_loader.errors import BadMagicError, FormatError, UnsupportedFeatureError
from knonik_loader.khlp.sections import check_stream
from knonik_loader.khlp.types import StorageProfile, StreamInfo, StreamKind

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "HlpEntry",
    "IndexEntry",
    "Manifest",
    "StreamEntry",
    "StreamStats",
    "load_manifest",
]

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


def load_manifest(text: str | bytes, where: str) -> Manifest:
    """Parse and check a manifest.

    Args:
        text: the file's content.
        where: its name for messages.

    Raises:
        BadMagicError: not a manifest.
        UnsupportedFeatureError: a format version that this version of knonik cannot read.
        FormatError: a manifest that contradicts itself.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMagicError(f"{where}: is not JSON ({error}); name the hlp_manifest.json of a pack") from error
    if not isinstance(data, dict) or "format_version" not in data:
        raise BadMagicError(
            f"{where}: is not a KHLP manifest: it has no format_version; name the hlp_manifest.json of a pack"
        )
    # the version comes first: what another version means by a key is not for this one to judge
    if data["format_version"] != FORMAT_VERSION:
        raise UnsupportedFeatureError(
            f"{where}: has format version {data['format_version']!r}, this version of knonik reads {FORMAT_VERSION}; "
            f"upgrade it, or pack again"
        )
    try:
        manifest = Manifest.model_validate(data)
    except ValidationError as error:
        raise FormatError(f"{where}: {_first_problem(error)}") from error
    _check(manifest, where)
    return manifest


def _first_problem(error: ValidationError) -> str:
    """What is wrong with the first key that is, and which key was probably meant."""
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] != "extra_forbidden":
        return f"{place}: {problem['msg']}"
    models: dict[str, type[BaseModel]] = {"streams": StreamEntry, "stats": StreamStats, "hlps": HlpEntry}
    model = models.get(str(problem["loc"][0]), Manifest) if len(problem["loc"]) > 1 else Manifest
    if problem["loc"][0] == "index" and len(problem["loc"]) > 1:
        model = IndexEntry
    near = get_close_matches(str(problem["loc"][-1]), model.model_fields, 1, 0)
    return f"unknown key {place!r}; the nearest known one is {near[0]!r}"


def _check(manifest: Manifest, where: str) -> None:
    for position, entry in enumerate(manifest.streams):
        check_stream(entry.info(), position, where)
    if len({entry.info().key for entry in manifest.streams}) != len(manifest.streams):
        raise FormatError(f"{where}: streams: a batch key stands there twice")
    shards = sum(entry.num_shards for entry in manifest.hlps)
    if manifest.num_hlps != len(manifest.hlps) or manifest.num_shards != shards:
        raise FormatError(
            f"{where}: says {manifest.num_hlps} files of {manifest.num_shards} shards, but lists "
            f"{len(manifest.hlps)} of {shards}"
        )
