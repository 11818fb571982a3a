"""Read-only files of a store by their names, and nothing outside of it."""

from __future__ import annotations

import json
import os
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
        self._checked: set[Path] = set()

    def _path(self, name: str) -> Path:
        """Where a file is, followed only as far as links stay inside."""
        path = self._root / name
        if path.parent not in self._checked:
            check_inside(path.parent, self._root)
            self._checked.add(path.parent)
        if path.is_symlink():
            check_inside(path, self._root)
        return path

    def size(self, name: str) -> int | None:
        """See `Files.size`."""
        try:
            found = self._path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise EpisodeError(f"{self.where}/{name}: {error.strerror or error}.") from error
        return found.st_size

    def read(self, name: str) -> bytes | None:
        """See `Files.read`."""
        return self.part(name, 0, None)

    def part(self, name: str, start: int, stop: int | None) -> bytes | None:
        """See `Files.part`."""
        path = self._path(name)
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                wanted = bounded(max(0, (size if stop is None else min(stop, size)) - start), str(path))
                file.seek(start)
                return file.read(wanted)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise EpisodeError(f"{path}: unreadable: {error.strerror or error}.") from error

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


def in_order(names: Iterable[str]) -> list[str]:
    """Names in natural order."""
    return sorted(names, key=natural_key)
