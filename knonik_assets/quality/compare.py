"""What shows only beside the other episodes: recordings that are there twice, cameras less sharp than usual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from knonik_assets.quality.examine import EpisodeRow

__all__ = ["compared"]

_ENOUGH = 4
"""Episodes below which nobody can say what is usual."""


def compared(rows: Sequence[EpisodeRow]) -> list[EpisodeRow]:
    """The rows with ``duplicate_of`` and ``blur`` filled in; the first of equal recordings is the original."""
    cameras: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.sharpness.items():
            cameras.setdefault(name, []).append(value)
    usual = {name: float(np.median(values)) for name, values in cameras.items() if len(values) >= _ENOUGH}
    first: dict[str, str] = {}
    found = []
    for row in rows:
        original = first.setdefault(row.content, row.episode) if row.content else row.episode
        twin = None if original == row.episode else original
        notes = dict(row.notes)
        shares = {name: row.sharpness[name] / usual[name] for name in row.sharpness if usual.get(name)}
        if twin is not None:
            notes["duplicate_of"] = f"the same recording as {twin}"
        if shares:
            worst = min(shares, key=lambda name: shares[name])
            notes["blur"] = f"camera {worst} has {shares[worst]:.0%} of the sharpness that the other episodes have"
        found.append(replace(row, duplicate_of=twin, blur=min(shares.values(), default=None), notes=notes))
    return found
