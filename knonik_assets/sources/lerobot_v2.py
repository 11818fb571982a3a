"""LeRobot v2.0 and v2.1 datasets: a parquet file an episode, a video file an episode and camera.

Episodes are known by the names of their files; ``info.json`` and ``episodes.jsonl`` are hints that are checked.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.base import EpisodeRef, FingerprintCache
from knonik_assets.sources.lerobot_data import DataIndex, Run, to_rows, whole_numbers
from knonik_assets.sources.lerobot_episode import Held, LeRobotEpisode, picture_file
from knonik_assets.sources.lerobot_files import check_key, find_episode_file, signature, spell
from knonik_assets.sources.lerobot_language import text_numbers
from knonik_assets.sources.lerobot_layout import choose, find_cameras
from knonik_assets.sources.lerobot_meta import PARQUET_FAULTS, Meta, read_meta, wrong_totals
from knonik_assets.sources.lerobot_videos import OneFile
from knonik_assets.sources.trees import check_inside
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["LeRobotV2Source"]


@dataclass(frozen=True, slots=True)
class _Dataset:
    """What is known of all episodes; the same for every worker."""

    meta: Meta
    schema: pa.Schema
    """Of the first readable data file."""
    cameras: Mapping[str, Held]
    phantoms: tuple[str, ...]
    """Videos that ``info.json`` lists and of which there is no file, though there are files of others."""


def _load(root: Path) -> _Dataset:
    """Read the metadata, once a process as long as the files stay as they are."""
    return _loaded(root, signature(root, ("meta/*", "videos", "videos/*", "data", "data/*")))


@lru_cache(maxsize=4)
def _loaded(root: Path, _signature: str) -> _Dataset:
    meta = read_meta(root, 2)
    schema = _first_schema(meta)
    folders = {path.name for path in root.glob("videos/chunk-*/*") if path.is_dir()}
    declared = [key for key, feature in meta.features.items() if feature.dtype == "video"]
    keys = list(dict.fromkeys([*declared, *sorted(folders - set(declared))]))
    on_disk = [key for key in keys if _has_files(meta, key, folders)]
    wanted = on_disk or declared  # without any video, every episode says which file it misses
    cameras = find_cameras(meta, schema, wanted)
    pictures = [key for key, feature in meta.features.items() if feature.dtype == "image" and key not in cameras]
    phantoms = [key for key in declared if key not in cameras]
    return _Dataset(meta, schema, cameras, (*phantoms, *pictures))


def _has_files(meta: Meta, key: str, folders: set[str]) -> bool:
    check_key(meta.root, key)
    if key in folders:
        return any(path.is_file() for path in meta.root.glob(f"videos/chunk-*/{key}/*"))
    return any(find_episode_file(meta, episode, key) is not None for episode in sorted(meta.hints)[:3])


def _data_files(meta: Meta) -> dict[int, Path]:
    """Data files by the number in their names, in that order."""
    found: dict[int, Path] = {}
    for path in sorted((meta.root / "data").rglob("*.parquet")):
        digits = re.findall(r"\d+", path.stem)
        if not digits or path.name.startswith("."):
            continue
        episode = int(digits[-1])
        if episode in found:
            meta.warnings.append(f"{path}: {found[episode]} holds episode {episode} too; this one is left alone")
        else:
            found[episode] = path
    return dict(sorted(found.items()))


def _first_schema(meta: Meta) -> pa.Schema:
    files = _data_files(meta)
    if not files:
        raise SourceError(f"{meta.root}: no data file; wanted {meta.data_path}.")
    reasons = []
    for path in files.values():
        try:
            return pq.read_schema(path)
        except PARQUET_FAULTS as error:
            reasons.append(f"{path.name}: {error}")
    raise SourceError(f"{meta.root}: no data file is readable ({'; '.join(reasons[:3])}).")


class LeRobotV2Source:
    """See the module."""

    format = "lerobot_v2"

    def __init__(self, config: IngestConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.warnings: list[str] = []
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        return {"config": self.config, "root": self.root, "warnings": self.warnings}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`. Also lists episodes that only the metadata knows: their rows are lost."""
        dataset = self._dataset()
        meta = dataset.meta
        files = _data_files(meta)
        warnings = list(dict.fromkeys(meta.warnings))
        lengths = [hint.length for hint in meta.hints.values()]
        frames = sum(length or 0 for length in lengths) if len(lengths) == len(files) and all(lengths) else None
        videos = len(files) * sum(held == "video" for held in dataset.cameras.values())
        totals = {"total_episodes": len(files), "total_frames": frames, "total_videos": videos}
        warnings += wrong_totals(meta, totals)
        astray = [path for episode, path in files.items() if path != self.root / spell(meta, meta.data_path, episode)]
        if astray:
            warnings.append(
                f"{self.root}: data_path of info.json ({meta.data_path}) doesn't lead to {len(astray)} of {len(files)} "
                f"data files, for one {astray[0].relative_to(self.root)}; they are read where they are"
            )
        if dataset.phantoms:
            names = ", ".join(dataset.phantoms)
            warnings.append(f"{self.root}: info.json lists {names}, of which there is no file; ignored")
        choose(self.config, meta, dataset.schema, dataset.cameras, str(self.root), [])
        self.warnings = warnings
        return [
            EpisodeRef(
                str(episode), (episode, str(files[episode].relative_to(self.root)) if episode in files else None)
            )
            for episode in sorted({*files, *meta.hints})
        ]

    def _dataset(self) -> _Dataset:
        with self._lock:
            return _load(self.root)

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`: of the episode's own files, the texts of its tasks and what describes its columns.

        Raises:
            EpisodeError: the episode's rows are not there.
        """
        dataset = self._dataset()
        episode, path = self._file(ref)
        meta = dataset.meta
        digest = hashlib.sha256(cache.file_digest(path).encode())
        for key, held in sorted(dataset.cameras.items()):
            video = self._video(episode, key) if held == "video" else None
            digest.update(f"{key} {cache.file_digest(video) if video is not None else None}".encode())
        data = _index(path, episode)
        for key, held in sorted(dataset.cameras.items()):
            if held == "picture" and key in data.schema(episode).names:
                for name in _loose_pictures(data, meta, episode, key):
                    digest.update(cache.file_digest(name).encode())
        described = [(key, repr(feature)) for key, feature in sorted(meta.features.items())]
        digest.update(repr((meta.fps, meta.robot_type, described, _tasks(data, meta, episode))).encode())
        return digest.hexdigest()

    def _file(self, ref: EpisodeRef) -> tuple[int, Path]:
        episode, name = ref.locator
        if name is None:
            wanted = spell(self._dataset().meta, self._dataset().meta.data_path, episode)
            raise EpisodeError(
                f"{self.root}, episode {episode}: episodes.jsonl lists it, but {wanted} is missing; a partial download?"
            )
        path = self.root / name
        check_inside(path, self.root)
        return episode, path

    def _video(self, episode: int, key: str) -> Path | None:
        """The video of a camera; None where there is none.

        Raises:
            EpisodeError: a link leads out of the dataset.
        """
        path = find_episode_file(self._dataset().meta, episode, key)
        if path is not None:
            check_inside(path, self.root)
        return path

    def open(self, ref: EpisodeRef) -> LeRobotEpisode:
        """See `Source.open`."""
        dataset = self._dataset()
        episode, path = self._file(ref)
        data = _index(path, episode)
        meta, rows = dataset.meta, data.length(episode)
        first = _first_time(data, episode)
        maps = {}
        for key, held in dataset.cameras.items():
            if held == "video":
                named = spell(meta, meta.video_path, episode, key)
                maps[key] = OneFile(key, self._video(episode, key), named, rows, first)
        opened = LeRobotEpisode(self.config, meta, data, dataset.cameras, maps, episode)
        warning = _check_number(path, data, episode)
        if warning is not None:
            opened.facts.warnings.append(warning)
        return opened


def _index(path: Path, episode: int) -> DataIndex:
    try:
        rows = pq.read_metadata(path).num_rows
    except PARQUET_FAULTS as error:
        raise EpisodeError(f"{path}: unreadable: {error}.") from error
    return DataIndex([path], {episode: [Run(0, 0, rows)]})


def _first_time(data: DataIndex, episode: int) -> float | None:
    """Seconds of the first row; None where it has none."""
    table = data.table(episode, ["timestamp"])
    if "timestamp" not in table.column_names or not table.num_rows:
        return None
    first = float(to_rows(table["timestamp"], f"episode {episode}: timestamp")[0][0, 0])
    return first if math.isfinite(first) else None


def _check_number(path: Path, data: DataIndex, episode: int) -> str | None:
    """Whether the rows say that they are of the episode that the file's name says."""
    table = data.table(episode, ["episode_index"])
    if "episode_index" not in table.column_names or not table.num_rows:
        return None
    said = np.unique(whole_numbers(table["episode_index"], f"{path}: episode_index"))
    if len(said) > 1:
        raise EpisodeError(f"{path}: holds rows of {len(said)} episodes ({said[0]}, {said[1]}, …), wanted one.")
    return None if said[0] == episode else f"{path}: its rows say episode {said[0]}; the file's name is believed"


def _tasks(data: DataIndex, meta: Meta, episode: int) -> list[str | None]:
    """Texts of the episode's tasks, then of its subtasks."""
    table = data.table(episode, ["task_index", "subtask_index"])
    found: list[str | None] = []
    for name, known in (("task_index", meta.tasks), ("subtask_index", meta.subtasks)):
        if name in table.column_names:
            numbers = dict.fromkeys(text_numbers(table[name], f"{meta.root}, episode {episode}: {name}").tolist())
            found += [known.get(int(number)) for number in numbers if math.isfinite(number)]
        if name == "task_index" and not any(found):  # then what the metadata says of the episode counts
            hint = meta.hints.get(episode)
            found += hint.tasks if hint is not None else ()
    return found


def _loose_pictures(data: DataIndex, meta: Meta, episode: int, key: str) -> list[Path]:
    """Picture files that the rows only name."""
    found = []
    for content, name in data.pictures(episode, key):
        if content:
            return []  # the column holds the pictures themselves
        if name and (path := picture_file(meta.root, episode, key, name)).is_file():
            found.append(path)
    return found
