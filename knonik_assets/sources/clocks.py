"""What an episode's time stamps show: the rate of an even clock, and whole frames that float32 rounded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["REGULAR", "even_rate", "unrounded", "usual_rate"]

REGULAR = 0.01
"""Part of a step by which the steps of an even clock may differ."""
_USUAL, _NEAR = 0.25, 0.01
"""Part of its usual step by which a clock's steps may differ from it, and of a whole rate by which it may be missed."""
_LONGEST_S = 1e15


def even_rate(times: npt.NDArray[np.float64] | None) -> float | None:
    """Frames a second of an evenly ticking clock; None where it ticks unevenly or has fewer than 3 times."""
    if times is None or len(times) < 3:
        return None
    steps = np.diff(times)
    middle = float(np.median(steps))
    if not middle > 0 or (np.abs(steps - middle) > REGULAR * middle).any():
        return None
    rate = (len(times) - 1) / float(times[-1] - times[0])
    whole = round(rate)
    return float(whole) if whole and abs(rate / whole - 1) < 1e-3 else round(rate, 3)


def usual_rate(times: npt.NDArray[np.float64] | None) -> float | None:
    """Frames a second of a clock that jitters or has gaps: what most of its steps show, whole where that is near.

    None where the clock has fewer than 3 times, or steps of every length.
    """
    if times is None or len(times) < 3:
        return None
    steps = np.diff(times)
    middle = float(np.median(steps))
    usual = steps[np.abs(steps - middle) < _USUAL * middle]
    if not middle > 0 or 2 * len(usual) < len(steps):
        return None
    rate = 1 / float(usual.mean())
    whole = round(rate)
    return float(whole) if whole and abs(rate / whole - 1) < _NEAR else round(rate, 3) or None


def unrounded(times: npt.NDArray[np.float64], fps: float) -> npt.NDArray[np.float64]:
    """(T,) seconds without the rounding of float32, where they are whole frames of this rate; else as they are.

    Recorders store frame / fps as float32, which is off by 4 us after a minute and by 30 us after ten: enough for an
    offset of whole frames to miss its frame and find the one before. Frames that were missed, and a clock that does not
    begin at 0, are whole frames all the same.
    """
    longest = float(np.abs(times).max(initial=0))
    if longest > _LONGEST_S:
        return times  # no float32 was rounded to these
    frames = np.rint(times * fps)
    exact, single = frames / fps, times.astype(np.float32)
    if not np.array_equal(exact.astype(np.float32), single):
        return times
    # Where float32 is coarser than frames anything would seem to be whole frames; so would a finer clock stored finer.
    told_apart = float(np.spacing(np.float32(longest))) * fps < 0.5 and np.array_equal(single, times)
    return exact if told_apart or np.array_equal(frames, np.arange(len(times))) else times
