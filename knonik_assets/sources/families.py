"""Which family a raw dataset belongs to, told by the names of its files alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knonik_assets.sources.naming import natural_key

__all__ = ["Family", "recognise"]

_DEPTH = 4
_WIDTH = 200
"""Folders looked into on each level."""


@dataclass(frozen=True, slots=True)
class Family:
    """A recognised dataset."""

    name: str
    """In words: ``LeRobot v3``, ``ALOHA-style HDF5 episodes``."""
    dir_type: str
    root: Path
    data_type: str | None = None
    version: str | None = None
    episodes: int | None = None
    """Where counting names is enough."""
    demos: str | None = None
    note: str | None = None
    extra: Mapping[str, Any] | None = None
    """Further keys of the config that its reader cannot do without."""
    url: str | None = None
    """Of a remote dataset; ``root`` then is where its names were looked at, and holds nothing any more."""

    @property
    def where(self) -> str:
        """Path or URL."""
        return self.url or str(self.root)


def recognise(root: Path) -> list[Family]:
    """The family of ``root``, or those of the datasets up to four levels below it, in natural order."""
    if root.is_file():
        found = _file(root)
        return [found] if found is not None else []
    whole = _folder(root)
    if whole is not None:
        return [whole]
    below: list[Family] = []
    level = [root]
    for _ in range(_DEPTH):
        deeper: list[Path] = []
        for path in (path for folder in level for path in _children(folder)):
            known = _folder(path) if path.is_dir() else _file(path) if path.name.endswith(".zarr.zip") else None
            if known is not None:
                below.append(known)
            elif path.is_dir() and not _is_zarr(path):
                deeper.append(path)
        level = deeper[:_WIDTH]
    return sorted(below, key=lambda family: natural_key(family.root.as_posix()))


def _children(folder: Path) -> list[Path]:
    visible = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(visible, key=lambda path: natural_key(path.name))[:_WIDTH]


def _folder(path: Path) -> Family | None:
    return next((found for probe in _PROBES if (found := probe(path)) is not None), None)


def _file(path: Path) -> Family | None:
    if path.suffix in (".h5", ".hdf5"):
        return Family("HDF5 file with nested demos", "episodic", path, "hdf5", demos=_demo_pattern(path))
    if path.suffix in (".bag", ".mcap", ".db3"):
        return Family(f"ROS {path.suffix[1:]} recording", "rosbag", path, episodes=1)
    if path.name.endswith(".zarr.zip"):
        return Family("Zarr replay buffer", "zarr", path)
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())  # of text it would refuse a byte order mark
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _lerobot(root: Path) -> Family | None:
    if not (root / "meta" / "info.json").is_file():
        return None
    info = _json(root / "meta" / "info.json")
    version = str(info.get("codebase_version") or "")
    tables = (root / "meta" / "episodes").is_dir() or (root / "meta" / "tasks.parquet").exists()
    lines = (root / "meta" / "episodes.jsonl").exists()
    v3 = tables or (not lines and version.startswith("v3"))
    note = None
    if v3 != version.startswith("v3"):
        note = f"info.json says {version or 'no version'}, the files are those of {'v3' if v3 else 'v2'}"
    dir_type = "lerobot_v3" if v3 else "lerobot_v2"
    count = None if v3 else len(list(root.glob("data/chunk-*/episode_*.parquet")))
    return Family(f"LeRobot {'v3' if v3 else 'v2'}", dir_type, root, version=version or None, episodes=count, note=note)


def _rlds(root: Path) -> Family | None:
    if not (root / "features.json").is_file() or not any(root.glob("*.tfrecord*")):
        return None
    return Family("RLDS (TFDS) dataset", "rlds", root, version=_json(root / "dataset_info.json").get("version"))


_BAGS = ("*.bag", "*.mcap", "*.db3", "*.db3.zstd", "*.mcap.zstd")


def _ros(root: Path) -> Family | None:
    bags = [path for suffix in _BAGS for path in root.glob(suffix)]
    below = [
        path
        for path in root.iterdir()
        if path.is_dir() and ((path / "metadata.yaml").is_file() or any(any(path.glob(name)) for name in _BAGS))
    ]
    if (root / "metadata.yaml").is_file() and bags:
        return Family("ROS 2 bag", "rosbag", root, episodes=1)
    if bags or below:
        return Family("ROS recordings", "rosbag", root, episodes=len(bags) + len(below))
    return None


def _is_zarr(path: Path) -> bool:
    marks = (".zgroup", ".zarray", ".zmetadata", "zarr.json")
    return path.name.endswith(".zarr.zip") or (path.is_dir() and any((path / mark).exists() for mark in marks))


def _zarr(root: Path) -> Family | None:
    if _is_zarr(root) and (root / "meta" / "episode_ends").exists():
        return Family("Zarr replay buffer", "zarr", root)
    stores = [path for path in root.glob("episode_*") if _is_zarr(path) or path.name.endswith(".zip")]
    if stores:
        return Family("Zarr store per episode", "episodic", root, "zarr", episodes=len(stores))
    return None


_SPLITS = ("training", "validation")
"""Folders of a CALVIN download; its reader takes both."""


def _calvin(root: Path) -> Family | None:
    splits = [path for name in _SPLITS if _calvin_steps(path := root / name)]
    if not splits and not _calvin_steps(root):
        return None
    bare = [path.name for path in splits or [root] if not (path / "ep_start_end_ids.npy").exists()]
    note = f"{', '.join(bare)}: ep_start_end_ids.npy is missing: no episode is known" if bare else None
    return Family("CALVIN (one file a step)", "calvin", root, note=note)


def _calvin_steps(root: Path) -> bool:
    if (root / "ep_start_end_ids.npy").exists():
        return True
    return any(re.fullmatch(r"episode_\d{7}", path.stem) for path in root.glob("episode_*.npz"))


def _npz(root: Path) -> Family | None:
    count = len(list(root.glob("episode_*.npz")))
    return Family("NPZ archive per episode", "episodic", root, "npy", episodes=count) if count else None


def _d3il(root: Path) -> Family | None:
    lists = any(root.glob("train_files*.pkl")) or any(root.glob("eval_files*.pkl"))
    states = (root / "all_data").is_dir() or any(root.glob("env_*.pkl"))
    return Family("D3IL task", "d3il", root) if lists or states else None


def _hdf5(root: Path) -> Family | None:
    files = [path for suffix in ("*.h5", "*.hdf5") for path in root.glob(suffix) if not path.name.startswith(".")]
    episodes = [path for path in files if path.name.startswith("episode_")]
    if episodes:
        note = (
            f"{len(files) - len(episodes)} HDF5 files are not called episode_*" if len(files) > len(episodes) else None
        )
        return Family("HDF5 file per episode", "episodic", root, "hdf5", episodes=len(episodes), note=note)
    if not files:
        return None
    pattern = next((found for path in sorted(files) if (found := _demo_pattern(path))), None)
    note = None if pattern else "no file has demos in it, and none is called episode_*; rename them"
    return Family("HDF5 files with nested demos", "episodic", root, "hdf5", demos=pattern, note=note)


def _demo_pattern(path: Path) -> str | None:
    """``data/demo_*`` or what is like it in the file: a group whose children share a name but for their number."""
    from knonik_assets.sources.hdf5_paths import match_groups, open_hdf5, reading
    from knonik_loader.errors import EpisodeError

    try:
        with open_hdf5(path) as file, reading(str(path)):
            for pattern in ("data/demo_*", "demo_*", "data/*", "episode_*", "traj_*"):
                if match_groups(file, pattern):
                    return pattern
    except EpisodeError:
        return None
    return None


def _separate(root: Path) -> Family | None:
    arrays = sorted(root.glob("*.npy"), key=lambda path: natural_key(path.name))
    folders = sorted((path for path in root.iterdir() if path.is_dir() and any(path.glob("*.npy"))), key=str)
    if not arrays or not folders:
        return None
    clock = next((path for path in arrays if path.stem in ("timestamps", "timestamp", "frame_time")), None)
    streams: dict[str, dict[str, Any]] = {"rgb": {}, "depth": {}, "numeric": {}}
    for folder in folders:
        first = min(folder.glob("*.npy"), key=lambda path: natural_key(path.name))
        numbered = re.fullmatch(r"(.*?)(\d+)(\D*)", first.name)
        kind = "depth" if _is_map(first) else "rgb"
        pattern = f"{numbered[1]}%0{len(numbered[2])}d{numbered[3]}" if numbered else first.name
        streams[kind][folder.name] = {"dir": folder.name, "pattern": pattern}
    streams["numeric"] = {path.stem: {"path": path.name} for path in arrays if path != clock}
    extra = {"streams": {kind: entries for kind, entries in streams.items() if entries}}
    if clock is not None:
        extra["timestamps"] = clock.name  # type: ignore[assignment]
    return Family("Staged NPY streams of one episode", "npy_separate", root, episodes=1, extra=extra)


def _is_map(path: Path) -> bool:
    """Whether a staged frame is a depth map: one channel, of more than 8 bits."""
    from knonik_assets.sources.npy_arrays import npy_file
    from knonik_loader.errors import EpisodeError

    try:
        frame = npy_file(path, str(path))
    except EpisodeError:
        return False
    channels = frame.shape[2] if frame.ndim == 3 else 1
    return frame.dtype.itemsize > 1 and channels == 1


_PROBES: tuple[Callable[[Path], Family | None], ...] = (
    _lerobot,
    _rlds,
    _calvin,
    _zarr,
    _hdf5,
    _npz,
    _d3il,
    _ros,
    _separate,
)
"""From the most telling file to the least."""
