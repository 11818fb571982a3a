"""LeRobot v3 datasets: many episodes a parquet file, many a video file, each camera's files on their own."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import pyarrow as pa

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.base import EpisodeRef, FingerprintCache
from knonik_assets.sources.lerobot_data import DataIndex, build_index
from knonik_assets.sources.lerobot_episode import LeRobotEpisode
from knonik_assets.sources.lerobot_files import list_files, signature
from knonik_assets.sources.lerobot_layout import bare_name, choose, find_cameras
from knonik_assets.sources.lerobot_meta import Meta, read_meta, wrong_totals
from knonik_assets.sources.lerobot_videos import CameraMap
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["Dataset", "LeRobotV3Source"]


@dataclass(slots=True)
class Dataset:
    """A dataset's index as one process holds it; rebuilt wherever the source is unpickled."""

    meta: Meta
    data: DataIndex
    schema: pa.Schema
    cameras: Mapping[str, Literal["video", "picture"]]
    maps: dict[str, CameraMap]
    """Of the video cameras."""

    @property
    def phantoms(self) -> list[str]:
        """Video features that ``info.json`` lists and that neither files nor episodes know."""
        return [key for key, feature in self.meta.features.items() if _seen(feature.dtype) and key not in self.cameras]


def _seen(dtype: str) -> bool:
    return dtype in ("video", "image")


def load_dataset(root: Path) -> Dataset:
    """Read the metadata, the index columns of the data files and the names of the video files.

    A process does so once, however many episodes it works on, as long as the files stay as they are.

    Raises:
        SourceError: this is no LeRobot v3 dataset, or nothing of it can be read.
    """
    return _loaded(root, signature(root, ("meta/**/*", "data/**/*", "videos/**/*")))


@lru_cache(maxsize=4)
def _loaded(root: Path, _signature: str) -> Dataset:
    meta = read_meta(root)
    data = build_index(meta)
    if not data.runs:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in data.broken.items())
        raise SourceError(f"{root}: no data file has a readable row ({reasons or 'they are empty'}).")
    rows = {episode: data.length(episode) for episode in data.runs}
    for episode, hint in meta.hints.items():
        if hint.length:
            rows.setdefault(episode, hint.length)
    keys = {key for hint in meta.hints.values() for key in hint.videos}
    keys |= {key for key, feature in meta.features.items() if feature.dtype == "video"}
    maps = {}
    for key in sorted(keys):
        hints = {episode: hint.videos[key] for episode, hint in meta.hints.items() if key in hint.videos}
        files = list_files(root, meta.video_path, key)
        maps[key] = CameraMap(key, files, hints, rows, data.first_time, _Named(meta.video_path, key), root)
    schema = data.schema(min(data.runs))
    on_disk = [key for key, camera in maps.items() if camera.files]
    declared = [key for key, feature in meta.features.items() if feature.dtype == "video"]
    placed = any(camera.hints for camera in maps.values())
    # without any video, every episode says which it misses
    cameras = find_cameras(meta, schema, on_disk if on_disk or placed else declared)
    return Dataset(meta, data, schema, cameras, maps)


@dataclass(frozen=True, slots=True)
class _Named:
    """Spells out a camera's file."""

    template: str
    key: str

    def __call__(self, file: tuple[int, int]) -> str:
        return self.template.format(video_key=self.key, chunk_index=file[0], file_index=file[1])


class LeRobotV3Source:
    """Episodes are found by the ``episode_index`` column of the data; the metadata is a hint that is checked."""

    format = "lerobot_v3"

    def __init__(self, config: IngestConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.warnings: list[str] = []
        self._dataset: Dataset | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {"config": self.config, "root": self.root, "warnings": self.warnings}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__.update(state)
        self._dataset = None
        self._lock = threading.Lock()

    def dataset(self) -> Dataset:
        """The dataset's index, read at the first call."""
        with self._lock:
            if self._dataset is None:
                self._dataset = load_dataset(self.root)
            return self._dataset

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`. Also lists episodes that only the metadata knows: their rows are lost."""
        self._dataset = None
        dataset = self.dataset()
        self.warnings = list(dataset.meta.warnings)
        self.warnings += [f"{path}: unreadable: {reason}" for path, reason in dataset.data.broken.items()]
        if not dataset.data.broken:
            frames = sum(map(dataset.data.length, dataset.data.runs))
            totals = {"total_episodes": len(dataset.data.runs), "total_frames": frames}
            self.warnings += wrong_totals(dataset.meta, totals)
        if dataset.phantoms:
            names = ", ".join(dataset.phantoms)
            self.warnings.append(f"{self.root}: info.json lists {names}, which no file and no episode has; ignored")
        stale = sorted(set(dataset.maps) - set(dataset.cameras) - set(dataset.phantoms))
        if stale:
            self.warnings.append(
                f"{self.root}: episodes name {', '.join(stale)}, which info.json doesn't list; ignored"
            )
        choices = choose(self.config, dataset.meta, dataset.schema, dataset.cameras, str(self.root), [])
        for choice in choices:
            if choice.held == "video" and (missing := dataset.maps[choice.key].missing()):
                shown = ", ".join(missing[:3]) + (f", … ({len(missing)} files)" if len(missing) > 3 else "")
                self.warnings.append(f"{self.root}: the video of {bare_name(choice.key)} is missing: {shown}")
        return [EpisodeRef(str(episode), episode) for episode in sorted({*dataset.data.runs, *dataset.meta.hints})]

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`. Covers the episode's rows, task texts, pictures and packets.

        Raises:
            EpisodeError: the episode cannot be read.
        """
        with self.open(ref) as episode:
            return episode.digest()

    def open(self, ref: EpisodeRef) -> LeRobotEpisode:
        """See `Source.open`."""
        dataset = self.dataset()
        episode = int(ref.locator)
        if episode not in dataset.data.runs:
            reasons = "; ".join(f"{path}: {reason}" for path, reason in dataset.data.broken.items())
            raise EpisodeError(
                f"episode {episode}: no readable data file has its rows"
                + (f" ({reasons})." if reasons else f"; the metadata puts them into {self._data_name(episode)}.")
            )
        return LeRobotEpisode(self.config, dataset.meta, dataset.data, dataset.cameras, dataset.maps, episode)

    def _data_name(self, episode: int) -> str:
        meta = self.dataset().meta
        place = meta.hints[episode].data if episode in meta.hints else None
        return "no file" if place is None else meta.data_path.format(chunk_index=place[0], file_index=place[1])
