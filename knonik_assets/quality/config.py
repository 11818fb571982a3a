"""Holds ``config.json`` against the episodes that it describes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from knonik_assets.configs.dataset import build_dataset_config, load_dataset_config, placeholders
from knonik_assets.quality.finding import Finding, some
from knonik_loader.errors import ConfigError, EpisodeError

__all__ = ["check_placeholders", "check_schema", "check_streams"]


def check_schema(path: Path) -> Finding:
    """The file reads as a dataset config."""
    try:
        config = load_dataset_config(path)
    except ConfigError as error:
        return Finding(False, str(error))
    return Finding(True, f"{config.dataset}: {config.fps:g} frames a second")


def check_streams(path: Path, episodes: Path, left_out: Collection[str]) -> Finding:
    """Its streams are exactly those of the episodes, with their sizes."""
    try:
        said = load_dataset_config(path).streams
        are = build_dataset_config(episodes, exclude=left_out).streams
    except (ConfigError, EpisodeError) as error:
        return Finding(False, str(error))
    rows = []
    for kind in ("rgb", "depth", "numeric"):
        in_config, in_episodes = getattr(said, kind), getattr(are, kind)
        for name in sorted({*in_config, *in_episodes}):
            same = in_config.get(name) == in_episodes.get(name)
            rows.append({"stream": name, "kind": kind, "agrees": "yes" if same else "no"})
    wrong = [f"{row['kind']} stream {row['stream']} differs" for row in rows if row["agrees"] == "no"]
    return Finding(not wrong, some(wrong) or f"{len(rows)} streams", rows)


def check_placeholders(path: Path) -> Finding:
    """Nothing in it waits for an answer."""
    try:
        left = placeholders(load_dataset_config(path))
    except ConfigError as error:
        return Finding(False, str(error))
    rows = [{"to_be_filled": place} for place in left]
    return Finding(not left, f"to be answered in the card's config block: {some(left)}" if left else "complete", rows)
