"""A raw dataset in scratch space: every object's name from the beginning, its content while it is needed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from knonik_assets.sources.remote.listing import Listing, state_of
from knonik_assets.sources.remote.needs import Names, Needs
from knonik_assets.storage import ObjectFolder, ObjectInfo, Place, Room, Scratch
from knonik_loader.errors import EpisodeError, KnonikError, StorageError

__all__ = ["Mirror", "OwnMirror"]

_AT_ONCE = 8
_ABSENT, _PRESENT = 0o000, 0o444
"""Modes of a file: without its content it is empty and unreadable, so that nobody takes it for the data."""


class Mirror:
    """Files below ``base`` that stand for the objects below a URL.

    Every process of a machine may use the mirror that one of them made; each stages and releases the objects of its
    own episodes, for which it takes room in scratch beforehand.

    Args:
        base: folder of the files.
        place: folder of the objects.
        root: key of the dataset itself; "" where it is the base.
    """

    def __init__(self, base: Path, place: Place, root: str) -> None:
        self.base, self.place = base, place
        self.root = base / root if root else base
        self._folder = ObjectFolder(place)

    def close(self) -> None:
        """Leave it to whoever made it."""

    def retold(self, text: str) -> str:
        """A message with the URL for every path in the mirror."""
        return text.replace(str(self.base), str(self.place))

    def stage(self, objects: Iterable[ObjectInfo]) -> None:
        """Bring these objects' content as it was listed, unless it is here.

        Raises:
            EpisodeError: one was replaced since it was listed, or is gone.
            StorageError: the store cannot be asked, or the disk refuses.
        """
        missing = [one for one in objects if not _present(self.base / one.key)]
        if not missing:
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(missing))) as pool:
            for done in [pool.submit(self._fetch, one) for one in missing]:
                done.result()

    def release(self, objects: Iterable[ObjectInfo]) -> None:
        """Take these objects' content away again; their names stay."""
        for one in objects:
            path = self.base / one.key
            if _present(path):
                path.chmod(0o600)
                os.truncate(path, 0)
                path.chmod(_ABSENT)

    def _fetch(self, one: ObjectInfo) -> None:
        path = self.base / one.key
        partial = path.with_name(f".{path.name[:200]}.{os.getpid()}.partial")
        folder = path.parent.stat()
        try:
            self._folder.download(one.key, partial, one)
            partial.chmod(_PRESENT)
            partial.replace(path)
            # readers that remember a folder's content by its time of change have seen all of its names already
            os.utime(path.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))
        except StorageError as error:
            raise self._replaced(one, error) from error
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}.") from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def _replaced(self, one: ObjectInfo, error: StorageError) -> KnonikError:
        """The error itself, unless the object is another one by now: that is the episode's own trouble."""
        if error.outage:
            return error
        with suppress(StorageError):
            now = self._folder.head(one.key)
            if now is None or (now.size, now.etag) != (one.size, one.etag):
                what = "is gone" if now is None else "was replaced"
                return EpisodeError(
                    f"{self._folder.url(one.key)} {what} since the dataset was listed; run ingest again when its "
                    "writer is done."
                )
        return error


class OwnMirror(Mirror):
    """A mirror that this process makes: takes room for what episodes share, and brings it.

    Raises:
        StorageError: what episodes share doesn't fit into scratch, or cannot be read.
        EpisodeError: an object changed meanwhile.
    """

    def __init__(self, listing: Listing, needs: Needs, scratch: Scratch | None = None) -> None:
        self.listing, self.needs = listing, needs
        self.names = Names(one.key for one in listing.objects)
        self._by_name = {one.key: one for one in listing.objects}
        index = self.objects(needs.index(self.names))
        self.index = frozenset(one.key for one in index)
        """Keys of what episodes share, which stays."""
        self.index_state = state_of(index)
        what = str(listing.base / listing.root) if listing.root else str(listing.base)
        if needs.own is None:
            what += ", whose episodes share files, so that all of it is staged at once,"
        self._room: Room | None = (scratch or Scratch()).room(sum(one.size for one in index), what, pinned=True)
        self._room.__enter__()
        try:
            # the same last parts as the URL has: readers take names from them
            base = self._room.folder.resolve().joinpath(listing.base.bucket, *filter(None, listing.base.key.split("/")))
            super().__init__(base, listing.base, listing.root)
            self._lay_out()
            self.stage(index)
        except BaseException:
            self.close()
            raise

    def objects(self, names: Sequence[str]) -> tuple[ObjectInfo, ...]:
        """The objects of these names."""
        return tuple(self._by_name[name] for name in names)

    def release(self, objects: Iterable[ObjectInfo]) -> None:
        """See `Mirror.release`; what episodes share stays."""
        super().release(one for one in objects if one.key not in self.index)

    def close(self) -> None:
        """Remove everything."""
        room, self._room = self._room, None
        if room is not None:
            room.__exit__(None, None, None)

    def _lay_out(self) -> None:
        made: set[Path] = set()
        try:
            self.base.mkdir(parents=True, exist_ok=True)
            for one in self.listing.objects:
                path = self.base / one.key
                if path.parent not in made:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    made.add(path.parent)
                path.touch(_ABSENT)
        except OSError as error:
            raise StorageError(f"cannot write {error.filename}: {error.strerror or error}.") from error


def _present(path: Path) -> bool:
    try:
        return stat.S_IMODE(path.stat().st_mode) == _PRESENT
    except OSError:
        return False
