"""Which raw datasets lie at a URL: told by names, and by a few small or first files."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import groupby

from knonik_assets.sources.families import Family, recognise
from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.remote.listing import Listing, list_raw
from knonik_assets.sources.remote.mirror import OwnMirror
from knonik_assets.sources.remote.needs import Names, Needs
from knonik_assets.storage import Place
from knonik_loader.errors import SourceError

__all__ = ["recognise_remote"]

_TELLING = ("info.json", "features.json", "dataset_info.json")
_FIRST = ((".hdf5", ".h5"), (".npy",))
"""Of files of these endings the first in a folder tells what the others are."""
_MOST_FOLDERS = 200


def recognise_remote(place: Place) -> list[Family]:
    """See `knonik_assets.sources.families.recognise`. The families' roots are gone; their URLs stay.

    Raises:
        SourceError: nothing is there, or it isn't raw data.
        StorageError: it cannot be listed, or a first file doesn't fit into scratch.
    """
    listing = list_raw(place)
    _refuse_ours(place, listing)
    with closing(OwnMirror(listing, Needs(_telling, lambda locator, local, names: []))) as mirror:
        return [replace(family, url=mirror.retold(str(family.root))) for family in recognise(mirror.root)]


def _refuse_ours(place: Place, listing: Listing) -> None:
    keys = [one.key for one in listing.objects]
    if "hlp_manifest.json" in keys:
        raise SourceError(f"{place} is a packed dataset, not raw data; look at it with 'knonik inspect'.")
    if any(key.startswith("episode_") and key.endswith("/metadata.json") and key.count("/") == 1 for key in keys):
        raise SourceError(f"{place} holds ingested episodes, not raw data; look at them with 'knonik inspect'.")


def _telling(names: Names) -> list[str]:
    found = [name for name in names.all if name.rpartition("/")[2] in _TELLING]
    for endings in _FIRST:
        alike = sorted((name for name in names.all if name.endswith(endings)), key=_in_folder)
        firsts = [next(group) for _, group in groupby(alike, key=lambda name: name.rpartition("/")[0])]
        found += [name for name in firsts if not name.rpartition("/")[2].startswith("episode_")][:_MOST_FOLDERS]
    return found


def _in_folder(name: str) -> tuple[str, object]:
    folder, _, file = name.rpartition("/")
    return folder, natural_key(file)
