"""CALVIN's own tree: one archive a step, an index of where episodes begin and end, language for parts of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.array_episode import ArrayEpisode, Traits
from knonik_assets.sources.arrays import DictTree
from knonik_assets.sources.base import EpisodeRef, FingerprintCache, Language
from knonik_assets.sources.calvin_steps import Steps, step_arrays
from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.npy_arrays import npy_file, reading, whole_file
from knonik_assets.sources.safe_pickle import load_pickle
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["CalvinSource"]

_FPS = 30.0
_INDEX = "ep_start_end_ids.npy"
_SPLITS = ("training", "validation")
_STEP = re.compile(r"episode_(\d+)\.npz")
_LANGUAGE = "auto_lang_ann.npy"
_POSE = ("x", "y", "z", "euler_x", "euler_y", "euler_z")
_JOINTS = tuple(f"joint_{place}" for place in range(7))
_CHANNELS = {
    "actions": (*_POSE, "gripper"),
    "rel_actions": (*_POSE, "gripper"),
    "robot_obs": (*_POSE, "gripper_width", *_JOINTS, "gripper"),
}


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of the recording that has a description; both ends belong to it."""

    first: int
    last: int
    text: str


class CalvinSource:
    """The episodes of a split (``training``, ``validation``), or of both where the root holds them."""

    format = "calvin"

    def __init__(self, config: IngestConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.warnings: list[str] = []
        self._windows: dict[str, tuple[_Window, ...]] = {}

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`. An episode is named by its first and last step."""
        self.warnings = []
        if not self.root.is_dir():
            raise SourceError(f"{self.root}: there is no such folder.")
        splits = [name for name in _SPLITS if (self.root / name).is_dir()]
        if (self.root / _INDEX).exists() or not splits:
            return self._split(self.root, "")
        return [ref for name in splits for ref in self._split(self.root / name, f"{name}/")]

    def _split(self, folder: Path, prefix: str) -> list[EpisodeRef]:
        if not (folder / _INDEX).exists():
            steps = [path.name for path in folder.glob("episode_*.npz") if _STEP.fullmatch(path.name)]
            what = f"its {len(steps)} files are single steps, and which of them make an episode" if steps else "no step"
            tail = "is not known without it" if steps else "file is there either"
            raise SourceError(f"{folder}: {_INDEX} is missing: {what} {tail}; it is part of every CALVIN download.")
        try:
            index = npy_file(folder / _INDEX, str(folder / _INDEX))
            if index.ndim != 2 or index.shape[1] != 2 or index.dtype.kind not in "iu":
                raise SourceError(
                    f"{folder / _INDEX}: {index.dtype} of shape {index.shape}; wanted integers of (N, 2)."
                )
            ends = index.rows(0, index.shape[0]).astype(np.int64)
        except EpisodeError as error:
            raise SourceError(str(error)) from error
        if (ends[:, 1] < ends[:, 0]).any() or (ends < 0).any():
            wrong = ends[(ends[:, 1] < ends[:, 0]) | (ends < 0).any(1)][0]
            raise SourceError(f"{folder / _INDEX}: an episode from {wrong[0]} to {wrong[1]}; it is damaged.")
        spans = sorted({(int(first), int(last)) for first, last in ends})
        if len(spans) < len(ends):
            self.warnings.append(f"{folder / _INDEX}: {len(ends) - len(spans)} episodes are listed twice")
        if not spans:
            raise SourceError(f"{folder / _INDEX}: no episode is in it.")
        if not self._language_file(folder).exists():
            self.warnings.append(f"{folder}: no lang_annotations/{_LANGUAGE}: its episodes have no instruction")
        if not any(folder.glob("episode_*.npz")) and any(folder.glob("episode_*.pkl")):
            raise SourceError(
                f"{folder}: its steps are pickles (save_format: pkl), which would run code; write them as .npz files."
            )
        width = _digits(folder)
        return [
            EpisodeRef(f"{prefix}{first:0{width}d}-{last:0{width}d}", (str(folder), first, last))
            for first, last in spans
        ]

    def _language_file(self, folder: Path) -> Path:
        """In a folder of its own, or as older releases have it, beside the steps."""
        places = [folder / "lang_annotations" / _LANGUAGE, folder / _LANGUAGE]
        others = sorted(folder.glob(f"lang_*/{_LANGUAGE}"), key=lambda path: natural_key(path.parent.name))
        return next((path for path in [*places, *others] if path.exists()), places[0])

    def _described(self, folder: Path, warnings: list[str]) -> tuple[_Window, ...]:
        key = str(folder)
        if key not in self._windows:
            path = self._language_file(folder)
            try:
                self._windows[key] = _windows(path) if path.exists() else ()
            except EpisodeError as error:
                warnings.append(f"{error} Its episodes have no instruction.")
                return ()
        return self._windows[key]

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`."""
        path, first, last = ref.locator
        folder = Path(path)
        said = _language(self._described(folder, []), first, last)
        steps = Steps(folder, _digits(folder), first, last)
        try:
            digest = steps.digest()
        except EpisodeError:
            steps.check()  # says how many are missing
            raise
        return hashlib.sha256(f"{digest}{said}".encode()).hexdigest()

    def open(self, ref: EpisodeRef) -> ArrayEpisode:
        """See `Source.open`."""
        path, first, last = ref.locator
        folder = Path(path)
        where = f"{folder}, steps {first} to {last}"
        steps = Steps(folder, _digits(folder), first, last)
        steps.check()
        warnings: list[str] = []
        said = _language(self._described(folder, warnings), first, last)
        traits = Traits(
            fps=_FPS,
            language=said,
            roles={"actions": "action", "robot_obs": "state"},
            channel_names=_CHANNELS,
        )
        episode = ArrayEpisode(self.config, DictTree(step_arrays(steps, where)), traits, where, steps.close)
        episode.facts.warnings += warnings
        return episode


def _digits(folder: Path) -> int:
    """How many digits step numbers are written with; 7 where there is no step."""
    for path in folder.iterdir():
        found = _STEP.fullmatch(path.name)
        if found is not None:
            return len(found[1])
    return 7


def _windows(path: Path) -> tuple[_Window, ...]:
    """The descriptions of a split: NumPy's file of one pickled dict, which is read without running anything in it.

    Raises:
        EpisodeError: damaged, or not what it should be.
    """
    where = str(path)
    with reading(where):
        data = whole_file(path)
    header = npy_file(path, where)
    found = load_pickle(data[header.begin :], where)
    found = found.item() if isinstance(found, np.ndarray) and found.size == 1 else found
    try:
        texts, spans = found["language"]["ann"], found["info"]["indx"]
        pairs = [(int(first), int(last)) for first, last in spans]
        count = len(texts)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise EpisodeError(f"{where}: no language annotations of CALVIN's: {type(error).__name__}: {error}.") from error
    if len(pairs) != count:
        raise EpisodeError(f"{where}: {count} texts for {len(pairs)} windows.")
    for text in texts:
        if not isinstance(text, str):
            raise EpisodeError(f"{where}: a description is {str(text)[:80]!r}, a {type(text).__name__}; wanted text.")
    return tuple(_Window(first, last, str(text)) for (first, last), text in zip(pairs, texts, strict=True))


def _language(windows: Iterable[_Window], first: int, last: int) -> Language | None:
    """What is said of an episode: its only text, or the parts that have one."""
    own = sorted(
        (window for window in windows if window.first <= last and window.last >= first and window.text.strip()),
        key=lambda window: (window.first, window.last),
    )
    if not own:
        return None
    segments = tuple(
        ((max(window.first, first) - first) / _FPS, (min(window.last, last) - first) / _FPS, window.text.strip())
        for window in own
    )
    return Language(segments[0][2], segments=segments)
