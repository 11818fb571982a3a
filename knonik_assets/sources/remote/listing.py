"""What lies below a URL: the objects of a raw dataset by name, size and etag."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from knonik_assets.storage import ObjectFolder, ObjectInfo, Place
from knonik_loader.errors import SourceError

__all__ = ["Listing", "list_raw", "state_at", "state_of"]

_LONGEST_NAME = 255
"""Bytes of one part of a name that file systems take."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The objects of a raw dataset at one moment."""

    base: Place
    """The folder from which keys go."""
    root: str
    """Key of the dataset itself: "" where it is the base, else the object or folder that is read."""
    objects: tuple[ObjectInfo, ...]
    """By key."""

    @property
    def bytes(self) -> int:
        """Of all objects."""
        return sum(one.size for one in self.objects)

    @property
    def state(self) -> str:
        """Digest that changes when any object does."""
        return state_of(self.objects)


def state_of(objects: Iterable[ObjectInfo]) -> str:
    """Digest of objects' keys, sizes and etags; of their times where the store has no etags."""
    digest = hashlib.sha256()
    for one in sorted(objects, key=lambda one: one.key):
        digest.update(f"{one.key}\0{one.size}\0{one.etag or one.version or one.modified}\n".encode())
    return digest.hexdigest()


def state_at(place: Place) -> str:
    """Digest that changes when any object at or below a place does, or one comes or goes.

    Raises:
        StorageError: it cannot be listed.
    """
    single = ObjectFolder(place.parent).head(place.name) if place.name else None
    return state_of([*([single] if single is not None else []), *ObjectFolder(place).objects()])


def list_raw(place: Place, siblings: Sequence[str] = ()) -> Listing:
    """List a dataset: a folder of objects, or one object.

    Args:
        place: of the dataset.
        siblings: folders beside it that its reader looks into as well; keys then go from the folder above.

    Raises:
        SourceError: nothing is there, or a key cannot be the name of a file.
        StorageError: it cannot be listed.
    """
    base, name = ObjectFolder(place.parent), place.name
    single = base.head(name) if name else None
    single = single if single is not None and single.size else None  # an empty one marks a folder
    objects = [single] if single is not None else ObjectFolder(place).objects()
    if not objects:
        raise SourceError(f"{place}: there is no object of this name and none below it; check the URL and the bucket.")
    if not name or (single is None and not siblings):
        return Listing(place, "", _checked(place, objects))
    if single is None:
        objects = [one for folder in {name, *siblings} for one in base.objects(folder)]
    return Listing(base.place, name, _checked(base.place, objects))


def _checked(base: Place, objects: Iterable[ObjectInfo]) -> tuple[ObjectInfo, ...]:
    """Those that stand for files, by key; markers of empty folders are none.

    Raises:
        SourceError: a key leads elsewhere, is too long, or one object's key is another one's folder.
    """
    files = sorted((one for one in objects if not one.key.endswith("/")), key=lambda one: one.key)
    folders = {str(parent): one.key for one in files for parent in PurePosixPath(one.key).parents}
    for one in files:
        parts = one.key.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise SourceError(f"{base}: an object is called {one.key!r}, which is no path of a file; rename it.")
        if any(len(part.encode()) > _LONGEST_NAME for part in parts):
            raise SourceError(f"{base}: the name {one.key[:60]!r}… is longer than a file's may be; rename the object.")
    return tuple(one for one in files if not (one.key in folders and _marks_a_folder(base, one, folders[one.key])))


def _marks_a_folder(base: Place, one: ObjectInfo, below: str) -> bool:
    if one.size:
        raise SourceError(f"{base}: {one.key} is an object and the folder of {below} at once; rename one of them.")
    return True
