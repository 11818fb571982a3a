"""The rows of a LeRobot dataset, found by the ``episode_index`` column of the data files themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from knonik_assets.sources.arrays import bounded
from knonik_assets.sources.lerobot_files import list_files
from knonik_assets.sources.lerobot_meta import PARQUET_FAULTS, Meta
from knonik_assets.sources.trees import check_inside
from knonik_loader.errors import EpisodeError, SourceError

__all__ = [
    "INDEX_COLUMNS",
    "DataIndex",
    "Run",
    "build_index",
    "is_list",
    "is_picture",
    "is_vector",
    "to_rows",
    "whole_numbers",
]

INDEX_COLUMNS = ("timestamp", "frame_index", "episode_index", "index", "task_index", "subtask_index")
_PICTURE_ROWS = 16
_MOST_AT_ONCE = 64 << 20
"""Bytes of pictures in a row group above which they are read one by one, as one of them could be as large."""
_BUFFER = 1 << 20
"""Bytes of a column that are read at once, instead of all of it."""


class Run(NamedTuple):
    """Adjacent rows of one data file."""

    file: int
    start: int
    stop: int


@dataclass(slots=True)
class DataIndex:
    """Where every episode's rows are."""

    files: list[Path]
    runs: dict[int, list[Run]] = field(default_factory=dict)
    first_time: dict[int, float] = field(default_factory=dict)
    """Timestamp of each episode's first row, seconds."""
    broken: dict[Path, str] = field(default_factory=dict)
    """Unreadable files and why."""

    def length(self, episode: int) -> int:
        """Rows of an episode."""
        return sum(run.stop - run.start for run in self.runs.get(episode, ()))

    def schema(self, episode: int) -> pa.Schema:
        """Columns of the file that holds an episode's first row."""
        path = self.files[self.runs[episode][0].file]
        return _opened(path).schema_arrow

    def table(self, episode: int, columns: Sequence[str]) -> pa.Table:
        """An episode's rows in order of ``frame_index``, with that column in front where the file has it.

        Raises:
            EpisodeError: a file is damaged, or rows are there twice.
        """
        table = self._stored(episode, columns)
        order = self.order(episode, table)
        return table if order is None else table.take(pa.array(order))

    def _stored(self, episode: int, columns: Sequence[str]) -> pa.Table:
        """An episode's rows in the order in which they are stored."""
        parts = []
        for run in self.runs[episode]:
            path = self.files[run.file]
            file = _opened(path)
            present = [name for name in dict.fromkeys(("frame_index", *columns)) if name in file.schema_arrow.names]
            try:
                groups, skip = _groups(file, run)
                _check_amount(file, groups, present, str(path))
                part = file.read_row_groups(groups, columns=present).select(present)
            except PARQUET_FAULTS as error:
                raise EpisodeError(f"{path}: rows {run.start} to {run.stop} are unreadable: {error}.") from error
            parts.append(part.slice(skip, run.stop - run.start))
        return pa.concat_tables(parts, promote_options="permissive")

    def order(self, episode: int, table: pa.Table) -> npt.NDArray[np.int64] | None:
        """Permutation into order of ``frame_index``; None where the rows are in order.

        Raises:
            EpisodeError: one frame is there twice.
        """
        if "frame_index" not in table.column_names:
            return None
        frames = whole_numbers(table["frame_index"], f"episode {episode}: frame_index")
        steps = np.diff(frames)
        if (steps > 0).all():
            return None
        order = np.argsort(frames, kind="stable")
        if (twice := np.flatnonzero(np.diff(frames[order]) == 0)).size:
            raise EpisodeError(
                f"episode {episode}: frame_index {frames[order][twice[0]]} stands in more than one row of the data."
            )
        return order

    def pictures(self, episode: int, column: str) -> Iterator[tuple[bytes | None, str | None]]:
        """(bytes, path) of an image column row by row, in order of ``frame_index``; memory stays at a few pictures.

        Raises:
            EpisodeError: a file is damaged.
        """
        order = self.order(episode, self._stored(episode, []))
        if order is not None:  # rows out of order: the column is read whole, still encoded
            rows = list(self._pictures(episode, column))
            yield from (rows[place] for place in order)
        else:
            yield from self._pictures(episode, column)

    def _pictures(self, episode: int, column: str) -> Iterator[tuple[bytes | None, str | None]]:
        for run in self.runs[episode]:
            path = self.files[run.file]
            file = _opened(path)
            try:
                groups, skip = _groups(file, run)
                left = run.stop - run.start
                at_once = 1 if _largest(file, groups, column) > _MOST_AT_ONCE else _PICTURE_ROWS
                for batch in file.iter_batches(at_once, row_groups=groups, columns=[column]):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    for row in batch.column(0).slice(skip, left).to_pylist():
                        row = row if isinstance(row, dict) else {"bytes": row}
                        yield row.get("bytes"), row.get("path")
                        left -= 1
                    skip = 0
                    if left == 0:
                        break
            except PARQUET_FAULTS as error:
                raise EpisodeError(f"{path}: pictures of {column} are unreadable: {error}.") from error


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
    except PARQUET_FAULTS as error:
        raise EpisodeError(f"{path}: unreadable: {error}.") from error


def _groups(file: pq.ParquetFile, run: Run) -> tuple[list[int], int]:
    """Row groups that hold a run, and the rows to skip in the first of them."""
    groups: list[int] = []
    skip, at = 0, 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if at < run.stop and at + rows > run.start:
            if not groups:
                skip = run.start - at
            groups.append(group)
        at += rows
    return groups, skip


def _columns(file: pq.ParquetFile, group: int, names: Sequence[str]) -> Iterator[pq.ColumnChunkMetaData]:
    """What a row group says of the columns of some fields."""
    told = file.metadata.row_group(group)
    for place in range(told.num_columns):
        column = told.column(place)
        if column.path_in_schema.split(".", 1)[0] in names or column.path_in_schema in names:
            yield column


def _check_amount(file: pq.ParquetFile, groups: Sequence[int], names: Sequence[str], where: str) -> None:
    """Refuse rows that wouldn't fit memory: of equal ones a few bytes stand for thousands of millions.

    Raises:
        EpisodeError: they wouldn't.
    """
    bounded(8 * sum(column.num_values for group in groups for column in _columns(file, group, names)), where)


def _largest(file: pq.ParquetFile, groups: Sequence[int], name: str) -> int:
    sizes = (column.total_uncompressed_size for group in groups for column in _columns(file, group, [name]))
    return max(sizes, default=0)


def build_index(meta: Meta) -> DataIndex:
    """Read the index columns of every data file.

    Raises:
        SourceError: there is no data file, or none has an ``episode_index`` column.
    """
    files = list(list_files(meta.root, meta.data_path).values())
    if not files:
        files = sorted((meta.root / "data").rglob("*.parquet"))
    if not files:
        raise SourceError(f"{meta.root}: no data file; wanted {meta.data_path}.")
    index = DataIndex(files)
    for number, path in enumerate(files):
        try:
            check_inside(path, meta.root)
            file = pq.ParquetFile(path)
            if "episode_index" not in file.schema_arrow.names:
                index.broken[path] = "it has no episode_index column"
                continue
            times = "timestamp" in file.schema_arrow.names
            bounded(16 * file.metadata.num_rows, str(path))
            table = file.read(columns=["episode_index", *(["timestamp"] if times else [])])
            _add_file(index, number, table, times)
        except (*PARQUET_FAULTS, EpisodeError) as error:
            index.broken[path] = str(error)
    return index


def _add_file(index: DataIndex, number: int, table: pa.Table, times: bool) -> None:
    column = table["episode_index"]
    if column.null_count or not len(column):
        if column.null_count:
            index.broken[index.files[number]] = "its episode_index column has empty rows"
        return
    episodes = whole_numbers(column, "episode_index")
    stamps = to_rows(table["timestamp"], "timestamp")[0][:, 0] if times else np.zeros(len(episodes))
    cuts = [0, *(np.flatnonzero(np.diff(episodes)) + 1).tolist(), len(episodes)]
    for start, stop in pairwise(cuts):
        episode = int(episodes[start])
        index.runs.setdefault(episode, []).append(Run(number, start, stop))
        first = float(np.min(stamps[start:stop]))
        index.first_time[episode] = min(first, index.first_time.get(episode, first))


_LISTS = (pa.types.is_list, pa.types.is_fixed_size_list, pa.types.is_large_list)


def is_list(kind: pa.DataType) -> bool:
    """Whether a column holds lists."""
    return any(known(kind) for known in _LISTS)


def _innermost(kind: pa.DataType) -> pa.DataType:
    while any(known(kind) for known in _LISTS):
        kind = kind.value_type
    return kind


def is_vector(kind: pa.DataType) -> bool:
    """Whether a column holds numbers, single or in lists of any depth."""
    kind = _innermost(kind)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def is_picture(kind: pa.DataType) -> bool:
    """Whether a column holds encoded pictures: a struct of bytes and path, or bare bytes."""
    if pa.types.is_struct(kind):
        names = {kind.field(place).name for place in range(kind.num_fields)}
        return "bytes" in names and names <= {"bytes", "path"}
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def to_rows(column: pa.ChunkedArray, where: str) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
    """(T, D) array of a numeric column, and the shape that one row had before it was flattened.

    Empty cells become NaN.

    Raises:
        EpisodeError: rows of different lengths.
    """
    rows = len(column)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # an empty column stays chunked
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], column.type)
    shape: list[int] = []
    while not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)):
        if not any(known(array.type) for known in _LISTS):
            raise EpisodeError(f"{where}: holds {str(array.type)[:80]}; wanted numbers, or lists of them.")
        if array.null_count:
            raise EpisodeError(f"{where}: {array.null_count} rows are empty.")
        above = len(array)
        if above and not pa.types.is_fixed_size_list(array.type):
            lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False))
            if len(lengths) != 1:
                raise EpisodeError(
                    f"{where}: rows have between {lengths[0]} and {lengths[-1]} numbers; wanted one length."
                )
        array = array.flatten()
        shape.append(len(array) // above if above else 0)
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype == object:  # booleans with empty cells
        values = np.array([np.nan if value is None else float(value) for value in values])
    return values.reshape(rows, math.prod(shape)), tuple(shape)


def whole_numbers(column: pa.ChunkedArray, where: str) -> npt.NDArray[np.int64]:
    """(T,) integers of a column, which may be stored as floats.

    Raises:
        EpisodeError: it holds something else.
    """
    rows, _ = to_rows(column, where)
    if rows.shape[1:] != (1,):
        raise EpisodeError(f"{where}: holds {rows.shape[1]} numbers a row; wanted one.")
    values = rows[:, 0]
    fine = np.isfinite(values) & (np.abs(values.astype(np.float64)) < 2**62)
    if values.dtype.kind == "f":
        fine &= np.where(fine, values, 0.5) == np.where(fine, np.floor(values), 0)
    if not fine.all():
        place = int(np.flatnonzero(~fine)[0])
        raise EpisodeError(f"{where}: holds {values[place]} in row {place}; wanted whole numbers.")
    return np.asarray(values, np.int64)
