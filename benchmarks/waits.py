"""How long a training step that sleeps waits for its batch, where the loader could feed more than it asks for.

The step sleeps for twice the time that the loader has just needed for a batch. On a machine that others use, waiting
for the processor counts as waiting for a batch; how late sleeps of a millisecond end in the same run shows how much.
"""

from __future__ import annotations

import os
import time

import numpy as np

from benchmarks.common import Ratio
from benchmarks.loading import cameras_of, config_of, prepare, workspace
from knonik_loader import ShardedDataLoader

BATCH, AHEAD, MEASURED = 8, 4, 30
STEPS = int(os.environ.get("KNONIK_WAIT_STEPS", "400"))
SLACK = 2.0


def late(count: int = 500) -> float:
    """99th percentile of the seconds by which sleeps of a millisecond are late."""
    delays = []
    for _ in range(count):
        start = time.perf_counter()
        time.sleep(0.001)
        delays.append(time.perf_counter() - start - 0.001)
    return float(np.percentile(delays, 99))


def run() -> list[Ratio]:
    with workspace() as folder:
        manifests, _, shape = prepare(folder)
        names, _ = cameras_of(manifests["training_fast"], manifests["training_compressed"])
        rows = []
        for profile in ("training_fast", "training_compressed"):
            slots = {"zerocopy": True, "zerocopy_frame_shapes": {name: list(shape) for name in names}}
            config = config_of(manifests[profile], BATCH, **slots) | {"precollate_batches": AHEAD}
            with ShardedDataLoader({**config, "max_steps": 2**31 - 1}) as loader:
                batches = iter(loader)
                for _ in range(AHEAD + 2):
                    next(batches)
                start = time.perf_counter()
                for _ in range(MEASURED):
                    next(batches)
                alone = (time.perf_counter() - start) / MEASURED
                control, waits = late(), []
                own, start = time.thread_time(), time.perf_counter()
                for _ in range(STEPS):
                    time.sleep(SLACK * alone)
                    asked = time.perf_counter()
                    next(batches)
                    waits.append(time.perf_counter() - asked)
                consumer = (time.thread_time() - own) / (time.perf_counter() - start)
            p50, p99 = np.percentile(waits, [50, 99]) * 1e3
            detail = (
                f"median {p50:.2f} ms, batch made in {alone * 1e3:.0f} ms, step of {SLACK * alone * 1e3:.0f} ms; "
                f"sleeps are {control * 1e3:.1f} ms late (p99); consumer {consumer:.2%} of a core"
            )
            rows.append(Ratio(f"{profile}: p99 of the wait", "5 ms", p99 / 5, "< 1", detail))
    return rows
