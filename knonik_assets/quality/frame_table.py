"""The frame table: one row a frame, and one a sampled picture, of what measuring an episode sees anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.quality.examine import EpisodeRow

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FRAME_COLUMNS", "FrameFacts", "frame_facts", "frame_table"]

FRAME_COLUMNS = ("episode", "stream", "frame", "time", "step", "not_finite", "luma", "still", "white")
"""Columns of the frame table; ``stream`` is empty in the rows of frames and names the camera in those of pictures."""

_MOST_TOLD = 50
"""Frames of an episode whose numbers that are none are told of one by one."""


@dataclass(frozen=True)
class FrameFacts:
    """The frame table of one episode, as columns."""

    time: npt.NDArray[np.float64]
    """(T,) seconds, the episode's clock."""
    step: npt.NDArray[np.float64]
    """(T,) frame periods since the frame before; NaN for the first, 0 where the clock is no number."""
    not_finite: npt.NDArray[np.float64]
    """(T,) NaN and infinite values of the frame, over all numeric streams."""
    pictures: dict[str, list[list[float]]] = field(default_factory=dict)
    """Camera → frame, luma, still, white of its sampled pictures, as in `EpisodeRow.pictures`."""
    told: dict[int, str] = field(default_factory=dict)
    """Frame → which of its numbers are none, of the first such frames."""

    def __len__(self) -> int:
        return len(self.time) + sum(map(len, self.pictures.values()))


def frame_facts(path: Path, row: EpisodeRow) -> FrameFacts | None:
    """The frame table of an episode that was measured: its clock and numbers are read, and no picture is decoded.

    Args:
        path: of the episode; ``frame_time`` and the numeric streams have to be there.
        row: what was measured.

    Returns:
        None where the episode is damaged and has no frames to speak of.

    Raises:
        EpisodeError: it can't be read.
        StorageError: it can't be read now.
    """
    if row.damaged_files:
        return None
    reader = EpisodeReader(path)
    times = reader.frame_time()
    step = np.full(len(times), np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        step[1:] = np.diff(times) * reader.metadata.fps
    step[1:][np.isnan(step[1:])] = 0
    count = np.zeros(reader.length)
    told: dict[int, str] = {}
    for name in reader.metadata.numeric_streams:
        numbers = reader.numeric(name)
        bad = ~np.isfinite(numbers)  # (T, D)
        count += bad.sum(axis=1)
        for frame in np.flatnonzero(bad.any(axis=1))[:_MOST_TOLD]:
            channels = np.flatnonzero(bad[frame])
            words = f"{name}: {_named(channels)} {numbers[frame, channels[0]]}"
            told[int(frame)] = f"{told[int(frame)]}; {words}" if int(frame) in told else words
    return FrameFacts(times, step, count, row.pictures, told)


def _named(channels: npt.NDArray[np.intp]) -> str:
    """The first few channels, as the subject of what is wrong with them."""
    listed = ", ".join(map(str, channels[:5])) + (f" and {len(channels) - 5} more" if len(channels) > 5 else "")
    return f"channel {listed} is" if len(channels) == 1 else f"channels {listed} are"


def frame_table(episodes: Sequence[tuple[str, FrameFacts]]) -> pd.DataFrame:
    """The rows of some episodes one after another, as a data frame; NaN where a row has no such value."""
    import pandas as pd

    columns: dict[str, list[Any]] = {name: [] for name in FRAME_COLUMNS}
    for name, facts in episodes:
        pictures = [(stream, *each) for stream, sampled in facts.pictures.items() for each in sampled]
        values = np.array([each[1:] for each in pictures], np.float64).reshape(len(pictures), 4)
        none, blank = np.full(len(facts.time), np.nan), np.full(len(pictures), np.nan)
        columns["episode"].append(np.full(len(facts), name, object))
        columns["stream"].append(np.array([""] * len(facts.time) + [each[0] for each in pictures], object))
        columns["frame"].append(np.concatenate([np.arange(len(facts.time)), values[:, 0].astype(np.int64)]))
        for column in ("time", "step", "not_finite"):
            columns[column].append(np.concatenate([getattr(facts, column), blank]))
        for number, column in enumerate(("luma", "still", "white"), 1):
            columns[column].append(np.concatenate([none, values[:, number]]))
    return pd.DataFrame({name: np.concatenate(parts) for name, parts in columns.items()} if episodes else columns)
