"""What an HDF5 file says about itself: rate, clock, language, which way up its pictures are."""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from knonik_assets.sources.base import Language
from knonik_assets.sources.hdf5_paths import attribute, json_attribute, reading
from knonik_loader.errors import EpisodeError

__all__ = ["aloha_compressed", "control_rate", "language", "read_clock", "stored_upside_down"]

_UNITS = (("nanoseconds", 1e-9), ("microseconds", 1e-6), ("milliseconds", 1e-3), ("seconds", 1.0))


def _levels(root: h5py.Group, file: h5py.File) -> list[h5py.Group]:
    """Where attributes may stand, the nearest first: the episode's group, what holds it, the file."""
    levels = [root]
    while levels[-1].name not in ("/", None):
        levels.append(levels[-1].parent)
    data = file.get("data")
    return [*levels, data] if isinstance(data, h5py.Group) and len(levels) == 1 else levels


def control_rate(root: h5py.Group, file: h5py.File) -> float | None:
    """Frames a second as the file's attributes state them: ``fps``, ``control_freq``, robosuite's ``env_args``."""
    for level in _levels(root, file):
        stated: list[Any] = [attribute(level, "fps"), attribute(level, "control_freq")]
        for block in (json_attribute(level, "env_args"), json_attribute(level, "env_info")):
            inner = block.get("env_kwargs")
            stated += [inner.get("control_freq") if isinstance(inner, dict) else None, block.get("control_freq")]
        for value in stated:
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e5:
                return float(value)
    return None


def language(root: h5py.Group, file: h5py.File) -> Language | None:
    """The instruction in ``language_instruction``, ``metadata_json`` or LIBERO's ``problem_info``."""
    for level in _levels(root, file):
        for said in (
            attribute(level, "language_instruction"),
            json_attribute(level, "metadata_json").get("language_instruction"),
            json_attribute(level, "problem_info").get("language_instruction"),
        ):
            if isinstance(said, (list, tuple)) and said:
                said = "".join(str(part) for part in said)
            if isinstance(said, str) and said.strip():
                return Language(said.strip())
    return None


def aloha_compressed(file: h5py.File) -> bool:
    """Whether a file bears the marks of ALOHA's recorder with compression on."""
    return bool(attribute(file, "compress")) and "observations/images" in file


def stored_upside_down(root: h5py.Group, file: h5py.File) -> bool:
    """Whether the file says that its pictures follow OpenGL, whose first row is the lowest."""
    return any(attribute(level, "macros_image_convention") == "opengl" for level in _levels(root, file))


def read_clock(
    dataset: h5py.Dataset, fps: float | None, explicit: bool, where: str, warnings: list[str]
) -> npt.NDArray[np.float64] | None:
    """(T,) seconds of a dataset of time stamps.

    Floats are seconds. Integers are the unit in which they step by about a frame. A dataset that is no clock gives
    None and a warning, unless the layout names it.

    Raises:
        EpisodeError: the layout names it and it is no clock.
    """
    with reading(where):
        raw = dataset[()]
    problem: str | None = None
    clock: npt.NDArray[np.float64] | None = None
    values = raw.reshape(len(raw), math.prod(raw.shape[1:])) if raw.ndim else raw
    if raw.ndim == 0 or values.shape[1] != 1 or raw.dtype.kind not in "iuf":
        problem = f"{raw.dtype} of shape {raw.shape} are no time stamps"
    elif raw.dtype.kind == "f" and not np.isfinite(values).all():
        problem = f"{int((~np.isfinite(values)).sum())} of {len(values)} time stamps are NaN or infinite"
    elif raw.dtype.kind == "f":
        clock = np.asarray(values[:, 0], np.float64)
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


def _integer_clock(stamps: npt.NDArray[Any], fps: float | None) -> tuple[npt.NDArray[np.float64] | None, str]:
    """Seconds and the unit's name; or None and what is wrong."""
    relative = stamps.astype(np.int64) - int(stamps[0]) if len(stamps) else stamps.astype(np.int64)
    step = float(np.median(np.diff(relative))) if len(stamps) > 1 else 0.0
    low, high = (0.3 / fps, 3.0 / fps) if fps else (0.002, 2.0)
    fitting = [(name, unit) for name, unit in _UNITS if low <= step * unit < high]
    if len(fitting) != 1:
        rate = f" at {fps:g} frames a second" if fps else ""
        return None, f"integers stepping by {step:g} fit no unit of time{rate}; store seconds as floats"
    name, unit = fitting[0]
    # The difference is taken in integers: nanoseconds since 1970 don't fit a float64.
    return np.asarray(relative * unit + float(stamps[0]) * unit, np.float64), name
