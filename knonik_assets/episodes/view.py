"""A folder of ingested episodes at a path or URL: names, what describes them, and each whole while it is looked at."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import list_episodes
from knonik_assets.episodes.remote import describes, download_all, list_remote, retelling
from knonik_assets.episodes.storing import storage_errors
from knonik_assets.sources.naming import natural_key
from knonik_assets.storage import ObjectFolder, ObjectInfo, Place, Room, Scratch
from knonik_loader.errors import EpisodeError

__all__ = ["EpisodeAt", "EpisodesView", "LocalView", "RemoteView", "read_beside", "view_of"]

BESIDE = (
    "config.json",
    "quality.json",
    "quality.html",
    ".knonik/quality_rows.json",
    ".knonik/frame_offenders.json",
    ".knonik/expectations.json",
)
"""Small files beside the episodes that a view has at hand."""


class EpisodeAt(Protocol):
    """One episode, wherever it is; picklable."""

    @property
    def name(self) -> str:
        """Of its directory."""
        ...

    @contextmanager
    def local(self, *only: str) -> Iterator[Path]:
        """Its directory, while the block runs.

        Args:
            only: what the names of the files that are needed begin with, metadata apart; none: all are.

        Raises:
            StorageError: it cannot be read, was replaced since it was listed, or doesn't fit into scratch.
        """
        ...


class EpisodesView(AbstractContextManager["EpisodesView"], ABC):
    """A folder of episodes as it is when the block begins."""

    where: str
    """As people name it."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The episodes in natural order."""

    @property
    @abstractmethod
    def folder(self) -> Path:
        """A directory that holds at least what describes the episodes, their metadata and annotations, and `BESIDE`."""

    @abstractmethod
    def stamp(self, name: str) -> str:
        """Changes whenever a file of the episode is written."""

    @abstractmethod
    def sizes(self, name: str) -> dict[str, int]:
        """Bytes of each file of an episode, by name."""

    @abstractmethod
    def episode(self, name: str) -> EpisodeAt:
        """One episode."""

    def sent(self, name: str) -> None:
        """A file was written at ``folder / name``: have it where it belongs."""


def view_of(place: Place | Path) -> EpisodesView:
    """The episodes at a place."""
    if isinstance(place, Path):
        return LocalView(place)
    return RemoteView(place) if place.is_remote else LocalView(place.path)


def read_beside(place: Place | Path, name: str) -> bytes | None:
    """A small file beside the episodes; None where there is none.

    Raises:
        StorageError: it cannot be read.
    """
    if isinstance(place, Place) and place.is_remote:
        found = ObjectFolder(place).get(name)
        return None if found is None else found[0]
    path = (place.path if isinstance(place, Place) else place) / name
    with storage_errors("read", path):
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None


@dataclass(frozen=True, slots=True)
class _LocalEpisode:
    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @contextmanager
    def local(self, *only: str) -> Iterator[Path]:
        del only
        yield self.path


class LocalView(EpisodesView):
    """A directory."""

    def __init__(self, path: Path) -> None:
        self._path, self.where = path, str(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    @property
    def names(self) -> list[str]:
        """See `EpisodesView.names`.

        Raises:
            EpisodeError: there is no such directory.
        """
        return [path.name for path in list_episodes(self._path)]

    @property
    def folder(self) -> Path:
        """The directory itself."""
        return self._path

    def stamp(self, name: str) -> str:
        """See `EpisodesView.stamp`."""
        path, digest = self._path / name, hashlib.sha256()
        for folder, folders, files in os.walk(path):
            folders.sort()
            for file in sorted(files):
                status = Path(folder, file).stat()
                said = f"{folder.removeprefix(str(path))}/{file} {status.st_size} {status.st_mtime_ns}\n"
                digest.update(said.encode())
        return digest.hexdigest()

    def sizes(self, name: str) -> dict[str, int]:
        """See `EpisodesView.sizes`."""
        path = self._path / name
        return {file.relative_to(path).as_posix(): file.stat().st_size for file in path.rglob("*") if file.is_file()}

    def episode(self, name: str) -> EpisodeAt:
        """See `EpisodesView.episode`."""
        return _LocalEpisode(self._path / name)


@dataclass(frozen=True, slots=True)
class _RemoteEpisode:
    place: Place
    name: str
    files: tuple[ObjectInfo, ...]

    @contextmanager
    def local(self, *only: str) -> Iterator[Path]:
        url, start = str(self.place / self.name), len(self.name) + 1
        names = (METADATA, *only)
        wanted = [one for one in self.files if not only or one.key[start:].startswith(names)]
        with Scratch().room(sum(one.size for one in wanted), url) as room:
            download_all(ObjectFolder(self.place), wanted, room.folder)
            with retelling(room.folder, str(self.place)):
                yield room.folder / self.name


class RemoteView(EpisodesView):
    """A folder of an object store. What describes the episodes comes when ``folder`` is first asked for.

    Args:
        place: of the folder.
        beside: keys of further small objects to have at hand.
    """

    def __init__(self, place: Place, beside: tuple[str, ...] = BESIDE) -> None:
        self.place, self.where = place, str(place)
        self._objects, self._beside = ObjectFolder(place), beside
        self._room: Room | None = None

    def __enter__(self) -> Self:
        self.listed = list_remote(self._objects)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        room, self._room = self._room, None
        self.__dict__.pop("folder", None)
        if room is not None:
            room.__exit__(kind, error, trace)

    @property
    def names(self) -> list[str]:
        """See `EpisodesView.names`.

        Raises:
            EpisodeError: nothing at all is there.
        """
        if not self.listed.episodes and not self.listed.others:
            raise EpisodeError(f"{self.where} is no folder of ingested episodes")
        return sorted(self.listed.episodes, key=natural_key)

    @cached_property
    def folder(self) -> Path:
        """See `EpisodesView.folder`."""
        wanted = [one for key, one in self.listed.others.items() if key in self._beside]
        wanted += [one for files in self.listed.episodes.values() for name, one in files.items() if describes(name)]
        room = Scratch().room(sum(one.size for one in wanted), self.where, pinned=True)
        room.__enter__()
        self._room = room
        path = room.folder.resolve() / (self.place.name or self.place.bucket)
        with storage_errors("create", path):
            (path / ".knonik").mkdir(parents=True)
        download_all(self._objects, wanted, path)
        return path

    def stamp(self, name: str) -> str:
        """See `EpisodesView.stamp`."""
        said = [f"{file} {one.size} {one.etag or one.modified}" for file, one in self._files(name)]
        return hashlib.sha256("\n".join(said).encode()).hexdigest()

    def sizes(self, name: str) -> dict[str, int]:
        """See `EpisodesView.sizes`."""
        return {file: one.size for file, one in self._files(name)}

    def episode(self, name: str) -> EpisodeAt:
        """See `EpisodesView.episode`."""
        return _RemoteEpisode(self.place, name, tuple(one for _, one in self._files(name)))

    def sent(self, name: str) -> None:
        """See `EpisodesView.sent`."""
        self._objects.upload(self.folder / name, name)

    def _files(self, name: str) -> list[tuple[str, ObjectInfo]]:
        return sorted(self.listed.episodes[name].items())
