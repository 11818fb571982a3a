"""What an HDF5 file says about itself: attributes on every level, which way up its pictures are."""

from __future__ import annotations

from functools import partial

import h5py

from knonik_assets.sources.array_facts import Attributes
from knonik_assets.sources.hdf5_paths import attribute

__all__ = ["aloha_compressed", "attribute_levels", "stored_upside_down"]


def _levels(root: h5py.Group, file: h5py.File) -> list[h5py.Group]:
    """Where attributes may stand, the nearest first: the episode's group, what holds it, the file."""
    levels = [root]
    while levels[-1].name not in ("/", None):
        levels.append(levels[-1].parent)
    data = file.get("data")
    return [*levels, data] if isinstance(data, h5py.Group) and len(levels) == 1 else levels


def attribute_levels(root: h5py.Group, file: h5py.File) -> list[Attributes]:
    """Where the episode's attributes may stand, the nearest first."""
    return [partial(attribute, level) for level in _levels(root, file)]


def aloha_compressed(file: h5py.File) -> bool:
    """Whether a file bears the marks of ALOHA's recorder with compression on."""
    return bool(attribute(file, "compress")) and "observations/images" in file


def stored_upside_down(root: h5py.Group, file: h5py.File) -> bool:
    """Whether the file says that its pictures follow OpenGL, whose first row is the lowest."""
    return any(attribute(level, "macros_image_convention") == "opengl" for level in _levels(root, file))
