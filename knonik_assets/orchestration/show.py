"""Metadata as people read it: tables, sizes, rates, pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from knonik_assets.configs.card import DatasetCard

__all__ = ["MAX_ROWS", "card_metadata", "episode_pictures", "table"]

MAX_ROWS = 100
"""Rows of a table in the event log at most; the files hold the rest."""


def table(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """A table of at most `MAX_ROWS` rows; columns are those of the first row."""
    columns = list(rows[0]) if rows else ["nothing"]
    kinds = {name: _kind([row.get(name) for row in rows]) for name in columns}
    records = [dg.TableRecord({name: _cell(row.get(name), kinds[name]) for name in columns}) for row in rows[:MAX_ROWS]]
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in kinds.items()])
    return dg.MetadataValue.table(records, schema)


def _kind(values: Sequence[Any]) -> str:
    known = [value for value in values if value is not None]
    if known and all(isinstance(value, int) and not isinstance(value, bool) for value in known):
        return "int"
    return "float" if known and all(isinstance(value, int | float) for value in known) else "string"


def _cell(value: Any, kind: str) -> str | int | float | None:  # noqa: ANN401 - any cell
    if value is None:
        return None
    if kind == "float":
        return round(float(value), 4)
    return int(value) if kind == "int" else str(value)


def card_metadata(card: DatasetCard) -> dict[str, Any]:
    """What the card says about itself."""
    said: dict[str, Any] = {"card": dg.MetadataValue.path(str(card.path))}
    if card.description:
        said["description"] = card.description
    if card.owners:
        said["owners"] = ", ".join(card.owners)
    return said


def episode_pictures(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Film strip and plot of each of these episodes, as Markdown; those that cannot be drawn are left out."""
    from knonik_assets.episodes.reader import EpisodeReader
    from knonik_assets.quality.pictures import episode_plot, episode_strip, markdown_image
    from knonik_loader.errors import EpisodeError, StorageError

    shown: dict[str, Any] = {}
    for name in names:
        try:
            reader = EpisodeReader(folder / name)
            strip, plot = episode_strip(reader, frames=6, width=150), episode_plot(reader)
        except (EpisodeError, StorageError):
            continue  # damaged: the checks say so, and there is nothing to show
        if strip is not None:
            shown[f"film_strip_{name}"] = dg.MetadataValue.md(markdown_image(strip, f"film strip of {name}"))
        if plot is not None:
            shown[f"plot_{name}"] = dg.MetadataValue.md(markdown_image(plot, f"state and action of {name}"))
    return shown
