"""``hlp_manifest.json``: the one file that names a packed dataset.

The manifest is small and readable; the tables that grow with the dataset (episodes and shards) are in the sidecar that
``index`` names, see `knonik_loader.khlp.index`. A reader needs these two files and nothing else to plan an epoch.

Everything that a manifest says is believed by whoever plans from it, so it carries a digest of its own content, and
`knonik_loader.khlp.agreement` holds it against the files that it names.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from difflib import get_close_matches
from posixpath import normpath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from knonik_loader.errors import BadMagicError, ChecksumError, FormatError, UnsupportedFeatureError
from knonik_loader.khlp.sections import canonical_json, check_stream, plain_numbers
from knonik_loader.khlp.types import StorageProfile, StreamInfo, StreamKind

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_NAME",
    "HlpEntry",
    "IndexEntry",
    "Manifest",
    "StreamEntry",
    "StreamStats",
    "content_digest",
    "load_manifest",
]

FORMAT_VERSION = 1
MANIFEST_NAME = "hlp_manifest.json"
DIGEST_KEY = "sha256"
"""Key of a manifest's digest of its own content, see `content_digest`."""


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
    hlp_id: str = Field(pattern="^[0-9a-f]{32}$")
    """The id in the file's header and schema, 32 hex digits: what the file was made from."""
    bytes: int = Field(ge=0, lt=2**64)
    crc32c: int = Field(ge=0, lt=2**32)
    num_shards: int = Field(ge=1)
    metadata_offset: int = Field(ge=0, lt=2**64)
    """Where the tail begins that holds index, schema, directory and footer: one ranged read opens the file."""


class IndexEntry(_Strict):
    """The sidecar with the episode and shard tables."""

    uri: str
    bytes: int = Field(ge=0, lt=2**64)
    crc32c: int = Field(ge=0, lt=2**32)


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
        """The text of the file: stable key order, one trailing newline; whole numbers without a fraction.

        Its last key is the digest of all others.
        """
        data = {**self.model_dump(mode="json"), DIGEST_KEY: self.digest()}
        return json.dumps(plain_numbers(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def digest(self) -> str:
        """Sha256 over the manifest's content; what a saved loader state is tied to."""
        return content_digest(self.model_dump(mode="json"))


def content_digest(data: dict[str, Any]) -> str:
    """Sha256 over a manifest's canonical JSON without its own digest, in hex."""
    content = {key: value for key, value in data.items() if key != DIGEST_KEY}
    return hashlib.sha256(canonical_json(content)).hexdigest()


def load_manifest(text: str | bytes, where: str) -> Manifest:
    """Parse and check a manifest.

    Args:
        text: the file's content.
        where: its name for messages.

    Raises:
        BadMagicError: not a manifest.
        UnsupportedFeatureError: a format version that this version of knonik cannot read.
        ChecksumError: somebody changed it after it was written.
        FormatError: a manifest that contradicts itself.
    """
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
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
    stated = data.pop(DIGEST_KEY, None)
    try:
        manifest = Manifest.model_validate(data)
    except ValidationError as error:
        raise FormatError(f"{where}: {_first_problem(error)}") from error
    try:
        digest = content_digest(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: holds what no packer writes: {error}") from error
    if stated != digest:
        raise ChecksumError(
            f"{where}: was changed after it was packed: its {DIGEST_KEY} "
            f"{'is missing' if stated is None else 'is not that of its content'}. What a manifest says is a fact of "
            "its files and cannot be edited: restore it from its copy hlp_manifest.<generation>.json, or pack again."
        )
    _check(manifest, where)
    return manifest


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r} stands there twice")
    return found


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


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
    counts = (manifest.generation, manifest.shard_size, manifest.window_size, manifest.num_episodes, manifest.num_hlps)
    if min(counts) < 1 or not 0 < manifest.fps < 1e6:
        raise FormatError(
            f"{where}: generation, shard_size, window_size, num_episodes and num_hlps must be above 0, fps sensible, "
            f"not {', '.join(map(str, counts))} and {manifest.fps:g}"
        )
    odd = [entry.info().key for entry in manifest.streams if entry.fps != manifest.fps]
    if odd:
        raise FormatError(f"{where}: says fps {manifest.fps:g}, but another rate of stream {odd[0]!r}")
    shards = sum(entry.num_shards for entry in manifest.hlps)
    if manifest.num_hlps != len(manifest.hlps) or manifest.num_shards != shards:
        raise FormatError(
            f"{where}: says {manifest.num_hlps} files of {manifest.num_shards} shards, but lists "
            f"{len(manifest.hlps)} of {shards}"
        )
    names = Counter(normpath(uri) for uri in (manifest.index.uri, *(entry.uri for entry in manifest.hlps)))
    ids = Counter(entry.hlp_id for entry in manifest.hlps)
    for found in (names, ids):
        name, count = found.most_common(1)[0] if found else ("", 0)
        if count > 1:
            raise FormatError(f"{where}: lists the file {name!r} {count} times")
    if any(not math.isfinite(share) or share < 0 for share in manifest.splits.values()):
        raise FormatError(f"{where}: splits: fractions must be numbers from 0 on")
