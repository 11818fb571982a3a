"""The episodes that a pack reads, on a disk or at a URL: their names, facts, and whether they stayed as they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Protocol

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import list_episodes
from knonik_assets.episodes.remote import RemoteEpisodes, download_all, list_remote, retelling
from knonik_assets.packing.facts import EpisodeFacts, annotated, choose_episodes, read_facts
from knonik_assets.packing.strangers import left_out, lost_episodes, no_episodes, no_folder
from knonik_assets.sources.naming import natural_key
from knonik_assets.storage import ObjectFolder, ObjectInfo, Place, Scratch, files
from knonik_loader.errors import EpisodeError, PackError

__all__ = ["Episodes", "check_digest", "open_episodes"]

_AT_ONCE = 16
"""Small objects that are asked for at once."""


class Episodes(Protocol):
    """A folder of ingested episodes."""

    warnings: list[str]
    """What is odd about those that `facts` was asked for last."""

    def facts(self, only: Sequence[str] | None, exclude: Mapping[str, str]) -> list[EpisodeFacts]:
        """Facts of the chosen episodes, in natural order of their names.

        Raises:
            ConfigError, PackError: see `choose_episodes`; there is no such folder.
            EpisodeError: an episode is damaged.
            StorageError: it cannot be read.
        """
        ...

    def check_unchanged(self, episodes: Iterable[EpisodeFacts]) -> None:
        """Refuse clocks, statistics and reused files of an episode that an ingest has replaced since `facts`.

        Raises:
            PackError: one was replaced.
        """
        ...


def open_episodes(place: Place) -> Episodes:
    """The episodes of a folder."""
    return _RemoteEpisodes(place, Scratch()) if place.is_remote else _LocalEpisodes(place.path)


class _LocalEpisodes:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.warnings: list[str] = []

    def facts(self, only: Sequence[str] | None, exclude: Mapping[str, str]) -> list[EpisodeFacts]:
        folder = self._folder
        if not folder.is_dir():
            raise no_folder(Place(str(folder)))
        there = [path.name for path in list_episodes(folder)]
        if not there:
            raise no_episodes(Place(str(folder)))
        telling = chain(folder.glob(f"*/{METADATA}"), folder.glob("*/frame_time/.zarray"))
        lost = lost_episodes(path.relative_to(folder).as_posix() for path in telling)
        names = choose_episodes(there, str(folder), only, exclude, lost)
        self.warnings = _warnings(str(folder), lost, only, exclude)
        return [read_facts(folder / name) for name in names]

    def check_unchanged(self, episodes: Iterable[EpisodeFacts]) -> None:
        for episode in episodes:
            path = self._folder / episode.episode_id
            if read_facts(path).digest != episode.digest:
                raise _replaced(str(path))


class _RemoteEpisodes:
    """Lists once; of each episode only metadata and annotations are fetched."""

    def __init__(self, place: Place, scratch: Scratch) -> None:
        self._place, self._scratch = place, scratch
        self.warnings: list[str] = []

    @cached_property
    def _listed(self) -> RemoteEpisodes:
        return list_remote(ObjectFolder(self._place))

    @cached_property
    def _there(self) -> dict[str, dict[str, ObjectInfo]]:
        return _in_order(self._listed)

    def facts(self, only: Sequence[str] | None, exclude: Mapping[str, str]) -> list[EpisodeFacts]:
        if not self._there:
            raise no_folder(self._place) if files.stat(self._place) is not None else no_episodes(self._place)
        lost = lost_episodes(one.key for left in self._listed.halves.values() for one in left)
        names = choose_episodes(list(self._there), str(self._place), only, exclude, lost)
        self.warnings = _warnings(str(self._place), lost, only, exclude)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self._facts, names))

    def _facts(self, name: str) -> EpisodeFacts:
        files = self._there[name]
        wanted = [info for file, info in files.items() if file == METADATA or annotated(file)]
        sizes = {file: info.size for file, info in files.items()}
        url = str(self._place / name)
        with self._scratch.room(sum(info.size for info in wanted), f"{url}/{METADATA}") as room:
            download_all(ObjectFolder(self._place), wanted, room.folder)
            folder = room.folder / name
            with retelling(folder, url):
                return read_facts(folder, sizes)

    def check_unchanged(self, episodes: Iterable[EpisodeFacts]) -> None:
        now = list_remote(ObjectFolder(self._place)).episodes
        for episode in episodes:
            name = episode.episode_id
            if now.get(name) != self._there[name]:
                raise _replaced(str(self._place / name))


def _in_order(found: RemoteEpisodes) -> dict[str, dict[str, ObjectInfo]]:
    """Episode → its files by name relative to it, in natural order."""
    return {name: found.episodes[name] for name in sorted(found.episodes, key=natural_key)}


def _warnings(where: str, lost: list[str], only: Sequence[str] | None, exclude: Mapping[str, str]) -> list[str]:
    missed = [name for name in lost if only is None and name not in exclude]
    return [left_out(where, missed)] if missed else []


def _replaced(where: str) -> PackError:
    return PackError(f"{where} was replaced while it was packed; pack again when ingest has ended.")


def check_digest(facts: EpisodeFacts, digest: bytes, where: str) -> None:
    """Refuse an episode that is not the one that was planned.

    Raises:
        EpisodeError: it was replaced.
    """
    if facts.digest != digest:
        raise EpisodeError(f"{where} was replaced while it was packed; pack again when ingest has ended.")
