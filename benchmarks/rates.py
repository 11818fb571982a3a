"""How fast a loader is against what the machine can do, measured so that neighbours on the machine hit both alike.

A loader and its limit take turns of some batches. Each turn counts frames, seconds by the clock, and seconds of the
processor over all threads of this process. Of a pipeline whose decode threads are never idle both give one ratio; on a
machine that others use, the processor's is the steadier one. What it can't see, decode threads that wait for work, is
reported beside.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg

from knonik_loader import ShardedDataLoader

__all__ = ["Limit", "Loading", "Turn", "ratio"]


@dataclass(frozen=True)
class Turn:
    """What a turn took and gave."""

    delivered: int
    """Frames handed out."""
    decoded: int
    """Frames decoded; those that samples share count once, keys that nobody asked for count."""
    wall: float
    cpu: float
    consumer: float = 0.0
    """Processor seconds of the thread that took the batches."""
    idle: float = 0.0
    """Share of the decode threads' time in which they waited for work."""


class Limit:
    """Threads of bare simplejpeg that decode payloads, over and over, into reused memory that is already there.

    Args:
        jpegs: payloads.
        shape: (H, W, 3) of all of them.
        memory: bytes to decode into, in turn: as many as a loader's batches in flight have.
        threads: side by side.
    """

    def __init__(self, jpegs: list[bytes], shape: tuple[int, int, int], memory: int, threads: int) -> None:
        self._jpegs, self._threads = jpegs, threads
        self._outs = np.ones((max(16, memory // int(np.prod(shape))), *shape), np.uint8)

    def turn(self, frames: int) -> Turn:
        jpegs, outs, threads = self._jpegs, self._outs, self._threads

        def decode(thread: int) -> None:
            for number in range(thread, frames, threads):
                simplejpeg.decode_jpeg(jpegs[number % len(jpegs)], "RGB", buffer=outs[number % len(outs)])

        wall, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(decode, range(threads)))
        return Turn(frames, frames, time.perf_counter() - wall, time.process_time() - cpu)


class Loading:
    """A loader that never ends, taken from in turns."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._loader = ShardedDataLoader({**config, "max_steps": 2**31 - 1})
        self._ahead = config.get("precollate_batches", 2) + 1
        self._batches: Iterator[dict[str, Any]] = iter(self._loader)
        first = next(self._batches)
        cameras = [value for key, value in first.items() if key.startswith("rgb_") and value.ndim == 5]
        self.frames = sum(camera.shape[0] * camera.shape[1] for camera in cameras)
        """Of all cameras in a batch."""

    def close(self) -> None:
        self._loader.shutdown()

    def _skip(self) -> None:
        """Hand out what was made while others had their turn, or is half made."""
        for _ in range(self._ahead):
            next(self._batches)

    def turn(self, batches: int) -> Turn:
        self._skip()
        before = self._loader.stats()
        wall, cpu, own = time.perf_counter(), time.process_time(), time.thread_time()
        for _ in range(batches):
            next(self._batches)
        consumer = time.thread_time() - own
        after = self._loader.stats()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        decoded = after["frames"] - before["frames"]
        waited = after["stages"]["decode"]["wait"]["seconds"] - before["stages"]["decode"]["wait"]["seconds"]
        idle = waited / (wall * after["threads"]["decode"])
        self._rest()
        return Turn(batches * self.frames, decoded, wall, cpu, consumer, idle)

    def _rest(self) -> None:
        """Wait until nothing more can be made ahead."""
        calls, deadline = -1, time.monotonic() + 60
        while time.monotonic() < deadline:
            now = sum(stage["calls"] for stage in self._loader.stats()["stages"].values())
            if now == calls:
                return
            calls = now
            time.sleep(0.3)


def ratio(loading: list[Turn], limit: list[Turn], count: str) -> tuple[float, float]:
    """Rate over the limit's rate, (by the processor's time, by the clock): medians over pairs of turns.

    Args:
        loading: turns of the loader.
        limit: those of the limit that followed each.
        count: ``delivered`` or ``decoded`` frames.
    """
    pairs = list(zip(loading, limit, strict=True))
    by_cpu = [(getattr(a, count) / a.cpu) / (b.delivered / b.cpu) for a, b in pairs]
    by_wall = [(getattr(a, count) / a.wall) / (b.delivered / b.wall) for a, b in pairs]
    return statistics.median(by_cpu), statistics.median(by_wall)
