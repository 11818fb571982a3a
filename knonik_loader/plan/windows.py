"""Which frames a sample holds: contiguous chunks, and offsets in seconds resolved on the episode's own clock.

Times are integer microseconds since the episode's first frame. Each of them carries up to half a microsecond of
rounding, so comparisons allow for it: a frame within `SLACK_US` of what was asked is hit in every rounding mode, and
what is half a frame away within rounding counts as exactly half, whatever the anchor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "SLACK_US",
    "Rounding",
    "Window",
    "clock_us",
    "frame_offsets",
    "resolve_on_clock",
    "resolve_regular",
    "windows_for",
]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Rounding = Literal["nearest", "floor", "ceil"]

SLACK_US = 2
"""Anchor, offset and frame are each rounded to a microsecond: up to 1.5 us between what is meant and what is seen."""
_TIE_US = 3
# Twice the target minus both neighbours: 2 x 0.5 + 2 x 0.5 + 0.5 + 0.5 us of rounding.


@dataclass(frozen=True, slots=True)
class Window:
    """What one stream holds around an anchor.

    Either ``chunk`` contiguous frames from the anchor on, or one frame for each of ``deltas_us``.
    """

    chunk: int
    """Frames of a contiguous window; 0 when the window is made of offsets."""
    deltas_us: tuple[int, ...] = ()
    """Offsets in microseconds from the anchor's time."""
    rounding: Rounding = "nearest"

    def __len__(self) -> int:
        """Frames in the window."""
        return self.chunk or len(self.deltas_us)

    @classmethod
    def contiguous(cls, frames: int) -> Window:
        """The anchor and the frames after it."""
        return cls(chunk=frames)

    @classmethod
    def at_offsets(cls, seconds: Sequence[float], rounding: Rounding = "nearest") -> Window:
        """The frames at offsets in seconds from the anchor."""
        return cls(chunk=0, deltas_us=tuple(round(value * 1e6) for value in seconds), rounding=rounding)


def windows_for(
    keys: Sequence[str], chunk_len: int, deltas: Mapping[str, Sequence[float]], rounding: Rounding
) -> dict[str, Window]:
    """Batch key → window: offsets for the streams that ``deltas`` lists, a chunk for the others."""
    return {
        key: Window.at_offsets(deltas[key], rounding) if key in deltas else Window.contiguous(chunk_len) for key in keys
    }


def clock_us(times: npt.NDArray[np.float64]) -> IntArray:
    """(T,) seconds → (T,) integer microseconds since the first frame."""
    return np.rint((times - times[:1]) * 1e6).astype(np.int64)


def frame_offsets(window: Window, fps: float) -> IntArray:
    """(T,) whole frames from the anchor, which on a regular clock are the same for every anchor."""
    if window.chunk:
        return np.arange(window.chunk, dtype=np.int64)
    period = Fraction(1_000_000) / Fraction(fps)
    return np.array([_regular_offset(delta, period, window.rounding) for delta in window.deltas_us], np.int64)


def _regular_offset(delta: int, period: Fraction, rounding: Rounding) -> int:
    if rounding == "floor":
        return math.floor((delta + SLACK_US) / period)
    if rounding == "ceil":
        return math.ceil((delta - SLACK_US) / period)
    below = math.floor(delta / period)
    return below + (2 * delta - (2 * below + 1) * period > _TIE_US)


def resolve_regular(offsets: IntArray, anchors: IntArray, lengths: IntArray) -> tuple[IntArray, BoolArray]:
    """Frames of windows on regular clocks, or of contiguous windows on any.

    Args:
        offsets: (T,) frames from the anchor, or (B, T) where episodes differ in rate.
        anchors: (B,) frame inside each episode.
        lengths: (B,) frames of each episode.

    Returns:
        (B, T) frames clamped to the episode, and (B, T) whether the frame is the one asked for.
    """
    wanted = anchors[:, None] + offsets  # (B, T)
    frames = np.clip(wanted, 0, lengths[:, None] - 1)
    return frames, frames == wanted


def resolve_on_clock(clock: IntArray, anchors: IntArray, window: Window, fps: float) -> tuple[IntArray, BoolArray]:
    """Frames of windows on an episode's measured clock.

    The clock goes on at the nominal rate beyond both ends; what would be taken there is clamped and not valid. Neither
    is a frame further than one frame period from what was asked: the clock has a gap where the asked one should be.

    Args:
        clock: (T_e,) microseconds since the episode's first frame, ascending.
        anchors: (n,) frames of this episode.
        window: of the stream.
        fps: nominal rate of the episode.

    Returns:
        (n, T) frames inside the episode, and (n, T) whether each is the one asked for.
    """
    last = len(clock) - 1
    if window.chunk:
        return resolve_regular(
            np.arange(window.chunk, dtype=np.int64), anchors, np.full(len(anchors), last + 1, np.int64)
        )
    period = 1e6 / fps
    target = clock[anchors][:, None] + np.array(window.deltas_us, np.int64)[None, :]  # (n, T)
    # Frame at or before the target, and the one at or after it; -1 and T_e stand for the frames beyond the ends.
    if window.rounding == "floor":
        wanted = np.searchsorted(clock, target + SLACK_US, side="right") - 1
    elif window.rounding == "ceil":
        wanted = np.searchsorted(clock, target - SLACK_US, side="left")
    else:
        before = np.searchsorted(clock, target, side="right") - 1
        early, late = _time_of(clock, before, period), _time_of(clock, before + 1, period)
        wanted = before + (2 * target - early - late > _TIE_US)
    frames = np.clip(wanted, 0, last)
    inside = frames == wanted
    # Frames with one time can't be told apart by it; where the anchor is one of them, it is meant.
    same = inside & (clock[frames] == clock[anchors][:, None])
    frames = np.where(same, anchors[:, None], frames)
    near = np.abs(clock[frames] - target) <= period + SLACK_US
    # Beyond an end by a whole period, floor and ceil would have found another frame had the episode gone on.
    if window.rounding == "floor":
        inside &= target - clock[last] < period - SLACK_US
    elif window.rounding == "ceil":
        inside &= clock[0] - target < period - SLACK_US
    return frames, inside & near


def _time_of(clock: IntArray, frames: IntArray, period: float) -> npt.NDArray[np.float64]:
    """Microseconds of frames from -1 to T_e, the two beyond the ends being one period away from them."""
    last = len(clock) - 1
    inside = clock[np.clip(frames, 0, last)].astype(np.float64)
    return inside + np.where(frames < 0, -period, 0.0) + np.where(frames > last, period, 0.0)
