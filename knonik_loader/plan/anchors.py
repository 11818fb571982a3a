"""Which frames samples are built around, counted per episode and numbered through, so that a number finds its frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import PlanError
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.plan.windows import Window, clock_us, frame_offsets, resolve_on_clock

__all__ = ["AnchorTable", "build_anchors", "episode_clock"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class AnchorTable:
    """All anchors of a dataset, in the order of episodes and frames; anchor ids count through them.

    Where anchors of an episode are evenly spaced (always, but for measured clocks with gaps) only the first one and
    their number are stored.
    """

    episodes: IntArray
    """(E',) rows of the episodes that have anchors, ascending."""
    first: IntArray
    """(E',) frame of each episode's first anchor."""
    counts: IntArray
    """(E',) anchors of each episode."""
    stride: int
    """Frames between anchors of evenly spaced episodes."""
    uneven: Mapping[int, IntArray]
    """Position in ``episodes`` → all its anchor frames, for episodes whose clock has gaps."""

    _ends: IntArray = field(init=False, repr=False)
    _is_uneven: BoolArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        uneven = np.zeros(len(self.counts), bool)
        uneven[list(self.uneven)] = True
        object.__setattr__(self, "_ends", np.cumsum(self.counts, dtype=np.int64))
        object.__setattr__(self, "_is_uneven", uneven)

    def __len__(self) -> int:
        """Anchors in all."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def lookup(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """(n,) anchor ids → (n,) episode rows and (n,) frames."""
        at = np.searchsorted(self._ends, ids, side="right")
        rank = ids - (self._ends[at] - self.counts[at])
        return self.episodes[at], self.frames(at, rank)

    def frames(self, at: IntArray, rank: IntArray) -> IntArray:
        """(n,) positions in ``episodes`` and (n,) anchor numbers inside the episode → (n,) frames."""
        frames = self.first[at] + rank * self.stride
        for row in np.flatnonzero(self._is_uneven[at]):
            frames[row] = self.uneven[int(at[row])][rank[row]]
        return frames

    def ranks(self, at: IntArray, frames: IntArray) -> IntArray:
        """(n,) positions in ``episodes`` and (n,) frames → (n,) anchors of the episode before that frame."""
        ranks: IntArray = np.clip(-(-(frames - self.first[at]) // self.stride), 0, self.counts[at])
        for row in np.flatnonzero(self._is_uneven[at]):
            ranks[row] = np.searchsorted(self.uneven[int(at[row])], frames[row])
        return ranks

    def subset(self, keep: BoolArray) -> AnchorTable:
        """The anchors of some of the episodes; ``keep`` is (E',)."""
        old = np.flatnonzero(keep)
        place = {int(row): new for new, row in enumerate(old) if self._is_uneven[row]}
        return AnchorTable(
            episodes=self.episodes[old],
            first=self.first[old],
            counts=self.counts[old],
            stride=self.stride,
            uneven={new: self.uneven[row] for row, new in place.items()},
        )


def episode_clock(index: DatasetIndex, row: int) -> IntArray:
    """(T,) microseconds since the first frame, of an episode whose clock is not regular.

    Raises:
        PlanError: the clock runs backwards somewhere.
    """
    clock = clock_us(index.clocks[row])
    if np.any(np.diff(clock) < 0):
        frame = int(np.flatnonzero(np.diff(clock) < 0)[0]) + 1
        raise PlanError(
            f"the clock of episode {index.episodes.episode_id[row]!r} runs backwards at frame {frame}, so offsets in "
            "delta_timestamps have no meaning there; repair and pack the episode again, or leave it out of the pack"
        )
    return clock


def build_anchors(
    index: DatasetIndex,
    windows: Mapping[str, Window],
    *,
    pad_missing: bool,
    stride: int,
    rows: IntArray | None = None,
) -> AnchorTable:
    """Find every anchor.

    Args:
        index: of the packed dataset.
        windows: batch key → window of every stream that is loaded.
        pad_missing: True: every frame can be an anchor; False: only those whose windows are there whole.
        stride: frames between anchors of an episode, counted from its first possible one.
        rows: (n,) the episodes to take, ascending; None: all.

    Raises:
        PlanError: no episode is long enough for the windows.
    """
    if rows is None:
        rows = np.arange(len(index.episodes), dtype=np.int64)
    lengths = index.episodes.length[rows].astype(np.int64)
    uneven: dict[int, IntArray] = {}
    if pad_missing:
        first, stop = np.zeros(len(rows), np.int64), lengths
    else:
        first, stop = _whole_windows(lengths, index.episodes.fps[rows], windows)
        if any(window.deltas_us for window in windows.values()):
            for at in np.flatnonzero(~index.episodes.regular[rows]).tolist():
                row = int(rows[at])
                frames = _scan(episode_clock(index, row), windows, float(index.episodes.fps[row]), stride)
                first[at], stop[at] = (frames[0], frames[-1] + 1) if len(frames) else (0, 0)
                if np.any(np.diff(frames) != stride):
                    uneven[at] = frames
    counts = np.maximum(0, -(-(stop - first) // stride))
    for at, frames in uneven.items():
        counts[at] = len(frames)
    table = AnchorTable(rows, first, counts, stride, uneven).subset(counts > 0)
    if not len(table):
        raise _nothing_fits(lengths, windows, float(index.episodes.fps[rows].min(initial=1e6)))
    return table


def _whole_windows(
    lengths: IntArray, rates: npt.NDArray[np.float64], windows: Mapping[str, Window]
) -> tuple[IntArray, IntArray]:
    """(E,) lengths and frame rates → (E,) first anchor and (E,) end of the anchors, on regular clocks."""
    first, stop = np.zeros_like(lengths), lengths.copy()
    for rate in np.unique(rates):
        # The anchor itself may lie outside every window, not outside the episode.
        needed = [0]
        for window in windows.values():
            offsets = frame_offsets(window, float(rate))
            needed += [int(offsets.min()), int(offsets.max())]
        rows = rates == rate
        first[rows], stop[rows] = -min(needed), lengths[rows] - max(needed)
    return first, stop


def _scan(clock: IntArray, windows: Mapping[str, Window], fps: float, stride: int) -> IntArray:
    """(T,) microseconds → the anchors of one episode, each window of which is there whole."""
    anchors = np.arange(len(clock), dtype=np.int64)
    whole = np.ones(len(clock), bool)
    for window in windows.values():
        if window.chunk:
            whole &= anchors + window.chunk <= len(clock)
        # One offset at a time: a window of many frames over a long episode would be a large table.
        for delta in window.deltas_us:
            whole &= resolve_on_clock(clock, anchors, Window(0, (delta,), window.rounding), fps)[1][:, 0]
    frames: IntArray = np.flatnonzero(whole).astype(np.int64)
    on_grid: BoolArray = (frames - frames[:1]) % stride == 0
    return frames[on_grid]


def _nothing_fits(lengths: IntArray, windows: Mapping[str, Window], fps: float) -> PlanError:
    if not len(lengths) or not lengths.max():
        return PlanError("the dataset holds no frames to sample from")
    spans = {key: frame_offsets(window, fps) for key, window in windows.items()}
    key = max(spans, key=lambda name: max(0, int(spans[name].max())) - min(0, int(spans[name].min())))
    low, high = min(0, int(spans[key].min())), max(0, int(spans[key].max()))
    longest = int(lengths.max())
    what = f"chunk_len={windows[key].chunk}" if windows[key].chunk else f"delta_timestamps[{key!r}]"
    change = f"a chunk_len of at most {longest}" if windows[key].chunk else "offsets that reach less far"
    return PlanError(
        f"no sample fits: {what} needs frames {low:+d} to {high:+d} around an anchor, the longest episode has "
        f"{longest}; use {change}, or pad_missing=true"
    )
