"""Nothing grows: memory, descriptors, threads and processes over many batches, and over many lives of a loader.

``KNONIK_SOAK_BATCHES`` (20,000) and ``KNONIK_SOAK_CYCLES`` (1,600) say how many. Frames of 96x96, batches of 8.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Ratio

SHAPE = (96, 96, 3)


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    rss: int
    descriptors: int
    threads: int
    processes: int
    shared: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        tasks = list(Path("/proc/self/task").iterdir())
        children = [pid for task in tasks for pid in (task / "children").read_text().split()]
        return cls(
            rss=pages * os.sysconf("SC_PAGE_SIZE"),
            descriptors=len(list(Path("/proc/self/fd").iterdir())),
            threads=threading.active_count(),
            processes=len(children),
            shared=Path("/proc/self/maps").read_text().count("/dev/shm/"),
        )

    def leaked(self, before: Held) -> int:
        """Descriptors, threads, processes and names in shared memory beyond those before."""
        names = ("descriptors", "threads", "processes", "shared")
        return sum(max(0, getattr(self, name) - getattr(before, name)) for name in names)


def augment(sample: dict) -> dict:
    return sample


def config(manifest: Path, **keys: object) -> dict:
    return {
        "decode_mode": "random_access",
        "hlp_manifest": str(manifest),
        "chunk_len": 2,
        "batch_size": 8,
        "rank": 0,
        "world_size": 1,
        **keys,
    }


def soak(manifest: Path, batches: int, **keys: object) -> tuple[float, str]:
    """Resident memory at the end of a long pass over that after its first tenth, each the mean of ten looks."""
    from knonik_loader import ShardedDataLoader

    before, looks = Held.now(), []
    began = time.perf_counter()
    with ShardedDataLoader(config(manifest, max_steps=batches, **keys)) as loader:
        for step, _ in enumerate(loader, 1):
            if step % max(1, batches // 100) == 0:
                looks.append(Held.now().rss)
        seconds = time.perf_counter() - began
    leaked = Held.now().leaked(before)
    early, late = statistics.mean(looks[10:20]), statistics.mean(looks[-10:])
    return late / early, f"{early / 1e6:.1f} to {late / 1e6:.1f} MB, {leaked} leaked, {batches / seconds:.0f} batches/s"


def lives(manifest: Path, cycles: int) -> tuple[float, str]:
    """Make, iterate, break, shut down or drop; every fifth with worker processes.

    Resident memory of the last quarter of all lives over that of the second, each the mean of 40 looks.
    """
    from knonik_loader import ShardedDataLoader

    def one(number: int) -> None:
        keys: dict[str, object] = {"num_decoders": 1 + number % 4, "ram_cache_bytes": 1 << 20}
        if number % 5 == 0:
            keys |= {"augment_fn": augment, "augment_execution": "process", "augment_workers": 2}
        loader = ShardedDataLoader(config(manifest, **keys))
        for step, _ in enumerate(loader):
            if step == 3:
                break
        if number % 2:
            loader.shutdown()

    looks = []
    for number in range(cycles):
        one(number)
        if (number + 1) % max(1, cycles // 160) == 0:
            settle()
            looks.append(Held.now())
    # The allocator's arenas, one or more a core, fill up once; later, what it keeps of a life goes up and down by
    # some MB from one life to the next, without a trend.
    quarter = len(looks) // 4
    early, late = (
        statistics.mean(look.rss for look in some) for some in (looks[quarter : 2 * quarter], looks[-quarter:])
    )
    leaked = looks[-1].leaked(looks[quarter])
    return late / early, f"{early / 1e6:.1f} to {late / 1e6:.1f} MB, {leaked} leaked, {cycles} cycles"


def settle() -> None:
    """Threads and processes of dropped loaders end by themselves, within moments."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        gc.collect()
        if not any(thread.name.startswith("knonik-") for thread in threading.enumerate()) and not Held.now().processes:
            return
        time.sleep(0.05)


def run() -> list[Ratio]:
    from tests.support.packed import PROFILES, write_packed

    batches = int(os.environ.get("KNONIK_SOAK_BATCHES", "20000"))
    cycles = int(os.environ.get("KNONIK_SOAK_CYCLES", "1600"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for profile in PROFILES:
            packed = write_packed(Path(folder) / profile, (200, 150, 90), profile, size=SHAPE[:2], depth=False)
            count = batches if profile == "training_fast" else max(500, batches // 10)
            keys = {} if profile == "training_fast" else {"ram_cache_bytes": 2 << 20}
            ratio, detail = soak(packed.manifest, count, **keys)
            rows.append(Ratio(f"RSS, {profile}, {count} batches", "after a tenth", ratio, "<= 1.02, 0 leaked", detail))
        packed = write_packed(Path(folder) / "lives", (60, 40), size=SHAPE[:2], depth=False)
        # a process of its own: what long passes left of the allocator's arenas would fill up slowly
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
            ratio, detail = alone.submit(lives, packed.manifest, cycles).result()
        rows.append(Ratio("RSS, lives of a loader", "second quarter", ratio, "<= 1.02, 0 leaked", detail))
    return rows
