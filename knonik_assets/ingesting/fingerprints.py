"""Digests of files, remembered by path, size and time of change so that unchanged files aren't read again."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from knonik_assets.configs.documents import write_json
from knonik_loader.errors import EpisodeError

__all__ = ["FINGERPRINTS", "Entries", "FileDigests"]

FINGERPRINTS = ".knonik/fingerprints.json"
"""Where an output keeps them."""

Entries = dict[str, tuple[int, int, str]]
"""Absolute path → size, mtime in ns, hex sha256."""

_SETTLED_NS = 2_000_000_000
"""A file that changed less than this before it was read may change again within the same tick of its time stamp."""


class FileDigests:
    """A `FingerprintCache`. Thread-safe; a cache only: losing it costs time, never correctness.

    Args:
        path: where it is kept; None keeps nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._entries: Entries = _read(path) if path is not None else {}
        self._new: Entries = {}

    def file_digest(self, path: Path) -> str:
        """Hex sha256 of a file's content.

        Raises:
            EpisodeError: the file cannot be read.
        """
        key = str(Path(path).absolute())
        try:
            before = Path(key).stat()
            with self._lock:
                known = self._entries.get(key)
            if known is not None and known[:2] == (before.st_size, before.st_mtime_ns):
                return known[2]
            now = time.time_ns()
            with Path(key).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            after = Path(key).stat()
        except OSError as error:
            raise EpisodeError(f"{path} cannot be read: {error.strerror or error}.") from error
        same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        if same and abs(now - before.st_mtime_ns) >= _SETTLED_NS:
            self.learn({key: (before.st_size, before.st_mtime_ns, digest)})
        return digest

    def learn(self, entries: Mapping[str, tuple[int, int, str]]) -> None:
        """Take over what another process computed."""
        with self._lock:
            self._entries.update(entries)
            self._new.update(entries)

    def take_new(self) -> Entries:
        """What was computed or learnt since the last call."""
        with self._lock:
            new, self._new = self._new, {}
        return new

    def save(self) -> None:
        """Write the cache to its place.

        Raises:
            StorageError: the disk refuses.
        """
        if self._path is not None and self.take_new():
            write_json(self._path, self._entries)


def _read(path: Path) -> Entries:
    try:
        found = json.loads(path.read_bytes())
        return {str(key): (int(size), int(mtime), str(digest)) for key, (size, mtime, digest) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
