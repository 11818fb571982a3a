"""Single frames of whatever is looked at: packed files, ingested episodes or raw data, by episode and number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from knonik_assets.configs.load import load_ingest_config
from knonik_assets.configs.validation import unknown
from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import EpisodeReader, list_episodes
from knonik_assets.packing.existing import read_manifest
from knonik_assets.packing.stored import open_packed
from knonik_assets.sources.base import EncodedImage, EpisodeRef
from knonik_assets.sources.detect import detect
from knonik_assets.sources.images import decode_image
from knonik_assets.sources.registry import open_source
from knonik_assets.sources.remote.source import RemoteSource
from knonik_assets.storage import Place
from knonik_assets.storage.files import Location, stat
from knonik_loader.errors import ConfigError, EpisodeError, FormatError, StorageError
from knonik_loader.khlp.manifest import MANIFEST_NAME
from knonik_loader.khlp.types import batch_key

__all__ = [
    "Album",
    "EpisodesAlbum",
    "Moment",
    "PackedAlbum",
    "RawAlbum",
    "Span",
    "find",
    "moments",
    "open_album",
    "packed_kind",
]

Pictures = dict[str, npt.NDArray[Any]]
"""Batch key → (H, W, 3) uint8 of a colour camera, (H, W) of a depth camera; colour first."""


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive frames of an episode that are there."""

    episode: str
    first: int
    frames: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A frame of an episode."""

    episode: str
    frame: int


class Album(Protocol):
    """Frames by episode and number."""

    spans: Sequence[Span]
    """What is there; of raw data only of a few episodes."""
    names: Sequence[str]
    """Every episode."""

    def spans_of(self, name: str) -> Sequence[Span]:
        """What is there of an episode."""
        ...

    def pictures(self, moment: Moment) -> Pictures:
        """Every camera at a moment that lies in one of the spans.

        Raises:
            DecodeError, FormatError, EpisodeError: it is damaged.
            StorageError: it cannot be read.
        """
        ...


def open_album(location: str | Location) -> Album:
    """The frames of a local file or folder, or of packed data at a URL; `album_remote.album_at` takes any URL.

    Raises:
        ConfigError: there are none of any known kind.
        SourceError, EpisodeError, FormatError: it cannot be read.
    """
    place = Place.of(location, "path")
    packed = packed_kind(place)
    if packed == "khlp":
        return PackedAlbum([place])
    if packed in ("manifest", "folder"):
        manifest = place if packed == "manifest" else place / MANIFEST_NAME
        return PackedAlbum([manifest.parent / entry.uri for entry in read_manifest(manifest).hlps])
    if packed == "index":
        raise ConfigError(f"{place} is an index and holds no frames; name the manifest or a .khlp file beside it.")
    path = place.path
    if (path / METADATA).is_file():
        return EpisodesAlbum([path])
    if path.is_dir() and (episodes := list_episodes(path)):
        return EpisodesAlbum(episodes)
    return RawAlbum(place)


def packed_kind(place: Place) -> Literal["khlp", "manifest", "folder", "index", ""]:
    """What of a packed dataset is at a place; nothing where something else is."""
    if stat(place) is not None:
        if place.name.endswith(".khlp"):
            return "khlp"
        if place.name.startswith("hlp_manifest"):
            return "manifest"
        if place.name.endswith(".khli"):
            return "index"
    return "folder" if stat(place / MANIFEST_NAME) is not None else ""


def moments(album: Album, count: int) -> list[Moment]:
    """Distinct moments, evenly spread over all frames that are there; the same ones in every run."""
    total = sum(span.frames for span in album.spans)
    places = sorted({(2 * number + 1) * total // (2 * count) for number in range(count)}) if total else []
    found = []
    before = 0
    for span in album.spans:
        while places and places[0] < before + span.frames:
            found.append(Moment(span.episode, span.first + places.pop(0) - before))
        before += span.frames
    return found


def find(album: Album, episode: str, frame: int) -> Moment:
    """A moment, its episode called by its name or by the number that the name ends in.

    Raises:
        ConfigError: there is no such frame.
    """
    name = _called(episode, album.names)
    spans = album.spans_of(name)
    if not any(span.first <= frame < span.first + span.frames for span in spans):
        end = max((span.first + span.frames for span in spans), default=0)
        raise ConfigError(f"frame {frame} of {name} is not there; what is ends before frame {end}.")
    return Moment(name, frame)


def _called(episode: str, names: Sequence[str]) -> str:
    if episode in names:
        return episode
    if episode.isdigit():
        for name in names:
            digits = re.search(r"([0-9]+)$", name)
            if digits and int(digits[1]) == int(episode):
                return name
    raise ConfigError(f"--frames: {unknown(episode, names, 'episode')}")


class PackedAlbum:
    """Frames of KHLP files; files that cannot be opened are left out.

    Raises:
        FormatError, StorageError: not one of them can be opened.
    """

    def __init__(self, files: Sequence[Place]) -> None:
        self._places: dict[Span, tuple[Place, int]] = {}
        self.digests: dict[str, bytes] = {}
        """Episode → digest of what it was packed from."""
        error: FormatError | StorageError | None = None
        for file in files:
            try:
                self._add(file)
            except (FormatError, StorageError) as found:
                error = error or found
        if error is not None and not self._places:
            raise error
        self.spans: Sequence[Span] = sorted(self._places, key=lambda span: (span.episode, span.first))
        self.names: Sequence[str] = list(dict.fromkeys(span.episode for span in self.spans))

    def _add(self, file: Place) -> None:
        with open_packed(file) as packed:
            self.digests.update({row.episode_id: row.digest for row in packed.index.episodes})
            for number in range(packed.index.num_shards):
                shard = packed.index.shard(number)
                self._places[Span(shard.episode_id, shard.first_frame, shard.frames)] = (file, number)

    def spans_of(self, name: str) -> Sequence[Span]:
        """See `Album.spans_of`."""
        return [span for span in self.spans if span.episode == name]

    def pictures(self, moment: Moment) -> Pictures:
        """See `Album.pictures`."""
        span = _span(self.spans, moment)
        file, shard = self._places[span]
        row = moment.frame - span.first
        with open_packed(file) as packed:
            streams = [stream for stream in packed.index.streams if stream.kind != "numeric"]
            return {stream.key: packed.frames(shard, stream, [row])[row] for stream in streams}


class EpisodesAlbum:
    """Frames of ingested episodes; those without readable metadata are left out."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._readers: dict[str, EpisodeReader] = {}
        for folder in folders:
            try:
                self._readers[folder.name] = EpisodeReader(folder)
            except EpisodeError:
                if len(folders) == 1:
                    raise
        self.spans: Sequence[Span] = [Span(name, 0, reader.length) for name, reader in self._readers.items()]
        self.names: Sequence[str] = list(self._readers)

    def spans_of(self, name: str) -> Sequence[Span]:
        """See `Album.spans_of`."""
        return [span for span in self.spans if span.episode == name]

    def pictures(self, moment: Moment) -> Pictures:
        """See `Album.pictures`."""
        reader, frame = self._readers[moment.episode], moment.frame
        found: Pictures = {}
        for name in reader.metadata.rgb_streams:
            found[batch_key("rgb", name)] = next(reader.rgb(name, frame, frame + 1))
        for name in reader.metadata.depth_streams:
            found[batch_key("depth", name)] = next(reader.depth(name, frame, frame + 1))
        return found


class RawAlbum:
    """Frames of raw data, read as ingest would read them. Sources are read forwards: a late frame takes its time.

    Raises:
        ConfigError: this version has no reader for it.
        SourceError: it is no known dataset.
    """

    def __init__(self, place: Place) -> None:
        found = detect(str(place))
        if not found.config:
            raise ConfigError(
                f"{place}: this version cannot read {found.dir_type}, so that there are no frames to see."
            )
        self._source = open_source(load_ingest_config(found.config), found.path)
        self._refs: Mapping[str, EpisodeRef] = {ref.source_id: ref for ref in self._source.episodes()}
        self.names: Sequence[str] = list(self._refs)
        # the first, the middle and the last episode: opening all of a large source would take minutes
        few = sorted({0, len(self.names) // 2, len(self.names) - 1}) if self.names else []
        self.spans: Sequence[Span] = [span for place in few for span in self.spans_of(self.names[place])]

    def spans_of(self, name: str) -> Sequence[Span]:
        """See `Album.spans_of`. An episode that cannot be opened has none."""
        try:
            with self._source.open(self._refs[name]) as episode:
                return [Span(name, 0, min((spec.length for spec in episode.streams), default=0))]
        except EpisodeError:
            return []

    def pictures(self, moment: Moment) -> Pictures:
        """See `Album.pictures`."""
        found: Pictures = {}
        with self._source.open(self._refs[moment.episode]) as episode:
            for spec in sorted(episode.streams, key=lambda spec: spec.kind != "rgb"):
                if spec.kind == "numeric":
                    continue
                frame = next(islice(episode.frames(spec), moment.frame, None))
                where = f"{moment.episode}, {spec.name}, frame {moment.frame}"
                image = decode_image(frame, where) if isinstance(frame, EncodedImage) else np.asarray(frame)
                found[batch_key(spec.kind, spec.name)] = image
        return found

    def close(self) -> None:
        """Let go of scratch space; idempotent."""
        if isinstance(self._source, RemoteSource):
            self._source.close()


def _span(spans: Sequence[Span], moment: Moment) -> Span:
    return next(
        span
        for span in spans
        if span.episode == moment.episode and span.first <= moment.frame < span.first + span.frames
    )
