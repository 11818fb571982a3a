"""Read-only files of a store by their names, and nothing outside of it."""

from __future__ import annotations

import io
import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from knonik_assets.sources.arrays import bounded
from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.trees import check_inside
from knonik_loader.errors import EpisodeError

__all__ = ["Files", "Folder", "in_order"]

_MOST_JSON = 64 << 20


class Files(ABC):
    """Read-only files by their slashed names. Thread-safe until closed."""

    cheap_parts = False
    """Whether `part` reads no more of a file than it gives."""

    def __init__(self, where: str) -> None:
        self.where = where

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """A file's content; None where there is no such file.

        Raises:
            EpisodeError: it is damaged, unreadable, absurdly large, or leads out of the store.
        """

    def part(self, name: str, start: int, stop: int) -> bytes | None:
        """Some of a file's bytes, fewer where it ends before; None where there is no such file.

        Raises:
            EpisodeError: see `read`.
        """
        data = self.read(name)
        return None if data is None else data[start:stop]

    @abstractmethod
    def children(self, folder: str) -> tuple[list[str], list[str]]:
        """Names of the folders and of the files directly in a folder ("" for the top), in natural order.

        Raises:
            EpisodeError: it leads out of the store.
        """

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON object; None where there is no such file.

        Raises:
            EpisodeError: damaged.
        """
        size = self.size(name)
        if size is None:
            return None
        if size > _MOST_JSON:
            raise EpisodeError(f"{self.where}/{name}: {size} bytes of metadata; at most {_MOST_JSON} are accepted.")
        try:
            found = json.loads(self.read(name) or b"")
        except (ValueError, RecursionError) as error:
            raise EpisodeError(f"{self.where}/{name}: no readable JSON: {error}.") from error
        if not isinstance(found, dict):
            raise EpisodeError(f"{self.where}/{name}: a {type(found).__name__} where an object is wanted.")
        return found

    def close(self) -> None:  # noqa: B027 - a folder holds nothing open
        """Let go of everything; idempotent."""


class Folder(Files):
    """A directory store."""

    cheap_parts = True

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self._root = root
        self._checked: set[str] = set()

    def _stat(self, name: str) -> tuple[str, os.stat_result]:
        """Where a file is and what it is, followed only as far as links stay inside.

        Plain strings: a store may hold a file a picture, and a `Path` costs more than asking the disk.
        """
        path = f"{self.where}/{name}"
        parent = path.rpartition("/")[0]
        if parent not in self._checked:
            check_inside(Path(parent), self._root)
            self._checked.add(parent)
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            check_inside(Path(path), self._root)
            found = Path(path).stat()
        return path, found

    def size(self, name: str) -> int | None:
        """See `Files.size`."""
        try:
            return self._stat(name)[1].st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise EpisodeError(f"{self.where}/{name}: {error.strerror or error}.") from error

    def read(self, name: str) -> bytes | None:
        """See `Files.read`."""
        return self.part(name, 0, None)

    def part(self, name: str, start: int, stop: int | None) -> bytes | None:
        """See `Files.part`."""
        try:
            path, found = self._stat(name)
            if not stat.S_ISREG(found.st_mode):  # opening a pipe waits for somebody who writes to it
                raise EpisodeError(f"{path}: no regular file.")
            with Path(path).open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                wanted = bounded(max(0, (size if stop is None else min(stop, size)) - start), path)
                if start:
                    file.seek(start)
                return _read(file, wanted)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise EpisodeError(f"{self.where}/{name}: unreadable: {error.strerror or error}.") from error

    def children(self, folder: str) -> tuple[list[str], list[str]]:
        """See `Files.children`."""
        path = self._root / folder
        check_inside(path, self._root)
        try:
            with os.scandir(path) as entries:
                found = [(entry.name, entry.is_dir()) for entry in entries]
        except OSError as error:
            raise EpisodeError(f"{path}: unreadable: {error.strerror or error}.") from error
        return in_order(name for name, folder in found if folder), in_order(
            name for name, folder in found if not folder
        )


def _read(file: io.FileIO, count: int) -> bytes:
    """Some bytes from where the file stands, fewer at its end: one call of the system may give fewer than there are."""
    data = file.read(count)
    if len(data) == count or not data:
        return data
    pieces = [data]
    while (count := count - len(pieces[-1])) and (piece := file.read(count)):
        pieces.append(piece)
    return b"".join(pieces)


def in_order(names: Iterable[str]) -> list[str]:
    """Names in natural order."""
    return sorted(names, key=natural_key)
