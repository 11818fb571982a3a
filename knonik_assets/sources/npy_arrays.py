"""Arrays in NumPy's own format: ``.npy`` files and the members of ``.npz`` archives, read row by row without pickle."""

from __future__ import annotations

import io
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from knonik_assets.sources.arrays import Array, bounded
from knonik_loader.errors import EpisodeError, KnonikError

__all__ = ["NpyArray", "NpzFile", "npy_file", "reading", "whole_file"]

_FAULTS = (
    OSError, EOFError, RuntimeError, NotImplementedError, ValueError, SyntaxError, TypeError, OverflowError,
    MemoryError, RecursionError, UserWarning, zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip
_MOST_HEADER = 10_000
_STEP = 4 << 20
"""Bytes read at once."""
Opener = Callable[[], IO[bytes]]


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn what NumPy and zipfile raise on damaged data into an `EpisodeError` that says where."""
    try:
        yield
    except KnonikError:
        raise
    except FileNotFoundError as error:
        raise EpisodeError(f"{where}: there is no such file.") from error
    except _FAULTS as error:
        reason = str(error).strip("'\"") or type(error).__name__
        raise EpisodeError(f"{where}: damaged or incomplete NumPy data: {reason[:300]}.") from error


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and type; the file is left behind its header."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"format version {version}")
    count = file.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(count, "little")
    if length > _MOST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    shape, fortran, dtype = _parsed(version, count + file.read(length))
    if any(side < 0 or side >= 1 << 48 for side in shape):
        raise ValueError(f"shape {shape}")
    return shape, fortran and len(shape) > 1, dtype


@lru_cache(maxsize=512)
def _parsed(version: tuple[int, int], header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """A header's text, which many files share, understood once."""
    # version 3 differs from 2 in the encoding of names alone, which matter for nothing here
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    found: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(io.BytesIO(header), max_header_size=_MOST_HEADER)
    return found


class NpyArray(Array):
    """One array in NumPy's format. What needs pickle is described, never read.

    Args:
        opener: opens it at its beginning.
        size: bytes that there are of it; less than its header promises means that it was cut.
        where: for messages.

    Raises:
        EpisodeError: damaged or cut off.
    """

    def __init__(self, opener: Opener, size: int, where: str) -> None:
        with reading(where), closing(opener()) as file:
            shape, self._fortran, dtype = _header(file)
            self.begin = file.tell()
            """Bytes of the header."""
        self._row_bytes = dtype.itemsize * math.prod(shape[1:])
        length = self._row_bytes * (shape[0] if shape else 1)
        if not dtype.hasobject and length > size - self.begin:
            raise EpisodeError(f"{where}: cut off: {size - self.begin} of {length} bytes are there.")
        block = max(1, _STEP // max(1, self._row_bytes))
        text = len(shape) == 1 and dtype.kind in "SV" and not dtype.names and not dtype.hasobject
        super().__init__(where, dtype, shape, block=block, holds_bytes=text)
        self._open = opener

    def _refuse_objects(self) -> None:
        if self.dtype.hasobject:
            raise EpisodeError(
                f"{self.where}: holds pickled Python objects, and reading them would run code from the data; store it "
                "as numbers or text."
            )

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`."""
        self._refuse_objects()
        with reading(self.where), closing(self._open()) as file:
            if self._fortran:
                return self._whole(file)[start:stop]
            file.seek(self.begin + start * self._row_bytes)
            return self._next(file, stop - start)

    def _next(self, file: IO[bytes], count: int) -> npt.NDArray[Any]:
        size = bounded(count * self._row_bytes, self.where)
        data = file.read(size)
        if len(data) != size:
            raise EpisodeError(f"{self.where}: cut off.")
        return np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:])

    def _whole(self, file: IO[bytes]) -> npt.NDArray[Any]:
        """Columns first in the file: a row is all over it, so it has to be read whole."""
        size = bounded(self._row_bytes * self.shape[0], f"{self.where} (stored in Fortran order)")
        file.seek(self.begin)
        data = file.read(size)
        if len(data) != size:
            raise EpisodeError(f"{self.where}: cut off.")
        return np.frombuffer(data, self.dtype).reshape(self.shape, order="F")

    def stream(self) -> Iterator[npt.NDArray[Any]]:
        """See `Array.stream`. Read in one go to the end, where an archive's check sum is compared."""
        self._refuse_objects()
        if self._fortran:
            yield from self.rows(0, self.shape[0])
            return
        with reading(self.where), closing(self._open()) as file:
            file.seek(self.begin)
            for start, stop in self.blocks():
                yield from self._next(file, stop - start)
            file.read(1)

    def whole(self) -> npt.NDArray[Any]:
        """All of it.

        Raises:
            EpisodeError: damaged, absurdly large, or pickled objects.
        """
        if not self.shape:
            return np.asarray(self.scalar(), self.dtype)
        self._refuse_objects()
        bounded(self.shape[0] * self._row_bytes, self.where)
        with reading(self.where), closing(self._open()) as file:
            if self._fortran:
                return self._whole(file)
            file.seek(self.begin)
            found = self._next(file, self.shape[0])
            file.read(1)  # the end, where an archive's check sum is compared
        return found

    @property
    def plain(self) -> bool:
        """Whether its numbers lie in memory as they do in the file."""
        return not self._fortran and self.dtype.kind in "biuf"

    def scalar(self) -> Any:  # noqa: ANN401 - a number or text
        """The value of an array without axes, or of one element; None where it holds anything else."""
        if self.dtype.hasobject or math.prod(self.shape) != 1 or self.dtype.itemsize > 1 << 20:
            return None
        with reading(self.where), closing(self._open()) as file:
            file.seek(self.begin)
            value = np.frombuffer(file.read(self.dtype.itemsize), self.dtype)[0]
        plain = value.item()
        return plain.decode("utf-8", "replace") if isinstance(plain, bytes) else plain

    def check_complete(self, *, numeric: bool) -> str | None:
        """See `Array.check_complete`."""
        self._refuse_objects()
        return None


def whole_file(path: Path) -> bytes:
    """A file's content.

    Raises:
        EpisodeError: absurdly large; nothing is read then.
        OSError: the disk refuses.
    """
    with path.open("rb") as file:
        bounded(os.fstat(file.fileno()).st_size, str(path))
        return file.read()


def npy_file(path: Path, where: str) -> NpyArray:
    """The array of a ``.npy`` file.

    Raises:
        EpisodeError: missing, damaged or cut off.
    """
    with reading(str(path)):
        size = path.stat().st_size
    return NpyArray(lambda: path.open("rb"), size, where)


class NpzFile:
    """An open ``.npz`` archive. Of two equal names the last counts.

    Raises:
        EpisodeError: missing, damaged, or no zip archive.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(str(path)):
            self._zip = zipfile.ZipFile(path)
        self._infos = {
            info.filename.removesuffix(".npy"): info for info in self._zip.infolist() if info.filename.endswith(".npy")
        }

    def names(self) -> list[str]:
        """Of the arrays, as they are stored."""
        return list(self._infos)

    def array(self, name: str) -> NpyArray:
        """One array; readable as long as the archive is open.

        Raises:
            EpisodeError: not there, damaged or cut off.
        """
        where = f"{self.path}: {name}"
        info = self._infos.get(name)
        if info is None:
            raise EpisodeError(f"{where}: there is no such array; it has: {', '.join(list(self._infos)[:24])}.")
        return NpyArray(lambda: self._opened(info), info.file_size, where)

    def value(self, name: str) -> npt.NDArray[Any]:
        """All of one array, unpacked once.

        Raises:
            EpisodeError: not there, damaged, absurdly large, or pickled objects.
        """
        where = f"{self.path}: {name}"
        info = self._infos.get(name)
        if info is None:
            return self.array(name).whole()  # which says what is there
        bounded(info.file_size, where)
        with reading(where):
            data = self._zip.read(info)
        return NpyArray(lambda: io.BytesIO(data), len(data), where).whole()

    def check_sums(self) -> list[tuple[str, int, int]]:
        """Name, the archive's own check sum and size of every array, in order of their names."""
        return sorted((name, info.CRC, info.file_size) for name, info in self._infos.items())

    def _opened(self, info: zipfile.ZipInfo) -> IO[bytes]:
        return self._zip.open(info)

    def close(self) -> None:
        """Let go of the file; idempotent."""
        self._zip.close()
