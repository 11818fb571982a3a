"""``metrics_path``: statistics as JSON lines, for whoever watches a run from outside."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knonik_loader.errors import StorageError

__all__ = ["MetricsFile", "rss_bytes"]

_PERIOD_S = 5.0

_logger = logging.getLogger("knonik_loader")


class MetricsFile:
    """Appends a line every few seconds and at the end of a pass; several ranks may share one file.

    Args:
        path: of the file, made where it doesn't exist.
        rank: of this process, part of every line.

    Raises:
        StorageError: the file can't be written.
    """

    def __init__(self, path: str, rank: int) -> None:
        self._path = Path(path).expanduser()
        self._rank = rank
        self._last = time.monotonic()
        self._failing = False
        self.lost = 0
        """Lines that could not be written."""
        self._append("")

    def due(self, now: bool) -> bool:
        """Whether a line is to be written: ``now``, or because the last one is old enough."""
        return now or time.monotonic() - self._last >= _PERIOD_S

    def write(self, snapshot: Mapping[str, Any]) -> None:
        """Append what `Statistics.snapshot` gave, with the time of day (UTC seconds) and the process's memory.

        A full disk is no reason to lose a training run: what can't be written is counted, and logged once until it
        works again.
        """
        self._last = time.monotonic()
        line = {"time": time.time(), "rank": self._rank, "rss_bytes": rss_bytes(), **snapshot}
        try:
            self._append(json.dumps(line) + "\n")
        except StorageError as error:
            self.lost += 1
            if not self._failing:
                _logger.warning("%s The run goes on without it.", error)
            self._failing = True
        else:
            self._failing = False

    def _append(self, text: str) -> None:
        try:
            # One write in append mode: lines of several processes don't mix.
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise StorageError(
                f"loader_cfg.metrics_path: {self._path} cannot be written ({error.strerror or error}); name a file "
                "in an existing folder."
            ) from error


def rss_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
