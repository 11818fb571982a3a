"""D3IL tasks: a pickle of states an episode, pictures in folders beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.array_episode import ArrayEpisode, Traits
from knonik_assets.sources.arrays import Array, DictTree, MemoryArray
from knonik_assets.sources.arrays import Path as Place
from knonik_assets.sources.base import EpisodeRef, FingerprintCache
from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.npy_arrays import reading, whole_file
from knonik_assets.sources.picture_files import picture_files
from knonik_assets.sources.safe_pickle import load_pickle
from knonik_assets.sources.trees import check_inside
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["D3ilSource"]

_LISTS = re.compile(r"(train|eval|test)_(files|contexts).*|.*contexts|mode_prob|all_modes")
_CLOCK = "time_stamp"


@dataclass(frozen=True, slots=True)
class _Action:
    """How a task's action follows from its recording: the next desired value less the present one."""

    key: str
    width: int
    gripper: bool = False

    @property
    def words(self) -> str:
        """For the metadata."""
        told = f"robot.{self.key}[t + 1] - robot.{self.key}[t], the first {self.width} numbers"
        return f"{told}; then robot.gripper_width[t + 1]" if self.gripper else told


_ACTIONS: Mapping[str, _Action] = {
    "aligning": _Action("des_c_pos", 3),
    "avoiding": _Action("des_c_pos", 2),
    "pushing": _Action("des_c_pos", 2),
    "sorting": _Action("des_c_pos", 2),
    "stacking": _Action("des_j_pos", 7, gripper=True),
}
_OTHERWISE = _Action("des_c_pos", 3)


class D3ilSource:
    """The recordings of a task: ``all_data/state``, ``all_data`` or the folder itself, or those of its subtasks."""

    format = "d3il"

    def __init__(self, config: IngestConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.warnings: list[str] = []
        self._splits: dict[str, dict[str, list[str]]] = {}

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`."""
        self.warnings = []
        if not self.root.is_dir():
            raise SourceError(f"{self.root}: there is no such folder.")
        refs = self._of(self.root, "")
        if not refs:
            below = sorted(
                (path for path in self.root.iterdir() if path.is_dir()), key=lambda path: natural_key(path.name)
            )
            refs = [ref for folder in below for ref in self._of(folder, f"{folder.name}/")]
        if not refs:
            lists = sorted(path.name for path in self.root.glob("*.pkl"))
            what = f"only lists are here ({', '.join(lists[:4])}, …)" if lists else "no pickle is here"
            raise SourceError(
                f"{self.root}: no recorded states: {what}; the recordings (all_data/) are a download of their own."
            )
        return refs

    def _of(self, base: Path, prefix: str) -> list[EpisodeRef]:
        for folder in (base / "all_data" / "state", base / "state", base / "all_data", base):
            files = (
                [path for path in folder.glob("*.pkl") if not _LISTS.fullmatch(path.stem)] if folder.is_dir() else []
            )
            if files:
                home = folder.parent if folder.name == "state" else folder
                return [
                    EpisodeRef(f"{prefix}{path.stem}", (str(path), str(home / "images"), str(base)))
                    for path in sorted(files, key=lambda path: natural_key(path.name))
                ]
        return []

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`."""
        with self.open(ref) as episode:
            return episode.digest()

    def open(self, ref: EpisodeRef) -> ArrayEpisode:
        """See `Source.open`."""
        file, images, base = (Path(part) for part in ref.locator)
        where = str(file)
        if file.is_symlink():
            check_inside(file, file.parent)
        with reading(where):
            states = load_pickle(whole_file(file), where)
        if not isinstance(states, dict) or not isinstance(states.get("robot"), dict):
            raise EpisodeError(f"{where}: no recording of D3IL's: wanted a dict with 'robot' in it.")
        warnings: list[str] = []
        arrays: dict[Place, Array] = _arrays(states, where, warnings)
        action, channels = self._action(states["robot"], file, where, warnings)
        if action is not None and not len(action[0]):
            raise EpisodeError(f"{where}: has a single step, and an action is the difference of two.")
        if action is not None:
            arrays[("action",)] = MemoryArray(f"{where}: action", action[0])
        arrays |= _pictures(images, file.stem, where, warnings)
        traits = Traits(roles={"action": "action"}, channel_names={"action": channels} if channels else None)
        episode = ArrayEpisode(self.config, DictTree(arrays), traits, where)
        episode.facts.warnings += warnings
        if action is not None:
            episode.facts.attributes["derived_action"] = action[1]
        if split := self._split(base, file):
            episode.facts.attributes["split_lists"] = split
        return episode

    def _action(
        self, robot: Mapping[str, Any], file: Path, where: str, warnings: list[str]
    ) -> tuple[tuple[npt.NDArray[Any], str] | None, tuple[str, ...] | None]:
        """The derived action with words for how, and its channels; None where the recording lacks what it needs."""
        task = next((part for part in reversed(file.parts) if part in _ACTIONS), None)
        rule = _ACTIONS[task] if task is not None else _OTHERWISE
        if task is None:
            warnings.append(
                f"{where}: no folder above is named like a task ({', '.join(_ACTIONS)}); the action is {rule.words}"
            )
        desired, gripper = _listed(robot.get(rule.key)), _listed(robot.get("gripper_width"))
        if not _has_rows(desired) or (rule.gripper and not _has_rows(gripper)):
            warnings.append(f"{where}: no action: it would follow from robot.{rule.key}, which isn't there or is empty")
            return None, None
        assert isinstance(desired, np.ndarray)
        values = desired.reshape(len(desired), -1)[:, : rule.width].astype(np.float64)
        rows = np.diff(values, axis=0)
        letter = "j" if "j" in rule.key else "xyz"
        names = [f"d{letter}{i}" if letter == "j" else f"d{letter[i]}" for i in range(rows.shape[1])]
        if rule.gripper:
            assert isinstance(gripper, np.ndarray)
            width = gripper.reshape(len(gripper), -1)[1 : len(rows) + 1]
            rows = np.concatenate([rows[: len(width)], width], axis=1)
            names += ["gripper_width"] if width.shape[1] == 1 else [f"gripper_{i}" for i in range(width.shape[1])]
        return (rows, rule.words), tuple(names)

    def _split(self, base: Path, file: Path) -> list[str]:
        """The lists beside the recordings that name this one."""
        key = str(base)
        if key not in self._splits:
            self._splits[key] = {}
            for path in sorted(base.glob("*_files*.pkl"), key=lambda path: natural_key(path.name)):
                try:
                    with reading(str(path)):
                        names = load_pickle(whole_file(path), str(path))
                except EpisodeError:
                    continue  # the lists say nothing about what is in a recording
                if isinstance(names, (list, tuple, np.ndarray)):
                    self._splits[key][path.stem.rstrip("_")] = [str(name) for name in names]
        return [name for name, files in self._splits[key].items() if file.name in files]


def _is_rows(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim >= 1 and value.dtype.kind in "iuf"


def _has_rows(value: object) -> bool:
    return isinstance(value, np.ndarray) and _is_rows(value) and value.size > 0


def _listed(value: Any) -> Any:  # noqa: ANN401 - whatever was pickled
    """A list of numbers, or of rows of them that are equally long, as an array; anything else as it is."""
    if not isinstance(value, list) or not value or not all(_is_row(one) for one in value):
        return value
    return np.array(value) if len({np.shape(one) for one in value}) == 1 else value


def _is_row(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(one, (int, float)) for one in value)
    return isinstance(value, (int, float, np.ndarray))


def _arrays(states: Mapping[Any, Any], where: str, warnings: list[str]) -> dict[Place, Array]:
    """Arrays of numbers by ``robot`` or the object's name, and their own; the clock at the top."""
    found: dict[Place, Array] = {}
    for name, inner in states.items():
        entries = inner.items() if isinstance(inner, dict) else [(None, inner)]
        for own, value in entries:
            value = _listed(value)
            if not _is_rows(value):
                if own is not None or not isinstance(value, (str, int, float)):
                    warnings.append(f"{where}: left out, as it is no array of numbers: {name if own is None else own}")
                continue
            place = (str(name),) if own is None else (str(name), str(own))
            place = (_CLOCK,) if place == ("robot", _CLOCK) and value.ndim == 1 else place
            found[place] = MemoryArray(f"{where}: {'.'.join(place)}", value)
    return found


def _pictures(images: Path, episode: str, where: str, warnings: list[str]) -> dict[Place, Array]:
    """Camera → its pictures of one episode."""
    if not images.is_dir():
        return {}
    found: dict[Place, Array] = {}
    for camera in sorted((path for path in images.iterdir() if path.is_dir()), key=lambda path: natural_key(path.name)):
        folder = camera / episode
        if folder.is_dir():
            found[(camera.name,)] = picture_files(folder, images, f"{where}: {camera.name}")
        else:
            warnings.append(f"{where}: {camera.name} has no pictures: {folder} isn't there")
    return found
