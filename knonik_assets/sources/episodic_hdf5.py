"""HDF5 episodes: a file each (ALOHA and its kin), or demos nested in files (robomimic, LIBERO)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.array_episode import ArrayEpisode, Traits
from knonik_assets.sources.base import EpisodeRef, FingerprintCache
from knonik_assets.sources.episode_files import episode_files
from knonik_assets.sources.hdf5_facts import aloha_compressed, attribute_levels, demo_facts, stored_upside_down
from knonik_assets.sources.hdf5_heaps import check_heaps
from knonik_assets.sources.hdf5_paths import match_groups, open_hdf5, reading
from knonik_assets.sources.hdf5_streams import Hdf5Tree
from knonik_assets.sources.naming import natural_key
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["EpisodicHdf5Source", "Hdf5Episode"]

_SUFFIXES = (".h5", ".hdf5")
_EXCHANGED = (
    "red and blue are probably exchanged, as ALOHA's recorder gives RGB pictures to an encoder that expects BGR; look "
    "at a frame and say jpeg_channel_order: bgr, or rgb if they are right"
)
_UPSIDE_DOWN = (
    "pictures are stored upside down (macros_image_convention is 'opengl'); "
    'set "orientation": "flip_vertical" or "rotate_180" to turn them'
)


class EpisodicHdf5Source:
    """Every ``episode_*.h5|hdf5`` of a folder, or with ``demos`` every matching group of every HDF5 file below it."""

    format = "hdf5"

    def __init__(self, config: IngestConfig, root: Path) -> None:
        self.config = config
        self.root = root
        self.warnings: list[str] = []
        self.demos = config.demos or ("data/demo_*" if config.dir_type == "hdf5" else None)

    def __getstate__(self) -> dict[str, object]:
        return dict(self.__dict__)

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`."""
        self.warnings = []
        if not self.root.exists():
            raise SourceError(f"{self.root}: there is no such folder.")
        return self._demos(self.demos) if self.demos is not None else self._files()

    def _files(self) -> list[EpisodeRef]:
        files = episode_files(self.root, _SUFFIXES, _hint, self.warnings)
        return [EpisodeRef(name, (str(path), "")) for name, path in files.items()]

    def _demos(self, pattern: str) -> list[EpisodeRef]:
        base = self.root if self.root.is_dir() else self.root.parent
        files = [self.root] if self.root.is_file() else [p for p in self.root.rglob("*") if _is_hdf5(p, self.root)]
        refs: list[EpisodeRef] = []
        seen: list[str] = []
        upside_down = 0
        fixed = sum(1 for step in pattern.strip("/").split("/") if not set(step) & set("*?["))
        for path in sorted(files, key=lambda path: natural_key(path.relative_to(base).as_posix())):
            name = path.relative_to(base).as_posix()
            try:
                with open_hdf5(path) as file, reading(str(path)):
                    check_heaps(file, path)
                    groups = match_groups(file, pattern)
                    seen += sorted(file)
                    upside_down += stored_upside_down(file, file)
            except EpisodeError as error:
                self.warnings.append(str(error))
                refs.append(EpisodeRef(name, (str(path), None)))
                continue
            refs += [
                EpisodeRef(f"{name}#{'/'.join(group[min(fixed, len(group) - 1) :])}", (str(path), "/".join(group)))
                for group in groups
            ]
        if not refs:
            what = f"their top groups are {', '.join(sorted(set(seen))[:12])}" if seen else "no HDF5 file is there"
            raise SourceError(f"{self.root}: nothing matches demos {pattern!r}; {what}.")
        if upside_down and self.config.orientation == "as_stored":
            self.warnings.append(f"{self.root}: {_UPSIDE_DOWN}")
        return refs

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`. A demo's covers its own streams, a file's the whole file."""
        path, group = ref.locator
        if group == "":
            return cache.file_digest(Path(path))
        with self.open(ref) as episode:
            return episode.digest()

    def open(self, ref: EpisodeRef) -> Hdf5Episode:
        """See `Source.open`."""
        path, group = ref.locator
        return Hdf5Episode(self.config, Path(path), group, ref.source_id)


def _hint(others: list[str]) -> str:
    if others:
        return f'it has {others[0]} …: rename them, or for demos nested in a file add "demos": "data/demo_*"'
    return "no HDF5 file is in it"


def _is_hdf5(path: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return path.suffix in _SUFFIXES and not hidden and path.is_file()


class Hdf5Episode(ArrayEpisode):
    """One open episode; holds the file open until closed."""

    def __init__(self, config: IngestConfig, path: Path, group: str | None, source_id: str) -> None:
        self.source_id = source_id
        file = open_hdf5(path)
        where = f"{path}#{group}" if group else str(path)
        try:
            with reading(where):
                if group is None:
                    raise EpisodeError(f"{path}: was unreadable when the episodes were listed; run ingest again.")
                check_heaps(file, path)
                root: h5py.Group = file[group or "/"]
                traits = Traits(attribute_levels(root, file))
        except BaseException:
            file.close()
            raise
        with reading(where):
            super().__init__(config, Hdf5Tree(root, where), traits, where, file.close)
            self._warn_of_pictures(root, file)
            known, contradictions = demo_facts(root, file, Path(root.name or "/").name)
            self.facts.attributes |= known
            self.facts.warnings += [f"{where}: {text}" for text in contradictions]

    def _warn_of_pictures(self, root: h5py.Group, file: h5py.File) -> None:
        config, warnings = self._config, self.facts.warnings
        nested = root.name != "/"
        if not nested and config.orientation == "as_stored" and stored_upside_down(root, file):
            warnings.append(f"{self._where}: {_UPSIDE_DOWN}")
        unsaid = "jpeg_channel_order" not in config.model_fields_set
        jpegs = [one.spec.name for one in self.colour if one.spec.encoding == "jpeg"]
        if unsaid and jpegs and aloha_compressed(file):
            warnings.append(f"{', '.join(jpegs)}: {_EXCHANGED}")
        simulated = "env_args" in file.get("data", file).attrs
        floats = [one.spec.name for one in self.depth if one.content.kind == "depth" and one.unit_m is None]
        if simulated and floats:
            warnings.append(
                f"{self._where}: depth {', '.join(floats)} is taken as metres; robosuite stores a normalised "
                "depth buffer unless it was converted"
            )
