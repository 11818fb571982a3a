"""The files of a store inside a zip archive."""

from __future__ import annotations

import os
import struct
import threading
import zipfile
import zlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from knonik_assets.sources.arrays import bounded
from knonik_assets.sources.store_files import Files, in_order
from knonik_loader.errors import EpisodeError

__all__ = ["ZipArchive"]

_FAULTS = (OSError, EOFError, RuntimeError, NotImplementedError, ValueError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged archive or a failing disk raises."""
_MAC = frozenset({"__MACOSX", ".DS_Store"})
"""What a Mac packs beside whatever was to be packed."""
_DEEPEST = 32
_UTF8 = 1 << 11
"""Flag of names in UTF-8."""
_LOCAL = struct.Struct("<4s5H3I2H")
"""A file's header in a zip archive (APPNOTE.TXT, 4.3.7)."""


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
        folders, files = ({name for name in names if name not in _MAC} for names in self._contents.folders[""])
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
        return in_order(folders), in_order(files)

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
    name: int
    """Check sum of its name, which stands before its bytes once more: the table of contents has none of its own."""


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
            if name.count("/") > _DEEPEST:  # noted once for every folder above it
                raise zipfile.BadZipFile(f"{name[:80]}… lies {name.count('/')} folders deep")
            stored = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")
            members[name] = _Member(
                info.header_offset,
                info.compress_size,
                info.file_size,
                info.CRC,
                info.compress_type,
                zlib.crc32(stored),
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
    if zlib.crc32(os.pread(fd, name, member.offset + _LOCAL.size)) != member.name:
        raise zipfile.BadZipFile("it has another name in the table of contents")
    data = os.pread(fd, member.stored, member.offset + _LOCAL.size + name + extra)
    if len(data) != member.stored:
        raise EOFError("cut off")
    return data
