"""Batches that a DataLoader's worker makes in memory which the main process sees too, used again and again.

PyTorch copies what a worker made into fresh shared memory, a piece for every tensor. Fresh shared memory is the dearest
there is: the kernel hands it out and clears it page by page, which takes longer than to decode the pictures that go in.
Here a worker decodes into anonymous shared memory of its own (it has no name, so that nothing can be left behind, and
doesn't count against the size of /dev/shm), sends the main process a descriptor, and uses the memory again when neither
of them has a view of it left.

A byte at the beginning of a piece of memory says that the main process has it: the worker sets it when it sends, the
main process clears it when the last tensor is gone.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from knonik_loader.engine.memory import UNUSED, BatchMemory, RecyclingPool, references
from knonik_loader.torch.need import get_worker_info, torch

__all__ = ["PicturesApart", "SharedBatch", "SharedPool", "empty_in", "worker_memory"]

_PAGE = mmap.PAGESIZE
_KEPT = 8
"""Pieces of one name that are remembered: those that wait to be handed out, the one in use, the one in work."""
_IDLE_TURNS = 16
"""Batches after which a piece that was not needed is given back."""
_SMALL = 1 << 16
"""Bytes of a tensor that travels in the message itself."""


class _Handle(Protocol):
    """A descriptor on its way between processes."""

    def detach(self) -> int: ...


class _Mapping(mmap.mmap):
    """Shared memory behind a page that says who has it."""

    @property
    def lent(self) -> bool:
        """Whether the process that it was sent to still has it."""
        return self[0] != 0


class _Piece(_Mapping):
    """Memory of a worker, with what it takes to send it."""

    fd: int
    address: int

    @classmethod
    def make(cls, size: int) -> _Piece:
        """At least ``size`` bytes behind the first page."""
        fd = os.memfd_create("knonik-batch", os.MFD_CLOEXEC)
        try:
            length = _PAGE + -(-size // _PAGE) * _PAGE
            os.ftruncate(fd, length)
            piece = cls(fd, length)
        except BaseException:
            os.close(fd)
            raise
        piece.fd = fd
        piece.address = np.frombuffer(piece, np.uint8).ctypes.data
        return piece

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class _Loan(_Mapping):
    """The same memory where it was sent to. What a fork of that process has of it too is never given back."""

    mine = False

    def __del__(self) -> None:
        if self.mine:
            self[0] = 0


_loans: weakref.WeakSet[_Loan] = weakref.WeakSet()
"""Of this process."""
_forking = threading.Lock()
"""Held while loans are noted, and while the process forks."""


def _keep_loans() -> None:
    """Before a fork: the child, which looks at the same memory, cannot say when it has let go."""
    _forking.acquire()
    for loan in list(_loans):
        loan.mine = False
    _loans.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_keep_loans, after_in_parent=_forking.release, after_in_child=_forking.release)


class SharedPool:
    """Memory for batches of one worker; threads of it may share the pool."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[str, list[npt.NDArray[np.uint8]]] = {}
        self._used: dict[int, int] = {}
        self._pieces: weakref.WeakValueDictionary[int, _Piece] = weakref.WeakValueDictionary()
        self._turns: dict[str, int] = {}
        self._fresh = self._reused = 0

    def begin(self) -> BatchMemory:
        """The pool itself: what is still written into is not idle."""
        return self

    def take(self, turn: int, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A C-contiguous array with undefined content; what fits in a message has memory of its own."""
        del turn
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        if size <= _SMALL:
            return np.empty(shape, kind)
        with self._lock:
            self._turns[name] = self._turns.get(name, 0) + 1
            return self._idle(name, size)[:size].view(kind).reshape(shape)

    def counts(self) -> dict[str, int]:
        """Pieces handed out fresh and reused, and the bytes that the pool remembers."""
        with self._lock:
            held = sum(owner.size for owners in self._owners.values() for owner in owners)
            return {"fresh": self._fresh, "reused": self._reused, "bytes": held}

    def piece_of(self, address: int) -> _Piece | None:
        """The piece that holds an address of this process."""
        with self._lock:  # the thread that sends looks here while another one makes pieces
            pieces = list(self._pieces.values())
        for piece in pieces:
            if piece.address <= address < piece.address + len(piece):
                return piece
        return None

    def _idle(self, name: str, size: int) -> npt.NDArray[np.uint8]:
        owners, found, turn = self._owners.setdefault(name, []), None, self._turns[name]
        for index in reversed(range(len(owners))):
            if references(owners, index) != UNUSED or _piece(owners[index]).lent:
                continue
            if found is None and owners[index].size >= size:
                found = owners.pop(index)
            elif owners[index].size < size or turn - self._used[id(owners[index])] > _IDLE_TURNS:
                del self._used[id(owners[index])], owners[index]
        if found is None:
            piece = _Piece.make(size)
            self._pieces[piece.address] = piece
            found = np.frombuffer(piece, np.uint8, offset=_PAGE)
            self._fresh += 1
        else:
            self._reused += 1
        owners.append(found)
        self._used[id(found)] = turn
        if len(owners) > _KEPT:
            self._used.pop(id(owners.pop(0)))  # its user keeps it for long; it is freed with the last view
        return found


class PicturesApart:
    """Memory of this process for pictures that are converted before they are sent, shared memory for the rest.

    Args:
        pool: of the rest.
        keep: see `RecyclingPool`.
    """

    def __init__(self, pool: SharedPool, keep: int) -> None:
        self._pool, self._own = pool, RecyclingPool(keep)

    def begin(self) -> BatchMemory:
        """Itself, as both parts of it."""
        return self

    def take(self, turn: int, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """As the part that is meant."""
        return (self._own if name.startswith("rgb_") else self._pool).take(turn, name, shape, dtype)

    def counts(self) -> dict[str, int]:
        """Of both."""
        own = self._own.counts()
        return {key: value + own[key] for key, value in self._pool.counts().items()}


class SharedBatch(dict[str, Any]):
    """A batch in a worker. What a DataLoader sends of it arrives as a plain dictionary over the same memory."""

    __slots__ = ("pool",)

    def __init__(self, values: Mapping[str, Any], pool: SharedPool) -> None:
        super().__init__(values)
        self.pool = pool

    def copy(self) -> SharedBatch:
        """A shallow copy of the same kind."""
        return SharedBatch(self, self.pool)

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or a pickle that goes anywhere else, is a dictionary."""
        return (dict, (dict(self),))


def _piece(owner: npt.NDArray[np.uint8]) -> _Piece:
    """What an array of a pool lies in."""
    return cast("_Piece", cast("memoryview", owner.base).obj)


def worker_memory() -> SharedPool | None:
    """A pool, in a worker of a DataLoader on a system that has memory without names.

    Whoever keeps more batches than a process may have descriptors asks PyTorch for memory with names, and gets it.
    """
    if get_worker_info() is None or not hasattr(os, "memfd_create"):
        return None
    return SharedPool() if torch.multiprocessing.get_sharing_strategy() == "file_descriptor" else None


def empty_in(pool: BatchMemory | None, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> Any:  # noqa: ANN401
    """A tensor with undefined content, in memory of a pool where there is one."""
    array = np.empty(shape, dtype) if pool is None else pool.take(0, name, shape, dtype)
    return torch.from_numpy(array)


def _reduce(batch: SharedBatch) -> tuple[Any, ...]:
    """What is sent: descriptors of the pieces, and of each value where it lies, or the value itself."""
    pieces: dict[int, tuple[int, _Piece]] = {}
    values = {key: _sent(value, batch.pool, pieces) for key, value in batch.items()}
    handles = []
    for _, piece in pieces.values():
        handles.append((DupFd(piece.fd), len(piece)))
        piece[0] = 1
    return _arrived, (handles, values)


def _sent(value: Any, pool: SharedPool, pieces: dict[int, tuple[int, _Piece]]) -> Any:  # noqa: ANN401 - any value
    if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout != torch.strided:
        return value
    if value.requires_grad or value.dtype not in _DTYPES or value.is_conj() or value.is_neg():
        return value
    name, size = _DTYPES[value.dtype], value.numel() * value.element_size()
    if size <= _SMALL:
        return _Small(value.numpy())
    piece = pool.piece_of(value.data_ptr())
    # What was sent already is the receiver's; a second receiver gets a copy, as PyTorch makes it.
    if piece is None or (piece.lent and piece.address not in pieces):
        return value
    number, _ = pieces.setdefault(piece.address, (len(pieces), piece))
    return _Lies(number, value.data_ptr() - piece.address, name, tuple(value.shape), value.stride())


class _Small:
    """A tensor in the message."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array


class _Lies:
    """Where a tensor lies: piece, byte, type, shape and strides."""

    def __init__(self, piece: int, offset: int, dtype: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.place = (piece, offset, dtype, shape, stride)


def _arrived(handles: Sequence[tuple[_Handle, int]], values: Mapping[str, Any]) -> dict[str, Any]:
    """The batch in the process that it was sent to."""
    loans = [_borrow(*handle) for handle in handles]
    return {key: _found(value, loans) for key, value in values.items()}


def _borrow(handle: _Handle, length: int) -> _Loan:
    fd = handle.detach()
    try:
        loan = _Loan(fd, length)
    finally:
        os.close(fd)
    with _forking:
        loan.mine = True
        _loans.add(loan)
    return loan


def _found(value: Any, loans: Sequence[_Loan]) -> Any:  # noqa: ANN401 - any value
    if isinstance(value, _Small):
        return torch.from_numpy(value.array)
    if isinstance(value, _Lies):
        number, offset, dtype, shape, stride = value.place
        return torch.from_numpy(np.frombuffer(loans[number], dtype, offset=offset)).as_strided(shape, stride)
    return value


_DTYPES = {
    getattr(torch, name): name
    for name in ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
}

ForkingPickler.register(SharedBatch, _reduce)
