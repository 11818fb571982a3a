"""What an episode's time stamps show: the rate at which an even clock ticks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["REGULAR", "even_rate"]

REGULAR = 0.01
"""Part of a step by which the steps of an even clock may differ."""


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
