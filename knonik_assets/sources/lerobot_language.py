"""What a LeRobot episode says in words: its tasks, subtasks and annotations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from knonik_assets.sources.base import Language
from knonik_assets.sources.lerobot_data import to_rows
from knonik_assets.sources.lerobot_meta import Meta

__all__ = ["ANNOTATIONS", "instruction", "read_annotations", "text_numbers"]

ANNOTATIONS = ("language_persistent", "language_events")
"""Columns of lists of annotations: ones that hold from a time on and are the same in every row, and ones of a row."""
_MOST = 4096
_DEEPEST = 8

Spans = list[tuple[int, int, str]]
Times = npt.NDArray[np.float64]


def text_numbers(column: pa.ChunkedArray, where: str) -> npt.NDArray[np.float64]:
    """(T,) numbers of texts as a column of indices has them; NaN where there is none.

    Raises:
        EpisodeError: it holds something else than numbers.
    """
    rows = np.asarray(to_rows(column, where)[0], np.float64)
    return rows[:, 0] if rows.shape[1] else np.full(len(rows), np.nan)


def _spans(numbers: npt.NDArray[np.float64], known: Mapping[int, str]) -> Spans:
    texts = [known.get(int(n), "") if np.isfinite(n) else "" for n in numbers]
    cuts = [0, *(i for i in range(1, len(texts)) if texts[i] != texts[i - 1]), len(texts)]
    return [(start, stop, texts[start]) for start, stop in pairwise(cuts) if start < stop and texts[start]]


def instruction(
    meta: Meta, episode: int, table: pa.Table, clock: Times, where: str, warnings: list[str]
) -> Language | None:
    """The task of the episode; where it changes within it, or has subtasks, which text holds when.

    Args:
        meta: of the dataset.
        episode: its number.
        table: with the columns of indices.
        clock: (T,) seconds.
        where: for messages.
        warnings: what is found odd is added.

    Raises:
        EpisodeError: an index is no number.
    """
    hint = meta.hints.get(episode)
    hinted = hint.tasks[0] if hint is not None and hint.tasks else None
    spans, parts = (
        _read(table, column, known, where, warnings)
        for column, known in (("task_index", meta.tasks), ("subtask_index", meta.subtasks))
    )
    said = spans[0][2] if spans else hinted
    if said is None:
        return None
    segments = [*(spans if len(spans) > 1 else []), *parts]
    last = len(clock) - 1
    return Language(
        said,
        segments=tuple((float(clock[start]), float(clock[min(stop, last)]), text) for start, stop, text in segments),
    )


def _read(table: pa.Table, column: str, known: Mapping[int, str], where: str, warnings: list[str]) -> Spans:
    if column not in table.column_names:
        return []
    numbers = text_numbers(table[column], f"{where}: {column}")
    unknown = sorted({int(n) for n in np.unique(numbers[np.isfinite(numbers)])} - set(known))
    if unknown:
        kind = column.removesuffix("_index")
        warnings.append(f"{where}: {column} {unknown[0]} has no text in the {kind}s file")
    return _spans(numbers, known)


def read_annotations(table: pa.Table, clock: Times, where: str, warnings: list[str]) -> dict[str, list[Any]]:
    """The annotations as they are, for the metadata: nothing is made of roles and styles that are not known here.

    Args:
        table: with the columns of annotations.
        clock: (T,) seconds; an event gets its row's as ``time``.
        where: for messages.
        warnings: what is left out is told.
    """
    found: dict[str, list[Any]] = {}
    for name in ANNOTATIONS:
        if name not in table.column_names:
            continue
        entries: dict[str, Any] = {}
        before: pa.Scalar | None = None
        for row, cell in enumerate(table[name]):
            if name == "language_persistent":
                if before is not None and cell.equals(before):
                    continue  # thousands of rows say the same
                before = cell
            for entry in cell.as_py() or []:
                plain = _plain(entry)
                if name == "language_events" and isinstance(plain, dict):
                    plain = {"time": float(clock[row]), **plain}
                entries.setdefault(repr(plain), plain)
            if len(entries) > _MOST:
                warnings.append(f"{where}: {name} holds more than {_MOST} annotations; left out")
                break
        else:
            if entries:
                found[name] = list(entries.values())
    return found


def _plain(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - whatever parquet can hold
    """A value as JSON can hold it."""
    if depth < _DEEPEST and isinstance(value, dict):
        return {str(key): _plain(one, depth + 1) for key, one in value.items()}
    if depth < _DEEPEST and isinstance(value, list):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
