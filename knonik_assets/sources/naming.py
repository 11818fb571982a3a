"""Names: natural order, and stream names that are safe as file names and batch keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from knonik_assets.sources.base import StreamSpec
from knonik_loader.errors import ConfigError, SourceError

__all__ = ["check_streams", "dataset_name", "name_paths", "natural_key", "nearest", "safe_stream_name"]

_RESERVED = frozenset({"annotations", "frame_time"})
_RESERVED_SUFFIX = "_valid_mask"
_LONGEST = 128
_SUFFIXES = frozenset({".zarr", ".zip", ".h5", ".hdf5", ".npz", ".bag", ".mcap", ".db3"})


def natural_key(text: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Sort key under which numbers inside names compare as numbers: ``episode_2`` before ``episode_10``.

    Equal numbers written differently (``7`` and ``07``) are ordered by the text itself, so the order is total.
    """
    parts = re.split(r"(\d+)", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part), text


def dataset_name(root: Path) -> str:
    """A dataset's name from where it lies: ``kitchen`` for ``/data/kitchen.zarr.zip``, ``v1.0`` for ``/data/v1.0``."""
    name = root.resolve().name
    while (suffix := Path(name).suffix.lower()) in _SUFFIXES:
        name = name[: -len(suffix)]
    return name or "dataset"


def safe_stream_name(name: str) -> str:
    """The name under which a stream can stand in the output: ``[A-Za-z0-9_.-]{1,128}`` without a leading dot.

    Raises:
        ConfigError: the name is reserved (``frame_time``, ``annotations``, ``…_valid_mask``) or nothing of it is left.
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).lstrip(".")[:_LONGEST]
    if not safe.strip("_.-"):
        raise ConfigError(f"stream name {name!r} holds no letter or digit of A-Z, a-z, 0-9; name it in the layout.")
    if safe in _RESERVED or safe.endswith(_RESERVED_SUFFIX):
        raise ConfigError(
            f"stream name {name!r} is reserved ({', '.join(sorted(_RESERVED))}, names ending in {_RESERVED_SUFFIX}); "
            "give it another in the layout."
        )
    return safe


def nearest(wanted: str, known: Iterable[str], most: int = 24) -> str:
    """The end of an error message: the nearest known name, then what there is."""
    names = sorted(known, key=natural_key)
    if not names:
        return "the source has none"
    lower = {name.lower(): name for name in names}
    short = {name.lower().replace("/", ".").rsplit(".", 1)[-1]: name for name in names}
    close = get_close_matches(wanted.lower(), list(lower), n=1, cutoff=0.5)
    last = get_close_matches(wanted.lower().replace("/", ".").rsplit(".", 1)[-1], list(short), n=1, cutoff=0.6)
    best = lower[close[0]] if close else short[last[0]] if last else None
    listed = ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")
    return (f"nearest is {best!r}; " if best else "") + f"it has: {listed}"


def name_paths(paths: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Output names for places in a tree: the last part, with as many parents in front as make it unique."""
    names: dict[tuple[str, ...], str] = {}
    for path in paths:
        depth = 1
        while depth < len(path) and any(other != path and other[-depth:] == path[-depth:] for other in paths):
            depth += 1
        names[path] = safe_stream_name("_".join(path[-depth:]))
    return names


def check_streams(streams: Sequence[StreamSpec], where: str) -> None:
    """Refuse two streams that would share a folder, a file or a batch key.

    Raises:
        SourceError: names both sources and the name that they would share.
    """
    taken: dict[str, str] = {}
    numeric = {spec.name: spec.source for spec in streams if spec.kind == "numeric"}
    for spec in streams:
        key = spec.name if spec.kind == "numeric" else f"{spec.kind}_{spec.name}"
        if key in taken:
            raise SourceError(
                f"{where}: {taken[key]!r} and {spec.source!r} would both be called {key!r}; "
                "name them apart in the layout."
            )
        taken[key] = spec.source
        if spec.kind == "numeric" and (partner := spec.name.removesuffix("_time")) != spec.name and partner in numeric:
            raise SourceError(
                f"{where}: {spec.source!r} would be called {spec.name!r}, which holds the times of {partner!r}; "
                "name it otherwise in the layout."
            )


def renamed(sources: Mapping[str, str]) -> dict[str, str]:
    """Of source name → output name, the ones that had to be made safe: last parts that differ from the output name."""
    return {source: name for source, name in sources.items() if not source.endswith(name)}
