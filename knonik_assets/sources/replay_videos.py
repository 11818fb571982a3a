"""Videos beside a replay buffer: recorded at the camera's rate, looked up at the time of every step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from knonik_assets.sources.arrays import Array
from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.trees import check_inside
from knonik_assets.sources.video_files import VideoIndex, decode_range, index_video
from knonik_loader.errors import EpisodeError
from knonik_loader.khlp.colour import Converter

__all__ = ["VideoArray", "camera_files", "cameras", "video_array"]


def _camera(stem: str) -> str:
    """A stream's name: recorders number the files."""
    return f"camera_{stem}" if stem.isdecimal() else stem


def camera_files(folder: Path, episode: int) -> dict[str, Path]:
    """Camera → video of one episode; empty where there is none.

    Raises:
        EpisodeError: a link leads out of the dataset.
    """
    found = sorted((folder / str(episode)).glob("*.mp4"), key=lambda path: natural_key(path.name))
    for path in found:
        check_inside(path, folder)
    return {_camera(path.stem): path for path in found}


def cameras(folder: Path) -> list[str]:
    """Every camera that any episode has."""
    return sorted({_camera(path.stem) for path in folder.glob("*/*.mp4")}, key=natural_key)


def video_array(
    path: Path, clock: npt.NDArray[np.float64] | None, length: int, fps: float | None, where: str, warnings: list[str]
) -> VideoArray:
    """The frames of a video that belong to an episode's steps: to each the nearest in time.

    A video begins with its episode, at the time of the first step.

    Args:
        path: of the video.
        clock: (T,) the steps' times in seconds.
        length: steps.
        fps: steps a second, used where there is no clock.
        where: for messages.
        warnings: added to.

    Raises:
        EpisodeError: the video is damaged, or there is nothing to align it by.
    """
    index = index_video(path)
    if index.declared and index.declared > len(index):
        raise EpisodeError(f"{path}: holds {len(index)} of the {index.declared} frames that it declares; truncated.")
    if clock is not None:
        times = clock - clock[0]
    elif fps is not None:
        times = np.arange(length) / fps
    else:
        raise EpisodeError(f"{path}: cannot be aligned with the steps: data/timestamp is missing or no clock; set fps.")
    if not len(index):
        raise EpisodeError(f"{path}: there is no frame in it.")
    if 2 * int((np.diff(times) <= 0).sum()) >= length > 1:
        raise EpisodeError(f"{where}: cannot be aligned: data/timestamp stands still or goes backwards.")
    ranks, seconds = nearest_ranks(index.seconds, times), index.seconds
    far = np.abs(seconds[ranks] - times) > max(1.5 * index.period, 1e-3)
    covered = int(np.flatnonzero(far)[0]) if far.any() else length
    if covered <= 1 < length:
        raise EpisodeError(
            f"{where}: cannot be aligned: the steps go on to {times[-1]:.6g} s, with the next at "
            f"{times[min(1, length - 1)]:.6g} s; the video has {len(index)} frames and ends at {seconds[-1]:.3f} s."
        )
    if far.any():
        warnings.append(
            f"{where}: the video has no frame near step {covered} ({times[covered]:.3f} s; it ends at "
            f"{seconds[-1]:.3f} s); the steps from there on are cut"
        )
    return VideoArray(index, ranks[:covered], where)


def nearest_ranks(frames: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Of each time the rank of the nearest frame; halfway the earlier one. (T,) from sorted (N,) and (T,) seconds."""
    right = np.clip(np.searchsorted(frames, times), 0, len(frames) - 1)
    left = np.maximum(right - 1, 0)
    # a nanosecond of slack: halves are not exact in binary
    return np.where(times - frames[left] <= frames[right] - times + 1e-9, left, right).astype(np.int64)


class VideoArray(Array):
    """Frames of a video by rank, in any order of ranks, decoded in one go where they rise."""

    def __init__(self, index: VideoIndex, ranks: npt.NDArray[np.int64], where: str) -> None:
        super().__init__(where, np.dtype(np.uint8), (len(ranks), index.height, index.width, 3), block=1)
        self._index, self._ranks = index, ranks

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`."""
        return np.stack(list(self._frames(self._ranks[start:stop])))

    def stream(self) -> Iterator[npt.NDArray[Any]]:
        """See `Array.stream`."""
        at = 0
        while at < len(self._ranks):  # a new start only where time goes backwards
            falls = np.flatnonzero(np.diff(self._ranks[at:]) < 0)
            stop = at + int(falls[0]) + 1 if falls.size else len(self._ranks)
            yield from self._frames(self._ranks[at:stop])
            at = stop

    def _frames(self, ranks: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
        converter = Converter()
        first = int(ranks[0])
        place = 0

        def emit(frame: av.VideoFrame) -> av.VideoFrame:
            return frame

        for rank, frame in enumerate(decode_range(self._index, first, int(ranks[-1]) + 1, emit), first):
            if ranks[place] != rank:
                continue
            picture = converter.to_rgb(frame)
            while place < len(ranks) and ranks[place] == rank:
                yield picture
                place += 1

    def hash_rows(self, digest: hashlib._Hash, start: int, stop: int) -> None:
        """See `Array.hash_rows`. The packets, and which of them."""
        ranks = self._ranks[start:stop]
        if len(ranks):
            digest.update(self._index.digest(int(ranks.min()), int(ranks.max()) + 1))
            digest.update((ranks - ranks.min()).tobytes())
