"""Damaged heaps are found before the HDF5 library reads them: it walks some of them without end.

Texts of variable length and rows of bytes lie in "global heaps" (HDF5 file format specification, III.E): a header of 16
bytes (``GCOL``, version, size), then objects, each with its own size. An object of no size sends the library in
circles. Heaps are looked for everywhere but in the raw data of arrays, so that little of a file is read.
"""

from __future__ import annotations

import mmap
import struct
from functools import lru_cache
from pathlib import Path

import h5py

from knonik_loader.errors import EpisodeError

__all__ = ["check_heaps"]

_MARK = b"GCOL\x01\0\0\0"
_HEADER = 16
_OBJECT = struct.Struct("<HHIQ")
_SMALLEST = 4096
_WINDOW = 4 << 20


def check_heaps(file: h5py.File, path: Path) -> None:
    """Look at every heap of an open file; an unchanged one is looked at once.

    Raises:
        EpisodeError: a heap is damaged.
    """
    stat = path.stat()
    where = _first_damaged(path, stat.st_size, stat.st_mtime_ns, _Open(file))
    if where is not None:
        raise EpisodeError(f"{path}: damaged or incomplete HDF5 data: the heap at byte {where} is damaged.")


class _Open:
    """An open file that takes no part in a cache's key."""

    def __init__(self, file: h5py.File) -> None:
        self.file = file

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Open)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=256)
def _first_damaged(path: Path, size: int, _changed: int, opened: _Open) -> int | None:
    """Where the first damaged heap begins."""
    if size < _SMALLEST or opened.file.id.get_create_plist().get_sizes() != (8, 8):
        return None
    with path.open("rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for start, stop in _between(_raw_data(opened.file), size):
            at = done = start
            while at < stop:
                end = min(stop, at + _WINDOW)
                found = data.find(_MARK, at, min(stop, end + len(_MARK) - 1))
                if found >= 0 and not _sound(data, found, size):
                    return found
                at = found + _HEADER if found >= 0 else end
                if at - done > _WINDOW:
                    done = _let_go(data, done, at)
    return None


def _let_go(data: mmap.mmap, start: int, stop: int) -> int:
    """Give pages back that were looked at: a file may be larger than memory. Returns up to where."""
    first, last = (place // mmap.PAGESIZE * mmap.PAGESIZE for place in (start, stop))
    if last > first:
        data.madvise(mmap.MADV_DONTNEED, first, last - first)
    return last


def _raw_data(file: h5py.File) -> list[tuple[int, int]]:
    """Byte ranges of the arrays' raw data."""
    found: list[tuple[int, int]] = []

    def visit(_: str, item: h5py.Group | h5py.Dataset) -> None:
        if not isinstance(item, h5py.Dataset) or item.dtype.kind == "O":
            return
        if item.chunks is not None:
            item.id.chunk_iter(lambda info: found.append((info.byte_offset, info.byte_offset + info.size)))
        elif (offset := item.id.get_offset()) is not None:
            found.append((offset, offset + item.id.get_storage_size()))

    file.visititems(visit)
    return sorted(found)


def _between(ranges: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """What a file of some size holds beside these ranges."""
    found, at = [], 0
    for start, stop in ranges:
        if start > at:
            found.append((at, min(start, size)))
        at = max(at, stop)
    if at < size:
        found.append((at, size))
    return found


def _sound(data: mmap.mmap, at: int, size: int) -> bool:
    """Whether the objects of a heap fill it, each of them with a size that leads on."""
    (length,) = struct.unpack_from("<Q", data, at + 8)
    end = at + length
    if length < _HEADER or end > size:
        return True  # the library refuses these by itself
    place = at + _HEADER
    while end - place >= _OBJECT.size:
        index, _, _, own = _OBJECT.unpack_from(data, place)
        needed = own if index == 0 else _OBJECT.size + (own + 7) // 8 * 8
        if needed < _OBJECT.size or needed > end - place:
            return False
        place += needed
    return True
