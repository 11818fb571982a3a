"""The episode table: one row an episode of an ingest output, measured once and remembered."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knonik_assets.engine import EngineName, map_tasks
from knonik_assets.episodes.reader import list_episodes
from knonik_assets.quality.compare import compared
from knonik_assets.quality.examine import EpisodeRow, examine
from knonik_assets.quality.versions import ROWS_VERSION

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["episode_rows", "table_of"]


def episode_rows(
    out: Path,
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
        out: directory of episodes.
        engine: where the work runs.
        workers: episodes at once.
        ray_options: for engine ``ray``.
        roles: ``action`` and ``state`` → numeric stream, where the episodes don't say it themselves.
        say: told about progress, a line at a time.

    Raises:
        EpisodeError: there is no such directory.
    """
    store = out / ".knonik" / "quality_rows.json"
    remembered = _remembered(store)
    paths = list_episodes(out)
    keys = {path.name: _stamp(path, roles) for path in paths}
    rows: dict[str, EpisodeRow] = {}
    for name, key in keys.items():
        entry = remembered.get(name)
        if entry is not None and entry["key"] == key:
            rows[name] = EpisodeRow(**entry["row"])
    todo = [path for path in paths if path.name not in rows]
    # a worker process costs more than a few episodes do
    where = "inline" if len(todo) <= 4 else engine
    options = ray_options if where == "ray" else None
    for done, outcome in enumerate(
        map_tasks(partial(examine, roles=roles), todo, engine=where, workers=workers, ray_options=options), 1
    ):
        name = outcome.item.name
        rows[name] = outcome.value or EpisodeRow(
            name, damaged_files=1, notes={"damaged_files": f"could not be measured: {outcome.error}"}
        )
        if say is not None:
            say(f"measured {name} ({done} of {len(todo)})")
    ordered = [rows[path.name] for path in paths]
    if todo or set(remembered) != set(keys):
        _remember(store, {row.episode: {"key": keys[row.episode], "row": vars(row)} for row in ordered})
    return compared(ordered)


def table_of(rows: Iterable[EpisodeRow]) -> pd.DataFrame:
    """The rows as a data frame, without the notes."""
    import pandas as pd

    columns = [name for name in EpisodeRow.__dataclass_fields__ if name not in ("notes", "sharpness", "content")]
    frame = pd.DataFrame([{name: getattr(row, name) for name in columns} for row in rows], columns=columns)
    numbers = [name for name in columns if name not in ("episode", "source_id", "streams", "duplicate_of")]
    return frame.astype(dict.fromkeys(numbers, "float64"))


def _stamp(path: Path, roles: Mapping[str, str] | None) -> str:
    """Changes whenever a file of the episode is written, or a stream gets another role."""
    digest = hashlib.sha256(f"{ROWS_VERSION} {sorted((roles or {}).items())}\n".encode())
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            status = Path(folder, name).stat()
            digest.update(f"{folder.removeprefix(str(path))}/{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


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
