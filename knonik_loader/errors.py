"""What can go wrong, as types.

    KnonikError
    ├── ConfigError (ValueError)          a mistake in the call, a config, a card or an option
    ├── SourceError (ValueError)          a raw dataset cannot be read
    ├── EpisodeError (ValueError)         one episode cannot be ingested, or an ingested one is damaged
    ├── PackError (RuntimeError)          a packed dataset cannot be written
    ├── FormatError (ValueError)          a KHLP file, index or manifest is not what it claims to be
    │   ├── BadMagicError
    │   ├── TruncatedError
    │   ├── ChecksumError
    │   └── UnsupportedFeatureError
    ├── StorageError (OSError)            bytes cannot be read or written where they live
    ├── PlanError (ValueError)            no sample can be planned from what was asked
    ├── ResumeMismatchError (ValueError)  a saved loader state belongs to another run
    ├── DecodeError (RuntimeError)        a payload does not decode to the frame it should
    ├── LoaderClosedError (RuntimeError)  a loader was used after shutdown
    └── LoginRequired (PermissionError)   an issuer is configured and no valid token is at hand

A message says what is wrong, where, and what to do about it. The command line prints it without a traceback and
exits with ``exit_code``.
"""

from __future__ import annotations

import errno
import os
from typing import ClassVar

__all__ = [
    "BadMagicError",
    "ChecksumError",
    "ConfigError",
    "DecodeError",
    "EpisodeError",
    "FormatError",
    "KnonikError",
    "LoaderClosedError",
    "LoginRequired",
    "PackError",
    "PlanError",
    "ResumeMismatchError",
    "SourceError",
    "StorageError",
    "TruncatedError",
    "UnsupportedFeatureError",
    "refusal",
    "reworded",
]


class KnonikError(Exception):
    """Any error that Knonik raises on purpose."""

    exit_code: ClassVar[int] = 1
    """Exit status of the command line: 1 for bad data or a failed run, 2 for a mistake in the call or config."""

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the way back from a worker process, whatever the subclass's constructor takes."""
        return (_rebuild, (type(self), str(self), dict(self.__dict__)))


def reworded(error: KnonikError, message: str) -> KnonikError:
    """An error of the same type and attributes that says something else."""
    return _rebuild(type(error), message, dict(error.__dict__))


def _rebuild(kind: type[KnonikError], message: str, state: dict[str, object]) -> KnonikError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class ConfigError(KnonikError, ValueError):
    """A config, card, option or call says something that cannot be meant."""

    exit_code = 2


class SourceError(KnonikError, ValueError):
    """A raw dataset, or what a layout names in it, cannot be read."""


class EpisodeError(KnonikError, ValueError):
    """One episode is unreadable, truncated or damaged; the others are not concerned."""


class PackError(KnonikError, RuntimeError):
    """A packed dataset cannot be written as asked."""


class FormatError(KnonikError, ValueError):
    """A KHLP file, index or manifest is not what it claims to be."""


class BadMagicError(FormatError):
    """The file does not begin or end as a KHLP file does."""


class TruncatedError(FormatError):
    """The file ends before what it promises, or is longer than it says."""


class ChecksumError(FormatError):
    """Bytes differ from the checksum recorded for them."""


class UnsupportedFeatureError(FormatError):
    """The file needs a version or feature that this reader does not have."""


class StorageError(KnonikError, OSError):
    """Bytes cannot be read or written where they live: disk, permission, network, object store.

    Attributes:
        outage: the store is at fault, not one object of it: others would fail as well, and this one may be read later.
    """

    outage: bool = False


class PlanError(KnonikError, ValueError):
    """Nothing can be sampled: windows longer than every episode, an empty split, and the like."""


class ResumeMismatchError(KnonikError, ValueError):
    """A saved loader state does not belong to this dataset and configuration."""


class DecodeError(KnonikError, RuntimeError):
    """A payload does not decode to the frame that the index promises."""


class LoaderClosedError(KnonikError, RuntimeError):
    """The loader was asked for a batch after ``shutdown()``."""


class LoginRequired(KnonikError, PermissionError):
    """An issuer is configured and there is no valid token for this product."""


_ADVICE = {
    errno.ENOSPC: "free some, or name another place",
    errno.EDQUOT: "free some, or name another place",
    errno.EACCES: "correct its rights, or name another place",
    errno.EPERM: "correct its rights, or name another place",
    errno.EROFS: "name another place",
    errno.ENOTDIR: "a file stands where a folder is needed; name another place",
    errno.EISDIR: "name the file in it",
    errno.ENOENT: "correct the path",
    errno.ENAMETOOLONG: "use shorter names",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the limit of open files",
}


def refusal(error: OSError) -> str:
    """Why the operating system refused, and what to do about it: the end of a message of `StorageError`."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    advice = _ADVICE.get(error.errno or 0)
    return f"{reason}; {advice}." if advice else f"{reason}."
