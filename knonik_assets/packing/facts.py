"""What packing needs to know of each episode, read from its metadata without touching its frames."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from knonik_assets.configs.validation import unknown
from knonik_assets.episodes.metadata import METADATA, EpisodeMetadata
from knonik_assets.episodes.reader import EpisodeReader, RgbInfo
from knonik_assets.episodes.storing import digest_file, storage_errors
from knonik_loader.errors import ConfigError, EpisodeError, PackError, reworded
from knonik_loader.khlp.types import StreamInfo, StreamKind, batch_key

__all__ = [
    "EpisodeFacts",
    "StreamFacts",
    "annotated",
    "check_file",
    "check_files",
    "choose_episodes",
    "kept_reader",
    "packed_files",
    "read_facts",
]


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """One stream of one episode."""

    kind: StreamKind
    name: str
    shape: tuple[int, ...]
    """Of one frame: (H, W, 3), (H, W) or (D,)."""
    channel_names: tuple[str, ...] | None = None
    quantization_mm: float | None = None
    codec: str = ""
    """Of the stored pictures: ``jpeg``, ``vp9`` ...; empty for other kinds."""
    bytes: int = 0
    """Of the stored pictures."""
    stored: RgbInfo | None = None
    """How the pictures are stored."""

    @property
    def key(self) -> str:
        """The stream's key in a batch."""
        return batch_key(self.kind, self.name)


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """One episode."""

    episode_id: str
    source_id: str
    length: int
    """Frames."""
    fps: float
    measured_fps: float | None
    """By the episode's clock; None for episodes too short to say."""
    digest: bytes
    """32 bytes over its metadata (which holds the digest of every file) and its instruction."""
    config_fingerprint: str
    instruction: str
    shard_size: int | None
    """The hint of the preset that the episode was written with."""
    streams: Mapping[str, StreamFacts]
    """By batch key."""
    source_fingerprint: str = ""
    """Of the recording that it was made from; empty: not known."""
    content: bytes = b""
    """Digest of its files' checksums, annotations apart; empty: not known."""


def choose_episodes(
    there: Sequence[str], where: str, only: Sequence[str] | None, exclude: Mapping[str, str], lost: Sequence[str] = ()
) -> list[str]:
    """Names of the episodes to pack, in the order in which they are there.

    Args:
        there: the names of all episodes, at least one.
        where: what to call their folder in messages.
        only: those that are asked for; None: all.
        exclude: those that are not.
        lost: folders of episodes without metadata; they may be excluded.

    Raises:
        ConfigError: an episode is named that is not there.
        EpisodeError: an episode is asked for that lost its metadata.
        PackError: nothing is left to pack.
    """
    known = set(there)
    for option, names in (("episodes", only or ()), ("exclude", exclude)):
        for name in names:
            if name in lost and option == "episodes":
                raise EpisodeError(f"{where}/{name} has lost its {METADATA}, or is not yet whole; run ingest again.")
            if name not in known and name not in lost:
                raise ConfigError(f"{option}: {unknown(name, there, 'episode')} Episodes are those of {where}.")
    asked = known if only is None else set(only)
    chosen = [name for name in there if name in asked and name not in exclude]
    if not chosen:
        raise PackError(f"Every episode of {where} is excluded; nothing is left to pack.")
    return chosen


def read_facts(path: Path, sizes: Mapping[str, int] | None = None) -> EpisodeFacts:
    """Facts of one episode.

    Args:
        path: its folder.
        sizes: bytes of the episode's files, by name relative to it, where only metadata and annotations are in the
            folder; None: all files are.

    Raises:
        EpisodeError: metadata is missing or invalid, a file is missing or has another size, or there is no frame.
    """
    try:
        reader = EpisodeReader(path)
    except EpisodeError as error:
        raise reworded(error, f"{error}, or leave it out with --exclude {path.name}.") from error
    metadata = reader.metadata
    _check_files(path, metadata, sizes)
    if metadata.episode_length < 1:
        raise EpisodeError(f"{path}: the episode has no frame; leave it out with --exclude {path.name}.")
    language = reader.language()
    instruction = language.instruction if language else ""
    content = json.dumps(metadata.model_dump(mode="json"), sort_keys=True, ensure_ascii=True)
    span = metadata.end_time - metadata.start_time
    return EpisodeFacts(
        episode_id=path.name,
        source_id=metadata.source_id,
        length=metadata.episode_length,
        fps=float(metadata.fps),
        measured_fps=(metadata.episode_length - 1) / span if span > 0 else None,
        digest=hashlib.sha256(f"{content}\0{instruction}".encode()).digest(),
        config_fingerprint=metadata.config_fingerprint,
        instruction=instruction,
        shard_size=_shard_size_hint(metadata),
        streams=_streams(reader),
        source_fingerprint=metadata.source_fingerprint,
        content=_content(metadata),
    )


@lru_cache(maxsize=1024)
def kept_reader(path: Path, digest: bytes) -> EpisodeReader:
    """An episode's reader, kept by this process: finding its packets takes reading its videos whole.

    It holds nothing open. An episode that was replaced has another ``digest`` (of its `EpisodeFacts`).

    Raises:
        EpisodeError: its metadata is missing or invalid.
    """
    del digest
    return EpisodeReader(path)


def annotated(name: str) -> bool:
    """Whether a file of an episode (named relative to it) holds annotations, which may be edited after ingest."""
    return name.startswith("annotations/")


def _content(metadata: EpisodeMetadata) -> bytes:
    files = sorted((name, entry.sha256) for name, entry in metadata.files.items() if not annotated(name))
    return hashlib.sha256(json.dumps(files).encode()).digest()


def _check_files(path: Path, metadata: EpisodeMetadata, sizes: Mapping[str, int] | None) -> None:
    """Sizes only: content is read, and judged, when it is packed."""
    for name, entry in metadata.files.items():
        if annotated(name):
            continue
        file = path / name
        size = _size(file) if sizes is None else sizes.get(name)
        if size != entry.bytes:
            what = "is missing" if size is None else f"has {size} bytes, not the {entry.bytes} it was written with"
            raise EpisodeError(f"{file} {what}; ingest again, or leave the episode out with --exclude {path.name}.")


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() else None


def check_files(reader: EpisodeReader, begin: tuple[str, ...]) -> None:
    """Compare the files of an episode whose names begin so (see `packed_files`) with their checksums.

    A damaged number is just another number, and damaged pictures need not fail either: JPEGs pass undecoded, and video
    decoders paint over what is missing.

    Raises:
        EpisodeError: one differs.
        StorageError: one cannot be read.
    """
    wanted = [(name, entry.sha256) for name, entry in reader.metadata.files.items() if name.startswith(begin)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # hashing lets go of the interpreter
        for check in [pool.submit(check_file, reader.path, *file) for file in wanted]:
            check.result()


def check_file(episode: Path, name: str, sha256: str) -> None:
    """Compare one file of an episode with its checksum.

    Raises:
        EpisodeError: it differs.
        StorageError: it cannot be read.
    """
    path = episode / name
    with storage_errors("read", path):
        found = digest_file(path)[1]
    if found != sha256:
        raise EpisodeError(
            f"{path} differs from the checksum it was written with; remove the episode and ingest it again, or leave "
            f"it out with --exclude {episode.name}."
        )


def _shard_size_hint(metadata: EpisodeMetadata) -> int | None:
    hints = {
        params["shard_size"]
        for name, params in metadata.stream_params.items()
        if name.startswith("rgb_") and isinstance(params.get("shard_size"), int)
    }
    return min(hints) if hints else None


def _streams(reader: EpisodeReader) -> dict[str, StreamFacts]:
    metadata = reader.metadata
    found: list[StreamFacts] = []
    for name in metadata.rgb_streams:
        info = reader.rgb_info(name)
        size = sum(entry.bytes for file, entry in metadata.files.items() if file.startswith(f"rgb_{name}."))
        found.append(StreamFacts("rgb", name, (info.height, info.width, 3), codec=info.codec, bytes=size, stored=info))
    for name in metadata.depth_streams:
        shape, quantum = _depth_facts(reader, name)
        found.append(StreamFacts("depth", name, shape, quantization_mm=quantum))
    for name in metadata.numeric_streams:
        labels = metadata.channel_names.get(name)
        dim = _numeric_dim(reader, name)
        found.append(StreamFacts("numeric", name, (dim,), channel_names=tuple(labels) if labels else None))
    streams = {stream.key: stream for stream in found}
    if len(streams) < len(found):
        raise EpisodeError(
            f"{reader.path}: two streams would have one key in a batch; rename one in the ingest config."
        )
    return streams


def _depth_facts(reader: EpisodeReader, name: str) -> tuple[tuple[int, int], float]:
    """(H, W) and millimetres of a step: as recorded, or from the file itself."""
    params = reader.metadata.stream_params.get(f"depth_{name}", {})
    try:
        return (int(params["height"]), int(params["width"])), float(params["quantization_mm"])
    except KeyError:
        height, width = reader.depth_shape(name)
        return (height, width), float(reader.depth_quantization_mm(name))


def packed_files(streams: Sequence[StreamInfo]) -> tuple[str, ...]:
    """What the names of an episode's files begin with that the clock and these streams are in."""
    return (
        "frame_time/",
        *(f"{stream.name}/" if stream.kind == "numeric" else f"{stream.key}." for stream in streams),
    )


def _numeric_dim(reader: EpisodeReader, name: str) -> int:
    dim = reader.metadata.stream_params.get(name, {}).get("dim")
    return int(dim) if dim is not None else int(reader.numeric(name).shape[1])
