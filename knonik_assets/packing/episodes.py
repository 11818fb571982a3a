"""The episodes that a pack reads, on a disk or at a URL: their names, facts, and whether they stayed as they were."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Protocol

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import list_episodes
from knonik_assets.episodes.remote import download_all, list_remote, retelling
from knonik_assets.packing.facts import EpisodeFacts, annotated, choose_episodes, read_facts
from knonik_assets.sources.naming import natural_key
from knonik_assets.storage import ObjectFolder, ObjectInfo, Place, Scratch
from knonik_loader.errors import ConfigError, EpisodeError, PackError

__all__ = ["Episodes", "check_digest", "open_episodes"]

_AT_ONCE = 16
"""Small objects that are asked for at once."""


class Episodes(Protocol):
    """A folder of ingested episodes."""

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

    def facts(self, only: Sequence[str] | None, exclude: Mapping[str, str]) -> list[EpisodeFacts]:
        folder = self._folder
        if not folder.is_dir():
            raise ConfigError(f"There is no directory {folder} to pack; name the output directory of an ingest.")
        names = choose_episodes([path.name for path in list_episodes(folder)], str(folder), only, exclude)
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

    @cached_property
    def _there(self) -> dict[str, dict[str, ObjectInfo]]:
        return _listed(self._place)

    def facts(self, only: Sequence[str] | None, exclude: Mapping[str, str]) -> list[EpisodeFacts]:
        names = choose_episodes(list(self._there), str(self._place), only, exclude)
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
        now = _listed(self._place)
        for episode in episodes:
            name = episode.episode_id
            if now.get(name) != self._there[name]:
                raise _replaced(str(self._place / name))


def _listed(place: Place) -> dict[str, dict[str, ObjectInfo]]:
    """Episode → its files by name relative to it, in natural order."""
    found = list_remote(ObjectFolder(place)).episodes
    return {name: found[name] for name in sorted(found, key=natural_key)}


def _replaced(where: str) -> PackError:
    return PackError(f"{where} was replaced while it was packed; pack again when ingest has ended.")


def check_digest(facts: EpisodeFacts, digest: bytes, where: str) -> None:
    """Refuse an episode that is not the one that was planned.

    Raises:
        EpisodeError: it was replaced.
    """
    if facts.digest != digest:
        raise EpisodeError(f"{where} was replaced while it was packed; pack again when ingest has ended.")
