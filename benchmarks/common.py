"""What the benchmarks share: frames to work on, repeated alternating timings, and the table of ratios."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import simplejpeg
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


def bare_decode_rate(jpegs: list[bytes], shape: tuple[int, ...], threads: int, seconds: float, memory: int) -> float:
    """Frames/s of simplejpeg alone: ``threads`` threads decoding into ``memory`` bytes of reused arrays."""
    slots = max(threads, memory // int(np.prod(shape)))
    outs = np.zeros((slots, *shape), np.uint8)
    deadline = time.perf_counter() + seconds

    def work(thread: int) -> int:
        done = 0
        while time.perf_counter() < deadline:
            for _ in range(16):
                number = thread + done * threads
                simplejpeg.decode_jpeg(jpegs[number % len(jpegs)], "RGB", buffer=outs[number % slots])
                done += 1
        return done

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(work, range(threads)))
    return total / (time.perf_counter() - start)


def show(title: str, rows: list[Ratio]) -> None:
    """Print ratios as a table."""
    table = Table(title=title, title_justify="left")
    for column in ("measured", "against", "ratio", "wanted", "detail"):
        table.add_column(column, justify="right" if column == "ratio" else "left")
    for row in rows:
        table.add_row(row.what, row.against, f"{row.ratio:.2f}", row.wanted, row.detail)
    Console().print(table)
