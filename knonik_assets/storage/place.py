"""A place where data lives: a local path, or a URL of an object store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from knonik_loader.engine.storage import fs_type_of, join_url
from knonik_loader.errors import ConfigError

__all__ = ["Place"]

_SCHEME_OF = {"s3": "s3", "gcs": "gs", "azure": "az"}
_MANGLED = re.compile(r"(s3a?|gc?s|az|azure):/(?!/)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder (or file) on a local disk, or below a bucket; hashable, picklable, and shown as people write it.

    Make one with `of`. ``place / "name"`` is a place below it.
    """

    location: str
    """A local path as it was given, or ``scheme://bucket/key`` with one spelling for each scheme and no last slash."""
    is_remote: bool = False
    """True for an object of a bucket; False for a local path."""

    @classmethod
    def of(cls, given: str | Path | Place, what: str) -> Place:
        """The place that somebody named.

        Args:
            given: a local path (``~`` is filled in), ``file://``, ``s3://``, ``gs://`` or ``az://``.
            what: what to call it in messages, such as ``input_dir``.

        Raises:
            ConfigError: it is no path, of an unknown scheme, or names no bucket.
        """
        if isinstance(given, Place):
            return given
        if not isinstance(given, str | Path):
            raise ConfigError(f"{what} must be a path or URL, not {given!r}.")
        text = str(given)
        if _MANGLED.match(text):
            raise ConfigError(f"{what} {text}: give a URL as text ('s3://bucket/folder'); a Path swallows its slashes.")
        if "://" not in text:
            return cls(str(_expanded(text, what)))
        fs_type = fs_type_of(text)
        if fs_type == "local":
            return cls(str(_expanded(unquote(urlsplit(text).path), what)))
        if fs_type is None:
            raise ConfigError(f"{what} {text}: known schemes are s3, gs, az and file.")
        bucket, _, key = text.partition("://")[2].partition("/")
        if not bucket or "\0" in text:
            raise ConfigError(f"{what} {text} names no bucket; write {_SCHEME_OF[fs_type]}://BUCKET/folder.")
        return cls(join_url(f"{_SCHEME_OF[fs_type]}://{bucket}/", key).rstrip("/"), is_remote=True)

    @property
    def path(self) -> Path:
        """The local path.

        Raises:
            ConfigError: it is a URL.
        """
        if self.is_remote:
            raise ConfigError(f"{self} is a URL where a local path is needed.")
        return Path(self.location)

    @property
    def fs_type(self) -> str:
        """``local``, ``s3``, ``gcs`` or ``azure``, as in a loader's configuration."""
        return (fs_type_of(self.location) or "local") if self.is_remote else "local"

    @property
    def bucket(self) -> str:
        """Of a URL; empty for a local path."""
        return self.location.partition("://")[2].partition("/")[0] if self.is_remote else ""

    @property
    def key(self) -> str:
        """Of a URL, inside of its bucket, without slashes around it; empty for a local path."""
        return self.location.partition("://")[2].partition("/")[2] if self.is_remote else ""

    @property
    def name(self) -> str:
        """The last part; empty for a whole bucket."""
        return self.key.rpartition("/")[2] if self.is_remote else self.path.name

    @property
    def parent(self) -> Place:
        """What it lies in; a bucket is its own parent."""
        if not self.is_remote:
            return Place(str(self.path.parent))
        return Place(
            f"{self.location.partition('://')[0]}://{self.bucket}/{self.key.rpartition('/')[0]}".rstrip("/"), True
        )

    def __truediv__(self, name: str) -> Self:
        """A place below this one; ``name`` may have several parts."""
        joined = join_url(f"{self.location}/", name) if self.is_remote else str(self.path / name)
        return type(self)(joined, self.is_remote)

    def __str__(self) -> str:
        """As people write it."""
        return self.location


def _expanded(text: str, what: str) -> Path:
    if not text:
        raise ConfigError(f"{what} is empty; name a path or URL (an unset variable of the shell?).")
    if "\0" in text:
        raise ConfigError(f"{what} {text!r} holds a zero byte, which no path can; correct it.")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{what} {text!r}: there is no such user with a home; write the path out.") from error
