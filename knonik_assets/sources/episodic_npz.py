"""NPZ episodes: one archive of arrays each."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.array_episode import ArrayEpisode, Traits
from knonik_assets.sources.arrays import DictTree
from knonik_assets.sources.base import EpisodeRef, FingerprintCache
from knonik_assets.sources.episode_files import episode_files
from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.npy_arrays import NpzFile
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["EpisodicNpzSource"]

_STEP_NAME = re.compile(r"episode_\d{6,8}")


class EpisodicNpzSource:
    """Every ``episode_*.npz`` of a folder."""

    format = "npz"

    def __init__(self, config: IngestConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.warnings: list[str] = []

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`."""
        self.warnings = []
        if not self.root.exists():
            raise SourceError(f"{self.root}: there is no such folder.")
        files = episode_files(self.root, (".npz",), _hint, self.warnings)
        first = next(iter(files.values()))
        if (self.root / "ep_start_end_ids.npy").exists() or is_calvin_step(first):
            raise SourceError(
                f"{self.root}: these are CALVIN's files, and each holds one step, not an episode; use "
                '"dir_type": "calvin" and no data_type.'
            )
        return [EpisodeRef(name, str(path)) for name, path in files.items()]

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`. Of the whole file."""
        return cache.file_digest(Path(ref.locator))

    def open(self, ref: EpisodeRef) -> ArrayEpisode:
        """See `Source.open`."""
        archive = NpzFile(Path(ref.locator))
        try:
            names = sorted(archive.names(), key=natural_key)
            arrays = {path: archive.array(name) for name in names if (path := _path(name))}
            if not arrays:
                raise EpisodeError(f"{ref.locator}: there is no array in it.")
            single = {path: array for path, array in arrays.items() if array.ndim < 2 and math.prod(array.shape) == 1}
            said = {".".join(path): array.scalar() for path, array in single.items()}
            tree = DictTree({path: array for path, array in arrays.items() if array.shape})
            return ArrayEpisode(self.config, tree, Traits([said.get]), ref.locator, archive.close)
        except BaseException:
            archive.close()
            raise


def _path(name: str) -> tuple[str, ...]:
    """Where an array is; empty for one without a name, which nothing can ask for."""
    return tuple(part for part in name.split("/") if part)


def _hint(others: list[str]) -> str:
    return f"it has {others[0]} …; rename them" if others else "no NPZ archive is in it"


def is_calvin_step(path: Path) -> bool:
    """Whether an archive is one step of CALVIN's: its action is one row, not one for every frame."""
    if not _STEP_NAME.fullmatch(path.stem):
        return False
    try:
        with closing(NpzFile(path)) as archive:
            names = archive.names()
            return "rel_actions" in names and archive.array("rel_actions").ndim == 1
    except EpisodeError:
        return False
