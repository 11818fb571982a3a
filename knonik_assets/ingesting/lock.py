"""One run at a time writes an output directory."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from knonik_assets.episodes.storing import storage_errors
from knonik_loader.errors import StorageError

__all__ = ["OutputLock"]

_TRIES = 20
"""To make a directory that other runs remove as often."""


class OutputLock:
    """Holds ``OUT/.knonik/lock`` while its block runs. The kernel lets go of it when the process dies.

    Where the block fails, directories that entering it made are removed again if nothing was put into them.

    Args:
        out: the output directory; made if it isn't there.
        command: what to tell a second run that it meets; default: this process's command line.

    Raises:
        StorageError: another run holds it (named), or OUT cannot be written.
    """

    def __init__(self, out: Path, command: str | None = None) -> None:
        self.path = out / ".knonik" / "lock"
        self._out = out
        self._command = command or " ".join(sys.argv)
        self._file = -1
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        file = self._open()
        while not self._takes(file):
            file = self._open()
        self._file = file
        return self

    def _open(self) -> int:
        """The lock file, made where it is missing."""
        with storage_errors("write to", self._out):
            tries = _TRIES
            while True:
                self._made = [folder for folder in (self.path.parent, *self.path.parent.parents) if not folder.exists()]
                try:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                except FileNotFoundError:  # a run that failed may be removing what it made
                    tries -= 1
                    if not tries:
                        raise

    def _takes(self, file: int) -> bool:
        """Lock an open file, and say who holds it; False where its last holder has removed it: it locks nobody out."""
        taken = False
        try:
            with storage_errors("lock", self._out):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise StorageError(
                        f"{self._out} is being written by another run ({self._holder(file)}); wait until it ends."
                    ) from None
                with suppress(FileNotFoundError):
                    taken = os.path.samestat(os.fstat(file), self.path.stat())
                if taken:
                    mine = {"pid": os.getpid(), "host": socket.gethostname(), "command": self._command}
                    os.ftruncate(file, 0)
                    os.pwrite(file, json.dumps(mine).encode(), 0)
        except BaseException:
            os.close(file)
            raise
        if not taken:
            os.close(file)
        return taken

    def _holder(self, file: int) -> str:
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(os.pread(file, 65536, 0))
            return f"process {said['pid']} on {said['host']}: {said['command']}"
        return "it is just starting"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        file, self._file = self._file, -1
        with suppress(OSError):  # the content only serves messages, and a full disk must not hide what went wrong
            os.ftruncate(file, 0)
            if error is not None and self._made and list(self.path.parent.iterdir()) == [self.path]:
                self.path.unlink()
                for folder in self._made:  # as far as they are empty
                    folder.rmdir()
        os.close(file)
