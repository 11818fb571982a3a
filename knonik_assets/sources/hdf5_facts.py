"""What an HDF5 file says about itself: attributes on every level, which way up its pictures are."""

from __future__ import annotations

from functools import partial
from typing import Any

import h5py
import numpy as np

from knonik_assets.sources.array_facts import Attributes, as_object
from knonik_assets.sources.hdf5_paths import attribute, plain

__all__ = ["aloha_compressed", "attribute_levels", "demo_facts", "stored_upside_down"]

_MOST_NAMES = 1 << 20
_LONGEST = 1 << 16
"""Bytes of a text that is stored as a dataset."""


def _levels(root: h5py.Group, file: h5py.File) -> list[h5py.Group]:
    """Where attributes may stand, the nearest first: the episode's group, what holds it, the file."""
    levels = [root]
    while levels[-1].name not in ("/", None):
        levels.append(levels[-1].parent)
    data = file.get("data")
    return [*levels, data] if isinstance(data, h5py.Group) and len(levels) == 1 else levels


def attribute_levels(root: h5py.Group, file: h5py.File) -> list[Attributes]:
    """Where the episode's attributes may stand, the nearest first; small datasets of such a name count as some."""
    return [partial(_stated, level) for level in _levels(root, file)]


def _stated(level: h5py.Group, name: str) -> Any:  # noqa: ANN401 - whatever was stored
    """An attribute, or a dataset of one value: many recorders write the instruction so, some once for every row."""
    value = attribute(level, name)
    if value is not None or not isinstance(level.get(name, getlink=True), h5py.HardLink):
        return value
    item = level.get(name)
    if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual or item.ndim > 1 or not item.size:
        return None
    text = item.dtype.kind == "S" or h5py.check_string_dtype(item.dtype) is not None
    if item.size > (_MOST_NAMES if text else 1) or item.dtype.itemsize > _LONGEST:
        return None
    values = {plain(one) for one in np.atleast_1d(item[()])}
    return values.pop() if len(values) == 1 else None


def aloha_compressed(file: h5py.File) -> bool:
    """Whether a file bears the marks of ALOHA's recorder with compression on."""
    return (bool(attribute(file, "compress")) or "compress_len" in file) and "observations/images" in file


def stored_upside_down(root: h5py.Group, file: h5py.File) -> bool:
    """Whether the file says that its pictures follow OpenGL, whose first row is the lowest."""
    return any(attribute(level, "macros_image_convention") == "opengl" for level in _levels(root, file))


def demo_facts(root: h5py.Group, file: h5py.File, demo: str) -> tuple[dict[str, Any], list[str]]:
    """What robomimic's and LIBERO's files say of a demo beside its streams, and where the file contradicts itself.

    ``image_convention``: which way up pictures are stored. ``observation_of_row``: LIBERO looks after it has acted.
    ``filter_keys``: the lists under ``mask`` that name this demo. ``robot_type``: of robosuite's environments.
    """
    levels = attribute_levels(root, file)
    known: dict[str, Any] = {}
    convention = next((said for level in levels if (said := level("macros_image_convention")) is not None), None)
    if isinstance(convention, str):
        known["image_convention"] = convention
    if any(level("bddl_file_name") is not None or level("problem_info") is not None for level in levels):
        known["observation_of_row"] = "after_action"
    if keys := _filter_keys(file, demo):
        known["filter_keys"] = keys
    for level in levels:
        inner = as_object(level("env_args")).get("env_kwargs")
        robots = inner.get("robots") if isinstance(inner, dict) else None
        robots = [robots] if isinstance(robots, str) else robots
        if isinstance(robots, list) and robots and all(isinstance(robot, str) for robot in robots):
            known["robot_type"] = "+".join(robots)
            break
    return known, _contradictions(root)


def _filter_keys(file: h5py.File, demo: str) -> list[str]:
    mask = file.get("mask")
    if not isinstance(mask, h5py.Group):
        return []
    found = []
    for key in sorted(mask):
        names = mask.get(key)
        if (
            isinstance(names, h5py.Dataset)
            and names.ndim == 1
            and names.size < _MOST_NAMES
            and names.dtype.kind in "SO"
        ):
            listed = {name.decode() if isinstance(name, bytes) else str(name) for name in names[()]}
            if demo in listed:
                found.append(key)
    return found


def _contradictions(root: h5py.Group) -> list[str]:
    stated = attribute(root, "num_samples")
    actions = root.get("actions")
    if isinstance(actions, h5py.Dataset) and actions.ndim and isinstance(stated, int) and stated != actions.shape[0]:
        return [f"num_samples says {stated} rows, actions has {actions.shape[0]}; what is there is taken"]
    return []
