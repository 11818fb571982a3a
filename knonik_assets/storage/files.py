"""Files at any place: looked for, read whole or in part, listed and removed, on a local disk and at URLs alike."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from knonik_assets.storage.objects import ObjectFolder, ObjectInfo
from knonik_assets.storage.place import Place
from knonik_loader.errors import StorageError, refusal

__all__ = ["Location", "Reader", "folders", "get", "listing", "open_reader", "read_bytes", "remove", "stat", "stats"]

Location = Path | Place
"""What the functions of this module take: a local path may be given as it is."""


class Reader(Protocol):
    """Reads ranges of one open file."""

    size: int
    """Bytes of the file."""

    def __call__(self, offset: int, length: int) -> bytes:
        """The bytes of a range; fewer where the file ends."""
        ...


def stat(location: Location) -> ObjectInfo | None:
    """What is known of a file; None where there is none (a folder is none).

    Raises:
        StorageError: it cannot be looked for.
    """
    place = Place.of(location, "file")
    if place.is_remote:
        return ObjectFolder(place.parent).head(place.name) if place.name else None
    with _local_errors("read", place):
        return _local_info(place.path)


def stats(locations: Iterable[Location]) -> list[ObjectInfo | None]:
    """What is known of many files, in their order: at URLs one list of each folder instead of a request for each file.

    Raises:
        StorageError: they cannot be looked for.
    """
    places = [Place.of(location, "file") for location in locations]
    folders = {place.parent for place in places if place.is_remote}
    listed = {folder: listing(folder) for folder in folders}
    return [listed[place.parent].get(place.name) if place.is_remote else stat(place) for place in places]


def listing(location: Location) -> dict[str, ObjectInfo]:
    """Name → what is known of it, of the files directly in a folder, sorted; none where there is no such folder.

    Raises:
        StorageError: it cannot be read.
    """
    place = Place.of(location, "folder")
    if place.is_remote:
        return {info.key: info for info in ObjectFolder(place).directly()}
    with _local_errors("read", place):
        if not place.path.is_dir():
            return {}
        infos = {path.name: _local_info(path) for path in sorted(place.path.iterdir())}
    return {name: info for name, info in infos.items() if info is not None}


def folders(location: Location) -> list[str]:
    """Names of the folders directly in a folder, sorted; none where there is no such folder.

    Raises:
        StorageError: it cannot be read.
    """
    place = Place.of(location, "folder")
    if place.is_remote:
        return ObjectFolder(place).folders()
    with _local_errors("read", place):
        return sorted(path.name for path in place.path.iterdir() if path.is_dir()) if place.path.is_dir() else []


def get(location: Location) -> tuple[bytes, ObjectInfo] | None:
    """A whole small file and what was known of it when it was read; None where there is none.

    Raises:
        StorageError: it cannot be read.
    """
    place = Place.of(location, "file")
    if place.is_remote:
        return ObjectFolder(place.parent).get(place.name)
    info = stat(place)
    return None if info is None else (read_bytes(place), info)


def read_bytes(location: Location) -> bytes:
    """A whole file, which must be there.

    Raises:
        StorageError: it cannot be read.
    """
    place = Place.of(location, "file")
    if place.is_remote:
        return ObjectFolder(place.parent).read_bytes(place.name)
    with _local_errors("read", place):
        return place.path.read_bytes()


@contextmanager
def open_reader(location: Location) -> Iterator[Reader]:
    """Open a file for reading ranges.

    Raises:
        StorageError: it cannot be read; also while the block runs.
    """
    place = Place.of(location, "file")
    if place.is_remote:
        yield _RemoteReader(place)
        return
    with _local_errors("read", place):
        file = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with _local_errors("read", place):
            yield _LocalReader(file)
    finally:
        os.close(file)


def remove(locations: Sequence[Location]) -> None:
    """Remove files; those that are not there are no error.

    Raises:
        StorageError: one cannot be removed.
    """
    places = [Place.of(location, "file") for location in locations]
    for place in places:
        if not place.is_remote:
            with _local_errors("remove", place):
                place.path.unlink(missing_ok=True)
    for folder in dict.fromkeys(place.parent for place in places if place.is_remote):
        ObjectFolder(folder).delete([place.name for place in places if place.is_remote and place.parent == folder])


class _LocalReader:
    def __init__(self, file: int) -> None:
        self._file = file
        self.size = os.fstat(file).st_size

    def __call__(self, offset: int, length: int) -> bytes:
        parts = []
        while length > 0 and (data := os.pread(self._file, length, offset)):
            parts.append(data)
            offset, length = offset + len(data), length - len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _RemoteReader:
    def __init__(self, place: Place) -> None:
        self._folder, self._info = ObjectFolder(place.parent), ObjectFolder(place.parent).head(place.name)
        if self._info is None:
            raise StorageError(f"{place} does not exist; check the URL, bucket and prefix.")
        self.size = self._info.size

    def __call__(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        return bytes(self._folder.part(self._info, offset, length)) if self._info and length > 0 else b""


def _local_info(path: Path) -> ObjectInfo | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return ObjectInfo(path.name, found.st_size, "", "", found.st_mtime) if path.is_file() else None


@contextmanager
def _local_errors(doing: str, place: Place) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot {doing} {place}: {refusal(error)}") from error
