"""Finding things in an HDF5 file, and refusing what would lead out of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - registers the compression filters that others write with
import numpy as np

from knonik_assets.sources.naming import natural_key
from knonik_loader.errors import EpisodeError, KnonikError

__all__ = ["attribute", "find", "match_groups", "open_hdf5", "plain", "reading", "walk"]

Path_ = tuple[str, ...]
_FAULTS = (OSError, RuntimeError, KeyError, ValueError)
"""What h5py raises on damaged files, whichever layer notices."""


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what h5py raises on damaged data into an `EpisodeError` that says where."""
    try:
        yield
    except KnonikError:
        raise
    except _FAULTS as error:
        reason = str(error).strip("'\"") or type(error).__name__
        raise EpisodeError(f"{where}: damaged or incomplete HDF5 data: {reason}.") from error


def open_hdf5(path: Path) -> h5py.File:
    """Open for reading; a file that is still being written is refused where the file system has locks.

    Raises:
        EpisodeError: missing, truncated, locked or no HDF5.
    """
    try:
        return h5py.File(path, "r", locking="best-effort")
    except FileNotFoundError as error:
        raise EpisodeError(f"{path}: there is no such file.") from error
    except _FAULTS as error:
        text = str(error)
        if ends := re.search(r"truncated file: eof = (\d+), .*stored_eof = (\d+)", text):
            there, wanted = ends.groups()
            raise EpisodeError(
                f"{path}: the file is truncated: {there} of {wanted} bytes are there (an interrupted recording or "
                "copy); copy it again."
            ) from error
        if "truncated" in text:
            what = "the file is truncated (an interrupted recording or copy)"
        elif "lock" in text:
            what = "another program has the file open for writing"
        else:
            what = "not a readable HDF5 file"
        raise EpisodeError(f"{path}: {what}: {text}.") from error


def walk(root: h5py.Group, where: str) -> list[tuple[Path_, h5py.Dataset]]:
    """Every dataset below ``root`` once, by its path, in natural order; links in circles are followed once.

    Raises:
        EpisodeError: a link or virtual dataset leads to another file.
    """
    found: list[tuple[Path_, h5py.Dataset]] = []
    seen = {_address(root)}

    def visit(group: h5py.Group, path: Path_) -> None:
        for name in sorted(group, key=natural_key):
            item = _child(group, name, f"{where}: {'/'.join((*path, name))}")
            if item is None:
                continue
            if isinstance(item, h5py.Dataset):
                found.append(((*path, name), item))
            elif isinstance(item, h5py.Group) and _address(item) not in seen:
                seen.add(_address(item))
                visit(item, (*path, name))

    with reading(where):
        visit(root, ())
    return found


def _address(item: h5py.Group) -> int:
    return int(h5py.h5o.get_info(item.id).addr)


def _child(group: h5py.Group, name: str, where: str) -> Any:  # noqa: ANN401 - group, dataset or None
    """A member of a group; None for a link to nothing."""
    if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
        raise EpisodeError(f"{where} links to another file; copy the data into this one.")
    item = group.get(name)
    if isinstance(item, h5py.Dataset):
        if item.external:
            raise EpisodeError(f"{where} keeps its data in another file; copy it into this one.")
        if item.is_virtual and any(source.file_name != "." for source in item.virtual_sources()):
            raise EpisodeError(f"{where} is a virtual dataset over other files; copy the data into this one.")
    return item


def find(root: h5py.Group, key: str, where: str) -> tuple[Path_, h5py.Dataset] | None:
    """The dataset that a layout's key names, or None.

    A member whose whole name is the key (or the rest of it) wins over reading its dots as steps; slashes are steps too.
    """
    with reading(where):
        return _find(root, key.strip("/"), (), where)


def _find(group: h5py.Group, key: str, path: Path_, where: str) -> tuple[Path_, h5py.Dataset] | None:
    if not key.strip("./"):  # the library takes dots for the group itself
        return None
    if "/" not in key and key in group:
        item = _child(group, key, f"{where}: {key}")
        return ((*path, key), item) if isinstance(item, h5py.Dataset) else None
    for cut in (index for index in range(len(key) - 1, 0, -1) if key[index] in "./"):
        head, rest = key[:cut], key[cut + 1 :]
        if not head.strip(".") or not rest or "/" in head or head not in group:
            continue
        item = _child(group, head, f"{where}: {head}")
        if isinstance(item, h5py.Group) and (found := _find(item, rest, (*path, head), where)):
            return found
    return None


def match_groups(root: h5py.Group, pattern: str) -> list[Path_]:
    """Groups that a pattern of path steps with wildcards names (``data/demo_*``), in natural order."""
    steps = [step for step in pattern.strip("/").split("/") if step]
    matched: list[tuple[Path_, h5py.Group]] = [((), root)]
    for step in steps:
        matched = [
            ((*path, name), item)
            for path, group in matched
            for name in sorted(group, key=natural_key)
            if fnmatchcase(name, step) and isinstance(item := _child(group, name, "/".join((*path, name))), h5py.Group)
        ]
    return [path for path, _ in matched]


def attribute(item: h5py.HLObject, name: str) -> Any:  # noqa: ANN401 - whatever was stored
    """An attribute as a plain value, text decoded; None where it is absent or of a type h5py can't read."""
    try:
        return plain(item.attrs.get(name))
    except (OSError, TypeError, ValueError):
        return None


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever was stored
    """A number, text or list of texts as Python has them; anything else as it is."""
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.size > 1 and value.dtype.kind in "OSU":
        return [plain(one) for one in value]
    if hasattr(value, "item") and getattr(value, "size", 0) == 1:
        value = value.item()
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin1")
