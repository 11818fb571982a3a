"""Metadata as people read it: tables, sizes, rates, pictures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
import numpy as np

from knonik_assets.configs.card import DatasetCard

if TYPE_CHECKING:
    from knonik_assets.episodes.view import EpisodesView
    from knonik_assets.quality.packed import PackedDataset

__all__ = [
    "MAX_ROWS",
    "card_metadata",
    "compression_table",
    "episode_pictures",
    "packed_picture",
    "stream_table",
    "table",
]

_TIGHT = "\N{NO-BREAK SPACE}"
MAX_ROWS = 100
"""Rows of a table in the event log at most; the files hold the rest."""


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> dg.TableMetadataValue:
    """A table of at most `MAX_ROWS` rows; columns are those of the first row unless they are named."""
    columns = columns or (list(rows[0]) if rows else ["nothing"])
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
    if card.tags:
        said["tags"] = ", ".join(f"{key}: {value}" for key, value in card.tags.items())
    return said


def episode_pictures(view: EpisodesView, shown: Mapping[str, str]) -> dict[str, Any]:
    """Film strips and plots as Markdown.

    Args:
        view: of the episodes.
        shown: episode → what is said above its pictures; those that cannot be drawn are left out.
    """
    from knonik_assets.episodes.reader import EpisodeReader
    from knonik_assets.quality.pictures import episode_plot, episode_strip, markdown_image
    from knonik_loader.errors import EpisodeError, StorageError

    strips, plots = [], []
    for name, said in shown.items():
        try:
            with view.episode(name).local() as path:
                reader = EpisodeReader(path)
                strip, plot = episode_strip(reader, frames=6, width=150), episode_plot(reader)
        except (EpisodeError, StorageError):
            continue  # damaged: the checks say so, and there is nothing to show
        words = f"**{name}**: {said}\n\n" if said else ""
        if strip is not None:
            strips.append(words + markdown_image(strip, f"film strip of {name}"))
        if plot is not None:
            plots.append(words + markdown_image(plot, f"state and action of {name}"))
    pictures = {"film_strips": strips, "state_and_action": plots}
    return {key: dg.MetadataValue.md("\n\n".join(each)) for key, each in pictures.items() if each}


def packed_picture(dataset: PackedDataset) -> dict[str, Any]:
    """A film strip of moments all over a packed dataset, as a loader decodes them; nothing where it has no camera."""
    from knonik_assets.quality.pictures import markdown_image, packed_strip

    strip = packed_strip(dataset.place, f"{dataset.manifest.dataset}, as a loader decodes it", frames=6, width=150)
    return {} if strip is None else {"film_strip": dg.MetadataValue.md(markdown_image(strip, "film strip of the pack"))}


def stream_table(view: EpisodesView, name: str, bound: Mapping[str, str]) -> dict[str, Any]:
    """What the streams of an episode are; nothing where it is damaged.

    Args:
        view: of the episodes.
        name: of the episode.
        bound: role → stream, as the card says, over what the episode says itself.
    """
    from knonik_assets.episodes.metadata import read_metadata
    from knonik_loader.errors import EpisodeError, StorageError

    try:
        meta = read_metadata(view.folder / name)
        roles = {stream: role for role, stream in {**meta.stream_roles, **bound}.items()}
        rows = [
            {
                "stream": each,
                "kind": "rgb",
                "shape": f"{said['height']} x {said['width']} x 3",
                "stored_as": said["codec"],
            }
            for each in meta.rgb_streams
            for said in [meta.stream_params[f"rgb_{each}"]]
        ]
        for each in meta.depth_streams:
            said = meta.stream_params[f"depth_{each}"]
            shape = f"{said['height']} x {said['width']}"
            rows.append({"stream": each, "kind": "depth", "shape": shape, "stored_as": "uint16"})
        for each in meta.numeric_streams:
            size = str(meta.stream_params[each]["dim"])
            rows.append({"stream": each, "kind": roles.get(each, "numeric"), "shape": size, "stored_as": "float32"})
    except (EpisodeError, StorageError, KeyError):
        return {}
    return {"streams": table(rows)}


def compression_table(dataset: PackedDataset) -> dg.TableMetadataValue:
    """Bytes of every stream before and after packing, with what became of its pictures."""
    from knonik_assets.packing.stored import stream_bytes
    from knonik_assets.quality.finding import size_text

    packed: Counter[str] = Counter()
    for file in dataset.opened():
        packed.update(stream_bytes(file.index))
    total = max(sum(packed.values()), 1)
    rows = []
    for entry in dataset.manifest.streams:
        key = entry.info().key
        raw = dataset.manifest.num_frames * math.prod(entry.shape) * np.dtype(entry.dtype).itemsize
        rows.append(
            {
                "stream": key,
                "codec": entry.codec,
                "shape": " x ".join(map(str, entry.shape)),
                "raw": size_text(raw).replace(" ", _TIGHT),
                "packed": size_text(packed[key]).replace(" ", _TIGHT),
                "times_smaller": round(raw / packed[key], 1) if packed[key] else None,
                "percent_of_pack": round(100 * packed[key] / total, 1),
                "psnr_y_db": entry.psnr_y,
            }
        )
    return table(rows)
