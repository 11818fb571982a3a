"""Batch memory that is used again once nobody looks at it any more.

Decoding into fresh memory costs a third of the speed: the kernel must hand over and zero every page. A pool therefore
keeps the buffers of past batches and reuses one exactly when no array, tensor or buffer export refers to it. Every view
of a numpy array holds a reference to the array that owns the memory, so the owner's reference count proves it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["UNUSED", "BatchMemory", "PinnedMemory", "ReadBuffers", "RecyclingPool", "SlotRing", "references"]

_PAGE = 4096


class BatchMemory(Protocol):
    """Gives the memory of batch arrays."""

    def begin(self) -> BatchMemory:
        """The memory of a new run, which no thread of an earlier one writes into."""
        ...

    def take(self, turn: int, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A C-contiguous array with undefined content for the ``turn``-th batch of a run."""
        ...

    def counts(self) -> dict[str, int]:
        """How often memory was fresh or reused, and the bytes now held."""
        ...


class RecyclingPool:
    """Arrays that belong to whoever holds them; their memory comes back by itself when the last view is gone.

    Args:
        keep: buffers of one stream and size that are remembered; more are left to the garbage collector.
    """

    def __init__(self, keep: int) -> None:
        self._keep = max(1, keep)
        self._lock = threading.Lock()
        self._owners: dict[tuple[str, int], list[npt.NDArray[np.uint8]]] = {}
        self._fresh = self._reused = 0

    def begin(self) -> BatchMemory:
        """The pool itself: what a thread still writes into is not idle."""
        return self

    def take(self, turn: int, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of the given shape over idle memory, or over fresh memory where none is idle."""
        del turn
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if size < _PAGE:
            return np.empty(shape, kind)
        with self._lock:
            owner = self._idle(name, -(-size // _PAGE) * _PAGE)
            return owner[:size].view(kind).reshape(shape)

    def counts(self) -> dict[str, int]:
        """Buffers handed out fresh and reused, and the bytes that the pool remembers."""
        with self._lock:
            held = sum(size * len(owners) for (_, size), owners in self._owners.items())
            return {"fresh": self._fresh, "reused": self._reused, "bytes": held}

    def _idle(self, name: str, size: int) -> npt.NDArray[np.uint8]:
        owners = self._owners.setdefault((name, size), [])
        # The one used last is likeliest to be in the processor's caches.
        for index in reversed(range(len(owners))):
            if references(owners, index) == UNUSED:
                self._reused += 1
                owners.append(owners.pop(index))
                return owners[-1]
        self._fresh += 1
        owner = np.empty(size, np.uint8)
        owners.append(owner)
        if len(owners) > self._keep:
            del owners[0]  # its user keeps it for long; it is freed with the last view
        return owner


def references(owners: list[npt.NDArray[np.uint8]], index: int) -> int:
    """The reference count of an owner in a list; `UNUSED` where nothing else holds it."""
    return sys.getrefcount(owners[index])


UNUSED = references([np.empty(1, np.uint8)], 0)
"""What `references` gives for an array that only the list holds."""


class ReadBuffers:
    """Memory for what is read from disk, used again once no view of it is left.

    Sizes are powers of two; pages that a read doesn't reach are never touched. Small reads are left to the allocator,
    which has no pages to ask for.

    Args:
        limit: bytes that are remembered; what is read beyond them gets memory of its own.
    """

    SMALLEST = 1 << 16

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._owners: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._held = 0

    def take(self, length: int) -> memoryview:
        """Writable memory of so many bytes, with undefined content."""
        if length < self.SMALLEST:
            # np.empty leaves the memory as it is; bytearray would write zeros first.
            return np.empty(length, np.uint8).data
        size = 1 << (length - 1).bit_length()
        with self._lock:
            owners = self._owners.setdefault(size, [])
            for index in reversed(range(len(owners))):
                if references(owners, index) == UNUSED:
                    return owners[index].data[:length]
            owner = np.empty(size, np.uint8)
            if self._held + size > self._limit:
                self._forget_idle()
            if self._held + size <= self._limit:
                owners.append(owner)
                self._held += size
            return owner.data[:length]

    def _forget_idle(self) -> None:
        """Let go of what nobody looks at: reads have become of another size."""
        for size, owners in self._owners.items():
            used = [index for index in range(len(owners)) if references(owners, index) != UNUSED]
            self._held -= size * (len(owners) - len(used))
            owners[:] = [owners[index] for index in used]


class PinnedMemory:
    """Page-locked memory of PyTorch's own pool, which knows the copies to a device that still read it.

    A ``non_blocking`` copy goes on after the last reference is gone, so counting references would hand out memory that
    is still being read. PyTorch waits for such copies, as long as tensors keep the storage that it gave.

    Args:
        allocate: (shape, name of the dtype) → tensor in pinned memory.
    """

    def __init__(self, allocate: Callable[[Sequence[int], str], Any]) -> None:
        self._allocate = allocate
        self._lock = threading.Lock()
        self._taken = 0

    def begin(self) -> BatchMemory:
        """Itself: nothing is handed out twice here."""
        return self

    def take(self, turn: int, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array whose ``base`` is the tensor."""
        del turn, name
        with self._lock:
            self._taken += 1
        array: npt.NDArray[Any] = self._allocate(tuple(shape), np.dtype(dtype).name).numpy()
        return array

    def counts(self) -> dict[str, int]:
        """Buffers asked for; which of them PyTorch reused, and what it holds, it keeps to itself."""
        with self._lock:
            return {"fresh": self._taken, "reused": 0, "bytes": 0}


class SlotRing:
    """A fixed ring of slots: batch ``turn`` always lies in slot ``turn % slots``, whoever still looks at it.

    Batches are then valid for a stated number of further batches only; nothing is allocated after the first round.
    """

    def __init__(self, slots: int, poison: bool = False) -> None:
        self._slots = slots
        self._poison = poison
        self._lock = threading.Lock()
        self._buffers: dict[tuple[int, str], npt.NDArray[np.uint8]] = {}
        self._counts = {"fresh": 0, "reused": 0, "bytes": 0}

    def begin(self) -> BatchMemory:
        """A ring of its own, counted together with this one: threads of an ended run may still write into old slots."""
        ring = SlotRing(self._slots, self._poison)
        ring._lock, ring._counts = self._lock, self._counts
        self._counts["bytes"] = 0
        return ring

    def take(self, turn: int, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array over the slot's buffer of this name."""
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        place = (turn % self._slots, name)
        with self._lock:
            buffer = self._buffers.get(place)
            if buffer is None or buffer.size < size:
                self._counts["bytes"] += size - (buffer.size if buffer is not None else 0)
                buffer = self._buffers[place] = np.empty(size, np.uint8)
                self._counts["fresh"] += 1
            else:
                self._counts["reused"] += 1
        if self._poison:
            buffer.fill(0xAB)
        return buffer[:size].view(kind).reshape(shape)

    def counts(self) -> dict[str, int]:
        """Buffers made and reused, and the bytes that the ring of the latest run holds."""
        with self._lock:
            return dict(self._counts)
