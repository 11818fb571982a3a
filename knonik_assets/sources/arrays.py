"""Arrays whose first axis is time, wherever they are kept, and trees of them: what most raw formats come down to."""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import EpisodeError

__all__ = ["MOST_BYTES", "Array", "DictTree", "MemoryArray", "Path", "RowsOf", "Tree", "bounded"]

Path = tuple[str, ...]
"""Where an array is in its tree."""

MOST_BYTES = 512 << 20
"""A single block (a chunk, a picture, a table of numbers) that claims more is refused before memory is taken for it."""
_BLOCK_BYTES = 64 << 20
"""Most that is read at once of an array whose chunks hold many rows."""


def bounded(count: int, where: str) -> int:
    """The number of bytes, when that is a sane amount to hold at once.

    Raises:
        EpisodeError: it isn't.
    """
    if not 0 <= count <= MOST_BYTES:
        raise EpisodeError(f"{where}: {count} bytes would have to be held at once; at most {MOST_BYTES} are accepted.")
    return count


class Array(ABC):
    """Rows of one type and shape, read a few at a time. Thread-safe.

    Args:
        where: file and place in it, for messages.
        dtype: of an element.
        shape: (T, ...).
        block: rows that are best read together (a chunk).
        holds_bytes: whether the array is one-dimensional and every element a run of bytes.
    """

    def __init__(
        self, where: str, dtype: np.dtype[Any], shape: tuple[int, ...], *, block: int = 1, holds_bytes: bool = False
    ) -> None:
        self.where, self.dtype, self.shape = where, dtype, shape
        self.block, self.holds_bytes = max(1, block), holds_bytes
        self.offset = 0
        """Rows before the first one in its block."""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @abstractmethod
    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """(stop - start, ...) as stored.

        Raises:
            EpisodeError: damaged or missing.
        """

    def row_bytes(self, index: int) -> bytes:
        """One row as bytes, of an array that `holds_bytes` or whose rows are bytes.

        Raises:
            EpisodeError: damaged or missing.
        """
        return as_bytes(self.rows(index, index + 1)[0])

    def each_row_bytes(self) -> Iterator[bytes]:
        """`row_bytes` of every row, one after another.

        Raises:
            EpisodeError: damaged or missing, behind the rows before.
        """
        for index in range(self.shape[0]):
            yield self.row_bytes(index)

    def check_complete(self, *, numeric: bool) -> str | None:
        """Refuse what would read as zeros that nobody recorded.

        Args:
            numeric: whether the array is read as numbers, where a run of zeros may be meant.

        Returns:
            A warning, or None.

        Raises:
            EpisodeError: parts of the array are missing, or it cannot be decoded here.
        """
        return None

    def check_rows(self, start: int, stop: int, *, numeric: bool, where: str) -> str | None:
        """`check_complete` for some rows, as far as they can be told from the others."""
        return self.check_complete(numeric=numeric)

    def spread_rows(self, count: int = 9) -> list[npt.NDArray[Any]]:
        """A few rows from the whole length, to judge the array by."""
        length = self.shape[0]
        places = sorted({round(place * (length - 1) / (count - 1)) for place in range(count)}) if length else []
        return [self.rows(place, place + 1)[0] for place in places]

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Runs of rows to read at once: whole blocks where they are small enough.

        Raises:
            EpisodeError: a single row is absurdly large.
        """
        row_bytes = max(1, bounded(self.dtype.itemsize * math.prod(self.shape[1:]), self.where))
        block = max(1, min(self.block, _BLOCK_BYTES // row_bytes))
        start = 0
        while start < self.shape[0]:
            stop = min(start + block - (self.offset + start) % block, self.shape[0])
            yield start, stop
            start = stop

    def stream(self) -> Iterator[npt.NDArray[Any]]:
        """Row after row, in bounded memory.

        Raises:
            EpisodeError: damaged or missing.
        """
        yield from self.stream_rows(0, self.shape[0])

    def stream_rows(self, start: int, stop: int) -> Iterator[npt.NDArray[Any]]:
        """`stream` for some rows.

        Raises:
            EpisodeError: damaged or missing.
        """
        for first, last in RowsOf(self, start, stop, self.where).blocks():
            yield from self.rows(start + first, start + last)

    def hash_into(self, digest: hashlib._Hash) -> None:
        """Feed type, shape and content to a digest.

        Raises:
            EpisodeError: damaged or missing.
        """
        digest.update(f"{self.dtype.str}{self.shape}".encode())
        self.hash_rows(digest, 0, self.shape[0])

    def hash_rows(self, digest: hashlib._Hash, start: int, stop: int) -> None:
        """Feed the content of some rows to a digest.

        Raises:
            EpisodeError: damaged or missing.
        """
        for first, last in RowsOf(self, start, stop, self.where).blocks():
            rows = self.rows(start + first, start + last)
            if rows.dtype.kind == "O":
                for row in rows:
                    data = as_bytes(row)
                    digest.update(len(data).to_bytes(8, "little"))
                    digest.update(data)
            else:
                digest.update(np.ascontiguousarray(rows).tobytes())


def as_bytes(row: Any) -> bytes:  # noqa: ANN401 - whatever a library gives for a row
    """A row of bytes, however its library hands it out."""
    if isinstance(row, (np.ndarray, np.void)):
        return row.tobytes()
    if isinstance(row, (bytes, bytearray, memoryview)):
        return bytes(row)
    return str(row).encode("utf-8", "surrogateescape")


class MemoryArray(Array):
    """Rows that are in memory already."""

    def __init__(self, where: str, values: npt.NDArray[Any] | Sequence[bytes]) -> None:
        if not isinstance(values, np.ndarray):
            items = values
            values = np.empty(len(items), object)
            values[:] = items
        super().__init__(
            where, values.dtype, values.shape, block=1024, holds_bytes=values.ndim == 1 and values.dtype.kind in "OSV"
        )
        self._values = values

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`."""
        return self._values[start:stop]


class RowsOf(Array):
    """A run of another array's rows: one episode of an array that holds many."""

    def __init__(self, whole: Array, start: int, stop: int, where: str) -> None:
        stop = min(stop, whole.shape[0])
        start = min(start, stop)
        shape = (stop - start, *whole.shape[1:])
        super().__init__(where, whole.dtype, shape, block=whole.block, holds_bytes=whole.holds_bytes)
        self.whole, self.start = whole, start
        self.offset = whole.offset + start

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`."""
        return self.whole.rows(self.start + start, self.start + min(stop, self.shape[0]))

    def stream_rows(self, start: int, stop: int) -> Iterator[npt.NDArray[Any]]:
        """See `Array.stream_rows`."""
        return self.whole.stream_rows(self.start + start, self.start + min(stop, self.shape[0]))

    def row_bytes(self, index: int) -> bytes:
        """See `Array.row_bytes`."""
        return self.whole.row_bytes(self.start + index)

    def check_complete(self, *, numeric: bool) -> str | None:
        """See `Array.check_complete`."""
        stop = self.start + self.shape[0]
        return self.whole.check_rows(self.start, stop, numeric=numeric, where=self.where)

    def hash_rows(self, digest: hashlib._Hash, start: int, stop: int) -> None:
        """See `Array.hash_rows`."""
        self.whole.hash_rows(digest, self.start + start, self.start + min(stop, self.shape[0]))

    def spread_rows(self, count: int = 9) -> list[npt.NDArray[Any]]:
        """From all episodes: a scale is a property of the whole array."""
        return self.whole.spread_rows(count)


class Tree(ABC):
    """The arrays of one episode by path."""

    @abstractmethod
    def walk(self) -> Sequence[tuple[Path, Array]]:
        """Every array in natural order.

        Raises:
            EpisodeError: damaged, or something leads out of the dataset.
        """

    @abstractmethod
    def find(self, key: str) -> tuple[Path, Array] | None:
        """The array that a layout's key names, or None.

        A name that is the key as it stands wins over reading its dots and slashes as steps.

        Raises:
            EpisodeError: damaged, or it leads out of the dataset.
        """


class DictTree(Tree):
    """A tree whose arrays are all known."""

    def __init__(self, arrays: Mapping[Path, Array]) -> None:
        self._arrays = dict(arrays)

    def walk(self) -> Sequence[tuple[Path, Array]]:
        """See `Tree.walk`."""
        return list(self._arrays.items())

    def find(self, key: str) -> tuple[Path, Array] | None:
        """See `Tree.find`."""
        key = key.strip("/")
        if (key,) in self._arrays:
            return (key,), self._arrays[(key,)]
        plain = _dotted(key)
        found = [path for path in self._arrays if _dotted(".".join(path)) == plain]
        return (found[0], self._arrays[found[0]]) if found else None


def _dotted(key: str) -> str:
    return re.sub(r"[/.]+", ".", key)
