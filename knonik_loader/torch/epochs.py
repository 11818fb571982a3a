"""Numbers that the workers of a PyTorch DataLoader share with the process that made them, without locks."""

from __future__ import annotations

import os
from typing import Any

from knonik_loader.errors import ConfigError
from knonik_loader.plan.hashing import derive_key
from knonik_loader.torch.need import get_worker_info, torch

__all__ = ["MOST_EPOCHS", "PassCounter", "SharedNumber", "epoch_number"]


_LOW = (1 << 31) - 1

MOST_EPOCHS = _LOW - 1
"""The highest epoch: it shares a word with a mark."""


def epoch_number(epoch: Any) -> int:  # noqa: ANN401 - whatever a user gave
    """A checked epoch.

    Raises:
        ConfigError: no whole number from 0 on.
    """
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or not 0 <= epoch.__index__() < _LOW:
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


class PassCounter:
    """Says which epoch a pass is: each pass is the next one, whichever workers make it and however long they live.

    PyTorch tells a dataset nothing of epochs, and workers that live for one pass start from a copy. But all workers of
    one pass share the seed that their DataLoader drew for it, and workers that live on count their passes. So whoever
    begins a pass first moves the number on and leaves a mark of the pass; the others find the mark. Two that begin at
    once write the same, so that no lock is needed.
    """

    def __init__(self, epoch: int) -> None:
        self._word = SharedNumber(0)
        self._begun = 0
        self._pid = os.getpid()
        self.set(epoch)

    def set(self, epoch: int) -> None:
        """Let the next pass be this epoch."""
        self._word.set(epoch << 31)

    @property
    def coming(self) -> int:
        """The epoch of the next pass."""
        return self._word.get() >> 31

    @property
    def in_workers(self) -> bool:
        """Whether the latest pass was begun by workers, and nothing was set since."""
        return self._word.get() & _LOW != 0

    def begin(self) -> int:
        """The epoch of the pass that begins in this process."""
        if self._pid != os.getpid():
            self._pid, self._begun = os.getpid(), 0
        self._begun += 1
        word = self._word.get()
        coming, mark = word >> 31, word & _LOW
        info = get_worker_info()
        mine = 0 if info is None else 1 + derive_key("pass", info.seed - info.id, self._begun) % (_LOW - 1)
        if info is not None and mine == mark:
            return coming - 1
        self._word.set((coming + 1) << 31 | mine)
        return coming
