"""Zarr episodes: a store each, in a folder or a zip archive, of format 2 or 3."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.array_episode import ArrayEpisode, Traits
from knonik_assets.sources.arrays import DictTree
from knonik_assets.sources.base import EpisodeRef, FingerprintCache
from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.zarr_arrays import attributes, scan, single_values
from knonik_assets.sources.zarr_files import open_files
from knonik_assets.sources.zip_archive import ZipArchive
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["EpisodicZarrSource", "store_name"]

_SUFFIXES = (".zip", ".zarr")
_PATTERN = "episode_*"


def store_name(name: str) -> str:
    """What a store is called: ``episode_3`` for ``episode_3.zarr.zip``."""
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


class EpisodicZarrSource:
    """Every ``episode_*`` store of a folder, or group of one store."""

    format = "zarr"

    def __init__(self, config: IngestConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.warnings: list[str] = []

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`."""
        self.warnings = []
        if not self.root.exists():
            raise SourceError(f"{self.root}: there is no such folder.")
        if self.root.is_file():
            return self._groups()
        found = [path for path in self.root.glob(_PATTERN) if path.is_dir() or path.suffix == ".zip" or _lost(path)]
        refs: dict[str, EpisodeRef] = {}
        for path in sorted(found, key=lambda path: natural_key(path.name)):
            name = store_name(path.name)
            if name in refs:
                raise SourceError(f"{self.root}: {name} is there twice, also as {path.name}; remove one of them.")
            refs[name] = EpisodeRef(name, (str(path), ""))
        if not refs:
            raise SourceError(f"{self.root}: no episode_<n> store; {self._hint()}.")
        return list(refs.values())

    def _groups(self) -> list[EpisodeRef]:
        try:
            archive = ZipArchive(self.root)
        except EpisodeError as error:
            raise SourceError(str(error)) from error
        folders = [name for name in archive.children("")[0] if name.startswith("episode_")]
        archive.close()
        if not folders:
            raise SourceError(f"{self.root}: no episode_<n> group is in the archive.")
        return [EpisodeRef(name, (str(self.root), name)) for name in folders]

    def _hint(self) -> str:
        if (self.root / "meta" / "episode_ends").exists():
            return 'it is one store of many episodes: use "dir_type": "zarr"'
        others = sorted(path.name for path in self.root.iterdir())
        stores = [name for name in others if any(True for _ in (self.root / name).glob(_PATTERN))]
        if stores:
            return f"{stores[0]} has them in it; name it as the input"
        return f"it has {', '.join(others[:8])}" if others else "the folder is empty"

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`."""
        with self.open(ref) as episode:
            return episode.digest()

    def open(self, ref: EpisodeRef) -> ArrayEpisode:
        """See `Source.open`."""
        path, group = ref.locator
        where = f"{path}#{group}" if group else str(path)
        files = open_files(Path(path))
        try:
            arrays = scan(files, where, group)
            if not arrays:
                raise EpisodeError(f"{where}: there is no Zarr array in it.")
            stated = [attributes(files, group).get, single_values(arrays), attributes(files).get]
        except BaseException:
            files.close()
            raise
        return ArrayEpisode(self.config, DictTree(arrays), Traits(stated), where, files.close)


def _lost(path: Path) -> bool:
    """Whether it is a link to nothing: a recording that is missing, which fails by name when it is opened."""
    return path.is_symlink() and not path.exists()
