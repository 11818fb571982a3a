"""Folders of a raw dataset: nothing that is read lies outside of them."""

from __future__ import annotations

from pathlib import Path

from knonik_loader.errors import EpisodeError

__all__ = ["check_inside"]


def check_inside(path: Path, root: Path) -> None:
    """Refuse a path that a link leads out of the folder it seems to be in.

    Downloads of the Hugging Face hub are accepted: there every file links to ``blobs`` beside the snapshots.

    Raises:
        EpisodeError: names the link and where it leads.
    """
    real, home = path.resolve(), root.resolve()
    if real == home or home in real.parents:
        return
    for parent in home.parents:
        if parent.name == "snapshots" and parent.parent / "blobs" in real.parents:
            return
    raise EpisodeError(f"{path} is a link that leads out of {root}, to {real}; copy the data to where it belongs.")
