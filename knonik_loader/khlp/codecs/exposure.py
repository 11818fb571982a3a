"""Exposure of a delta: its key seen in another light, so that flicker does not change every block.

A look-up a byte costs more than half a JPEG. Whole pictures of bytes are compared, added and multiplied at memory
speed: a weak change moves the 256 values by few levels, so that it is the key plus one for each of a handful of limits
that a value reaches; a stronger one is worked out in 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["IDENTITY", "ONE", "Exposure", "apply", "plan_of", "table_of"]

SHIFT = 11
ONE = 1 << SHIFT
"""Gains count in 2048ths, offsets in 64ths of a level."""

MOST_STEPS = 4
"""Limits beyond which arithmetic in 16 bits is as fast."""

CHUNK = 1 << 17
"""Bytes worked on at a time: source, target and scratch stay in a core's second-level cache."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Exposure:
    """Value v of the key becomes v + ((v x gain + 32 x offset + 1024) >> 11), between 0 and 255."""

    gain: int
    """i16: 2048ths above 1."""
    offset: int
    """i16: 64ths of a level."""


IDENTITY = Exposure(0, 0)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to move bytes without a look-up."""

    steps: tuple[tuple[int, bool], ...] | None
    """Limits, and whether a value that reaches one gains or loses a level; a limit of 0 moves every value."""
    factor: int
    addend: int
    """Where steps would be too many: (value x factor + addend) >> 11 in 16 bits is what to add, and `bias`."""
    bias: int
    black: int
    """Values below this one become 0."""
    white: int
    """Values from this one on become 255."""


def _moved(exposure: Exposure) -> npt.NDArray[np.int64]:
    values = np.arange(256, dtype=np.int64)
    return values + ((values * exposure.gain + 32 * exposure.offset + ONE // 2) >> SHIFT)


@lru_cache(256)
def table_of(exposure: Exposure) -> Bytes:
    """What each of the 256 values becomes."""
    return np.clip(_moved(exposure), 0, 255).astype(np.uint8)


@lru_cache(256)
def plan_of(exposure: Exposure) -> _Plan | None:
    """How to move values as `table_of` does; None where some move by so much that only a look-up does it."""
    moved = _moved(exposure)
    if (np.diff(moved) < 0).any():
        return None  # light turned to dark: not what a lamp does
    black, white = int((moved < 0).sum()), 256 - int((moved > 255).sum())
    addend = 32 * exposure.offset + ONE // 2
    ends = (addend, 255 * exposure.gain + addend)
    bias = max(0, -(min(ends) >> SHIFT))
    if bias > 255 or max(ends) + bias * ONE >= 1 << 16:
        return None
    jumps = np.diff((moved - np.arange(256))[black:white], prepend=0)
    steps = None
    if np.abs(jumps).sum() <= MOST_STEPS:
        # what holds for the first value that is not clipped may hold for those below it too: they become 0 anyhow
        limits = [(black + at if at else 0, jumps[at]) for at in np.flatnonzero(jumps).tolist()]
        steps = tuple((limit, bool(jump > 0)) for limit, jump in limits for _ in range(abs(jump)))
    return _Plan(steps, exposure.gain % (1 << 16), addend + bias * ONE, bias, black, white)


def apply(exposure: Exposure, source: npt.NDArray[Any], out: npt.NDArray[Any]) -> None:
    """Write ``source`` at another exposure to ``out``; both C-contiguous uint8 of one shape, or the same array."""
    if exposure == IDENTITY:
        if out is not source:
            np.copyto(out, source)
        return
    plan = plan_of(exposure)
    flat, target = source.reshape(-1), out.reshape(-1)
    if plan is None:
        np.take(table_of(exposure), flat, out=target, mode="clip")
        return
    size = min(CHUNK, flat.size)
    scratch, kept = np.empty(size, np.uint16), np.empty(size if out is source else 0, np.uint8)
    for begin in range(0, flat.size, CHUNK):
        values, moved = flat[begin : begin + CHUNK], target[begin : begin + CHUNK]
        if out is source:
            np.copyto(kept[: values.size], values)
            values = kept[: values.size]
        _move(plan, values, moved, scratch[: values.size])


def _move(plan: _Plan, values: Bytes, moved: Bytes, scratch: npt.NDArray[np.uint16]) -> None:
    """Apply a plan to one chunk; ``scratch`` has its size."""
    reached = scratch.view(np.bool_)[: values.size]
    levels = reached.view(np.uint8)
    if plan.steps is None:
        np.multiply(values, np.uint16(plan.factor), out=scratch, dtype=np.uint16)
        np.add(scratch, np.uint16(plan.addend), out=scratch)
        np.right_shift(scratch, np.uint16(SHIFT), out=moved, dtype=np.uint16, casting="unsafe")
        np.add(moved, values, out=moved)
        if plan.bias:
            np.subtract(moved, np.uint8(plan.bias), out=moved)
    else:
        np.copyto(moved, values)
        for limit, up in plan.steps:
            np.greater_equal(values, np.uint8(limit), out=reached)
            (np.add if up else np.subtract)(moved, levels, out=moved)
    # what left the range of a byte has wrapped; a mask of ones, negated, is 255
    if plan.black:
        np.greater_equal(values, np.uint8(plan.black), out=reached)
        np.bitwise_and(moved, np.negative(levels, out=levels), out=moved)
    if plan.white < 256:
        np.greater_equal(values, np.uint8(plan.white), out=reached)
        np.bitwise_or(moved, np.negative(levels, out=levels), out=moved)
