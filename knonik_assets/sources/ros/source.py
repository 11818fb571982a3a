"""ROS 1 and ROS 2 recordings of any container as a `Source`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.base import EpisodeRef, FingerprintCache
from knonik_assets.sources.ros.episode import RosEpisode
from knonik_assets.sources.ros.recording import METADATA, BagRef, Recording, find_bags
from knonik_loader.errors import ConfigError, EpisodeError

__all__ = ["MAX_FRAMES", "RosSource"]

MAX_FRAMES = "KNONIK_ROSBAG_MAX_FRAMES"
"""Environment variable: take at most so many frames of each recording."""


class RosSource:
    """One recording is one episode: a bag file, or a folder with ``metadata.yaml`` or with bag files.

    Raises:
        ConfigError: the environment's frame limit is no positive number.
    """

    def __init__(self, config: IngestConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.format: str = config.dir_type
        self.warnings: list[str] = []
        self._limit = _limit()

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`."""
        warnings: list[str] = []
        found = find_bags(self.root, warnings)
        self.warnings = warnings
        return [EpisodeRef(bag.name, replace(bag, limit=self._limit)) for bag in found]

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`: of the recording's files, their logs, and the definitions given beside them.

        Raises:
            EpisodeError: a file is missing.
        """
        bag: BagRef = ref.locator
        digest = hashlib.sha256(f"{bag.limit}".encode())
        for path in Recording.files(bag):
            digest.update(cache.file_digest(path).encode())
            log = path.with_name(f"{path.name}-wal")
            if log.is_file() and log.stat().st_size:
                digest.update(cache.file_digest(log).encode())
        if (bag.path / METADATA).is_file():
            digest.update(cache.file_digest(bag.path / METADATA).encode())
        if self.config.msg_path is not None:
            folder = Path(self.config.msg_path)
            for path in sorted(folder.rglob("*.msg")):
                digest.update(f"{path.relative_to(folder)} {cache.file_digest(path)}".encode())
        return digest.hexdigest()

    def open(self, ref: EpisodeRef) -> RosEpisode:
        """See `Source.open`."""
        bag: BagRef = ref.locator
        if not bag.path.exists():
            raise EpisodeError(f"{bag.path}: the recording is gone.")
        return RosEpisode(self.config, bag)


def _limit() -> int | None:
    text = os.environ.get(MAX_FRAMES, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{MAX_FRAMES} is {text!r}; it must be a whole number of frames, 1 or more.")
    return int(text)
