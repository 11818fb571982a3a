"""One run at a time writes a folder of an object store: a small object that its holder renews while it works.

A local lock dies with its process; an object does not, so a lease names its holder and runs out. It can be taken over

* at once where its holder gave it back, or was a process of this machine that is gone;
* where it ran out and is not renewed while the next run watches it: clocks of machines need not agree for that.

Every change is a conditional put, so that of two runs one gets it.

A holder whose lease ran out may be a paused machine's, with an upload on its way that no lease stops. So a holder says
in its lease what it is going to write, and every later lease of the folder goes on saying it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from knonik_assets.storage.objects import ConflictError, ObjectFolder, ObjectInfo
from knonik_loader.errors import StorageError

__all__ = ["LEASE", "Lease", "check_lease"]

LEASE = ".knonik/lease.json"
"""Key of a folder's lease."""
_SECONDS = 60.0
_RENEWALS = 3
"""Renewals in the time that a lease lasts."""


class Lease:
    """Holds a remote folder's lease while its block runs, renewing it in a thread.

    Args:
        folder: the output folder.
        command: what to tell a second run that it meets; default: this process's command line.
        seconds: how long it lasts without being renewed.

    Raises:
        StorageError: another run holds it (named), or the store refuses.
    """

    def __init__(self, folder: ObjectFolder, command: str | None = None, seconds: float = _SECONDS) -> None:
        self._folder, self._seconds = folder, seconds
        self.id = uuid.uuid4().hex
        """Of this holder."""
        self._said = {
            "id": self.id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "process": _process(os.getpid()),
            "command": command or " ".join(sys.argv),
            "seconds": seconds,
        }
        self.outlasted = False
        """Whether it was taken from a run that ran out of time, which may still be alive."""
        self.abandoned: list[dict[str, Any]] = []
        """What holders declared that ran out of time, of this lease and of those before it: it may yet arrive. A holder
        that knows which of it no longer matters leaves that out before it declares its own."""
        self._info: ObjectInfo | None = None
        self._lost: StorageError | None = None
        self._writing = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        found = self._folder.get(LEASE)
        if found is None:
            self._take(None)
        else:
            said = _said(found[0])
            if not _free(said):
                self._outlast(said, found[1])
            self._inherit(said)
            self._take(found[1])
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(StorageError):  # it runs out by itself, and must not hide what went wrong
            if self._lost is None:
                self._again(released=True)

    def check(self) -> None:
        """Before anything is written: is the lease still held?

        Raises:
            StorageError: another run took it over, or it could not be renewed in time.
        """
        if self._lost is not None:
            raise self._lost

    def declare(self, **work: Any) -> None:  # noqa: ANN401 - any JSON values
        """Before anything is uploaded: say what is going to be written, for those who may outlast this holder.

        Raises:
            StorageError: another run took the lease over, or the store refuses.
        """
        self.check()
        self._said |= {"work": work, "abandoned": self.abandoned}
        try:
            self._again(released=False)
        except ConflictError:
            raise _taken(self._folder) from None

    def _inherit(self, said: dict[str, Any]) -> None:
        """Keep in mind what may still arrive from those who held the lease before."""
        works = said.get("abandoned")
        works = [*works] if isinstance(works, list) else []
        if self.outlasted:
            works.append(said.get("work"))
        for work in works:
            if isinstance(work, dict) and work not in self.abandoned:
                self.abandoned.append(work)
        self._said["abandoned"] = self.abandoned

    def _take(self, before: ObjectInfo | None) -> None:
        try:
            self._put(before, released=False)
        except ConflictError:
            found = self._folder.get(LEASE)
            raise self._busy(_said(found[0]) if found else {}) from None

    def _outlast(self, said: dict[str, Any], info: ObjectInfo) -> None:
        """Return when a lease that ran out is seen not to be renewed; nothing shows that sooner on another machine."""
        seconds = float(said.get("seconds", self._seconds))
        if time.time() < info.modified + seconds:
            raise self._busy(said)
        self._ending.wait(seconds / _RENEWALS * 1.5)
        found = self._folder.get(LEASE)
        if found is None or found[1].etag != info.etag:
            raise self._busy(_said(found[0]) if found else said)
        self.outlasted = True

    def _put(self, before: ObjectInfo | None, *, released: bool) -> None:
        said = {**self._said, "released": released, "renewed": time.time()}
        data = json.dumps(said).encode()
        self._info = self._folder.put_bytes(LEASE, data, if_none_match=before is None, if_match=before)

    def _again(self, *, released: bool) -> None:
        """Write the lease over what this holder wrote last, also where it never heard that it did."""
        with self._writing:  # renewals come from a thread of their own
            try:
                self._put(self._info, released=released)
            except ConflictError:
                found = self._folder.get(LEASE)
                if found is None or _said(found[0]).get("id") != self.id:
                    raise
                self._put(found[1], released=released)

    def _renew(self) -> None:
        last = time.monotonic()
        while not self._ending.wait(self._seconds / _RENEWALS):
            try:
                self._again(released=False)
                last = time.monotonic()
            except ConflictError:
                self._lost = _taken(self._folder)
                return
            except StorageError as error:
                if time.monotonic() - last > self._seconds:
                    self._lost = StorageError(
                        f"{self._folder.place}: the lease could not be renewed for {self._seconds:g} s, so another run "
                        f"may take it over; this one stops: {error}"
                    )
                    return

    def _busy(self, said: dict[str, Any]) -> StorageError:
        holder = "it is just starting"
        with suppress(KeyError):
            holder = f"process {said['pid']} on {said['host']}: {said['command']}"
        return StorageError(
            f"{self._folder.place} is being written by another run ({holder}); wait until it ends. If it was killed, "
            f"its lease runs out {said.get('seconds', self._seconds):g} s after its last sign of life."
        )


def check_lease(folder: ObjectFolder, holder: str) -> None:
    """Before another process than the holder's writes anything: is a folder's lease still held?

    Args:
        folder: the output folder.
        holder: `Lease.id`.

    Raises:
        StorageError: another run took it over.
    """
    found = folder.get(LEASE)
    said = _said(found[0]) if found is not None else {}
    if said.get("id") != holder or said.get("released"):
        raise _taken(folder)


def _taken(folder: ObjectFolder) -> StorageError:
    return StorageError(
        f"{folder.place} was taken over by another run while this one did not get to renew its lease (a paused "
        "machine, a broken network); this one stops."
    )


def _said(data: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(data)
        if isinstance(found, dict):
            return found
    return {}


def _free(said: dict[str, Any]) -> bool:
    """Whether a lease was given back, or belongs to a process of this machine that is gone."""
    if said.get("released"):
        return True
    mine, its = _process(os.getpid()), said.get("process")
    if not mine or not isinstance(its, dict) or its.get("machine") != mine["machine"]:
        return False
    pid = said.get("pid")
    return isinstance(pid, int) and _process(pid) != its


def _process(pid: int) -> dict[str, str]:
    """What tells a process from any other, of any machine or container; empty where there is none of this number."""
    with suppress(OSError, IndexError):
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - no file: pid:[4026531836]
        # the name in parentheses may hold anything; the start time is the 20th field after it
        began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return {"machine": f"{socket.gethostname()} {machine} {space}", "began": began}
    return {}
