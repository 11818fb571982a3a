"""Windows of streams that a batch has and no dataset does: zeros, of which nothing is real."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from knonik_loader.config_models import LoaderConfig
from knonik_loader.plan.types import BatchPlan, StreamWindow
from knonik_loader.plan.windows import Window, windows_for

__all__ = ["absent_windows", "with_absent"]


def absent_windows(keys: Sequence[str], config: LoaderConfig) -> dict[str, Window]:
    """Batch key → window, as they would be if the streams were there."""
    return windows_for(keys, config.chunk_len, config.delta_timestamps or {}, config.delta_rounding)


def with_absent(plan: BatchPlan, absent: Mapping[str, Window]) -> BatchPlan:
    """The plan with windows of the absent streams."""
    shapes = {key: (len(plan), len(window)) for key, window in absent.items()}
    windows = {key: StreamWindow(np.zeros(shape, np.int64), np.zeros(shape, np.bool_)) for key, shape in shapes.items()}
    return dataclasses.replace(plan, windows={**plan.windows, **windows})
