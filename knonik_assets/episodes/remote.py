"""Ingested episodes in an object store. An episode is there while its ``metadata.json`` is.

That object is put last and removed first, so that no reader sees half of an episode; what a reader holds of an episode
that is replaced meanwhile differs from its checksums.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.storage import ObjectFolder, ObjectInfo
from knonik_loader.errors import EpisodeError, KnonikError, StorageError, reworded

__all__ = [
    "RemoteEpisodes",
    "describes",
    "download_all",
    "is_written",
    "list_remote",
    "publish_remote",
    "remove_remote",
    "retelling",
]

T = TypeVar("T")

_AT_ONCE = 8
_EPISODE = re.compile(r"episode_\d{6,}")
_WRITTEN = re.compile(r"rgb_[^/]+\.(webm|mkv)|depth_[^/]+\.hdf5|[^/]+/(\.zarray|\.zattrs|[0-9]+(\.[0-9]+)*)")
_DESCRIBING = (METADATA, "annotations/language/episode.yaml")


@dataclass(frozen=True, slots=True)
class RemoteEpisodes:
    """What lies in a folder of episodes, as it was listed."""

    episodes: dict[str, dict[str, ObjectInfo]] = field(default_factory=dict)
    """Episode → name of each of its files → object, whose key goes from the folder of the episodes."""
    halves: dict[str, list[ObjectInfo]] = field(default_factory=dict)
    """What killed runs left: folders named like episodes that are none."""
    others: dict[str, ObjectInfo] = field(default_factory=dict)
    """Everything else by key."""


def list_remote(folder: ObjectFolder) -> RemoteEpisodes:
    """List a folder of episodes.

    Raises:
        StorageError: it cannot be listed.
    """
    objects = folder.objects()
    there = {one.key.rpartition("/")[0] for one in objects if one.key.endswith(f"/{METADATA}")}
    found = RemoteEpisodes()
    for one in objects:
        name, slash, rest = one.key.partition("/")
        if slash and name in there and not name.startswith("."):
            found.episodes.setdefault(name, {})[rest] = one
        elif slash and _EPISODE.fullmatch(name):
            found.halves.setdefault(name, []).append(one)
        else:
            found.others[one.key] = one
    return found


def describes(name: str) -> bool:
    """Whether a file of an episode is one of the small ones that say what is in it."""
    return name in _DESCRIBING


def is_written(name: str) -> bool:
    """Whether a file within an episode's folder can be one that an ingest wrote."""
    return describes(name) or _WRITTEN.fullmatch(name) is not None


def download_all(folder: ObjectFolder, objects: Iterable[ObjectInfo], to: Path) -> None:
    """Bring objects below a local folder, under their keys, as they were listed.

    Raises:
        EpisodeError: a key leads out of the folder.
        StorageError: one was replaced meanwhile, or the disk or the store refuses.
    """
    wanted = list(objects)

    def fetch(one: ObjectInfo) -> None:
        path = to / one.key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot write {path.parent}: {error.strerror or error}.") from error
        folder.download(one.key, path, one)

    for one in wanted:
        if any(part in ("", ".", "..") for part in one.key.split("/")):
            raise EpisodeError(f"{folder.url(one.key)} is no name of an episode's file; remove that object.")
    _in_threads(fetch, wanted)


def publish_remote(built: Path, folder: ObjectFolder, episode_id: str, check: Callable[[], None] | None = None) -> None:
    """Upload a finished episode, replacing what is there of this name.

    Args:
        built: the episode's local directory.
        folder: of the episodes.
        episode_id: its name there.
        check: called before anything of the older episode is touched, and before the new one becomes visible; raises
            where another run has taken over.

    Raises:
        StorageError: the store refuses; the episode is then not there, as a whole or in part.
    """
    files = {path.relative_to(built).as_posix(): path for path in sorted(built.rglob("*")) if path.is_file()}
    marker = files.pop(METADATA)
    if check is not None:
        check()
    older = [one.key for one in folder.objects(episode_id)]
    folder.delete(key for key in older if key == f"{episode_id}/{METADATA}")
    _in_threads(lambda name: folder.upload(files[name], f"{episode_id}/{name}"), list(files))
    folder.delete(key for key in older if key.partition("/")[2] not in files)
    if check is not None:
        check()
    folder.upload(marker, f"{episode_id}/{METADATA}")


def remove_remote(folder: ObjectFolder, files: Mapping[str, ObjectInfo]) -> None:
    """Take an episode away: first out of sight."""
    folder.delete(one.key for name, one in files.items() if name == METADATA)
    folder.delete(one.key for name, one in files.items() if name != METADATA)


@contextmanager
def retelling(folder: Path, url: str) -> Iterator[None]:
    """Errors inside of the block name the URL, not the folder in scratch where its objects are."""
    try:
        yield
    except KnonikError as error:
        if str(folder) not in str(error):
            raise
        raise reworded(error, str(error).replace(str(folder), url)) from error


def _in_threads(call: Callable[[T], object], items: list[T]) -> None:
    if not items:
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(items))) as pool:
        for done in [pool.submit(call, item) for item in items]:
            done.result()
