"""Numbers that the workers of a PyTorch DataLoader share with the process that made them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import ConfigError
from knonik_loader.plan.hashing import derive_key
from knonik_loader.torch.need import get_worker_info, torch

__all__ = ["MOST_EPOCHS", "PassCounter", "SharedNumber", "epoch_number"]


MOST_EPOCHS = (1 << 31) - 2
"""The highest epoch: a place in it fits in a word."""

_PASSES = 64
"""Passes whose epoch is remembered for workers that begin late: a mark, the epoch, and a bit for each worker."""
_BITS = 62


def epoch_number(epoch: Any) -> int:  # noqa: ANN401 - whatever a user gave
    """A checked epoch.

    Raises:
        ConfigError: no whole number from 0 on.
    """
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or not 0 <= epoch.__index__() <= MOST_EPOCHS:
        raise ConfigError(f"set_epoch: an epoch is a whole number from 0 on, got {epoch!r}")
    return int(epoch.__index__())


class SharedNumber:
    """A 64-bit integer in memory that forked and spawned workers share; one store changes it whole."""

    def __init__(self, value: int) -> None:
        self._cell = torch.tensor([value], dtype=torch.int64).share_memory_()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What came by plain pickle is a copy of its own; what a worker is sent stays shared."""
        self._cell = state["_cell"].share_memory_()

    def get(self) -> int:
        """The number as any process last set it."""
        return int(self._cell[0])

    def set(self, value: int) -> None:
        """Change it for every process."""
        self._cell[0] = value


_LOCKS: dict[int, threading.RLock] = {}
"""Of each process, since the kernel's locks tell no threads apart; one from before a fork could be held for ever."""


class _Words:
    """Integers in a file without a name that forks, and those who are sent it, share; one thread at a time uses them.

    The lock is the kernel's, and goes with a process that dies. A copy or a plain pickle begins anew with the first
    integer.
    """

    def __init__(self, first: int, fd: int | None = None) -> None:
        self.fd = _nameless() if fd is None else fd
        if fd is None:
            with self.used() as words:
                words[0] = first

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def __reduce__(self) -> tuple[Any, ...]:
        with self.used() as words:
            return _Words, (int(words[0]),)

    @contextlib.contextmanager
    def used(self) -> Iterator[npt.NDArray[np.int64]]:
        """The integers, which nobody else reads or writes meanwhile: three, and three for each pass."""
        with _LOCKS.setdefault(os.getpid(), threading.RLock()):
            fcntl.lockf(self.fd, fcntl.LOCK_EX)
            try:
                words = np.zeros(3 + 3 * _PASSES, np.int64)
                os.preadv(self.fd, [words.data], 0)
                yield words
                os.pwrite(self.fd, words.data, 0)
            finally:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("knonik-passes", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _sent(words: _Words) -> tuple[Any, ...]:
    return _arrived, (DupFd(words.fd),)


def _arrived(handle: Any) -> _Words:  # noqa: ANN401 - of multiprocessing
    return _Words(0, handle.detach())


ForkingPickler.register(_Words, _sent)


class PassCounter:
    """Says which epoch a pass is: each pass is the next one, whichever workers make it and however long they live.

    PyTorch tells a dataset nothing of epochs, and workers that live for one pass start from a copy. But all workers of
    one pass share the seed that their DataLoader drew for it, and workers that live on count their passes. So whoever
    begins a pass first takes the next number and notes the pass; the others find it noted, also when passes of several
    DataLoaders begin at once, or a later one begins before a slow worker.
    """

    def __init__(self, epoch: int) -> None:
        self._words = _Words(epoch)
        self._begun = self._chosen = 0
        self._pid = os.getpid()

    def set(self, epoch: int) -> None:
        """Let the next pass be this epoch."""
        if get_worker_info() is None:
            # Workers that start from now on make other passes, also when their DataLoader draws a seed once more.
            self._chosen += 1
        with self._words.used() as words:
            words[:2] = epoch, 0

    @property
    def coming(self) -> int:
        """The epoch of the next pass."""
        with self._words.used() as words:
            return int(words[0])

    @property
    def in_workers(self) -> bool:
        """Whether the latest pass was begun by workers, and nothing was set since."""
        with self._words.used() as words:
            return bool(words[1])

    def begin(self, chosen: int | None = None) -> int:
        """The epoch of the pass that begins in this process; None: the next one. After it comes the one behind it."""
        if self._pid != os.getpid():
            self._pid, self._begun = os.getpid(), 0
        self._begun += 1
        info = get_worker_info()
        with self._words.used() as words:
            coming, noted = int(words[0]) if chosen is None else chosen, words[3:].reshape(_PASSES, 3)
            if info is None:
                words[:2] = coming + 1, 0
                return coming
            mark = 1 + derive_key("pass", info.seed - info.id, self._begun, self._chosen) % (2**63 - 1)
            mine = 1 << info.id if info.id < _BITS else 0
            place = int(next(iter(np.flatnonzero(noted[:, 0] == mark)), -1))
            begun = int(noted[place, 2]) if place >= 0 else 0
            if place < 0 or (chosen is not None and begun & mine):
                if chosen is not None:
                    noted[:] = 0  # a state may bring the seed along of passes that were
                noted[words[2] % _PASSES] = mark, coming, mine
                words[:3] = coming + 1, 1, words[2] + 1
                return coming
            noted[place, 2] = begun | mine
            epoch = int(noted[place, 1])
        if begun & mine:
            warnings.warn(
                f"KhlpIterableDataset: this pass is epoch {epoch} once more: its DataLoader drew the seed that it drew "
                "for that epoch before, and nothing else tells passes apart; call set_epoch before each pass.",
                UserWarning,
                stacklevel=3,
            )
        return epoch
