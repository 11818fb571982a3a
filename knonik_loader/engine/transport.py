"""Samples between two processes: arrays through anonymous shared memory, all else pickled beside them.

The memory is a memfd, which has no name: nothing is left in ``/dev/shm`` whichever process dies, and a container's
limit for it doesn't count.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Parcel", "Region", "receive", "send"]

_ALIGNMENT = 64
_ARRAYS = ("streams", "valid_masks")
"""The parts of a sample that hold arrays."""


class Region:
    """Shared memory that grows on either side.

    Args:
        fd: of a memfd that another process has made; None: make one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("knonik-sample", os.MFD_CLOEXEC) if fd is None else fd
        self._map: mmap.mmap | None = None

    def memory(self, size: int) -> memoryview:
        """All of it, with at least ``size`` bytes."""
        held = os.fstat(self.fd).st_size
        if size > held:
            held = -(-size * 5 // 4 // mmap.PAGESIZE) * mmap.PAGESIZE
            os.ftruncate(self.fd, held)
        if self._map is None or len(self._map) < size:
            # The old mapping lives as long as somebody looks at it.
            self._map = mmap.mmap(self.fd, held)
        return memoryview(self._map)

    def close(self) -> None:
        """Give the descriptor back; memory goes with the last view."""
        self._map = None
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class Parcel:
    """One object on its way."""

    data: bytes
    """Its pickle, without the arrays."""
    spans: list[tuple[int, int]]
    """(offset, length) of each array in the region."""
    end: int
    """Behind the last of them."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor as bytes: numpy doesn't have all of PyTorch's types."""

    data: npt.NDArray[np.uint8]
    dtype: str
    shape: tuple[int, ...]


def send(value: object, region: Region, start: int = 0) -> Parcel:
    """Put a sample, or whatever a function returned for one, into the region from ``start`` on."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(_plain(value), protocol=5, buffer_callback=buffers.append)
    parts = [buffer.raw() for buffer in buffers]
    spans, end = [], start
    for part in parts:
        end = -(-end // _ALIGNMENT) * _ALIGNMENT
        spans.append((end, part.nbytes))
        end += part.nbytes
    memory = region.memory(end) if end else memoryview(b"")
    for (offset, length), part in zip(spans, parts, strict=True):
        memory[offset : offset + length] = part
    return Parcel(data, spans, end)


def receive(parcel: Parcel, region: Region, copy: bool) -> Any:  # noqa: ANN401 - what was sent
    """What a parcel holds; without ``copy`` its arrays are views of the region."""
    memory = region.memory(parcel.end) if parcel.end else memoryview(b"")
    parts = [memory[offset : offset + length] for offset, length in parcel.spans]
    return _as_sent(pickle.loads(parcel.data, buffers=[bytearray(part) for part in parts] if copy else parts))


def _plain(value: object) -> object:
    """The same with contiguous arrays, and tensors as bytes, so that all of them travel through the region."""
    if not isinstance(value, Mapping):
        return value
    plain = dict(value)
    for name in _ARRAYS:
        if isinstance(plain.get(name), Mapping):
            plain[name] = {key: _as_bytes(array) for key, array in plain[name].items()}
    return plain


def _as_bytes(array: Any) -> Any:  # noqa: ANN401 - array or tensor
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array) if array.ndim else array
    if type(array).__module__.partition(".")[0] != "torch":
        return array
    import torch

    if array.device.type != "cpu":
        raise ValueError(f"a tensor on {array.device} can't go back to the loader; return tensors on the CPU")
    flat = array.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _Tensor(flat, str(array.dtype).rpartition(".")[2], tuple(array.shape))


def _as_sent(value: object) -> object:
    if isinstance(value, dict):
        for name in _ARRAYS:
            if isinstance(value.get(name), dict):
                value[name] = {key: _as_tensor(array) for key, array in value[name].items()}
    return value


def _as_tensor(value: object) -> object:
    if not isinstance(value, _Tensor):
        return value
    import torch

    return torch.from_numpy(value.data).view(getattr(torch, value.dtype)).reshape(value.shape)
