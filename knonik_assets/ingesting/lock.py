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


class OutputLock:
    """Holds ``OUT/.knonik/lock`` while its block runs. The kernel lets go of it when the process dies.

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

    def __enter__(self) -> Self:
        with storage_errors("write to", self._out):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with storage_errors("lock", self._out):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise StorageError(
                        f"{self._out} is being written by another run ({self._holder(file)}); wait until it ends."
                    ) from None
                mine = {"pid": os.getpid(), "host": socket.gethostname(), "command": self._command}
                os.ftruncate(file, 0)
                os.pwrite(file, json.dumps(mine).encode(), 0)
        except BaseException:
            os.close(file)
            raise
        self._file = file
        return self

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
        os.close(file)
