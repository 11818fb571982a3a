"""Object stores (S3, Google Cloud Storage, Azure) through obstore, imported when the first object is read."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from knonik_loader.engine.storage import fs_type_of, join_url
from knonik_loader.errors import ConfigError, StorageError, TruncatedError

__all__ = ["ObjectStorage"]

T = TypeVar("T")

_SCHEME_OF = {"s3": "s3", "gcs": "gs", "azure": "az"}
_ATTEMPTS = 4
"""Times that a body which broke off or came too short is asked for; obstore itself retries refused requests."""
_TIMEOUT = timedelta(seconds=30)

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

        return int(self._ask(key, lambda store, path: obstore.head(store, path)["size"]))

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Exactly ``length`` bytes from ``offset``."""
        return bytes(self.read_ranges(key, [(offset, length)])[0])

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Several (offset, length) ranges, requested in parallel; the caller has merged what lies close together."""
        import obstore

        starts = [offset for offset, length in ranges if length]
        lengths = [length for _, length in ranges if length]

        def get(store: Any, path: str) -> list[memoryview]:  # noqa: ANN401 - any obstore store
            if not starts:
                return []
            parts = obstore.get_ranges(store, path, starts=starts, lengths=lengths, coalesce=0)
            views = [memoryview(part) for part in parts]
            for start, length, view in zip(starts, lengths, views, strict=True):
                if len(view) != length:
                    raise TruncatedError(
                        f"{key}: {len(view)} bytes came where {length} from byte {start} were promised; the object is "
                        "shorter than its index says: pack or copy it again."
                    )
            return views

        found = iter(self._ask(key, get))
        return [next(found) if length else memoryview(b"") for _, length in ranges]

    def read_all(self, key: str) -> bytes:
        """A whole object."""
        import obstore

        return bytes(self._ask(key, lambda store, path: obstore.get(store, path).bytes()))

    def close(self) -> None:
        """Forget the connections."""
        self._reset()

    def _ask(self, key: str, call: Callable[[Any, str], T]) -> T:
        """Run one request, again where the body broke off, and with fresh credentials where they were refused."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        bucket, _, path = key.partition("://")[2].partition("/")
        renewed = False
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return call(self._store(bucket), path)
            except FileNotFoundError as error:
                raise StorageError(f"{key} does not exist; check the URL, bucket and prefix.") from error
            except (PermissionDeniedError, UnauthenticatedError) as error:
                if renewed:
                    raise StorageError(
                        f"{key}: the credentials were refused ({_first_line(error)}); renew them, check the bucket's "
                        "policy, or set fs_params.anonymous for a public bucket."
                    ) from error
                renewed = True
                with self._lock:
                    self._stores.pop(bucket, None)
            except TruncatedError:
                if attempt == _ATTEMPTS:
                    raise
            except (BaseError, OSError) as error:
                if attempt == _ATTEMPTS or "416" in str(error):
                    raise StorageError(
                        f"{key} cannot be read after {attempt} attempts: {_first_line(error)}; check the network, "
                        "endpoint_url and region."
                    ) from error
        raise StorageError(f"{key} cannot be read: the credentials or the connection failed {_ATTEMPTS} times.")

    def _store(self, bucket: str) -> Any:  # noqa: ANN401 - any obstore store
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
                store = self._stores[bucket] = _connect(self.fs_type, bucket, self._params)
                _runtime_pid = os.getpid()
            return store


def _connect(fs_type: str, bucket: str, params: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any obstore store
    from obstore.store import AzureStore, GCSStore, S3Store

    client: dict[str, Any] = {"timeout": _TIMEOUT, "connect_timeout": timedelta(seconds=5)}
    if params.get("max_pool_connections"):
        client["pool_max_idle_per_host"] = str(params["max_pool_connections"])
    endpoint = params.get("endpoint_url")
    if endpoint and str(endpoint).startswith("http://"):
        client["allow_http"] = True
    retry = {"max_retries": 10, "retry_timeout": timedelta(minutes=3)}
    common: dict[str, Any] = {"client_options": client, "retry_config": retry}
    config: dict[str, Any] = {"skip_signature": True} if params.get("anonymous") else {}
    if fs_type == "s3":
        config |= {"region": params.get("region")} if params.get("region") else {}
        if endpoint:
            config |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
        if not params.get("anonymous"):
            common |= _boto_credentials()
        return S3Store(bucket, config=config, **common)
    if fs_type == "gcs":
        return GCSStore(bucket, config=config, **common)
    if params.get("account"):
        config["account_name"] = params["account"]
    return AzureStore(bucket, config=config, **common)


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


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
