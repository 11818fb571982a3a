"""What planning costs at any size, and whether a mix holds its weights all the way.

A synthetic index of 10^9 anchors in 10^6 shards: time from the sidecar's bytes to the first planned batch, and the
memory of that, the tables of the index included. A mix of three datasets: at every prefix of 10,000 batches, and at
every sample within each, the count of each dataset against its weight.
"""

from __future__ import annotations

import time
import tracemalloc
from fractions import Fraction

import numpy as np

from benchmarks.common import Ratio
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.plan.mix import MixedDataset, MixSampler
from knonik_loader.plan.mixing import exact_weights
from knonik_loader.plan.sampler import Sampler
from tests.support.plans import STREAMS, make_config, make_index

EPISODES, LENGTH, SHARD, SHARDS_PER_FILE = 100_000, 10_003, 1001, 64
"""10 shards an episode; windows of 4 leave 10,000 anchors in each."""
LOCALITIES = ("global", "hlp_bounded", "low_mem", "ultra_low_mem")
WINDOW, BATCH = 4, 64
MIX_BATCHES = 10_000


def first_batch(sidecar: bytes, step: int, **keys: object) -> Sampler:
    """Everything between the bytes of a dataset's index and a planned batch."""
    index = DatasetIndex.from_bytes(sidecar)
    sampler = Sampler(index, STREAMS, make_config(chunk_len=WINDOW, batch_size=BATCH, **keys))
    sampler.batch(0, step)
    return sampler


def scale() -> list[Ratio]:
    """Seconds and megabytes of the first batch, and of a far one, in every locality."""
    sidecar = make_index([LENGTH] * EPISODES, shard_size=SHARD, shards_per_file=SHARDS_PER_FILE).to_bytes()
    rows = []
    for locality in LOCALITIES:
        for step in (0, 10_000_000):
            start, cpu = time.perf_counter(), time.process_time()
            sampler = first_batch(sidecar, step, planner_locality=locality)
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
            anchors, shards = len(sampler.anchors), len(sampler._index.shards)
            if (anchors, shards) != (10**9, 10**6):
                raise RuntimeError(f"{anchors} anchors in {shards} shards are not what is to be measured")
            del sampler
            tracemalloc.start()
            first_batch(sidecar, step, planner_locality=locality)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            what = f"{locality}, batch {step}"
            detail = f"{seconds:.2f} s, of the processor {cpu:.2f} s"
            rows.append(Ratio(f"{what}: seconds", "2 s", cpu / 2, "< 1", detail))
            rows.append(Ratio(f"{what}: memory at most", "200 MB", peak / 200e6, "< 1", f"{peak / 1e6:.0f} MB"))
    return rows


def mixing(weights: tuple[object, ...], world_size: int, batch_size: int) -> Ratio:
    """The largest distance between what was drawn and what the weights say, over all prefixes."""
    exact = exact_weights(weights)
    lengths = [[3000, 500], [700], [90, 20, 10], [2000]][: len(exact)]

    def mix(rank: int) -> MixSampler:
        keys = {"batch_size": batch_size, "rank": rank, "world_size": world_size, "max_steps": MIX_BATCHES}
        config = make_config(mix=True, **keys)
        datasets = [
            MixedDataset(str(at), make_index(one, seed=at), STREAMS, config, exact[at] * batch_size)
            for at, one in enumerate(lengths)
        ]
        return MixSampler(datasets, weights, config)

    ranks = [mix(rank) for rank in range(world_size)]
    drawn = np.zeros(len(exact), np.int64)
    furthest = each = Fraction(0)
    for step in range(MIX_BATCHES):
        batches = [rank.batch(0, step).dataset for rank in ranks]
        for one in batches:
            counts = np.bincount(one, minlength=len(exact)).tolist()
            each = max(each, *(abs(c - w * len(one)) for c, w in zip(counts, exact, strict=True)))
        drawn += np.bincount(np.concatenate(batches), minlength=len(exact))
        total = int(drawn.sum())
        furthest = max(furthest, *(abs(d - w * total) for d, w in zip(drawn.tolist(), exact, strict=True)))
    named = ", ".join(str(weight) for weight in weights)
    detail = f"{MIX_BATCHES} batches of {batch_size} x {world_size}; within one batch of a rank {float(each):.3f}"
    return Ratio(f"mix {named}: furthest from the weights", "one sample", float(furthest), "<= 1", detail)


def run() -> list[Ratio]:
    return [
        *scale(),
        mixing((0.5, 0.3, 0.2), 1, 64),
        mixing((0.7, 0.2, 0.07, 0.03), 4, 16),
        mixing((Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)), 2, 7),
        mixing((1, 99), 1, 8),
    ]
