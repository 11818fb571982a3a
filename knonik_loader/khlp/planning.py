"""Which records a set of frames needs, from nothing but ``key_back``: the same rule for every codec."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import PlanError
from knonik_loader.khlp.reader import RecordTable
from knonik_loader.khlp.types import Dependency

__all__ = ["Group", "check_rows", "closure"]

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """Frames that are decoded together: one call of a codec."""

    key_row: int
    """The record that decodes alone and that the others refer to."""
    rows: Rows
    """Records to hand to the codec, ascending."""
    wanted: Rows
    """Those of them whose frames are wanted, ascending."""


def check_rows(table: RecordTable, rows: Sequence[int]) -> None:
    """Refuse rows that are not ascending, without repeats, or not in a shard.

    Raises:
        PlanError: that they are not.
    """
    if rows and (rows[0] < 0 or rows[-1] >= len(table) or any(map(operator.ge, rows, rows[1:]))):
        raise PlanError(f"rows {rows} are not ascending rows of a shard of {len(table)} records")


def closure(table: RecordTable, dependency: Dependency, wanted: Sequence[int] | Rows) -> list[Group]:
    """Group wanted rows of one shard by their key, and say which records each group needs.

    Args:
        table: the index of one stream of one shard.
        dependency: what the stream's codec needs besides the record itself.
        wanted: rows, ascending, without repeats.

    Raises:
        PlanError: rows that the shard does not have, or in another order.
    """
    rows = np.asarray(wanted, np.int64)
    check_rows(table, rows.tolist())
    if not len(rows):
        return []
    keys = rows if dependency == "none" else rows - table.key_back[rows]
    if dependency == "none":
        return [Group(int(row), rows[i : i + 1], rows[i : i + 1]) for i, row in enumerate(rows)]
    # a frame stored whole between frames that refer to an earlier key is a group of its own: sort by key
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    groups = []
    for some in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(keys)) + 1):
        key, want = int(keys[some[0]]), rows[some]
        if dependency == "chain":
            need = np.arange(key, want[-1] + 1)
        else:
            need = want if want[0] == key else np.concatenate([[key], want])
        groups.append(Group(key, need, want))
    return groups
