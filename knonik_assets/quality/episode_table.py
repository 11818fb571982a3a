"""The episode table: one row an episode of an ingest output, measured once and remembered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knonik_assets.engine import EngineName, map_tasks
from knonik_assets.episodes.view import EpisodeAt, EpisodesView, LocalView
from knonik_assets.quality.compare import compared
from knonik_assets.quality.examine import EpisodeRow, examine
from knonik_assets.quality.versions import ROWS_VERSION
from knonik_loader.errors import StorageError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["episode_rows", "table_of"]

_ROWS = ".knonik/quality_rows.json"


def episode_rows(
    out: Path | EpisodesView,
    *,
    engine: EngineName = "processes",
    workers: int | None = None,
    ray_options: Mapping[str, Any] | None = None,
    roles: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
) -> list[EpisodeRow]:
    """Measure every episode of an output directory, in natural order.

    Rows are kept in ``.knonik/quality_rows.json``; an episode none of whose files changed its size or time is not
    measured again.

    Args:
        out: directory of episodes, or a view of one whose block is entered.
        engine: where the work runs.
        workers: episodes at once.
        ray_options: for engine ``ray``.
        roles: ``action`` and ``state`` → numeric stream, where the episodes don't say it themselves.
        say: told about progress, a line at a time.

    Raises:
        EpisodeError: there is no such directory.
        StorageError: remote episodes cannot be read: nothing is said of them then.
    """
    view = LocalView(out) if isinstance(out, Path) else out
    store = view.folder / _ROWS
    remembered = _remembered(store)
    names = view.names
    keys = {name: _key(view.stamp(name), roles) for name in names}
    rows: dict[str, EpisodeRow] = {}
    for name, key in keys.items():
        entry = remembered.get(name)
        if entry is not None and entry["key"] == key:
            rows[name] = EpisodeRow(**entry["row"])
    todo = [view.episode(name) for name in names if name not in rows]
    # a worker process costs more than a few episodes do
    where = "inline" if len(todo) <= 4 else engine
    options = ray_options if where == "ray" else None
    for done, outcome in enumerate(
        map_tasks(partial(_examine, roles=roles), todo, engine=where, workers=workers, ray_options=options), 1
    ):
        name = outcome.item.name
        if isinstance(outcome.error, StorageError):
            raise outcome.error  # a store that fails is no fault of the episode's
        rows[name] = outcome.value or EpisodeRow(
            name, damaged_files=1, notes={"damaged_files": f"could not be measured: {outcome.error}"}
        )
        if say is not None:
            say(f"measured {name} ({done} of {len(todo)})")
    ordered = [rows[name] for name in names]
    if todo or set(remembered) != set(keys):
        _remember(store, {row.episode: {"key": keys[row.episode], "row": vars(row)} for row in ordered})
        view.sent(_ROWS)
    return compared(ordered)


def table_of(rows: Iterable[EpisodeRow]) -> pd.DataFrame:
    """The rows as a data frame, without the notes."""
    import pandas as pd

    columns = [name for name in EpisodeRow.__dataclass_fields__ if name not in ("notes", "sharpness", "content")]
    frame = pd.DataFrame([{name: getattr(row, name) for name in columns} for row in rows], columns=columns)
    numbers = [name for name in columns if name not in ("episode", "source_id", "streams", "duplicate_of")]
    return frame.astype(dict.fromkeys(numbers, "float64"))


def _examine(episode: EpisodeAt, roles: Mapping[str, str] | None) -> EpisodeRow:
    with episode.local() as path:
        return examine(path, roles)


def _key(stamp: str, roles: Mapping[str, str] | None) -> str:
    """Changes whenever a file of the episode is written, or a stream gets another role."""
    return hashlib.sha256(f"{ROWS_VERSION} {sorted((roles or {}).items())}\n{stamp}".encode()).hexdigest()


def _remembered(store: Path) -> dict[str, Any]:
    """What an earlier run kept; a store that is missing or damaged only costs time."""
    try:
        data = json.loads(store.read_text())
        return {name: {"key": entry["key"], "row": entry["row"]} for name, entry in data["rows"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _remember(store: Path, rows: dict[str, Any]) -> None:
    store.parent.mkdir(exist_ok=True)
    partial = store.with_suffix(".partial")
    partial.write_text(json.dumps({"rows": rows}))
    partial.replace(store)
