"""Scratch space: a bounded folder on a local disk through which remote data is staged.

``KNONIK_SCRATCH`` names the folder (default: one of this user below the system's temporary folder),
``KNONIK_SCRATCH_BYTES`` how many bytes all runs of this machine may hold in it together (default: what its disk has
free). Work takes a *room* of so many bytes before it stages anything, and the room is removed when its block ends. A
room belongs to a live process by a kernel lock, so what a killed run left is swept by the next one that takes a room.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from knonik_loader.errors import ConfigError, KnonikError, StorageError

__all__ = ["Room", "Scratch", "ScratchBusyError"]

_FOLDER, _BYTES = "KNONIK_SCRATCH", "KNONIK_SCRATCH_BYTES"
_HELD = "held"
_mine = threading.local()
"""Rooms of this thread: one that holds a room must not wait for another."""


class ScratchBusyError(StorageError):
    """A room cannot grow now because others are in use: leave it, take one of the size it wanted, and start again.

    Attributes:
        size: bytes that it wanted.
    """

    size: int = 0


@dataclass(frozen=True, slots=True)
class _Other:
    """A room of somebody."""

    path: Path
    size: int
    pinned: bool


class Scratch:
    """The scratch folder and its limit; picklable, opens and makes nothing before the first room is taken.

    Args:
        folder: None: ``KNONIK_SCRATCH``, or a folder of this user below the system's temporary one.
        limit: bytes of all rooms together; None: ``KNONIK_SCRATCH_BYTES``, or what the disk has free.

    Raises:
        ConfigError: a variable of the environment makes no sense.
    """

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        named = os.environ.get(_FOLDER)
        default = Path(named).expanduser() if named else Path(tempfile.gettempdir()) / f"knonik-scratch-{os.getuid()}"
        self.folder = (folder or default).absolute()
        self.limit = limit if limit is not None else _limit_of_environment()

    def __repr__(self) -> str:
        return f"Scratch({str(self.folder)!r}, {self.limit})"

    def room(self, size: int, what: str, *, pinned: bool = False) -> Room:
        """Make room for ``size`` bytes, waiting for others to leave where that can help; use it in a ``with``.

        Take all that a piece of work needs at once: a thread that holds a room never waits for another one.

        Args:
            size: bytes.
            what: what is staged, for messages: a URL.
            pinned: it is held while other tasks take rooms that this one waits for, so they don't wait for it.

        Raises:
            StorageError: it cannot fit, or the disk refuses.
        """
        return Room(self, size, what, pinned=pinned)

    @contextmanager
    def _ledger(self) -> Iterator[None]:
        """Nobody else on this machine takes, grows or sweeps rooms meanwhile."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _refused(self.folder, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        except KnonikError:
            raise
        except OSError as error:
            raise _refused(self.folder, error) from error
        finally:
            _let_go(file)

    def _others(self, but: Path | None = None) -> list[_Other]:
        """Rooms in use, oldest first; those of dead processes are removed on the way."""
        found = []
        for path in sorted(self.folder.glob("room-*")):  # their names begin with when they were taken
            if path == but:
                continue
            try:
                file = os.open(path / _HELD, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:  # being made or removed when its process died: the ledger's lock is ours
                shutil.rmtree(path, ignore_errors=True)
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                said = json.loads(os.pread(file, 4096, 0))
                found.append(_Other(path, said["bytes"], said["pinned"]))
            else:
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(file)
        return found

    def _fits(self, size: int, others: list[_Other]) -> bool:
        if self.limit is None:
            return size <= shutil.disk_usage(self.folder).free
        return sum(other.size for other in others) + size <= self.limit

    def _no_room(self, size: int, what: str, others: list[_Other]) -> StorageError:
        held = sum(other.size for other in others)
        beside = f" beside the {held:,} that are in use" if held else ""
        if self.limit is None:
            free = shutil.disk_usage(self.folder).free
            return StorageError(
                f"{what} needs {size:,} bytes of scratch space, and the disk of {self.folder} has {free:,} free"
                f"; name a folder on a larger disk by {_FOLDER}."
            )
        return StorageError(
            f"{what} needs {size:,} bytes of scratch space{beside}, and {_BYTES} allows {self.limit:,} in "
            f"{self.folder}; raise it to at least {size + held:,}."
        )


class Room:
    """So many bytes of scratch space with a folder of their own; made by `Scratch.room`."""

    def __init__(self, scratch: Scratch, size: int, what: str, *, pinned: bool) -> None:
        self._scratch, self._what, self._pinned = scratch, what, pinned
        self.size = size
        """Bytes."""
        self._path = scratch.folder / "room-"  # named when it is taken
        self._file = -1

    @property
    def folder(self) -> Path:
        """An empty folder at first, gone with everything in it when the block ends."""
        return self._path / "data"

    def __enter__(self) -> Self:
        scratch = self._scratch
        while True:
            with scratch._ledger():
                others = scratch._others()
                if scratch._fits(self.size, others):
                    self._take()
                    return self
                alone = scratch.limit is not None and self.size > scratch.limit
                unpinned = [other for other in others if not other.pinned]
                if alone or not unpinned or _held_here():
                    raise scratch._no_room(self.size, self._what, [] if alone else others)
            _await(unpinned[0].path)

    def _take(self) -> None:
        self._path = self._scratch.folder / f"room-{time.time_ns():020d}-{uuid.uuid4().hex}"
        self.folder.mkdir(parents=True)
        partial = self._path / f"{_HELD}.partial"
        self._file = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._note()
        partial.rename(self._path / _HELD)
        _mine.rooms = _held_here() + 1

    def _note(self) -> None:
        text = json.dumps({"bytes": self.size, "pinned": self._pinned}).encode()
        os.pwrite(self._file, text.ljust(128), 0)

    def grow(self, size: int, what: str = "") -> None:
        """Make the room larger by so many bytes, before they are written.

        Raises:
            ScratchBusyError: others are in use, and an older one among them may be waiting for this one.
            StorageError: it cannot fit.
        """
        scratch, what = self._scratch, what or self._what
        while True:
            with scratch._ledger():
                others = scratch._others(but=self._path)
                # what this room holds already is on the disk
                if scratch._fits(size + (self.size if scratch.limit is not None else 0), others):
                    self.size += size
                    self._note()
                    return
                unpinned = [other for other in others if not other.pinned]
                error = scratch._no_room(self.size + size, what, others)
                if not unpinned or (scratch.limit is not None and self.size + size > scratch.limit):
                    raise error
                if not self._pinned and unpinned[0].path.name < self._path.name:
                    busy = ScratchBusyError(str(error))
                    busy.size = self.size + size
                    raise busy
            _await(unpinned[0].path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _mine.rooms = _held_here() - 1
        shutil.rmtree(self.folder, ignore_errors=True)
        file, self._file = self._file, -1
        with suppress(KnonikError), self._scratch._ledger():
            shutil.rmtree(self._path, ignore_errors=True)
        _let_go(file)


def _let_go(file: int) -> None:
    """Unlock and close: a process that was forked meanwhile has the file open, too, and would go on locking it."""
    try:
        fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _held_here() -> int:
    return int(getattr(_mine, "rooms", 0))


def _await(path: Path) -> None:
    """Wait until a room's process lets go of it."""
    with suppress(FileNotFoundError):
        file = os.open(path / _HELD, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
        finally:
            os.close(file)


def _limit_of_environment() -> int | None:
    text = os.environ.get(_BYTES)
    if not text:
        return None
    try:
        limit = int(text)
    except ValueError:
        limit = 0
    if limit < 1:
        raise ConfigError(f"{_BYTES} is {text!r}; give a number of bytes, such as 200000000000.")
    return limit


def _refused(folder: Path, error: OSError) -> StorageError:
    return StorageError(
        f"cannot use the scratch folder {folder}: {error.strerror or error}; name another one by {_FOLDER}."
    )
