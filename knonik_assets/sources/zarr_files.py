"""The files of a Zarr store, in a folder or a zip archive, and nothing outside of it."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import threading
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from knonik_assets.sources.arrays import bounded
from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.trees import check_inside
from knonik_assets.sources.zarr_guard import Guard
from knonik_loader.errors import EpisodeError

__all__ = ["Files", "FilesStore", "Folder", "ZipArchive", "open_files"]

_FAULTS = (OSError, EOFError, RuntimeError, NotImplementedError, ValueError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged archive or a failing disk raises."""
_MOST_JSON = 64 << 20
_LOCAL = struct.Struct("<4s5H3I2H")
"""A file's header in a zip archive (APPNOTE.TXT, 4.3.7)."""
_NOTHING: tuple[str, ...] = ()


class Files(ABC):
    """Read-only files by their slashed names. Thread-safe until closed."""

    def __init__(self, where: str) -> None:
        self.where = where

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """A file's content; None where there is no such file.

        Raises:
            EpisodeError: it is damaged, unreadable, absurdly large, or leads out of the store.
        """

    @abstractmethod
    def children(self, folder: str) -> tuple[list[str], list[str]]:
        """Names of the folders and of the files directly in a folder ("" for the top), in natural order.

        Raises:
            EpisodeError: it leads out of the store.
        """

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON object; None where there is no such file.

        Raises:
            EpisodeError: damaged.
        """
        size = self.size(name)
        if size is None:
            return None
        if size > _MOST_JSON:
            raise EpisodeError(f"{self.where}/{name}: {size} bytes of metadata; at most {_MOST_JSON} are accepted.")
        try:
            found = json.loads(self.read(name) or b"")
        except (ValueError, RecursionError) as error:
            raise EpisodeError(f"{self.where}/{name}: no readable JSON: {error}.") from error
        if not isinstance(found, dict):
            raise EpisodeError(f"{self.where}/{name}: a {type(found).__name__} where an object is wanted.")
        return found

    def close(self) -> None:  # noqa: B027 - a folder holds nothing open
        """Let go of everything; idempotent."""


class Folder(Files):
    """A directory store."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self._root = root
        self._checked: set[Path] = set()

    def _path(self, name: str) -> Path:
        """Where a file is, followed only as far as links stay inside."""
        path = self._root / name
        if path.parent not in self._checked:
            check_inside(path.parent, self._root)
            self._checked.add(path.parent)
        if path.is_symlink():
            check_inside(path, self._root)
        return path

    def size(self, name: str) -> int | None:
        """See `Files.size`."""
        try:
            found = self._path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise EpisodeError(f"{self.where}/{name}: {error.strerror or error}.") from error
        return found.st_size

    def read(self, name: str) -> bytes | None:
        """See `Files.read`."""
        path = self._path(name)
        try:
            with path.open("rb") as file:
                bounded(os.fstat(file.fileno()).st_size, str(path))
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise EpisodeError(f"{path}: unreadable: {error.strerror or error}.") from error

    def children(self, folder: str) -> tuple[list[str], list[str]]:
        """See `Files.children`."""
        path = self._root / folder
        check_inside(path, self._root)
        try:
            with os.scandir(path) as entries:
                found = [(entry.name, entry.is_dir()) for entry in entries]
        except OSError as error:
            raise EpisodeError(f"{path}: unreadable: {error.strerror or error}.") from error
        return _sorted(name for name, folder in found if folder), _sorted(name for name, folder in found if not folder)


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(names, key=natural_key)


class ZipArchive(Files):
    """A store inside a zip archive, at its top or in the folder it was packed with. Of two equal names the last counts.

    The table of contents of an unchanged archive is read once a process: there may be a million chunks in it.

    Raises:
        EpisodeError: missing, damaged or no zip archive.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        try:
            stat = path.stat()
            self._contents = _contents(path, stat.st_size, stat.st_mtime_ns)
            self._fd: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise EpisodeError(f"{path}: there is no such file.") from error
        except _FAULTS as error:
            raise EpisodeError(f"{path}: not a readable zip archive (an interrupted copy?): {error}.") from error
        self._lock = threading.Lock()
        self._prefix = self._wrapper(path)

    def _wrapper(self, path: Path) -> str:
        """The folder that the whole store was packed with, as ``zip -r a.zip a.zarr`` does; else nothing."""
        folders, files = self._contents.folders[""]
        only = next(iter(folders)) if len(folders) == 1 and not files else ""
        packed = only.endswith(".zarr") or only == path.name.removesuffix(".zip").removesuffix(".zarr")
        return f"{only}/" if only and packed else ""

    def size(self, name: str) -> int | None:
        """See `Files.size`."""
        member = self._contents.members.get(self._prefix + name)
        return None if member is None else member.size

    def read(self, name: str) -> bytes | None:
        """See `Files.read`."""
        member = self._contents.members.get(self._prefix + name)
        if member is None:
            return None
        where = f"{self.where}/{name}"
        bounded(max(member.size, member.stored), where)
        try:
            with self._lock:
                if self._fd is None:
                    raise EpisodeError(f"{self.where}: is closed.")
                fd = self._fd
                data = _stored(fd, member)
            if member.method == zipfile.ZIP_DEFLATED:
                data = zlib.decompressobj(-15).decompress(data, member.size + 1)
        except _FAULTS as error:
            if isinstance(error, EpisodeError):
                raise
            raise EpisodeError(f"{where}: damaged in the archive: {error}.") from error
        if len(data) != member.size or zlib.crc32(data) != member.crc:
            raise EpisodeError(f"{where}: damaged in the archive: it fails its check sum.")
        return data

    def children(self, folder: str) -> tuple[list[str], list[str]]:
        """See `Files.children`."""
        folders, files = self._contents.folders.get((self._prefix + folder).strip("/"), (set(), set()))
        return _sorted(folders), _sorted(files)

    def close(self) -> None:
        """See `Files.close`."""
        with self._lock:
            fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class _Member(NamedTuple):
    """Where a file lies in an archive."""

    offset: int
    stored: int
    size: int
    crc: int
    method: int


class _Contents(NamedTuple):
    """An archive's table of contents."""

    members: dict[str, _Member]
    folders: dict[str, tuple[set[str], set[str]]]
    """Folder → names of the folders and of the files in it."""


@lru_cache(maxsize=4)
def _contents(path: Path, _size: int, _changed: int) -> _Contents:
    members: dict[str, _Member] = {}
    folders: dict[str, tuple[set[str], set[str]]] = {"": (set(), set())}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile(f"{info.filename} is encrypted, or packed by another method than deflate")
            name = info.filename.strip("/")
            members[name] = _Member(
                info.header_offset, info.compress_size, info.file_size, info.CRC, info.compress_type
            )
            _place(folders, name)
    return _Contents(members, folders)


def _place(folders: dict[str, tuple[set[str], set[str]]], name: str) -> None:
    """Note a file in its folder, and the folder in those above it."""
    parent, _, own = name.rpartition("/")
    known = parent in folders
    folders.setdefault(parent, (set(), set()))[1].add(own)
    while parent and not known:
        above, _, own = parent.rpartition("/")
        known = above in folders
        folders.setdefault(above, (set(), set()))[0].add(own)
        parent = above


def _stored(fd: int, member: _Member) -> bytes:
    """A file's bytes as they lie in the archive, behind a header with its name and extra field."""
    head = os.pread(fd, _LOCAL.size, member.offset)
    if len(head) < _LOCAL.size or head[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("no file begins where the table of contents says so")
    name, extra = _LOCAL.unpack(head)[-2:]
    data = os.pread(fd, member.stored, member.offset + _LOCAL.size + name + extra)
    if len(data) != member.stored:
        raise EOFError("cut off")
    return data


def open_files(path: Path) -> Files:
    """The files of the store at a path.

    Raises:
        EpisodeError: missing, or neither a folder nor a zip archive.
    """
    if path.is_dir():
        return Folder(path)
    return ZipArchive(path)


class FilesStore(Store):  # type: ignore[misc]  # zarr is not checked here
    """Zarr's view of some files; read-only.

    Args:
        files: the files.
    """

    def __init__(self, files: Files) -> None:
        super().__init__(read_only=True)
        self._files = files
        self.guards: dict[str, Guard] = {}
        """What is checked of every chunk, by the folder of its array."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    @property
    def supports_writes(self) -> bool:
        """Never."""
        return False

    @property
    def supports_deletes(self) -> bool:
        """Never."""
        return False

    @property
    def supports_listing(self) -> bool:
        """Not needed: what is read is known by name."""
        return False

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """A file's content or a part of it."""
        data = await asyncio.to_thread(self._files.read, key)
        if data is None:
            return None
        for folder, guard in self.guards.items():
            if key.startswith(folder):
                guard.check(data, f"{self._files.where}/{key}")
        if byte_range is not None:
            data = _part(data, byte_range)
        return (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> Sequence[Buffer | None]:
        """Several at once."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        """Whether there is such a file."""
        return self._files.size(key) is not None

    async def set(self, key: str, value: Buffer) -> None:
        """Refused."""
        raise EpisodeError(f"{self._files.where}: raw data is never written.")

    async def delete(self, key: str) -> None:
        """Refused."""
        raise EpisodeError(f"{self._files.where}: raw data is never written.")

    async def list(self) -> AsyncIterator[str]:
        """Nothing: see `supports_listing`."""
        for name in _NOTHING:
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Nothing: see `supports_listing`."""
        for name in _NOTHING:
            yield name

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Nothing: see `supports_listing`."""
        for name in _NOTHING:
            yield name


def _part(data: bytes, byte_range: ByteRequest) -> bytes:
    if isinstance(byte_range, RangeByteRequest):
        return data[byte_range.start : byte_range.end]
    if isinstance(byte_range, OffsetByteRequest):
        return data[byte_range.offset :]
    assert isinstance(byte_range, SuffixByteRequest)
    return data[-byte_range.suffix :] if byte_range.suffix else b""
