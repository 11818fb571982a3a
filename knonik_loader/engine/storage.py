"""Where bytes live: one small interface over local disks and object stores.

A *key* names one object in full, an absolute path or a URL, so that every error can name it. Storages are safe to use
from many threads, can be pickled, and open nothing before the first read; after a fork they start afresh in the child.
"""

from __future__ import annotations

import errno
import os
import posixpath
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel

from knonik_loader.config_models import AzureParams, GcsParams, LocalParams, S3Params
from knonik_loader.engine.memory import ReadBuffers
from knonik_loader.errors import ConfigError, StorageError, TruncatedError
from knonik_loader.validation import nearest, validate

__all__ = ["LocalStorage", "Storage", "fs_type_of", "join_url", "open_storage"]

_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "azure": "azure", "file": "local"}
_PARAMS: Mapping[str, type[BaseModel]] = {
    "local": LocalParams,
    "s3": S3Params,
    "gcs": GcsParams,
    "azure": AzureParams,
}
_OPEN_FILES = 64
_BUFFER_BYTES = 32 << 20
"""Read memory kept for further reads."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
"""What this process or machine has too little of: no file is at fault."""


class Storage(Protocol):
    """Reads whole objects and ranges of them; every method raises `StorageError` naming the object."""

    fs_type: str
    remote: bool
    """True where a request costs milliseconds: reads are then merged over wider gaps."""

    def resolve(self, uri: str, base: str | None = None) -> str:
        """Key of a path or URL: absolute ones stand, relative ones go below ``base``'s folder, or the root."""
        ...

    def size(self, key: str) -> int:
        """Bytes of an object."""
        ...

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``; `TruncatedError` when the object ends before."""
        ...

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Several (offset, length) ranges of one object, in the order asked for; as `read`.

        Their memory is that of the storage, which uses it again once no view is left.
        """
        ...

    def read_all(self, key: str) -> bytes:
        """A whole object."""
        ...

    def close(self) -> None:
        """Forget open files and connections; a later read opens them again."""
        ...


def fs_type_of(uri: str) -> str | None:
    """The ``fs_type`` that a URL's scheme implies; None for a plain path or an unknown scheme."""
    scheme, colon, _ = uri.partition("://")
    return _SCHEMES.get(scheme.lower()) if colon else None


def open_storage(
    fs_type: str, fs_params: Mapping[str, Any] | BaseModel | None = None, open_files: int | None = None
) -> Storage:
    """The storage that ``fs_type`` and ``fs_params`` of a loader configuration describe; connects to nothing yet.

    Args:
        fs_type: of the configuration.
        fs_params: of the configuration.
        open_files: local files kept open at once; None: `_OPEN_FILES`.

    Raises:
        ConfigError: an unknown type or parameter.
    """
    if fs_type not in _PARAMS:
        raise ConfigError(f"fs_type: {fs_type!r} is not one of {', '.join(_PARAMS)}{nearest(fs_type, _PARAMS)}")
    if not isinstance(fs_params, BaseModel):
        given = {name: value for name, value in (fs_params or {}).items() if value is not None}
        fs_params = validate(_PARAMS[fs_type], given, f"fs_params (fs_type {fs_type!r})")
    params = fs_params.model_dump()
    if fs_type == "local":
        return LocalStorage(params["root"], open_files or _OPEN_FILES)
    from knonik_loader.engine.objects import ObjectStorage

    return ObjectStorage(fs_type, params)


class _OpenFile:
    """A file descriptor that closes when the last reader lets go of it, so that eviction never races a read."""

    __slots__ = ("fd",)

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)


class LocalStorage:
    """Files below a root, read by position with a bounded set of open descriptors (no shared file offsets, no mmap)."""

    fs_type = "local"
    remote = False

    def __init__(self, root: str | Path | None = None, open_files: int = _OPEN_FILES) -> None:
        self._root = os.path.abspath(os.path.expanduser(root)) if root is not None else None  # noqa: PTH100, PTH111
        self._limit = open_files
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._files: OrderedDict[str, _OpenFile] = OrderedDict()
        self._buffers = ReadBuffers(_BUFFER_BYTES)

    def __reduce__(self) -> tuple[Any, ...]:
        return (LocalStorage, (self._root, self._limit))

    def resolve(self, uri: str, base: str | None = None) -> str:
        """Absolute path of ``uri``; see `Storage.resolve`."""
        scheme = fs_type_of(uri)
        if scheme == "local":
            uri = unquote(urlsplit(uri).path)
        elif "://" in uri:
            hint = f"set fs_type: {scheme!r}" if scheme else "known schemes are s3, gs, az and file"
            raise ConfigError(f"{uri!r} is not a local path; {hint}.")
        folder = os.path.dirname(base) if base is not None else self._root or os.getcwd()  # noqa: PTH109, PTH120
        return os.path.normpath(os.path.join(folder, os.path.expanduser(uri)))  # noqa: PTH111, PTH118

    def size(self, key: str) -> int:
        """Bytes of a file."""
        file = self._open(key)
        try:
            return os.fstat(file.fd).st_size
        except OSError as error:
            raise _local_error(key, error) from error

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``."""
        return bytes(self.read_ranges(key, [(offset, length)])[0])

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Several (offset, length) ranges, one read each."""
        file = self._open(key)
        return [_read_exactly(key, file.fd, offset, self._buffers.take(length)) for offset, length in ranges]

    def read_all(self, key: str) -> bytes:
        """A whole file."""
        return self.read(key, 0, self.size(key))

    def close(self) -> None:
        """Close the files that nobody is reading; the others close when their read ends."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            self._files.clear()
            self._buffers = ReadBuffers(_BUFFER_BYTES)

    def _open(self, key: str) -> _OpenFile:
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            file = self._files.get(key)
            if file is not None:
                self._files.move_to_end(key)
                return file
        try:
            file = _OpenFile(key)
        except OSError as error:
            raise _local_error(key, error) from error
        with self._lock:
            self._files[key] = file
            while len(self._files) > self._limit:
                self._files.popitem(last=False)
        return file


def _read_exactly(key: str, fd: int, offset: int, view: memoryview) -> memoryview:
    length, done = len(view), 0
    while done < length:
        try:
            count = os.preadv(fd, [view[done:]], offset + done)
        except OSError as error:
            raise _local_error(key, error) from error
        if not count:
            raise TruncatedError(
                f"{key} ends at byte {offset + done} where {offset + length} were promised; it was cut off or "
                "replaced: pack or copy it again."
            )
        done += count
    return view


def _local_error(key: str, error: OSError) -> StorageError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return StorageError(
            f"{key} does not exist; check the path, fs_params.root, and that the whole folder was copied."
        )
    if isinstance(error, PermissionError):
        return StorageError(f"{key} may not be read by this user ({error.strerror}); check its permissions.")
    if isinstance(error, IsADirectoryError):
        return StorageError(f"{key} is a directory; name the file, usually hlp_manifest.json inside it.")
    told = StorageError(f"{key} cannot be read: {error.strerror or error}; check the disk or mount it lies on.")
    told.outage = error.errno in _SHORTAGES
    return told


def join_url(folder: str, uri: str) -> str:
    """``uri`` below a URL's folder, with ``.`` and ``..`` resolved inside the bucket."""
    scheme, _, rest = folder.partition("://")
    bucket, _, path = rest.partition("/")
    joined = posixpath.normpath(posixpath.join("/", path, uri)).lstrip("/")
    return f"{scheme}://{bucket}/{joined}"
