"""Where a run writes its episodes: a local directory, or a folder of an object store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from knonik_assets.configs.dataset import CONFIG
from knonik_assets.episodes.metadata import METADATA, EpisodeMetadata, is_ours, read_metadata
from knonik_assets.episodes.remote import ASIDE, describes, download_all, is_written, remove_remote, retelling
from knonik_assets.episodes.storing import storage_errors
from knonik_assets.episodes.view import RemoteView
from knonik_assets.ingesting.fingerprints import FINGERPRINTS
from knonik_assets.ingesting.lock import OutputLock
from knonik_assets.ingesting.numbering import NUMBERS, episode_name, read_numbers
from knonik_assets.ingesting.planning import remove
from knonik_assets.storage import ConflictError, Lease, ObjectFolder, Place, check_lease
from knonik_loader.errors import EpisodeError, StorageError

__all__ = ["LocalOutput", "Output", "RemoteOutput", "open_output"]

_STATE = (NUMBERS, FINGERPRINTS, CONFIG)
_CLOCK = "frame_time"
_NAMED = 3
_UNKNOWN = "is no ingested episode: move it away, or name another output."


class Output(AbstractContextManager["Output"], ABC):
    """An output that this run alone writes while its block runs.

    Code that works on a local directory works on ``path``; then it says what changed.
    """

    where: str
    """As people name it."""
    path: Path
    """The directory; of a remote output, a view of it in scratch: state and what describes the episodes."""
    url: str | None = None
    """Of a remote output."""
    lease: str = ""
    """Id of this run's lease on a remote output."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """A small file's content, also before the block; None where there is none."""

    @abstractmethod
    def whole(self, episode_id: str) -> EpisodeMetadata | None:
        """An episode's metadata where every file of it is there with its size; None where it has to be done again."""

    @abstractmethod
    def remove(self, episode_id: str) -> None:
        """Take an episode away."""

    @abstractmethod
    def stranger(self, episode_id: str) -> str:
        """What is to be said of something that stands where an episode belongs and was not put there by an ingest.

        Empty where nothing is there, or an episode; a damaged one still is one, see `_foreign`.
        """

    def sent(self, name: str) -> None:
        """A file was written at ``path / name``: have it where it belongs, if it is there."""

    def arrived(self, episode_id: str) -> None:
        """A worker put an episode in place."""

    def check(self) -> None:
        """Is the output still this run's alone?"""

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors inside of the block name the output as people do."""
        yield


def _foreign(folder: Path, list_names: Callable[[], Collection[str]]) -> str:
    """What is to be said of files that are no ingested episode's: such a one has metadata of ours, or lost it.

    What lost it holds nothing that an ingest doesn't write.

    Args:
        folder: where the metadata is, if there is any.
        list_names: lists all files of what may be an episode.
    """
    ours = is_ours(folder)
    if ours is not None:
        return "" if ours else _UNKNOWN
    names = list_names()
    damaged = not names or METADATA in names or _has_clock(names)
    return "" if damaged and all(is_written(name) for name in names) else _unknown(names)


def _has_clock(names: Collection[str]) -> bool:
    return any(name.startswith(f"{_CLOCK}/") for name in names)


def _unknown(names: Collection[str]) -> str:
    """What is to be said of a folder without metadata of ours, all files of which are given."""
    strays = sorted(name for name in names if not is_written(name))
    if not strays or not _has_clock(names):
        return _UNKNOWN
    more = f" and {len(strays) - _NAMED} more" if len(strays) > _NAMED else ""
    what = "damaged" if METADATA in names else "lost"
    return (
        f"looks like an episode whose {METADATA} is {what}, but holds what no ingest wrote: move that "
        f"({', '.join(strays[:_NAMED])}{more}) away, and the episode is ingested again; or name another output."
    )


def open_output(place: Place) -> Output:
    """The output at a place; nothing is touched before its block begins."""
    return RemoteOutput(place) if place.is_remote else LocalOutput(place.path)


class LocalOutput(Output):
    """A directory."""

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, str(path)
        self._lock = OutputLock(path)

    def __enter__(self) -> Self:
        self._lock.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.__exit__(kind, error, trace)

    def read(self, name: str) -> bytes | None:
        """See `Output.read`."""
        path = self.path / name
        with storage_errors("read", path):
            return path.read_bytes() if path.is_file() else None

    def whole(self, episode_id: str) -> EpisodeMetadata | None:
        """See `Output.whole`."""
        path = self.path / episode_id
        try:
            metadata = read_metadata(path)
        except EpisodeError:
            return None
        for relative, entry in metadata.files.items():
            file = path / relative
            if not file.is_file() or file.stat().st_size != entry.bytes:
                return None
        return metadata

    def remove(self, episode_id: str) -> None:
        """See `Output.remove`."""
        remove(self.path, episode_id)

    def stranger(self, episode_id: str) -> str:
        """See `Output.stranger`."""
        path = self.path / episode_id
        if not path.is_dir():
            return _UNKNOWN if path.exists() or path.is_symlink() else ""

        def names() -> list[str]:
            with storage_errors("read", path):
                return [each.relative_to(path).as_posix() for each in path.rglob("*") if not each.is_dir()]

        return _foreign(path, names)


class RemoteOutput(Output):
    """A folder of an object store: what workers finish is uploaded, the marker of each episode last.

    Raises:
        StorageError: another run holds the lease, or the store refuses.
    """

    def __init__(self, place: Place) -> None:
        self.where, self.url = str(place), str(place)
        self._folder = ObjectFolder(place)
        self._view = RemoteView(place, _STATE)
        self._lease = Lease(self._folder)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._lease)
            self.lease = self._lease.id
            stack.enter_context(self._view)
            self.path = self._view.folder
            self._sweep()
            self._stack = stack.pop_all()
        return self

    def _sweep(self) -> None:
        """Remove what killed runs left of episodes, and nothing that anybody else put there."""
        halves = self._view.listed.halves
        numbered = {episode_name(number) for number in read_numbers(self.path).values()} if halves else set()
        for name, left in list(halves.items()):
            if name in numbered and all(is_written(one.key.partition("/")[2]) for one in left):
                self._folder.delete(one.key for one in halves.pop(name))
        self._folder.delete(key for key in self._view.listed.others if key.startswith(f"{ASIDE}/"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def read(self, name: str) -> bytes | None:
        """See `Output.read`."""
        found = self._folder.get(name)
        return None if found is None else found[0]

    def whole(self, episode_id: str) -> EpisodeMetadata | None:
        """See `Output.whole`."""
        files = self._view.listed.episodes.get(episode_id)
        if files is None:
            return None
        try:
            metadata = read_metadata(self.path / episode_id)
        except EpisodeError:
            return None
        sizes = {name: one.size for name, one in files.items()}
        return metadata if all(sizes.get(name) == entry.bytes for name, entry in metadata.files.items()) else None

    def remove(self, episode_id: str) -> None:
        """See `Output.remove`."""
        self.check()
        remove_remote(self._folder, self._view.listed.episodes.pop(episode_id, {}))
        remove(self.path, episode_id)

    def stranger(self, episode_id: str) -> str:
        """See `Output.stranger`."""
        listed = self._view.listed
        if episode_id in listed.halves:
            return _unknown({one.key.partition("/")[2] for one in listed.halves[episode_id]})
        return _foreign(self.path / episode_id, lambda: listed.episodes.get(episode_id, {}).keys())

    def sent(self, name: str) -> None:
        """See `Output.sent`."""
        path = self.path / name
        if not path.is_file():
            return
        check_lease(self._folder, self.lease)
        if name in (NUMBERS, CONFIG):
            self._replace(name, path.read_bytes())
        else:  # the report says whose it is, and caches are true whoever wrote them last
            self._view.sent(name)

    def _replace(self, name: str, data: bytes) -> None:
        """Put a file that a run which was outlasted must not replace late: in place of the one that this run knows."""
        known = self._view.listed.others
        before = known.get(name)
        try:
            known[name] = self._folder.put_bytes(name, data, if_none_match=before is None, if_match=before)
        except ConflictError:
            check_lease(self._folder, self.lease)
            if name != CONFIG or before is not None:  # else somebody wrote one meanwhile, which is kept
                raise

    def arrived(self, episode_id: str) -> None:
        """See `Output.arrived`."""
        self.check()
        objects = [one for one in self._folder.objects(episode_id) if describes(one.key.partition("/")[2])]
        if not any(one.key == f"{episode_id}/{METADATA}" for one in objects):
            raise StorageError(
                f"{self._folder.url(episode_id)} vanished after it was written; does another run delete?"
            )
        download_all(self._folder, objects, self.path)

    def check(self) -> None:
        """See `Output.check`."""
        self._lease.check()

    @contextmanager
    def told(self) -> Iterator[None]:
        """See `Output.told`."""
        with retelling(self.path, self.where):
            yield
