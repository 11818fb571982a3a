"""JPEGs that are to be stored as they are, checked on other threads while the ones before them are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, Future

from knonik_assets.episodes.video_sinks import checked_jpeg
from knonik_assets.sources.base import EncodedImage, Frame
from knonik_loader.errors import EpisodeError, KnonikError

__all__ = ["checked_ahead"]

_GROUP_BYTES = 256 << 10
_GROUP = 8
"""Pictures a task: a single one costs hardly more than handing it over."""

_Checked = tuple[list[Frame], EpisodeError | None]
"""The sound pictures of a group, and what is wrong with the one behind them."""


def checked_ahead(frames: Iterator[Frame], stream: str, pool: Executor, threads: int) -> Generator[Frame, None, None]:
    """The same frames in the same order, JPEGs among them as `CheckedJpeg`; what is raised comes where it belongs.

    At most ``2 * threads`` groups are held, each of 8 pictures or of as many as reach 256 KiB.

    Args:
        frames: of one colour stream, from its beginning.
        stream: its key in the output, for messages.
        pool: where the checks run; shared by streams.
        threads: how many of its threads to keep busy.

    Raises:
        EpisodeError: a damaged JPEG, behind all frames before it.
    """
    waiting: deque[Future[_Checked]] = deque()
    failure: KnonikError | OSError | None = None
    count, ended = 0, False
    try:
        while not ended or waiting:
            while not ended and len(waiting) < 2 * threads:
                group, failure, ended = _next_group(frames)
                if group:
                    waiting.append(pool.submit(_check, group, stream, count))
                    count += len(group)
            if waiting:
                good, error = waiting.popleft().result()
                yield from good
                if error is not None:
                    raise error
    finally:
        for task in waiting:
            task.cancel()
    if failure is not None:
        raise failure


def _next_group(frames: Iterator[Frame]) -> tuple[list[Frame], KnonikError | OSError | None, bool]:
    """Some frames, what the source raised behind them, and whether nothing comes after."""
    group: list[Frame] = []
    size = 0
    while len(group) < _GROUP and size < _GROUP_BYTES:
        try:
            frame = next(frames, None)
        except (KnonikError, OSError) as error:
            return group, error, True
        if frame is None:
            return group, None, True
        group.append(frame)
        size += len(frame.data) if isinstance(frame, EncodedImage) else frame.nbytes
    return group, None, False


def _check(group: list[Frame], stream: str, first: int) -> _Checked:
    good: list[Frame] = []
    for index, frame in enumerate(group, first):
        if isinstance(frame, EncodedImage) and frame.format == "jpeg":
            try:
                frame = checked_jpeg(frame, f"stream '{stream}', frame {index}")
            except EpisodeError as error:
                return good, error
        good.append(frame)
    return good, None
