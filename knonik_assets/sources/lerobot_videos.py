"""Where one camera's frames of one episode are, in video files that hold many episodes.

The metadata's file and time are believed only when they fit the file: every episode that is said to be in it finds its
own frames, none twice, none left over. Otherwise the frames are counted: episodes follow each other in the files, each
with as many frames as it has rows. When neither fits, the episode is refused; a neighbouring frame is never taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from knonik_assets.sources.lerobot_meta import VideoHint
from knonik_assets.sources.trees import check_inside
from knonik_assets.sources.video_files import VideoIndex, index_video
from knonik_loader.errors import EpisodeError

__all__ = ["Camera", "CameraMap", "OneFile", "Place"]

FileKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Frames ``[start, start + rows)`` of a file."""

    index: VideoIndex
    start: int
    warning: str | None = None
    own_file: bool = False
    """The file holds the frames of this episode and no others, one a row."""


class Camera(Protocol):
    """Finds the frames of one camera."""

    def locate(self, episode: int) -> Place:
        """The frames of an episode.

        Raises:
            EpisodeError: they are missing, or can't be told from others.
        """
        ...


@dataclass(frozen=True, slots=True)
class OneFile:
    """A camera of one episode whose frames have a file to themselves."""

    key: str
    path: Path | None
    """None where it isn't on disk."""
    named: str
    """The file's name, for messages."""
    rows: int
    first_time: float | None = None
    """Timestamp of the first row."""

    def locate(self, episode: int) -> Place:
        """See `Camera.locate`. Where frames belong to no row, the first row's time tells which."""
        if self.path is None:
            raise EpisodeError(
                f"episode {episode}: {self.named} is missing (a partial download?); fetch it, or list only the cameras "
                "that are there in layout.images."
            )
        index = index_video(self.path)
        spare = len(index) - self.rows
        warning = f"{self.key}: {spare} frames of {file_name(index)} belong to no row" if spare > 0 else None
        start = self._start(index, episode) if spare > 0 else 0
        return Place(index, start, warning, own_file=spare == 0)

    def _start(self, index: VideoIndex, episode: int) -> int:
        """Rank of the first row's frame. Rows' times count from the file's zero, or from its first frame."""
        if self.first_time is None:
            return 0
        found = {
            nearest_rank(index, base + self.first_time) for base in dict.fromkeys((0.0, float(index.seconds[0])))
        } - {None}
        if len(found) != 1:
            what = "more than one frame" if found else "none"
            raise EpisodeError(
                f"episode {episode}: {file_name(index)} has {len(index)} frames for {self.rows} rows, {what} at the "
                f"first row's time of {self.first_time:.4f} s, so which belong to which row can't be told."
            )
        return found.pop() or 0


@dataclass(slots=True)
class CameraMap:
    """Finds the frames of one camera."""

    key: str
    files: Mapping[FileKey, Path]
    hints: Mapping[int, VideoHint]
    rows: Mapping[int, int]
    """Rows of every episode of the dataset."""
    first_time: Mapping[int, float]
    """Timestamp of each episode's first row."""
    named: Callable[[FileKey], str]
    """A file's name, for messages about ones that aren't there."""
    root: Path
    """The dataset, which no link may lead out of."""
    _solved: dict[FileKey, dict[int, Place | str]] = field(default_factory=dict)
    _tiling: dict[int, tuple[Path, int]] | None = None
    _tiled: bool = False

    def missing(self) -> list[str]:
        """Files that the metadata names and that aren't on disk."""
        wanted = {hint.file for hint in self.hints.values() if hint.file is not None}
        return [self.named(file) for file in sorted(wanted - set(self.files))]

    def locate(self, episode: int) -> Place:
        """The frames of an episode.

        Raises:
            EpisodeError: they are missing, or can't be told from others.
        """
        hint = self.hints.get(episode, VideoHint(None, None, None))
        problem = f"the metadata names no file of {self.key} for it"
        if not self.files:
            problem = f"there is no video of {self.key}; list only the cameras that are there in layout.images"
        if hint.file is not None and hint.file not in self.files:
            problem = (
                f"{self.named(hint.file)} is missing (a partial download?); fetch it, or list only the cameras that "
                "are there in layout.images"
            )
        elif hint.file is not None:
            if hint.file not in self._solved:
                self._solved[hint.file] = self._solve(hint.file)
            found = self._solved[hint.file][episode]
            if isinstance(found, Place):
                return found
            problem = found
        counted = self._count().get(episode)
        if counted is None:
            raise EpisodeError(f"episode {episode}: {problem}.")
        path, start = counted
        warning = f"{self.key}: the metadata is wrong ({problem}); found by counting frames instead, in {path.name}"
        return Place(self._index(path), start, warning)

    def _index(self, path: Path) -> VideoIndex:
        check_inside(path, self.root)
        return index_video(path)

    def _solve(self, file: FileKey) -> dict[int, Place | str]:
        """Places, or what is wrong, of all episodes that the metadata puts into one file."""
        index = self._index(self.files[file])
        group = [episode for episode in sorted(self.rows) if self._hint_file(episode) == file]
        for base in dict.fromkeys((0.0, float(index.seconds[0]) if len(index) else 0.0)):
            starts = self._starts(index, group, base)
            for claims in (self._by_rows(group), self._by_times(index, group)):
                if _tiles(starts, claims, len(index)):
                    return {
                        episode: Place(index, starts[episode])
                        if self.rows[episode] <= claims[episode]
                        else f"{file_name(index)} has {claims[episode]} frames for its {self.rows[episode]} rows"
                        for episode in group
                    }
        if sum(self.rows[episode] for episode in group) == len(index):
            return self._in_order(index, group)
        return self._one_by_one(index, group)

    def _hint_file(self, episode: int) -> FileKey | None:
        hint = self.hints.get(episode)
        return None if hint is None else hint.file

    def _by_rows(self, group: list[int]) -> dict[int, int]:
        return {episode: self.rows[episode] for episode in group}

    def _by_times(self, index: VideoIndex, group: list[int]) -> dict[int, int]:
        """Frames that the metadata's own intervals hold, where the recorder's videos and rows differ in number."""
        claims = {}
        for episode in group:
            hint = self.hints[episode]
            span = (hint.stop or 0.0) - (hint.start or 0.0)
            claims[episode] = round(span / index.period) if index.period and span > 0 else self.rows[episode]
        return claims

    def _starts(self, index: VideoIndex, group: list[int], base: float) -> dict[int, int]:
        """Rank of each episode's first frame by the metadata's time; episodes whose time hits no frame are left out."""
        starts: dict[int, int] = {}
        for episode in group:
            start = self.hints[episode].start
            if start is None:
                continue
            wanted = base + start + self.first_time.get(episode, 0.0)
            near = nearest_rank(index, wanted)
            if near is not None:
                starts[episode] = near
        return starts

    def _in_order(self, index: VideoIndex, group: list[int]) -> dict[int, Place | str]:
        """The file holds exactly its episodes' rows, but the times are wrong: count."""
        by_time = sorted(group, key=lambda episode: (self.hints[episode].start or 0.0, episode))
        stated = self._starts(index, group, 0.0)
        counted = [self._cumulative(order) for order in (group, by_time)]
        # One wrong time mustn't move the others: the order that contradicts fewer times is the file's.
        starts = max(counted, key=lambda starts: sum(stated.get(episode) == at for episode, at in starts.items()))
        warning = f"{self.key}: from_timestamp doesn't fit {file_name(index)}; frames were counted instead"
        return {episode: Place(index, at, warning) for episode, at in starts.items()}

    def _cumulative(self, order: list[int]) -> dict[int, int]:
        starts, at = {}, 0
        for episode in order:
            starts[episode] = at
            at += self.rows[episode]
        return starts

    def _one_by_one(self, index: VideoIndex, group: list[int]) -> dict[int, Place | str]:
        """The file's frames and its episodes' rows differ in number: take what is beyond doubt."""
        starts = self._starts(index, group, 0.0)
        total = sum(self.rows[episode] for episode in starts)
        name, frames = file_name(index), len(index)
        cut_off = index.declared > frames
        places: dict[int, Place | str] = {}
        for episode in group:
            start, count = starts.get(episode), self.rows[episode]
            shared = [
                other
                for other, begin in starts.items()
                if start is not None and other != episode and begin < start + count and start < begin + self.rows[other]
            ]
            if start is None:
                places[episode] = f"{name} has no frame at its from_timestamp {self.hints[episode].start}"
            elif start + count > frames:
                places[episode] = f"{name} ends after {frames} frames, it needs {start} to {start + count}"
            elif shared:
                places[episode] = f"the metadata gives the same frames of {name} to episodes {episode} and {shared[0]}"
            elif total > frames and not cut_off:
                places[episode] = (
                    f"{name} has {frames} frames for {total} rows of its episodes; frames are missing somewhere, so "
                    "which belong to which row can't be told"
                )
            else:
                spare = (
                    f"{self.key}: {frames - total} frames of {name} belong to no episode" if total < frames else None
                )
                places[episode] = Place(index, start, spare)
        return places

    def _count(self) -> dict[int, tuple[Path, int]]:
        """All episodes over all files in order, where that comes out even at the end of every file; else nothing."""
        if not self._tiled:
            self._tiled = True
            self._tiling = self._tile()
        return self._tiling or {}

    def _tile(self) -> dict[int, tuple[Path, int]] | None:
        left = sorted(self.rows, reverse=True)
        tiling: dict[int, tuple[Path, int]] = {}
        for path in self.files.values():
            try:
                frames = len(self._index(path))
            except EpisodeError:
                return None
            at = 0
            while at < frames and left:
                episode = left.pop()
                tiling[episode] = (path, at)
                at += self.rows[episode]
            if at != frames:
                return None
        return None if left else tiling


def nearest_rank(index: VideoIndex, wanted: float) -> int | None:
    """The frame that is shown at a time, seconds; None where none is within half a frame of it."""
    seconds = index.seconds
    if not len(seconds):
        return None
    right = int(np.searchsorted(seconds, wanted))
    near = min((r for r in (right - 1, right) if 0 <= r < len(seconds)), key=lambda r: abs(seconds[r] - wanted))
    return near if abs(seconds[near] - wanted) < max(index.period, 1e-3) / 2 else None


def file_name(index: VideoIndex) -> str:
    """The end of a video's path that tells it from its siblings."""
    return "/".join(index.path.parts[-3:])


def _tiles(starts: Mapping[int, int], claims: Mapping[int, int], frames: int) -> bool:
    """Whether claims from these starts cover every frame exactly once."""
    if len(starts) != len(claims):
        return False
    at = 0
    for episode in sorted(starts, key=lambda episode: (starts[episode], claims[episode])):
        if starts[episode] != at:
            return False
        at += claims[episode]
    return at == frames
