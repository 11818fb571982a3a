"""PyTorch datasets: what `__getitems__` saves, and their rate against LeRobotDataset's on the same frames.

LeRobot wants PyTorch and PyAV of its own, so it may live in another environment: name its Python in
``KNONIK_LEROBOT_PYTHON`` (which also needs the loader's few dependencies). Without it that part is left out.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT, Ratio, alternate
from benchmarks.loading import PROFILES, prepare

BATCH, WINDOW = 32, 4
_FRAMES = 60
"""Of each episode that LeRobot is given: its encoder is slow."""


def getitems(manifest: Path, repeats: int) -> list[Ratio]:
    """One call for a shuffled batch against one call a sample: by the clock, as a loop without workers meets it,
    and by the processor time of one thread, which is what a worker gains.

    On a dataset as small as this the windows of a batch overlap; on a large one what is left are shared keyframes and
    video, decoding side by side, and the overhead of a call.
    """
    import torch

    from knonik_loader.torch import KhlpDataset

    dataset = KhlpDataset(manifest, chunk_len=WINDOW)
    random = np.random.default_rng(0)
    batches = [random.permutation(len(dataset))[:BATCH].tolist() for _ in range(4)]
    frames = len(batches) * BATCH * WINDOW * sum(stream.kind == "rgb" for stream in dataset.opened.streams)

    def timed(together: bool, clock: Callable[[], float]) -> float:
        start = clock()
        for batch in batches:
            if together:
                dataset.__getitems__(batch)
            else:
                for index in batch:
                    dataset[index]
        return clock() - start

    rows = []
    threads = torch.get_num_threads()
    for number, clock in ((threads, time.perf_counter), (1, time.process_time)):
        torch.set_num_threads(number)
        timed(True, clock)
        one, many = alternate(repeats, partial(timed, False, clock), partial(timed, True, clock))
        detail = f"{frames / many:.0f} against {frames / one:.0f} frames/s, {number} threads"
        rows.append(Ratio(f"{manifest.parent.name}: __getitems__", "__getitem__", one / many, ">= 1.3", detail))
    torch.set_num_threads(threads)
    return rows


def against_lerobot(folder: Path, seconds: float) -> list[Ratio]:
    """Rates under a DataLoader with two workers; nothing where LeRobot isn't at hand."""
    python = os.environ.get("KNONIK_LEROBOT_PYTHON")
    if python is None and importlib.util.find_spec("lerobot") is not None:
        python = sys.executable
    if python is None:
        return [Ratio("KhlpDataset", "LeRobotDataset", float("nan"), ">= 1.5", "LeRobot is not installed")]
    command = [python, "-m", "benchmarks.lerobot_peer", str(folder), str(_FRAMES), str(seconds)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)
    if run.returncode:
        return [Ratio("KhlpDataset", "LeRobotDataset", float("nan"), ">= 1.5", run.stderr.strip().splitlines()[-1])]
    rows = []
    for backend, rates in json.loads(run.stdout.splitlines()[-1]).items():
        if isinstance(rates, str):
            rows.append(Ratio("KhlpDataset", f"LeRobotDataset, {backend}", float("nan"), "", f"did not run: {rates}"))
            continue
        peer = rates.pop("lerobot")
        for profile, rate in rates.items():
            wanted = ">= 1.5" if not profile.startswith("compact_video") else ">= 1.5, fewest bytes"
            detail = f"{rate:.0f} against {peer:.0f} frames/s"
            rows.append(Ratio(f"KhlpDataset, {profile}", f"LeRobotDataset, {backend}", rate / peer, wanted, detail))
    return rows


def run(seconds: float = 4.0, repeats: int = 3) -> list[Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        manifests, _, _ = prepare(Path(folder))
        packs = Path(folder) / "packs"
        packs.mkdir()
        rows: list[Ratio] = []
        for profile in PROFILES:
            rows += getitems(manifests[profile], repeats)
            manifests[profile].parent.rename(packs / profile)
        return rows + against_lerobot(packs, seconds)
