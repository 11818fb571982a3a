"""What the benchmarks share: frames to work on, repeated alternating timings, and the table of ratios."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "dagster_home" / "sample" / "aloha_sim"


@dataclass(frozen=True)
class Ratio:
    """One measured ratio."""

    what: str
    against: str
    ratio: float
    wanted: str
    detail: str = ""


def clips_folder() -> Path:
    """Recordings in ALOHA's layout: ``KNONIK_BENCH_CLIPS``, or the committed sample."""
    return Path(os.environ.get("KNONIK_BENCH_CLIPS", SAMPLE))


def alternate(repeats: int, *calls: Callable[[], float]) -> list[float]:
    """Median of what each call returns, the calls taking turns so that a drifting machine hits all alike."""
    results: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for values, call in zip(results, calls, strict=True):
            values.append(call())
    return [statistics.median(values) for values in results]


def _shown(row: Ratio) -> str:
    """Two digits, and more where they would hide that something wanted whole is not."""
    return f"{row.ratio:.2f}" if row.ratio == 1 or not row.wanted.startswith("=") else f"{row.ratio:.5f}"


def show(title: str, rows: list[Ratio]) -> None:
    """Print ratios as a table."""
    table = Table(title=title, title_justify="left")
    for column in ("measured", "against", "ratio", "wanted", "detail"):
        table.add_column(column, justify="right" if column == "ratio" else "left")
    for row in rows:
        table.add_row(row.what, row.against, _shown(row), row.wanted, row.detail)
    Console().print(table)
