"""What lies where ingested episodes were looked for, and what to do about it."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.packing.album import packed_kind
from knonik_assets.packing.existing import REPORT
from knonik_assets.sources.families import Family, recognise
from knonik_assets.sources.naming import natural_key
from knonik_assets.storage import ObjectFolder, Place, files
from knonik_loader.errors import ConfigError, KnonikError, PackError

__all__ = ["left_out", "lost_episodes", "no_episodes", "no_folder"]

_CLOCK = "frame_time/.zarray"
"""A file of every ingested episode, which other tools' folders hardly have."""
_EPISODE = re.compile(rf"(?:(.+)/)?(episode_\d{{6,}})/{re.escape(_CLOCK)}")
_MOST_LOOKED_AT = 100_000
_NAMED = 3
_INGESTED = "ingest_report.json"
_NAME_ONE = "name the output directory of an ingest"
_LOST = f"has lost its {METADATA}, or is not yet whole; let ingest end, or run it again"
_LOST_ALL = f"have lost their {METADATA}, or are not yet whole; let ingest end, or run it again"


def no_folder(place: Place) -> ConfigError:
    """Of a place that is no folder at all."""
    if files.stat(place) is None:
        return ConfigError(f"There is no directory {place} to pack; {_NAME_ONE}.")
    what = "a file of a packed dataset, which a loader reads as it is" if packed_kind(place) else "a file"
    return ConfigError(f"{place} is {what}; {_NAME_ONE}, a folder of episodes.")


def no_episodes(place: Place) -> PackError:
    """Of a folder without ingested episodes.

    Raises:
        StorageError: it cannot be read.
    """
    names = list(_names(place))
    return PackError(f"No ingested episode in {place}: {_found(place, names)}.")


def lost_episodes(names: Iterable[str]) -> list[str]:
    """Folders of ingested episodes that have no metadata, so that they are none any more, in natural order.

    Args:
        names: of all files, or of those that tell, relative to the folder of the episodes.
    """
    known = set(names)
    found = [match[2] for name in known if (match := _EPISODE.fullmatch(name)) and not match[1]]
    return sorted((name for name in found if f"{name}/{METADATA}" not in known), key=natural_key)


def left_out(where: str, lost: list[str]) -> str:
    """A warning of such folders.

    Args:
        where: what to call the folder of the episodes.
        lost: see `lost_episodes`; at least one.
    """
    said = _LOST if len(lost) == 1 else _LOST_ALL
    return f"{_listed(lost)} of {where} {said}: nothing of it is packed"


def _names(place: Place) -> Iterator[str]:
    """Files below a folder, relative to it; of a folder that is really large the first ones."""
    if place.is_remote:
        yield from (one.key for one in ObjectFolder(place).objects())
        return
    below = (
        Path(folder, name).relative_to(place.path).as_posix()
        for folder, _, found in os.walk(place.path)
        for name in found
    )
    yield from itertools.islice(below, _MOST_LOOKED_AT)


def _found(place: Place, names: list[str]) -> str:
    """What is there instead, and what to do, in words."""
    if not names:
        return "no object is there; check the URL" if place.is_remote else f"the folder is empty; {_NAME_ONE}"
    for folder in (place, place.parent):
        if files.stat(folder / METADATA) is not None and files.stat(folder / _CLOCK) is not None:
            return (
                f"{folder} is itself an episode; name the folder that it lies in ({folder.parent}), and "
                f"--episodes {folder.name} for this one alone"
            )
    if packed_kind(place) or any("/" not in name and name.endswith(".khlp") for name in names):
        return f"it holds a packed dataset{_packed_from(place)}, which a loader reads as it is; {_NAME_ONE}"
    lost = lost_episodes(names)
    if lost:
        return f"{_listed(lost)} {_LOST if len(lost) == 1 else _LOST_ALL}"
    if _INGESTED in names:
        return f"an ingest wrote there and left none; {place / _INGESTED} says why"
    matches = [match for name in names if (match := _EPISODE.fullmatch(name)) and match[1]]
    outputs = sorted({match[1] for match in matches if not match[1].startswith(".")}, key=natural_key)
    if outputs:
        return f"they are further down; name {_listed([str(place / folder) for folder in outputs], 'or')}"
    raw = _raw(place)
    if raw:
        where, also = raw[0].where, f" and {len(raw) - 1} more" if len(raw) > 1 else ""
        return (
            f"{where} is raw data ({raw[0].name}){also}, to be ingested first: 'knonik detect {where} --write "
            f"config.yaml' writes a config, and 'knonik ingest --config config.yaml --input {where} --output EPISODES' "
            "the episodes to pack"
        )
    tops = sorted({name.partition("/")[0] + "/" * ("/" in name) for name in names}, key=natural_key)
    return f"it holds {_listed(tops)}, and no folder with a {METADATA}; {_NAME_ONE}"


def _raw(place: Place) -> list[Family]:
    with suppress(KnonikError, OSError):  # what cannot be looked at has no name
        if not place.is_remote:
            return recognise(place.path)
        from knonik_assets.sources.remote.recognise import recognise_remote

        return recognise_remote(place)
    return []


def _packed_from(place: Place) -> str:
    """Where the report beside a packed dataset says that its episodes were."""
    found = files.get(place / REPORT)
    with suppress(ValueError, KeyError, TypeError):
        return f" (packed from {json.loads(found[0])['input_dir']})" if found is not None else ""
    return ""


def _listed(names: list[str], word: str = "and") -> str:
    shown = names[:_NAMED]
    if len(names) > _NAMED:
        return f"{', '.join(shown)} {word} {len(names) - _NAMED} more"
    return f" {word} ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))
