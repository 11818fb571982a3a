"""Ingested episodes in an object store. An episode is there while its ``metadata.json`` is.

That object is put last and removed first, so that no reader sees half of an episode; what a reader holds of an episode
that is replaced meanwhile differs from its checksums.

A run whose lease ran out may only have stood still, and go on in the middle of an upload. So that nothing of it gets
between the files of the run that took over,

* every object is written where there is none, on that condition: of two runs' files of one name the first stands, and
  the run that holds the lease removes what isn't its own;
* no run writes where it removed something before it has seen that it still held the lease afterwards.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.storage import ONE_PIECE, ConflictError, ObjectFolder, ObjectInfo
from knonik_loader.errors import EpisodeError, KnonikError, StorageError, reworded

__all__ = [
    "ASIDE",
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
R = TypeVar("R")

ASIDE = ".knonik/tmp"
"""Where large files are uploaded to before they get their names; what is there while nobody writes was left behind."""
_MOST_COPIED = 1 << 30
"""Bytes of a file that a store copies by one request in good time (Amazon's: 5 GiB at most)."""
_TRIES = 3
"""To write an object where another run's late upload arrives."""
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


def publish_remote(
    built: Path, folder: ObjectFolder, episode_id: str, check: Callable[[], None] = lambda: None
) -> None:
    """Upload a finished episode, replacing what is there of this name.

    Args:
        built: the episode's local directory.
        folder: of the episodes.
        episode_id: its name there.
        check: raises where another run has taken over the folder.

    Raises:
        StorageError: the store refuses, or another run took over; what is there then is no episode, or the other run's.
    """
    files = {path.relative_to(built).as_posix(): path for path in sorted(built.rglob("*")) if path.is_file()}
    marker = files.pop(METADATA)
    older = {one.key.partition("/")[2]: one for one in folder.objects(episode_id)}
    check()
    if older:
        remove_remote(folder, older)
        check()

    def put(name: str) -> str:
        return _put(files[name], folder, f"{episode_id}/{name}", check)

    etags = dict(zip(files, _in_threads(put, list(files)), strict=True))
    _settle(folder, episode_id, {name: (files[name].stat().st_size, etag) for name, etag in etags.items()}, check)
    _put(marker, folder, f"{episode_id}/{METADATA}", check)


def _put(path: Path, folder: ObjectFolder, key: str, check: Callable[[], None]) -> str:
    """Write a file under its name, removing what somebody else put there; its etag where that is known."""
    for _ in range(_TRIES - 1):
        try:
            return _create(path, folder, key)
        except ConflictError:
            check()
        folder.delete([key])
        check()
    return _create(path, folder, key)


def _create(path: Path, folder: ObjectFolder, key: str) -> str:
    size = path.stat().st_size
    if size <= ONE_PIECE:
        return folder.create(path, key)
    if size > _MOST_COPIED:
        return folder.upload(path, key).etag
    aside = f"{ASIDE}/{uuid.uuid4().hex}/{key}"
    folder.upload(path, aside)
    try:
        folder.copy(aside, key)
    finally:
        folder.delete([aside])
    return ""


def _settle(
    folder: ObjectFolder, episode_id: str, wanted: Mapping[str, tuple[int, str]], check: Callable[[], None]
) -> None:
    """Before an episode becomes visible: its files are those that were written, and no others.

    Args:
        folder: of the episodes.
        episode_id: its name there.
        wanted: size and etag (where known) by name.
        check: see `publish_remote`.

    Raises:
        StorageError: one is missing, or another.
    """
    there = {one.key.partition("/")[2]: one for one in folder.objects(episode_id)}
    check()
    for name, (size, etag) in wanted.items():
        one = there.pop(name, None)
        if one is None or one.size != size or (etag and _bare(one.etag) != _bare(etag)):
            raise StorageError(
                f"{folder.url(f'{episode_id}/{name}')} was {'removed' if one is None else 'replaced'} by another run "
                "while this one wrote the episode; see that only one run writes there, and ingest again."
            )
    if there:
        folder.delete(one.key for one in there.values())
        check()


def _bare(etag: str) -> str:
    """An etag without quotes: Azure's answers to a put have them, its listings don't."""
    return etag.strip('"')


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


def _in_threads(call: Callable[[T], R], items: list[T]) -> list[R]:
    """What the call gives for each item; where it raises, what has not begun is left undone."""
    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(items)))) as pool:
        try:
            return [done.result() for done in [pool.submit(call, item) for item in items]]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
