"""Objects below one URL: list, read, stage to a disk, upload, put on a condition, delete.

Requests, retries, credentials and errors are those of the loader (`knonik_loader.engine.objects`). Options come from
the environment that obstore reads (``AWS_ENDPOINT_URL``, ``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, ``AWS_SKIP_SIGNATURE``
...), and ``fs_params`` of a loader's configuration may be given on top.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from knonik_assets.storage.place import Place
from knonik_loader.engine.objects import ObjectStorage
from knonik_loader.engine.storage import open_storage
from knonik_loader.errors import KnonikError, StorageError, TruncatedError, refusal

__all__ = ["ONE_PIECE", "ConflictError", "ObjectFolder", "ObjectInfo"]

T = TypeVar("T")

ONE_PIECE = 8 << 20
"""Bytes of a file that is written by a single request at most."""
_PART = 8 << 20
"""Bytes of one request of a download or upload."""
_NOT_THE_BUCKET = ("NoSuchUpload", "(os error ")
"""Of what is missing, too: an upload that somebody ended, and the file that was to be uploaded."""
_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_")
_MOST_PARTS = 9_000
_AT_ONCE = 4
"""Requests at once of one download or upload; it holds so many parts in memory."""


class ConflictError(StorageError):
    """A conditional put found another object than it was told to replace: somebody else won."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What the store says of one object."""

    key: str
    """Relative to the folder that was asked."""
    size: int
    """Bytes."""
    etag: str
    """Changes whenever the object's content does; empty where the store has none."""
    version: str
    """Of a bucket that keeps versions; else empty."""
    modified: float
    """Seconds since the epoch, by the store's clock."""


class ObjectFolder:
    """Everything below a remote `Place`. Keys are relative to it. Safe to use from threads; can be pickled.

    Every method raises `StorageError` with the object's URL where the store cannot be asked, refuses, or has no such
    object. `close` is not needed: connections are shared by all folders of a process.

    Args:
        place: a remote one.
        fs_params: ``region``, ``endpoint_url``, ``anonymous``, ``max_pool_connections`` ... of a loader's
            configuration; what is not given comes from the environment.
    """

    def __init__(self, place: Place, fs_params: Mapping[str, Any] | None = None) -> None:
        self.place = place
        self._params = dict(fs_params or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.place, self._params))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.place)!r})"

    @property
    def storage(self) -> ObjectStorage:
        """The loader's storage: ranges of objects, whose keys are full URLs (`url`)."""
        said = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_VARIABLES)))
        return _storage(self.place.fs_type, tuple(sorted(self._params.items())), said)

    def url(self, key: str) -> str:
        """The full URL of a key."""
        return str(self.place / key) if key else str(self.place)

    def objects(self, prefix: str = "") -> list[ObjectInfo]:
        """All objects below ``prefix`` (whole parts of a path) at any depth, sorted by key; none is no error."""
        import obstore

        def collect(store: Any, path: str) -> list[ObjectInfo]:  # noqa: ANN401 - any obstore store
            return [self._info(entry) for chunk in obstore.list(store, path or None) for entry in chunk]

        found = self._ask(self.url(prefix), collect, doing="listed")
        return sorted((info for info in found if info.key), key=lambda info: info.key)

    def directly(self, prefix: str = "") -> list[ObjectInfo]:
        """The objects directly below ``prefix``, sorted by key, not those in folders."""
        import obstore

        def collect(store: Any, path: str) -> list[ObjectInfo]:  # noqa: ANN401 - any obstore store
            return [self._info(entry) for entry in obstore.list_with_delimiter(store, path or None)["objects"]]

        found = self._ask(self.url(prefix), collect, doing="listed")
        return sorted((info for info in found if info.key), key=lambda info: info.key)

    def folders(self, prefix: str = "") -> list[str]:
        """Names of the folders directly below ``prefix``, sorted."""
        import obstore

        def collect(store: Any, path: str) -> list[str]:  # noqa: ANN401 - any obstore store
            return list(obstore.list_with_delimiter(store, path or None)["common_prefixes"])

        found = self._ask(self.url(prefix), collect, doing="listed")
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def head(self, key: str) -> ObjectInfo | None:
        """What the store says of an object; None where there is none."""
        import obstore

        def ask(store: Any, path: str) -> ObjectInfo | None:  # noqa: ANN401 - any obstore store
            try:
                return self._info(obstore.head(store, path))
            except FileNotFoundError:
                return None

        return self.storage.ask(self.url(key), ask)

    def get(self, key: str) -> tuple[bytes, ObjectInfo] | None:
        """A whole object and what it was when it was read; None where there is none. For small ones."""
        import obstore

        def ask(store: Any, path: str) -> tuple[bytes, ObjectInfo] | None:  # noqa: ANN401 - any obstore store
            try:
                answer = obstore.get(store, path)
                data = bytes(answer.bytes())
            except FileNotFoundError:
                return None
            info = self._info(answer.meta)
            if len(data) != info.size:
                raise OSError(f"{len(data)} bytes came instead of {info.size}")
            return data, info

        return self.storage.ask(self.url(key), ask)

    def read_bytes(self, key: str) -> bytes:
        """A whole object, which must be there. For small ones."""
        found = self.get(key)
        if found is None:
            raise StorageError(f"{self.url(key)} does not exist; check the URL, bucket and prefix.")
        return found[0]

    def download(self, key: str, path: Path, expected: ObjectInfo | None = None) -> ObjectInfo:
        """Write an object to a file, part by part, all parts of one version of it.

        Args:
            key: of the object.
            path: of the file; its folder is there. A file of this name is replaced, and is gone if anything fails.
            expected: what was listed; None: whatever is there now. Room for it must have been made before.

        Raises:
            StorageError: it is gone, was replaced (since it was listed, or while it was read), or the disk refuses.
            TruncatedError: less came than the object has.
        """
        info = expected or self.head(key)
        if info is None:
            raise StorageError(f"{self.url(key)} does not exist; check the URL, bucket and prefix.")
        starts = range(0, info.size, _PART)
        try:
            with path.open("wb") as file, ThreadPoolExecutor(max(1, min(_AT_ONCE, len(starts)))) as pool:
                file.truncate(info.size)

                def fetch(start: int) -> None:
                    _write_at(file.fileno(), self.part(info, start, min(_PART, info.size - start)), start)

                for done in [pool.submit(fetch, start) for start in starts]:
                    done.result()
        except BaseException as error:
            with suppress(OSError):
                path.unlink()
            if isinstance(error, OSError) and not isinstance(error, KnonikError):
                raise StorageError(f"cannot write {path}: {refusal(error)}") from error
            raise
        return info

    def part(self, info: ObjectInfo, start: int, length: int) -> memoryview:
        """``length`` bytes (1 or more) from byte ``start`` on of an object that was listed, if it still is that one."""
        import obstore
        from obstore.exceptions import PreconditionError

        url = self.url(info.key)
        options: dict[str, Any] = {"range": (start, start + length)}
        if info.etag:
            options["if_match"] = info.etag

        def get(store: Any, path: str) -> memoryview:  # noqa: ANN401 - any obstore store
            try:
                view = memoryview(obstore.get(store, path, options=options).bytes())
            except PreconditionError as error:
                raise StorageError(f"{url} was replaced while it was read; try again when its writer ended.") from error
            except FileNotFoundError as error:
                raise StorageError(f"{url} was removed before it was read; try again when its writer ended.") from error
            if len(view) != length:
                raise OSError(f"{len(view)} bytes came instead of {length}")
            return view

        return self.storage.ask(url, get)

    def upload(self, path: Path, key: str) -> ObjectInfo:
        """Write a file to an object, in parts and never whole in memory; readers see the old object or the new one.

        Raises:
            StorageError: the store refuses, or holds another number of bytes afterwards.
        """
        import obstore

        try:
            size = path.stat().st_size
        except OSError as error:
            raise StorageError(f"cannot read {path}: {refusal(error)}") from error
        part = max(_PART, -(-size // _MOST_PARTS))

        def put(store: Any, where: str) -> Any:  # noqa: ANN401 - any obstore store
            return obstore.put(store, where, path, chunk_size=part, max_concurrency=_AT_ONCE)

        self._ask(self.url(key), put, doing="written")
        info = self.head(key)
        if info is None or info.size != size:
            raise TruncatedError(
                f"{self.url(key)} has {info.size if info else 'no'} bytes after {size} were uploaded; another run may "
                "be writing there."
            )
        return info

    def create(self, path: Path, key: str) -> str:
        """Write a file of up to `ONE_PIECE` bytes to an object that is not there yet, and give its etag.

        Raises:
            ConflictError: there is one, which stands.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            data = path.read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read {path}: {refusal(error)}") from error

        def put(store: Any, where: str) -> str:  # noqa: ANN401 - any obstore store
            try:
                return str(obstore.put(store, where, data, mode="create", use_multipart=False)["e_tag"] or "")
            except AlreadyExistsError as error:
                raise self._conflict(key) from error

        return self._ask(self.url(key), put, doing="written")

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the store, to where none is yet.

        Raises:
            ConflictError: there is one, which stands.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError

        source = f"{self.place.key}/{key}" if self.place.key else key

        def put(store: Any, where: str) -> None:  # noqa: ANN401 - any obstore store
            try:
                obstore.copy(store, source, where, overwrite=False)
            except AlreadyExistsError as error:
                raise self._conflict(to) from error
            except FileNotFoundError as error:
                raise StorageError(
                    f"{self.url(key)} vanished before it was copied to {self.url(to)}; does another run, or a rule of "
                    "the bucket, delete?"
                ) from error

        self.storage.ask(self.url(to), put, doing="written")

    def put_bytes(
        self, key: str, data: bytes, *, if_none_match: bool = False, if_match: ObjectInfo | None = None
    ) -> ObjectInfo:
        """Write a small object, on a condition where one is given.

        Args:
            key: of the object.
            data: all of it.
            if_none_match: only where there is no such object.
            if_match: only where the object is still this one (of `head`, `get`, `list`, or an earlier put).

        Returns:
            The object that is there now, for a later ``if_match``.

        Raises:
            ConflictError: the condition didn't hold: another writer was first, and its object stands. An object that
                is equal byte for byte is a success (the answer to a first attempt may have been lost on the way).
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create" if if_none_match else "overwrite"
        if if_match is not None:
            given = {"e_tag": if_match.etag, "version": if_match.version}
            mode = {name: value for name, value in given.items() if value}

        def put(store: Any, path: str) -> None:  # noqa: ANN401 - any obstore store
            try:
                obstore.put(store, path, data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return
            except FileNotFoundError:
                if if_match is None:
                    raise

        self._ask(self.url(key), put, doing="written")
        info = self.head(key)
        if info is not None and mode != "overwrite":
            # a put whose answer was lost on its way was sent again, and then refused: only the content tells who won
            found = self.get(key)
            info = found[1] if found is not None and found[0] == data else None
        if info is None:
            raise self._conflict(key)
        return info

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; those that are not there are no error."""
        import obstore

        names = [keys] if isinstance(keys, str) else list(keys)
        prefix = f"{self.place.key}/" if self.place.key else ""
        for start in range(0, len(names), 1000):
            paths = [prefix + name for name in names[start : start + 1000]]

            def remove(store: Any, _: str, paths: list[str] = paths) -> None:  # noqa: ANN401 - any obstore store
                with suppress(FileNotFoundError):
                    obstore.delete(store, paths)

            self.storage.ask(self.url(names[start]), remove, doing="deleted")

    def _ask(self, url: str, call: Callable[[Any, str], T], doing: str) -> T:
        """Ask what succeeds in every bucket that is there, whatever is in it: to list, or to write."""
        from obstore.exceptions import BaseError

        def ask(store: Any, path: str) -> T:  # noqa: ANN401 - any obstore store
            try:
                return call(store, path)
            except (BaseError, FileNotFoundError) as error:
                if not isinstance(error, FileNotFoundError) and "NoSuchBucket" not in str(error):
                    raise
                if any(sign in str(error) for sign in _NOT_THE_BUCKET):
                    raise StorageError(
                        f"{url} cannot be {doing}: the file to be uploaded is gone, or somebody ended the upload "
                        "(another run, or a rule of the bucket for unfinished ones); try again."
                    ) from error
                raise StorageError(
                    f"{self.place}: the bucket {self.place.bucket!r} does not exist; create it, or check the URL, the "
                    "region and the endpoint."
                ) from error

        return self.storage.ask(url, ask, doing=doing)

    def _conflict(self, key: str) -> ConflictError:
        return ConflictError(
            f"{self.url(key)} was written by another run meanwhile, whose version stands; look at it before you try "
            "again."
        )

    def _info(self, meta: Mapping[str, Any]) -> ObjectInfo:
        path, prefix = str(meta["path"]), self.place.key
        key = path[len(prefix) + 1 :] if prefix else path
        return ObjectInfo(
            key, int(meta["size"]), meta["e_tag"] or "", meta["version"] or "", meta["last_modified"].timestamp()
        )


def _write_at(file: int, data: memoryview, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], start + done)


@lru_cache(maxsize=16)
def _storage(
    fs_type: str, params: tuple[tuple[str, Any], ...], environment: tuple[tuple[str, str], ...]
) -> ObjectStorage:
    """One for each set of options, so that connections are kept; ``environment`` is what obstore reads by itself."""
    del environment
    storage = open_storage(fs_type, dict(params))
    if not isinstance(storage, ObjectStorage):
        raise StorageError(f"{fs_type} is no object store.")
    return storage
