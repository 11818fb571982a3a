"""The episode table: one row an episode of an ingest output, measured once and remembered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knonik_assets.engine import EngineName, map_tasks
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.episodes.view import EpisodeAt, EpisodesView, LocalView
from knonik_assets.quality.compare import compared
from knonik_assets.quality.examine import EpisodeRow, examine
from knonik_assets.quality.frame_expectations import FRAMES, FrameAnswers
from knonik_assets.quality.frame_table import FrameFacts, frame_facts
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
    frames: FrameAnswers | None = None,
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
        frames: asked about the frames of every episode whose answer it doesn't know.

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
    todo = [
        _Look(view.episode(name), rows.get(name), frames is not None)
        for name, key in keys.items()
        if name not in rows or (frames is not None and not frames.knows(name, key))
    ]
    new = [look.name for look in todo if look.known is None]
    # a worker process costs more than a few episodes do
    where = "inline" if len(todo) <= 4 else engine
    options = ray_options if where == "ray" else None
    for done, outcome in enumerate(
        map_tasks(partial(_examine, roles=roles), todo, engine=where, workers=workers, ray_options=options), 1
    ):
        look = outcome.item
        if isinstance(outcome.error, StorageError):
            raise outcome.error  # a store that fails is no fault of the episode's
        said = {"damaged_files": f"could not be measured: {outcome.error}"}
        rows[look.name], facts = outcome.value or (EpisodeRow(look.name, damaged_files=1, notes=said), None)
        if frames is not None:
            frames.take(look.name, keys[look.name], facts)
        if say is not None:
            what = "measured" if look.known is None else "looked at the frames of"
            say(f"{what} {look.name} ({done} of {len(todo)})")
    if frames is not None and frames.finish(names):
        view.sent(FRAMES)
    ordered = [rows[name] for name in names]
    if new or set(remembered) != set(keys):
        _remember(store, {row.episode: {"key": keys[row.episode], "row": vars(row)} for row in ordered})
        view.sent(_ROWS)
    return compared(ordered)


def table_of(rows: Iterable[EpisodeRow]) -> pd.DataFrame:
    """The rows as a data frame, without the notes."""
    import pandas as pd

    columns = [
        name for name in EpisodeRow.__dataclass_fields__ if name not in ("notes", "sharpness", "content", "pictures")
    ]
    frame = pd.DataFrame([{name: getattr(row, name) for name in columns} for row in rows], columns=columns)
    numbers = [name for name in columns if name not in ("episode", "source_id", "streams", "duplicate_of")]
    return frame.astype(dict.fromkeys(numbers, "float64"))


@dataclass(frozen=True, slots=True)
class _Look:
    """An episode to be measured, or one that was, to be asked about its frames."""

    episode: EpisodeAt
    known: EpisodeRow | None
    frames: bool

    @property
    def name(self) -> str:
        return self.episode.name


def _examine(look: _Look, roles: Mapping[str, str] | None) -> tuple[EpisodeRow, FrameFacts | None]:
    """The row of an episode, and its frames where they are asked for; no picture of a known one is read."""
    if look.known is None:
        with look.episode.local() as path:
            row = examine(path, roles)
            return row, frame_facts(path, row) if look.frames else None
    if look.known.damaged_files:
        return look.known, None
    with look.episode.local("frame_time/") as path:
        numbers = EpisodeReader(path).metadata.numeric_streams
    with look.episode.local("frame_time/", *(f"{name}/" for name in numbers)) as path:
        return look.known, frame_facts(path, look.known)


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
