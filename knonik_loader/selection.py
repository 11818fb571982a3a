"""Which episodes of a packed dataset: by split, by name, by task; and splits of one's own that leak nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import ConfigError, PlanError
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.splits import split_of
from knonik_loader.plan.sampler import rows_of_split
from knonik_loader.validation import nearest

__all__ = ["EpisodeSplits", "select_rows", "split_rows"]

IntArray = npt.NDArray[np.int64]
Episodes = Sequence[str | int]


def select_rows(
    index: DatasetIndex,
    *,
    split: str | None = None,
    episodes: Episodes | None = None,
    tasks: Sequence[str] | None = None,
) -> IntArray | None:
    """The episodes that fulfil every condition given.

    Args:
        index: of the dataset.
        split: one that it was packed with.
        episodes: ids (``episode_000003``), or row numbers, which batches of LeRobot's shape call ``episode_index``.
        tasks: instructions, word for word.

    Returns:
        (n,) ascending rows of the episode table; None: nothing was asked for, all episodes.

    Raises:
        ConfigError: an episode or task that the dataset doesn't have, or an episode that is there twice.
        PlanError: no episode fulfils all conditions.
    """
    rows = rows_of_split(index, split)
    if episodes is None and tasks is None:
        return rows
    keep = np.ones(len(index.episodes), bool)
    if rows is not None:
        keep[:] = False
        keep[rows] = True
    if episodes is not None:
        keep &= _mask(find_episodes(index, episodes, "episodes"), len(keep))
    if tasks is not None:
        keep &= _of_tasks(index, tasks)
    if not keep.any():
        given = {"split": split, "episodes": episodes, "tasks": tasks}
        asked = ", ".join(f"{name}={_short(value)}" for name, value in given.items() if value is not None)
        raise PlanError(f"no episode is left under {asked}; leave out one of these conditions")
    return np.flatnonzero(keep).astype(np.int64)


def find_episodes(index: DatasetIndex, episodes: Episodes, where: str) -> IntArray:
    """(n,) rows of the episodes named, in the order given.

    Raises:
        ConfigError: one that the dataset doesn't have, or that is there twice.
    """
    if isinstance(episodes, str | bytes):
        raise ConfigError(f"{where}: a list of episodes, got {episodes!r}; write [{episodes!r}]")
    names = index.episodes.episode_id
    place: Mapping[str, int] = {name: row for row, name in enumerate(names)}
    rows: list[int] = []
    for episode in episodes:
        if isinstance(episode, Integral) and not isinstance(episode, bool) and 0 <= int(episode) < len(names):
            rows.append(int(episode))
        elif isinstance(episode, str) and episode in place:
            rows.append(place[episode])
        else:
            hint = nearest(episode, names) if isinstance(episode, str) else ""
            raise ConfigError(
                f"{where}: the dataset has no episode {episode!r}{hint}; it has {len(names)}, {names[0]!r} (row 0) to "
                f"{names[-1]!r} (row {len(names) - 1})"
            )
    for row, count in Counter(rows).items():
        if count > 1:
            raise ConfigError(f"{where}: the episode {names[row]!r} is there {count} times; name it once")
    return np.array(rows, np.int64)


def _of_tasks(index: DatasetIndex, tasks: Sequence[str]) -> npt.NDArray[np.bool_]:
    if isinstance(tasks, str | bytes):
        raise ConfigError(f"tasks: a list of instructions, got {tasks!r}; write [{tasks!r}]")
    known = sorted(set(index.episodes.language))
    for task in tasks:
        if task not in known:
            listed = ", ".join(map(repr, filter(None, known))) or "none"
            raise ConfigError(
                f"tasks: no episode has the instruction {task!r}{nearest(str(task), known)}; there is {listed}"
            )
    return np.isin(np.asarray(index.episodes.language, dtype=object), list(tasks))


def _mask(rows: IntArray, length: int) -> npt.NDArray[np.bool_]:
    mask = np.zeros(length, bool)
    mask[rows] = True
    return mask


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class EpisodeSplits(Mapping[str, list[str]]):
    """Split → its episodes; ``tasks`` and ``str()`` say what is where."""

    episodes: Mapping[str, list[str]]
    """Split → episode ids, in the dataset's order."""
    frames: Mapping[str, int]
    """Split → frames."""
    tasks: Mapping[str, Mapping[str, int]]
    """Split → instruction → episodes; an empty instruction stands for episodes without one."""

    def __getitem__(self, name: str) -> list[str]:
        """The episodes of a split."""
        return self.episodes[name]

    def __iter__(self) -> Any:  # noqa: ANN401 - an iterator of names
        return iter(self.episodes)

    def __len__(self) -> int:
        """Splits."""
        return len(self.episodes)

    def __str__(self) -> str:
        """A line a split, with a line for each of its tasks below."""
        lines = []
        for name, episodes in self.episodes.items():
            lines.append(f"{name}: {len(episodes)} episodes, {self.frames[name]} frames")
            lines += [f"  {count} x {task or '(no instruction)'}" for task, count in sorted(self.tasks[name].items())]
        return "\n".join(lines)

    def unseen(self, split: str, train: str = "train") -> list[str]:
        """Tasks of a split that ``train`` doesn't have."""
        return sorted(set(self.tasks[split]) - set(self.tasks[train]))


def split_rows(
    index: DatasetIndex, splits: Mapping[str, float | Episodes | None] | None = None, seed: int = 0
) -> EpisodeSplits:
    """Divide the episodes, whole ones, so that no frame of a split has a neighbour in another.

    Args:
        index: of the dataset.
        splits: name → share of the episodes (the packer's rule: a hash of ``seed`` and the episode's source, so that
            nobody moves when episodes are added), or name → list of episodes, where None takes those that no list
            names. None: the splits that the dataset was packed with.
        seed: of the shares.

    Raises:
        ConfigError: shares and lists mixed, an unknown episode, or one in two splits.
        PlanError: a split without an episode.
    """
    table = index.episodes
    if splits is None:
        names = sorted({name for name in table.split if name})
        if not names:
            raise PlanError(
                "the dataset was packed without splits; give shares, {'train': 0.9, 'val': 0.1} for example"
            )
        rows = {name: np.flatnonzero(np.asarray(table.split) == name) for name in names}
    elif not isinstance(splits, Mapping):
        raise ConfigError(f"split_episodes: splits are a mapping of names to shares or lists, got {splits!r}")
    elif not splits:
        raise ConfigError("split_episodes: no split is named; give shares, {'train': 0.9, 'val': 0.1} for example")
    elif all(isinstance(value, Real) and not isinstance(value, bool) for value in splits.values()):
        rows = _by_share(index, splits, seed)  # type: ignore[arg-type]
    elif any(isinstance(value, Real) for value in splits.values()):
        raise ConfigError("split_episodes: give every split a share, or every split a list; None takes the rest")
    else:
        rows = _by_list(index, splits)  # type: ignore[arg-type]
    for name, some in rows.items():
        if not len(some):
            raise PlanError(
                f"the split {name!r} has no episode: shares are met on average, and {len(table)} episodes are few; "
                "name its episodes in a list, or take another seed"
            )
    return EpisodeSplits(
        episodes={name: [table.episode_id[row] for row in some] for name, some in rows.items()},
        frames={name: int(table.length[some].sum()) for name, some in rows.items()},
        tasks={name: dict(Counter(table.language[row] for row in some)) for name, some in rows.items()},
    )


def _by_share(index: DatasetIndex, shares: Mapping[str, float], seed: int) -> dict[str, IntArray]:
    bad = {name: share for name, share in shares.items() if not 0 <= share < float("inf")}
    if bad or not sum(shares.values()):
        raise ConfigError(f"split_episodes: shares are at least 0 and not all 0, got {dict(shares)}")
    names = np.asarray([split_of(seed, source, shares) for source in index.episodes.source_id])
    return {name: np.flatnonzero(names == name).astype(np.int64) for name in shares}


def _by_list(index: DatasetIndex, lists: Mapping[str, Episodes | None]) -> dict[str, IntArray]:
    open_ones = [name for name, value in lists.items() if value is None]
    if len(open_ones) > 1:
        raise ConfigError(f"split_episodes: only one split can take the rest, {open_ones} would; list one of them")
    owner: dict[int, str] = {}
    rows: dict[str, IntArray] = {}
    for name, value in lists.items():
        named = () if value is None else value
        rows[name] = np.sort(find_episodes(index, named, f"split_episodes[{name!r}]"))
        for row in rows[name].tolist():
            if row in owner:
                raise ConfigError(
                    f"split_episodes: {index.episodes.episode_id[row]!r} is in {owner[row]!r} and in {name!r}; an "
                    "episode belongs to one split"
                )
            owner[row] = name
    for name in open_ones:
        rows[name] = np.setdiff1d(np.arange(len(index.episodes)), list(owner)).astype(np.int64)
    return rows
