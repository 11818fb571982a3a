"""Times of an episode: which of a bag's clocks counts, and which message belongs to which frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Stamped", "clocks_agree", "header_fault", "nearest", "nominal_rate"]

Ns = npt.NDArray[np.int64]
OTHER_CLOCK_NS = 10_000_000_000
"""Stamps that are usually further than this from the time of recording come from a clock of their own."""


@dataclass(slots=True)
class Stamped:
    """When the messages of one stream were recorded, and when they say that they were made; in order of recording."""

    log: Ns
    header: Ns | None
    """None where the type has no stamp."""


def header_fault(times: Stamped) -> str | None:
    """Why a stream's header stamps can't be used; None where they can."""
    header = times.header
    if header is None:
        return "has no header"
    if not len(header) or (header == 0).any():
        return "has header stamps that are zero"
    if (np.diff(header) < 0).any():
        return "has header stamps that go backwards"
    if times.log.min() == times.log.max():
        return None
    if (np.abs(np.diff(header) - np.diff(times.log)) > OTHER_CLOCK_NS).any():
        return "has header stamps that jump from one clock to another"
    if abs(offset(times)) > OTHER_CLOCK_NS:
        return "has header stamps of another clock"
    return None


def offset(times: Stamped) -> float:
    """Usual distance of the header stamps from the time of recording, nanoseconds."""
    assert times.header is not None
    return float(np.median(times.header - times.log))


def clocks_agree(streams: list[Stamped]) -> bool:
    """Whether all streams have usable stamps of one clock, though it isn't the recorder's."""
    faults = [header_fault(one) for one in streams]
    if any(fault not in (None, "has header stamps of another clock") for fault in faults):
        return False
    offsets = [offset(one) for one in streams]
    return max(offsets) - min(offsets) <= OTHER_CLOCK_NS


def nearest(wanted: Ns, times: Ns) -> npt.NDArray[np.int64]:
    """(T,) of the (N,) sorted times, the place of the nearest one; exactly between two, the earlier."""
    right = np.searchsorted(times, wanted).clip(1, max(1, len(times) - 1))
    left = right - 1
    if len(times) == 1:
        return np.zeros(len(wanted), np.int64)
    chosen = np.where(wanted - times[left] <= times[right] - wanted, left, right)
    # Of several messages with one stamp the first is meant.
    return np.asarray(np.searchsorted(times, times[chosen]), np.int64)


def nominal_rate(times: Ns) -> float | None:
    """Frames a second that a camera is meant to have: a whole number where it is near to one."""
    steps = np.diff(times)
    middle = float(np.median(steps)) if len(steps) else 0.0
    if middle <= 0:
        return None
    rate = 1e9 / middle
    whole = round(rate)
    return float(whole) if whole and abs(rate / whole - 1) < 0.03 else round(rate, 1) or None
