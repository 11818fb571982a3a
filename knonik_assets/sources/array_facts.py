"""What a recording says about itself: rate, clock, language."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.sources.arrays import Array, bounded
from knonik_assets.sources.base import Language
from knonik_assets.sources.clocks import unrounded, usual_rate
from knonik_loader.errors import EpisodeError

__all__ = ["Attributes", "as_object", "read_clock", "stated_language", "stated_rate"]

Attributes = Callable[[str], Any]
"""An attribute by its name as a plain value, None where there is none."""
_SLOWEST = 2.0
"""Seconds a frame from which on floats may well be another unit."""
_SINCE_1970 = 10**8
"""Seconds since 1970 are more; numbers of frames are fewer."""
_UNITS = (("nanoseconds", 1e-9), ("microseconds", 1e-6), ("milliseconds", 1e-3), ("seconds", 1.0))


def as_object(value: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever an attribute holds
    """A JSON object, given as text or as it is; empty where it is none."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (json.JSONDecodeError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def stated_rate(levels: Sequence[Attributes]) -> float | None:
    """Frames a second as attributes state them, the nearest level first.

    Known are ``fps``, ``control_freq`` and robosuite's ``env_args``.
    """
    for level in levels:
        stated: list[Any] = [level("fps"), level("control_freq")]
        for block in (as_object(level("env_args")), as_object(level("env_info"))):
            inner = block.get("env_kwargs")
            stated += [inner.get("control_freq") if isinstance(inner, dict) else None, block.get("control_freq")]
        for value in stated:
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e5:
                return float(value)
    return None


def stated_language(levels: Sequence[Attributes]) -> Language | None:
    """What ``language_instruction``, ``metadata_json``, LIBERO's ``problem_info`` or RoboCasa's ``ep_meta`` instruct.

    The first of several is the instruction, the others say the same in other words.
    """
    for level in levels:
        for said in _said(level):
            texts = [text.strip() for text in _texts(said) if text.strip()]
            if texts:
                return Language(texts[0], tuple(texts[1:]))
    return None


def _texts(said: Any) -> list[str]:  # noqa: ANN401 - whatever an attribute holds
    """Instructions: one, or several of which the others say the same; some files hold one as a list of its words."""
    if isinstance(said, str):
        return [said]
    if not isinstance(said, (list, tuple)) or not all(isinstance(part, str) for part in said):
        return []
    if any(" " in part.strip() for part in said):
        return list(said)
    return [("" if all(len(part) <= 1 for part in said) else " ").join(said)]


def _said(level: Attributes) -> Iterator[Any]:
    yield level("language_instruction")
    yield level("language_raw")  # RoboMIND
    yield as_object(level("metadata_json")).get("language_instruction")
    yield as_object(level("problem_info")).get("language_instruction")
    yield as_object(level("ep_meta")).get("lang")


def read_clock(array: Array, fps: float | None, explicit: bool, warnings: list[str]) -> npt.NDArray[np.float64] | None:
    """(T,) seconds of an array of time stamps.

    Floats are seconds, unless they step as another unit would by a frame: then nobody can tell which is meant. Integers
    are the unit in which they step by about a frame. An array that is no clock gives None and a warning, unless the
    layout names it.

    Raises:
        EpisodeError: the layout names it and it is no clock.
    """
    where, problem = array.where, None
    clock: npt.NDArray[np.float64] | None = None
    if not array.shape or math.prod(array.shape[1:]) != 1 or array.dtype.kind not in "iuf":
        problem = f"{array.dtype} of shape {array.shape} are no time stamps"
        values = np.empty((0, 1))
    else:
        bounded(array.shape[0] * array.dtype.itemsize, where)
        values = array.rows(0, array.shape[0]).reshape(-1, 1)
    if problem is not None:
        pass
    elif values.dtype.kind == "f" and not np.isfinite(values).all():
        problem = f"{int((~np.isfinite(values)).sum())} of {len(values)} time stamps are NaN or infinite"
    elif values.dtype.kind == "f":
        clock = np.asarray(values[:, 0], np.float64)
        if (problem := _other_unit(clock, fps)) is not None:
            clock = None
        elif values.dtype.itemsize <= 4 and (rate := fps or usual_rate(clock)):
            clock = unrounded(clock, rate)
        if clock is not None and not fps and len(clock) > 2 and (np.diff(clock) == 1).all() and clock[0] < _SINCE_1970:
            warnings.append(f"{where}: counts by one; taken as seconds: say fps if these are numbers of frames")
    else:
        clock, problem = _integer_clock(values[:, 0], fps)
        if clock is not None:
            warnings.append(f"{where}: integer time stamps are taken as {problem}")
            problem = None
    if problem is not None:
        if explicit:
            raise EpisodeError(f"{where}: {problem}.")
        warnings.append(f"{where}: {problem}; not used as the clock")
    elif clock is not None and (np.diff(clock) <= 0).any():
        warnings.append(f"{where}: {int((np.diff(clock) <= 0).sum())} time stamps are not later than the one before")
    return clock


def _units_of(step: float, fps: float | None) -> list[tuple[str, float]]:
    """The units of time in which a step is about a frame."""
    low, high = (0.3 / fps, 3.0 / fps) if fps else (0.002, 2.0)
    return [(name, unit) for name, unit in _UNITS if low <= step * unit < high]


def _other_unit(clock: npt.NDArray[np.float64], fps: float | None) -> str | None:
    """What is wrong with floats that step as milliseconds would, or less, but not as seconds; None where nothing is."""
    step = float(np.median(np.diff(clock))) if len(clock) > 1 else 0.0
    fitting = [name for name, _ in _units_of(step, fps)]
    if step < _SLOWEST or not fitting or "seconds" in fitting:
        return None
    return (
        f"steps by {step:g}, which looks like {fitting[0]} and would be {1 / step:.3g} frames a second in seconds; "
        "store seconds, or say fps if they are"
    )


def _integer_clock(stamps: npt.NDArray[Any], fps: float | None) -> tuple[npt.NDArray[np.float64] | None, str]:
    """Seconds and the unit's name; or None and what is wrong."""
    whole = stamps.astype(np.uint64 if stamps.dtype.kind == "u" else np.int64)
    relative = (whole - whole[:1]).astype(np.int64) if len(whole) else whole.astype(np.int64)
    step = float(np.median(np.diff(relative))) if len(stamps) > 1 else 0.0
    fitting = _units_of(step, fps)
    if not fps and step == 1 and abs(int(stamps[0])) < _SINCE_1970:
        return None, "integers that count by one are numbers of frames rather than times; say fps if they are seconds"
    if len(fitting) != 1:
        rate = f" at {fps:g} frames a second" if fps else ""
        return None, f"integers stepping by {step:g} fit no unit of time{rate}; store seconds as floats"
    name, unit = fitting[0]
    # The difference is taken in integers: nanoseconds since 1970 don't fit a float64.
    return np.asarray(relative * unit + float(stamps[0]) * unit, np.float64), name
