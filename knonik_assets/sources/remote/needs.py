"""Which objects of a raw dataset its reader needs: some to list the episodes, some for one episode alone.

Families that keep an episode in a file or folder of its own need only names to list their episodes. Families whose
episodes share files need all of them at once.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.naming import natural_key

__all__ = ["Local", "Names", "Needs", "needs_of"]

_CALVIN_STEP = re.compile(r"episode_(\d+)\.npz")
_CALVIN_LIKE = re.compile(r"episode_\d{7}\.npz")
_LEROBOT_EPISODE = re.compile(r"episode_(\d+)(?=$|[./])")
_EPISODE_INDEX = re.compile(r'"episode_index"\s*:\s*(\d+)')
_SCHEMAS = 3
"""LeRobot v2: data files of which one should tell the columns; the rest may be damaged."""


class Names:
    """The names of a dataset's objects, slashed and sorted."""

    def __init__(self, names: Iterable[str]) -> None:
        self.all = sorted(names)

    def at(self, place: str) -> list[str]:
        """The object of that name and those below the folder of that name."""
        start = bisect_left(self.all, place)
        exact = [place] if start < len(self.all) and self.all[start] == place else []
        return exact + self.below(place)

    def below(self, folder: str) -> list[str]:
        """The objects below a folder; of all for ``""``."""
        if not folder:
            return list(self.all)
        start, stop = (bisect_left(self.all, folder + end) for end in ("/", "0"))  # "0" comes right after "/"
        return self.all[start:stop]


Own = Callable[[Any, "Local", Names], list[str]]


@dataclass(frozen=True, slots=True)
class Local:
    """Turns the paths in locators into names."""

    base: Path

    def name(self, path: str | Path) -> str:
        """The name of what lies at a path below the base."""
        relative = Path(path).relative_to(self.base).as_posix()
        return "" if relative == "." else relative


@dataclass(frozen=True, slots=True)
class Needs:
    """What a family needs."""

    index: Callable[[Names], list[str]]
    """To list the episodes, and to open any of them."""
    own: Own | None
    """For one episode, by its locator; None: everything is in the index, as episodes share files."""
    shared: Callable[[Path], Callable[[Any], str]] | None = None
    """Given the folder with the index in it: what the index says of one episode, by its locator. None: an episode may
    depend on all of the index."""


def needs_of(config: IngestConfig, names: Names) -> Needs:
    """The needs of the reader that a config names, over the objects that are there."""
    family = config.dir_type
    if family == "episodic" and config.demos is None and config.data_type is not None:
        return {
            "hdf5": Needs(_nothing, _first_of_locator),
            "npy": Needs(_calvin_in_disguise, _locator_itself),
            "zarr": Needs(_nothing, _first_of_locator),
        }[config.data_type]
    if family in ("rosbag", "mcap"):
        return Needs(_nothing, _bag)
    if family == "calvin":
        return Needs(_calvin_index, _CalvinSteps(names))
    if family == "d3il":
        return Needs(_d3il_lists, _d3il)
    if family == "lerobot_v2" and all(_LEROBOT_EPISODE.search(name) for name in _lerobot_data(names)):
        return Needs(_lerobot_index, _LeRobotFiles(names), _lerobot_said)
    return Needs(lambda names: list(names.all), None)


def _nothing(_: Names) -> list[str]:
    return []


def _first_of_locator(locator: Any, local: Local, names: Names) -> list[str]:  # noqa: ANN401 - of any reader
    return names.at(local.name(locator[0]))


def _locator_itself(locator: Any, local: Local, names: Names) -> list[str]:  # noqa: ANN401 - of any reader
    return names.at(local.name(locator))


def _calvin_in_disguise(names: Names) -> list[str]:
    """Archives that are named like CALVIN's steps: the first tells whether they are."""
    steps = [name for name in names.all if _CALVIN_LIKE.fullmatch(name)]
    return steps[:1]


def _bag(locator: Any, local: Local, names: Names) -> list[str]:  # noqa: ANN401 - of any reader
    """A bag's file with SQLite's log beside it, or its folder."""
    name = local.name(locator.path)
    return names.at(name) + (names.at(f"{name}-wal") if name else [])


def _calvin_index(names: Names) -> list[str]:
    wanted = ("ep_start_end_ids.npy", "auto_lang_ann.npy")
    return [name for name in names.all if name.rpartition("/")[2] in wanted]


class _CalvinSteps:
    """The step files of an episode, both ends included."""

    def __init__(self, names: Names) -> None:
        self._steps: dict[str, dict[int, str]] = {}
        for name in names.all:
            folder, _, file = name.rpartition("/")
            if found := _CALVIN_STEP.fullmatch(file):
                self._steps.setdefault(folder, {})[int(found[1])] = name

    def __call__(self, locator: Any, local: Local, _: Names) -> list[str]:  # noqa: ANN401 - of any reader
        folder, first, last = locator
        steps = self._steps.get(local.name(folder), {})
        if last - first > len(steps):
            return [name for number, name in sorted(steps.items()) if first <= number <= last]
        return [steps[number] for number in range(first, last + 1) if number in steps]


def _d3il_lists(names: Names) -> list[str]:
    return [name for name in names.all if name.endswith(".pkl") and "_files" in name.split("/")[-1]]


def _d3il(locator: Any, local: Local, names: Names) -> list[str]:  # noqa: ANN401 - of any reader
    """The pickle of states, and the folder of that name below every camera."""
    file, images = local.name(locator[0]), local.name(locator[1])
    stem = Path(file).stem
    depth = len(images.split("/")) if images else 0
    pictures = [name for name in names.below(images) if name.split("/")[depth + 1 : depth + 2] == [stem]]
    return names.at(file) + [name for name in pictures if images]


def _lerobot_data(names: Names) -> list[str]:
    data = [name for name in names.below("data") if name.endswith(".parquet")]
    return sorted(data, key=lambda name: natural_key(name.split("/")[-1]))


def _lerobot_index(names: Names) -> list[str]:
    return [*names.below("meta"), *_lerobot_data(names)[:_SCHEMAS]]


class _LeRobotFiles:
    """Everything that bears an episode's number: rows, videos, pictures."""

    def __init__(self, names: Names) -> None:
        self._files: dict[int, list[str]] = {}
        for name in names.all:
            numbers = _LEROBOT_EPISODE.findall(name)
            if numbers and not name.startswith("meta/"):
                self._files.setdefault(int(numbers[-1]), []).append(name)

    def __call__(self, locator: Any, local: Local, _: Names) -> list[str]:  # noqa: ANN401 - of any reader
        return self._files.get(int(locator[0]), [])


def _lerobot_said(base: Path) -> Callable[[Any], str]:
    """What the metadata says of all episodes, and its line on this one: appended episodes change neither."""
    info = _read_json(base / "meta" / "info.json")
    lasting = {key: value for key, value in info.items() if not key.startswith("total_") and key != "splits"}
    texts = [base / "meta" / f"{name}s.{end}" for name in ("task", "subtask") for end in ("jsonl", "parquet")]
    digest = hashlib.sha256(json.dumps(lasting, sort_keys=True).encode())
    for path in texts:
        digest.update(path.read_bytes() if path.is_file() else b"")
    lines: dict[int, str] = {}
    path = base / "meta" / "episodes.jsonl"
    for line in path.read_text("utf-8", "replace").split("\n") if path.is_file() else ():
        if found := _EPISODE_INDEX.search(line):
            lines[int(found[1])] = lines.get(int(found[1]), "") + line
    return lambda locator: hashlib.sha256(f"{digest.hexdigest()} {lines.get(int(locator[0]), '')}".encode()).hexdigest()


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none that can be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
