"""Object stores (S3, Google Cloud Storage, Azure) through obstore, imported when the first object is read.

Reads are awaited, so that one which hangs in a stalled network ends when the storage is closed, and its thread with it.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

from knonik_loader.engine.awaited import GivenUpError, Requests
from knonik_loader.engine.storage import fs_type_of, join_url
from knonik_loader.errors import ConfigError, KnonikError, StorageError, TruncatedError

__all__ = ["ObjectStorage"]

T = TypeVar("T")

_SCHEME_OF = {"s3": "s3", "gcs": "gs", "azure": "az"}
_ATTEMPTS = 5
"""Times that a body which broke off or came too short is asked for, and refused credentials are renewed. What a server
asks to repeat (429, 5xx, refused connections), obstore itself repeats inside of each of them."""
_BACKOFF_S = 0.25
"""Pause after the first attempt; it doubles with each."""
_PATIENCE_S = 120.0
"""After which no further attempt begins."""
_METADATA_SERVICE = "169.254.169.254"
"""Where a machine of Amazon's finds its role: asked last, when nothing else gave credentials."""
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')
"""In the dump of Rust's error that obstore adds: the operating system's words, such as "Connection refused"."""
_TIMEOUT = timedelta(seconds=30)
_RETRY = {"max_retries": 10, "retry_timeout": timedelta(seconds=90)}

_runtime_pid: int | None = None
"""The process in which obstore's threads run: they do not survive a fork, and a child that waits for them hangs."""


class ObjectStorage:
    """Objects of one or more buckets; keys are URLs such as ``s3://bucket/path``."""

    remote = True

    def __init__(self, fs_type: str, params: Mapping[str, Any]) -> None:
        self.fs_type = fs_type
        self._params = dict(params)
        self._scheme = _SCHEME_OF[fs_type]
        self._bucket: str | None = params.get("bucket") or params.get("container")
        self._prefix = str(params.get("prefix") or "").strip("/")
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._stores: dict[str, Any] = {}
        self._closing = threading.Event()
        self._requests = Requests()

    def __reduce__(self) -> tuple[Any, ...]:
        return (ObjectStorage, (self.fs_type, self._params))

    def resolve(self, uri: str, base: str | None = None) -> str:
        """URL of ``uri``; see `Storage.resolve`."""
        if "://" in uri:
            if fs_type_of(uri) != self.fs_type:
                wanted = fs_type_of(uri)
                hint = f"set fs_type: {wanted!r}" if wanted else "known schemes are s3, gs, az and file"
                raise ConfigError(f"{uri!r} does not belong to fs_type {self.fs_type!r}; {hint}.")
            scheme_less = uri.partition("://")[2]
            if not scheme_less.partition("/")[0]:
                raise ConfigError(f"{uri!r} names no bucket; write {self._scheme}://BUCKET/path/hlp_manifest.json.")
            return join_url(f"{self._scheme}://{scheme_less.partition('/')[0]}/", scheme_less.partition("/")[2])
        if base is not None:
            return join_url(base.rpartition("/")[0] + "/", uri)
        if self._bucket is None:
            raise ConfigError(f"{uri!r} is relative, so fs_params needs a bucket; or give a {self._scheme}:// URL.")
        folder = "" if uri.startswith("/") else self._prefix
        return join_url(f"{self._scheme}://{self._bucket}/{folder}", uri.lstrip("/"))

    def size(self, key: str) -> int:
        """Bytes of an object."""
        import obstore

        return int(self._await(key, lambda store, path: obstore.head_async(store, path))["size"])

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``."""
        return bytes(self.read_ranges(key, [(offset, length)])[0])

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Several (offset, length) ranges, requested in parallel; the caller has merged what lies close together."""
        import obstore

        starts = [offset for offset, length in ranges if length]
        lengths = [length for _, length in ranges if length]

        async def get(store: Any, path: str) -> list[memoryview]:  # noqa: ANN401 - any obstore store
            if not starts:
                return []
            parts = await obstore.get_ranges_async(store, path, starts=starts, lengths=lengths, coalesce=0)
            views = [memoryview(part) for part in parts]
            for start, length, view in zip(starts, lengths, views, strict=True):
                if len(view) != length:
                    raise _Short(f"{key}: {len(view)} bytes came where {length} were asked for from byte {start} on")
            return views

        end = max((start + length for start, length in zip(starts, lengths, strict=True)), default=0)
        found = iter(self._await(key, get, end))
        return [next(found) if length else memoryview(b"") for _, length in ranges]

    def read_all(self, key: str) -> bytes:
        """A whole object."""
        import obstore

        async def get(store: Any, path: str) -> bytes:  # noqa: ANN401 - any obstore store
            found = await obstore.get_async(store, path)
            return bytes(await found.bytes_async())

        return self._await(key, get)

    def close(self) -> None:
        """Forget the connections; what is being read is given up, and not tried again."""
        closing, requests, here = self._closing, self._requests, self._pid == os.getpid()
        self._reset()
        closing.set()
        if here:  # a forked copy's readers, and who holds their lock, live in the parent
            requests.give_up()

    def _await(self, key: str, call: Callable[[Any, str], Awaitable[T]], wanted: int = 0) -> T:
        """`ask` for what is to be awaited, until the storage is closed."""
        requests = self._requests

        def read(store: Any, path: str) -> T:  # noqa: ANN401 - any obstore store
            try:
                return requests.run(lambda: call(store, path))
            except GivenUpError:
                raise _outage(f"{key} was being read when the loader was shut down.") from None

        return self.ask(key, read, wanted)

    def ask(self, key: str, call: Callable[[Any, str], T], wanted: int = 0, doing: str = "read") -> T:
        """Run one request, again where the body broke off, and with fresh credentials where they were refused.

        Args:
            key: URL of an object, or of a folder.
            call: what to ask of an obstore store, given the path inside of its bucket; it may run several times.
            wanted: bytes that the object must have.
            doing: what is done to the object, as a participle.

        Raises:
            StorageError: the object, or its bucket, does not exist, or the store cannot be asked.
            TruncatedError: the object has less than ``wanted`` bytes.
        """
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        bucket, _, path = key.partition("://")[2].partition("/")
        closing, began = self._closing, time.monotonic()
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS or time.monotonic() - began > _PATIENCE_S
            try:
                return call(self._store(bucket), path)
            except KnonikError:
                raise
            except FileNotFoundError as error:
                raise _missing(key) from error
            except (PermissionDeniedError, UnauthenticatedError) as error:
                if "RequestTimeTooSkewed" in str(error):
                    raise _outage(
                        f"{key}: this machine's clock is too far from the store's ({_reason(error)}); set it."
                    ) from error
                if last:
                    raise _outage(
                        f"{key}: the credentials were refused {attempt} times ({_reason(error)}); renew them, check "
                        "the bucket's policy, or set fs_params.anonymous for a public bucket."
                    ) from error
                with self._lock:
                    self._stores.pop(bucket, None)  # the next one looks for credentials afresh
            except _Short as error:
                # Once more if the server sent less than it has; the object itself may be shorter, too.
                if last or self.size(key) < wanted:
                    raise TruncatedError(
                        f"{error}; the object is shorter than its index says, or was cut on its way: pack or copy it "
                        "again."
                    ) from None
            except (BaseError, OSError) as error:
                if "NoSuchBucket" in str(error):
                    raise _missing(key) from error
                if _METADATA_SERVICE in str(error):
                    raise _outage(
                        f"{key}: there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a "
                        "profile (with boto3 installed), or fs_params.anonymous (AWS_SKIP_SIGNATURE=true) for a public "
                        "bucket."
                    ) from error
                if last or "416" in str(error):
                    raise _outage(
                        f"{key} cannot be {doing} after {attempt} attempts: {_reason(error)}; check the network, "
                        "endpoint_url and region."
                    ) from error
            if closing.wait(_BACKOFF_S * 2 ** (attempt - 1)):
                raise _outage(f"{key} was being {doing} when the loader was shut down.")
        raise _outage(f"{key} cannot be {doing}.")

    def _store(self, bucket: str) -> Any:  # noqa: ANN401 - any obstore store
        from obstore.exceptions import BaseError

        global _runtime_pid
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            store = self._stores.get(bucket)
            if store is None:
                if _runtime_pid is not None and _runtime_pid != os.getpid():
                    raise StorageError(
                        f"{self._scheme}://{bucket} was already read before this process was forked, and connections "
                        "do not survive a fork; start workers with 'spawn' or 'forkserver'."
                    )
                try:
                    store = self._stores[bucket] = _connect(self.fs_type, bucket, self._params)
                except BaseError as error:
                    raise ConfigError(
                        f"loader_cfg.fs_params (fs_type {self.fs_type!r}): {_reason(error)}; see its keys in the "
                        "configuration reference."
                    ) from error
                _runtime_pid = os.getpid()
            return store


def _connect(fs_type: str, bucket: str, params: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any obstore store
    from obstore.store import AzureStore, GCSStore, S3Store

    client: dict[str, Any] = {"timeout": _TIMEOUT, "connect_timeout": timedelta(seconds=5)}
    if params.get("max_pool_connections"):
        client["pool_max_idle_per_host"] = str(params["max_pool_connections"])
    endpoint = params.get("endpoint_url")
    address = str(endpoint or _endpoint_of_environment(fs_type))
    if address and not _is_address(address):  # obstore would panic, with a traceback of its own
        raise ConfigError(
            f"the endpoint {address!r} is no address; write http://HOST:PORT or https://HOST, in "
            "fs_params.endpoint_url or AWS_ENDPOINT_URL."
        )
    if address.startswith("http://"):
        client["allow_http"] = True
    common: dict[str, Any] = {"client_options": client, "retry_config": _RETRY}
    config: dict[str, Any] = {"skip_signature": True} if params.get("anonymous") else {}
    if fs_type == "s3":
        config |= {"region": params.get("region")} if params.get("region") else {}
        if endpoint:
            config |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
        if not os.environ.get("AWS_COPY_IF_NOT_EXISTS"):
            config["copy_if_not_exists"] = "multipart"  # as Amazon's own S3 knows it
        if not params.get("anonymous"):
            common |= _boto_credentials()
        return S3Store(bucket, config=config, **common)
    if fs_type == "gcs":
        config |= {"base_url": endpoint} if endpoint else {}
        return GCSStore(bucket, config=config, **common)
    config |= {"account_name": params["account"]} if params.get("account") else {}
    config |= {"endpoint": endpoint} if endpoint else {}
    return AzureStore(bucket, config=config, **common)


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and not re.search(r"\s", text)
        )
    except ValueError:
        return False


def _endpoint_of_environment(fs_type: str) -> str:
    """Where obstore itself looks for S3 when no endpoint is given."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT") if fs_type == "s3" else ()
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _boto_credentials() -> dict[str, Any]:
    """Profiles and SSO of ``~/.aws`` by boto3 where it is installed; obstore itself knows environment and roles."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    try:
        boto3 = importlib.import_module("boto3")
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return {}
    session = boto3.Session()
    if session.get_credentials() is None:
        return {}
    return {"credential_provider": Boto3CredentialProvider(session)}


class _Short(Exception):
    """Fewer bytes came than were asked for."""


def _missing(key: str) -> StorageError:
    return StorageError(f"{key} does not exist; check the URL, bucket and prefix.")


def _outage(message: str) -> StorageError:
    error = StorageError(message)
    error.outage = True
    return error


def _reason(error: BaseException) -> str:
    """What obstore says, on one line: the request, how often it was sent, what came back, and what lies below it."""
    said, _, below = str(error).partition("Debug source:")
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    cause = _CAUSE.search(below)
    return " ".join(lines)[:400] + (f" ({cause[1]})" if cause is not None else "")
