"""The episodes' big files against their checksums, in threads beside other work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.packing.facts import check_file
from knonik_assets.packing.plan import PackPlan

__all__ = ["PictureCheck"]


class PictureCheck:
    """Compares the pictures and depth that are about to be packed with their checksums, from entering its block on.

    Damaged pictures need not fail: JPEGs pass undecoded, and video decoders paint over what is missing. So whoever
    writes what was made of them waits for this before anybody can see it. Leaving the block gives up what is not begun.

    Args:
        input_dir: the episodes.
        plan: what is packed of them.

    Raises:
        EpisodeError, StorageError: an episode's metadata cannot be read.
    """

    def __init__(self, input_dir: Path, plan: PackPlan) -> None:
        self._files = list(_files(input_dir, plan))
        self._running: list[Future[None]] = []
        # hashing lets go of the interpreter
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1, "checksum")

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(check_file, *file) for file in self._files]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def wait(self) -> None:
        """Return when every file was found whole.

        Raises:
            EpisodeError: one was not: the first, in the order of episodes.
            StorageError: one cannot be read.
        """
        for check in self._running:
            check.result()


def _files(input_dir: Path, plan: PackPlan) -> Iterator[tuple[Path, str, str]]:
    """Episode, name and hex sha256 of the files of colour and depth streams."""
    packed = tuple(f"{stream.key}." for stream in plan.streams if stream.kind != "numeric")
    for episode in plan.episodes if packed else ():
        reader = EpisodeReader(input_dir / episode.episode_id)
        for name, entry in reader.metadata.files.items():
            if name.startswith(packed):
                yield reader.path, name, entry.sha256
