"""PyTorch datasets: what `__getitems__` saves, and their rate against LeRobotDataset's on the same frames.

LeRobot wants PyTorch and PyAV of its own, so it may live in another environment: name its Python in
``KNONIK_LEROBOT_PYTHON`` (which also needs the loader's few dependencies). Without it that part is left out.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from benchmarks.common import ROOT, Ratio, alternate
from benchmarks.loading import PROFILES, payloads, prepare
from benchmarks.peers import processor_seconds

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


class OneByOne:
    """A dataset without `__getitems__`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._dataset[index]


def in_a_worker(manifest: Path, repeats: int, batches: int = 6) -> list[Ratio]:
    """The same two ways where a DataLoader calls them: in its worker, up to the batch in the main process.

    By the processor's time of both processes, and by the clock, where a second core is free for the worker's second
    decode thread. The first batches of each turn, for which the worker gets its memory, don't count.
    """
    from torch.utils.data import DataLoader

    from knonik_loader.torch import KhlpDataset

    dataset = KhlpDataset(manifest, chunk_len=WINDOW)
    cameras = sum(stream.kind == "rgb" for stream in dataset.opened.streams)
    frames, warm = batches * BATCH * WINDOW * cameras, 4
    order = np.random.default_rng(0).permutation(len(dataset))
    chosen = np.resize(order, (warm + batches, BATCH)).tolist()

    def timed(one_by_one: bool, clocks: list[float]) -> float:
        loader = DataLoader(OneByOne(dataset) if one_by_one else dataset, batch_sampler=chosen, num_workers=1)
        for number, _ in enumerate(loader, start=1):
            if number == warm:
                cpu, wall = processor_seconds(), time.perf_counter()
            if number == len(chosen):
                clocks.append(time.perf_counter() - wall)
                return processor_seconds() - cpu
        raise RuntimeError("the loader ended early")

    walls: tuple[list[float], list[float]] = ([], [])
    cpu = alternate(repeats, partial(timed, True, walls[0]), partial(timed, False, walls[1]))
    wall = [statistics.median(values) for values in walls]
    return [
        Ratio(
            f"{manifest.parent.name}: __getitems__ in a worker, {clock}",
            "__getitem__",
            one / many,
            ">= 1.3",
            f"{one / frames * 1e3:.2f} against {many / frames * 1e3:.2f} ms a frame",
        )
        for clock, (one, many) in (("processor", cpu), ("clock", wall))
    ]


def bound(manifest: Path, repeats: int) -> list[Ratio]:
    """The most that one core could gain from `__getitems__` of ``training_fast``: if it did nothing but decode.

    One call a sample against bare simplejpeg decodes of each frame of the batch once, into memory of the batch's size.
    """
    import torch

    from knonik_loader.torch import KhlpDataset

    dataset = KhlpDataset(manifest, chunk_len=WINDOW)
    cameras = [stream.key for stream in dataset.opened.streams if stream.kind == "rgb"]
    jpegs, shape = payloads(manifest, cameras, None)
    batch = np.random.default_rng(0).permutation(len(dataset))[:BATCH].tolist()
    plan = dataset.opened.sampler.at(np.array(batch), np.zeros(BATCH, np.uint64))
    once = sum(
        len(np.unique(plan.episodes[:, None] << 32 | plan.windows[camera].frames)) for camera in cameras
    )  # frames of the batch, each counted once
    total = BATCH * WINDOW * len(cameras)
    outs = np.ones((total, *shape), np.uint8)

    def one() -> float:
        start = time.process_time()
        for index in batch:
            dataset[index]
        return time.process_time() - start

    def bare() -> float:
        start = time.process_time()
        for number in range(once):
            simplejpeg.decode_jpeg(jpegs[number * 37 % len(jpegs)], "RGB", buffer=outs[number])
        return time.process_time() - start

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    one(), bare()
    single, least = alternate(repeats, one, bare)
    torch.set_num_threads(threads)
    detail = f"{once / total:.2f} of the frames are distinct; decoding is {least * total / once / single:.2f} of a call"
    return [Ratio(f"{manifest.parent.name}: bare decode of the batch", "__getitem__", single / least, "bound", detail)]


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
            wanted = ">= 4" if profile.endswith("ShardedDataLoader") else ">= 1.5"
            wanted += ", fewest bytes" if profile.startswith("compact_video") else ""
            detail = f"{rate:.0f} against {peer:.0f} frames/s"
            rows.append(
                Ratio(
                    profile if "Sharded" in profile else f"KhlpDataset, {profile}",
                    f"LeRobotDataset, {backend}",
                    rate / peer,
                    wanted,
                    detail,
                )
            )
    return rows


def run(seconds: float = 4.0, repeats: int = 3) -> list[Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        manifests, _, _ = prepare(Path(folder))
        packs = Path(folder) / "packs"
        packs.mkdir()
        rows: list[Ratio] = []
        for profile in PROFILES:
            rows += getitems(manifests[profile], repeats)
            rows += in_a_worker(manifests[profile], repeats)
            if profile == "training_fast":
                rows += bound(manifests[profile], repeats)
            manifests[profile].parent.rename(packs / profile)
        return rows + against_lerobot(packs, seconds)
