"""Windows of a batch resolved to frames: one closed form for regular clocks, a search for measured ones."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.plan.anchors import episode_clock
from knonik_loader.plan.types import StreamWindow
from knonik_loader.plan.windows import Rounding, Window, frame_offsets, resolve_on_clock, resolve_regular

__all__ = ["WindowResolver"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Clocks in microseconds and offsets of a rate that are kept; more are computed again when they are needed.
_KEPT = 1024


class WindowResolver:
    """Turns episodes and anchors of a batch into the frames of every stream.

    Args:
        index: of the dataset.
        windows: batch key → window.
    """

    def __init__(self, index: DatasetIndex, windows: Mapping[str, Window]) -> None:
        self._index = index
        self._windows = dict(windows)
        # Offsets of all streams in one row: one search a measured episode, however many streams have them.
        deltas: list[int] = []
        self._slices: dict[str, slice] = {}
        for key, window in self._windows.items():
            if not window.chunk:
                self._slices[key] = slice(len(deltas), len(deltas) + len(window))
                deltas += window.deltas_us
        roundings: set[Rounding] = {window.rounding for window in windows.values() if not window.chunk}
        if len(roundings) > 1:
            raise ValueError(f"the windows of a plan share one rounding, got {sorted(roundings)}")
        self._timed = Window(0, tuple(deltas), *roundings)
        self._clock = functools.lru_cache(_KEPT)(functools.partial(episode_clock, index))
        self._offsets = functools.lru_cache(_KEPT)(functools.partial(frame_offsets, self._timed))

    def __reduce__(self) -> tuple[Any, ...]:
        """What is kept is not worth sending to another process."""
        return WindowResolver, (self._index, self._windows)

    def __call__(self, episodes: IntArray, anchors: IntArray) -> dict[str, StreamWindow]:
        """(B,) episode rows and (B,) anchor frames → batch key → frames and masks."""
        lengths = self._index.episodes.length[episodes]
        result = {
            key: StreamWindow(*resolve_regular(np.arange(window.chunk, dtype=np.int64), anchors, lengths))
            for key, window in self._windows.items()
            if window.chunk
        }
        if self._slices:
            frames, valid = self._resolve_timed(episodes, anchors, lengths)
            result |= {key: StreamWindow(frames[:, part], valid[:, part]) for key, part in self._slices.items()}
        return {key: result[key] for key in self._windows}

    def _resolve_timed(self, episodes: IntArray, anchors: IntArray, lengths: IntArray) -> tuple[IntArray, BoolArray]:
        """The offsets of all streams: (B, all offsets) frames and masks."""
        if not len(episodes):  # a batch of a mix may hold nothing of a dataset
            return np.zeros((0, len(self._timed)), np.int64), np.zeros((0, len(self._timed)), np.bool_)
        table = self._index.episodes
        rates, which = np.unique(table.fps[episodes], return_inverse=True)
        offsets = np.stack([self._offsets(float(rate)) for rate in rates])[which]  # (B, all offsets)
        frames, valid = resolve_regular(offsets, anchors, lengths)
        measured = np.flatnonzero(~table.regular[episodes])
        for row in np.unique(episodes[measured]).tolist():
            at = measured[episodes[measured] == row]
            frames[at], valid[at] = resolve_on_clock(self._clock(row), anchors[at], self._timed, float(table.fps[row]))
        return frames, valid
