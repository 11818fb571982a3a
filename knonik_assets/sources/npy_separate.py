"""One staged episode: a ``.npy`` a frame for pictures, a ``.npy`` a stream for numbers."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.configs.ingest import (
    DepthEntry,
    ImageEntry,
    IngestConfig,
    Layout,
    StagedDepth,
    StagedPictures,
    StagedStreams,
)
from knonik_assets.sources.array_episode import ArrayEpisode, Traits
from knonik_assets.sources.arrays import Array, DictTree, bounded
from knonik_assets.sources.arrays import Path as Place
from knonik_assets.sources.base import EpisodeRef, FingerprintCache
from knonik_assets.sources.npy_arrays import npy_file, reading
from knonik_loader.errors import ConfigError, EpisodeError, SourceError

__all__ = ["StagedSource"]


class StagedSource:
    """The one episode that the ``streams`` block describes; named by the folder that holds all of it."""

    format = "npy_separate"

    def __init__(self, config: IngestConfig, root: Path) -> None:
        if config.streams is None:
            raise ConfigError("dir_type 'npy_separate' needs a streams block.")
        self.config = config
        self.root = root
        self.streams: StagedStreams = config.streams
        self.warnings: list[str] = []

    def _at(self, path: str) -> Path:
        return self.root / path

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`. The same folder again is the same episode; another one is another."""
        self.warnings = []
        folders = [self._at(entry.dir) for entry in (*self.streams.rgb.values(), *self.streams.depth.values())]
        files = [self._at(entry.path) for entry in self.streams.numeric.values()]
        files += [self._at(self.config.timestamps)] if self.config.timestamps is not None else []
        for folder in folders:
            if not folder.is_dir():
                raise SourceError(f"{folder}: there is no such folder; stage the frames there, or correct streams.")
        for file in files:
            if not file.is_file():
                raise SourceError(f"{file}: there is no such file; stage the array there, or correct the config.")
        places = [str(path.resolve()) for path in (*folders, *(file.parent for file in files))]
        home = os.path.commonpath(places)
        if len(set(places)) == 1 and folders:  # frames alone: the folder above them is the episode
            home = str(Path(home).parent)
        return [EpisodeRef(home)]

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`."""
        with self.open(ref) as episode:
            return episode.digest()

    def open(self, ref: EpisodeRef) -> ArrayEpisode:
        """See `Source.open`."""
        streams = self.streams
        arrays: dict[Place, Array] = {}
        for kind, entries in (("rgb", streams.rgb), ("depth", streams.depth)):
            for name, entry in entries.items():
                arrays[(kind, name)] = _frames(self._at(entry.dir), entry)
        for name, numbers in streams.numeric.items():
            path = self._at(numbers.path)
            arrays[("numeric", name)] = npy_file(path, str(path))
        if self.config.timestamps is not None:
            path = self._at(self.config.timestamps)
            arrays[("timestamps",)] = npy_file(path, str(path))
        chunks = {f"numeric.{name}": entry.chunk_len for name, entry in streams.numeric.items() if entry.chunk_len}
        config = self.config.model_copy(update={"layout": _layout(streams, self.config.timestamps is not None)})
        return ArrayEpisode(config, DictTree(arrays), Traits(chunk_lens=chunks), ref.source_id)


def _layout(streams: StagedStreams, clock: bool) -> Layout:
    """The same as a layout over the tree of staged arrays."""
    return Layout(
        images={name: ImageEntry(key=f"rgb.{name}", fps=entry.fps) for name, entry in streams.rgb.items()},
        depths={
            name: DepthEntry(key=f"depth.{name}", fps=entry.fps, unit_m=entry.unit_m)
            for name, entry in streams.depth.items()
        },
        numeric={name: f"numeric.{name}" for name in streams.numeric},
        timestamps="timestamps" if clock else None,
    )


def _frames(folder: Path, entry: StagedPictures | StagedDepth) -> Array:
    """The frames of a folder, numbered from 0 without a gap.

    Raises:
        SourceError: there is none by that pattern.
        EpisodeError: one is missing, or the first is damaged.
    """
    before, after = re.split(r"%0?\d*d", entry.pattern)
    numbered = re.compile(re.escape(before) + r"(\d+)" + re.escape(after))
    numbers = sorted(
        int(found[1])
        for path in folder.iterdir()
        if (found := numbered.fullmatch(path.name)) and path.name == entry.pattern % int(found[1])
    )
    if not numbers:
        there = sorted(path.name for path in folder.iterdir())[:3]
        raise SourceError(
            f"{folder}: no frame is called {entry.pattern!r} (that is {entry.pattern % 0}, {entry.pattern % 1}, …); "
            + (f"it has: {', '.join(there)}." if there else "the folder is empty.")
        )
    if numbers[-1] != len(numbers) - 1:
        missing = next(place for place, number in enumerate((*numbers, -1)) if number != place)
        raise EpisodeError(
            f"{folder / (entry.pattern % missing)} is missing: frames are numbered from 0 to {numbers[-1]}."
        )
    return FrameFiles(folder, entry.pattern, len(numbers))


def _beginning(path: Path, count: int) -> bytes:
    with reading(str(path)), path.open("rb") as file:
        return file.read(count)


class FrameFiles(Array):
    """One ``.npy`` a row."""

    def __init__(self, folder: Path, pattern: str, length: int) -> None:
        first = npy_file(folder / (pattern % 0), str(folder / (pattern % 0)))
        super().__init__(str(folder), first.dtype, (length, *first.shape), block=1)
        self._folder, self._pattern = folder, pattern
        self._head = _beginning(folder / (pattern % 0), first.begin) if first.plain else None

    def _like_the_first(self, path: Path) -> npt.NDArray[Any] | None:
        """The frame of a file that begins and ends as the first one does; None for any other."""
        head = self._head
        if head is None:
            return None
        size = bounded(self.dtype.itemsize * math.prod(self.shape[1:]), str(path))
        with reading(str(path)), path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != len(head) + size or file.read(len(head)) != head:
                return None
            out = np.empty(self.shape[1:], self.dtype)
            return out if file.readinto(out.data) == size else None

    def _row(self, place: int) -> npt.NDArray[Any]:
        path = self._folder / (self._pattern % place)
        found = self._like_the_first(path)
        if found is not None:
            return found
        array = npy_file(path, str(path))
        if array.shape != self.shape[1:] or array.dtype != self.dtype:
            raise EpisodeError(
                f"{path}: {array.dtype} of shape {array.shape}; the first frame is {self.dtype} of {self.shape[1:]}."
            )
        return array.whole()

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`."""
        values = [self._row(place) for place in range(start, stop)]
        return np.stack(values) if values else np.empty((0, *self.shape[1:]), self.dtype)

    def stream(self) -> Iterator[npt.NDArray[Any]]:
        """See `Array.stream`."""
        for place in range(self.shape[0]):
            yield self._row(place)
