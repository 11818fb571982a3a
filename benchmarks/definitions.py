"""How long Dagster waits for Knonik's definitions: to import them, and to load them over 200 cards."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.common import ROOT, Ratio, alternate

CARDS = 200
LOAD = "defs().get_repository_def()"


def seconds(code: str, cards: Path) -> float:
    """Of the last line of code, in a process of its own."""
    *before, last = code.split("; ")
    lines = ["import time", "start = time.perf_counter()"]
    lines = [*before, *lines, last, "print(time.perf_counter() - start)"]
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(lines)],
        env={**os.environ, "KNONIK_DATASETS": str(cards)},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(run.stdout.split()[-1])


def run() -> list[Ratio]:
    own = ROOT / "dagster_home" / "datasets"
    text = (own / "aloha_sim.yaml").read_text()
    with tempfile.TemporaryDirectory() as folder:
        many = Path(folder)
        for number in range(CARDS):
            card = text.replace("name: aloha_sim", f"name: dataset_{number:03}")
            (many / f"dataset_{number:03}.yaml").write_text(card)
        importing = "from knonik_assets.orchestration.definitions import defs"
        bare, ours, loading = alternate(
            5,
            lambda: seconds("import dagster", own),
            lambda: seconds(importing, own),
            lambda: seconds(f"{importing}; {LOAD}", many),
        )
    return [
        Ratio("import the definitions", "2 s", ours / 2, "< 1", f"{ours:.2f} s, of which Dagster itself {bare:.2f} s"),
        Ratio(f"load {CARDS} cards", "5 s", loading / 5, "< 1", f"{loading:.2f} s after importing"),
    ]
