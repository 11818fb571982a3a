"""What is inside a KHLP file, a packed dataset, ingested episodes or a raw dataset, and whether it is whole."""

from __future__ import annotations

from pathlib import Path

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import list_episodes
from knonik_assets.episodes.view import LocalView
from knonik_assets.packing.album import packed_kind
from knonik_assets.packing.inspect_episodes import look_at_episode, look_at_episodes, look_at_raw, look_at_remote
from knonik_assets.packing.inspect_packed import look_at_index, look_at_khlp, look_at_manifest
from knonik_assets.packing.pictures import save_frames, save_sheet
from knonik_assets.packing.rendering import render
from knonik_assets.packing.reports import Report
from knonik_assets.storage import Place
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.manifest import MANIFEST_NAME

__all__ = ["Report", "inspect_path", "render", "save_frames", "save_sheet"]


def inspect_path(path: str | Path, verify: bool = False, episodes: str | Path | None = None) -> Report:
    """Look at anything that Knonik reads or writes.

    Args:
        path: a ``.khlp`` or ``.khli`` file, a manifest or its folder, an episode, a folder of episodes, or raw data; a
            path or URL.
        verify: read everything and compare it with its checksums. Raw data has none.
        episodes: folder of the episodes that a packed dataset was made from, to compare pictures with; None: where the
            report beside the dataset says that they were.

    Raises:
        ConfigError: there is nothing at the path, raw data is to be verified, or ``episodes`` is no folder or is given
            for what was not packed.
        FormatError: the file is so damaged that it cannot be opened.
        SourceError: nothing of any known kind.
    """
    place = Place.of(path, "path")
    origin = _origin(episodes)
    packed = packed_kind(place)
    if packed == "khlp":
        return look_at_khlp(place, verify, origin)
    if packed == "manifest":
        return look_at_manifest(place, verify, origin)
    if packed == "folder":
        return look_at_manifest(place / MANIFEST_NAME, verify, origin)
    if not place.is_remote and not place.path.exists():
        raise ConfigError(f"There is no file or folder {place}; check the path.")
    if origin is not None:
        raise ConfigError(f"{place} is no packed dataset, so that there is nothing to compare with {origin}.")
    if packed == "index":
        return look_at_index(place)
    return look_at_remote(place, verify) if place.is_remote else _look_at_folder(place.path, verify)


def _origin(episodes: str | Path | None) -> Path | None:
    if episodes is None:
        return None
    place = Place.of(episodes, "episodes")
    if place.is_remote:
        raise ConfigError(f"episodes {place}: pictures are compared with episodes on a local disk; copy them first.")
    return place.path


def _look_at_folder(path: Path, verify: bool) -> Report:
    if (path / METADATA).is_file():
        return look_at_episode(path, verify)
    if path.is_dir() and list_episodes(path):
        return look_at_episodes(LocalView(path), verify)
    return look_at_raw(path, verify)
