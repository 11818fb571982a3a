"""What is inside a KHLP file, a packed dataset, ingested episodes or a raw dataset, and whether it is whole."""

from __future__ import annotations

from pathlib import Path

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import list_episodes
from knonik_assets.packing.inspect_episodes import look_at_episode, look_at_episodes, look_at_raw
from knonik_assets.packing.inspect_packed import look_at_index, look_at_khlp, look_at_manifest
from knonik_assets.packing.pictures import save_frames, save_sheet
from knonik_assets.packing.rendering import render
from knonik_assets.packing.reports import Report
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.manifest import MANIFEST_NAME

__all__ = ["Report", "inspect_path", "render", "save_frames", "save_sheet"]


def inspect_path(path: str | Path, verify: bool = False, episodes: str | Path | None = None) -> Report:
    """Look at anything that Knonik reads or writes.

    Args:
        path: a ``.khlp`` or ``.khli`` file, a manifest or its folder, an episode, a folder of episodes, or raw data.
        verify: read everything and compare it with its checksums. Raw data has none.
        episodes: folder of the episodes that a packed dataset was made from, to compare pictures with; None: where the
            report beside the dataset says that they were.

    Raises:
        ConfigError: there is nothing at the path, raw data is to be verified, or ``episodes`` is no folder or is given
            for what was not packed.
        FormatError: the file is so damaged that it cannot be opened.
        SourceError: nothing of any known kind.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ConfigError(f"There is no file or folder {path}; check the path.")
    origin = Path(episodes).expanduser() if episodes is not None else None
    if path.is_file() and path.suffix == ".khlp":
        return look_at_khlp(path, verify, origin)
    if path.is_file() and path.name.startswith("hlp_manifest"):
        return look_at_manifest(path, verify, origin)
    if (path / MANIFEST_NAME).is_file():
        return look_at_manifest(path / MANIFEST_NAME, verify, origin)
    if origin is not None:
        raise ConfigError(f"{path} is no packed dataset, so that there is nothing to compare with {origin}.")
    if path.is_file() and path.suffix == ".khli":
        return look_at_index(path)
    if (path / METADATA).is_file():
        return look_at_episode(path, verify)
    if path.is_dir() and (folders := list_episodes(path)):
        return look_at_episodes(path, folders, verify)
    return look_at_raw(path, verify)
