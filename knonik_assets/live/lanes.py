"""Frames on their way to the encoders: one bounded queue and one thread a camera."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import EpisodeError

__all__ = ["Lane", "Waiting"]

_MOST_FRAMES = 32
"""A second of pictures: enough for a keyframe that takes long, or a disk that hesitates."""
_MOST_BYTES = 64 << 20


class Waiting:
    """How long producers were held up because the encoders lagged behind. Thread-safe."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.longest = 0.0
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        """One call was held up for so long."""
        with self._lock:
            self.seconds += seconds
            self.longest = max(self.longest, seconds)


class Lane:
    """One stream's frames, worked on in their order behind the producer's back. One producer at a time.

    A full queue makes `put` wait: nothing is ever dropped.

    Args:
        key: the stream's, names the thread.
        work: what becomes of a frame.
        turns: how many lanes work at once; None: all of them.
        waiting: is told how long `put` waited.
    """

    def __init__(
        self,
        key: str,
        work: Callable[[npt.NDArray[Any]], None],
        turns: threading.Semaphore | None,
        waiting: Waiting,
    ) -> None:
        self._work, self._turns, self._waiting = work, turns, waiting
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"live_{key}")
        self._ahead: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0
        self._stop = threading.Event()

    def put(self, frame: npt.NDArray[np.generic]) -> None:
        """Take over a frame that nobody else will change.

        Raises:
            EpisodeError, StorageError: an earlier frame could not be written: the stream is lost.
        """
        while self._ahead and self._ahead[0][0].done():
            self._settle()
        if self._full(frame.nbytes):
            started = time.perf_counter()
            while self._full(frame.nbytes):
                self._settle()
            self._waiting.add(time.perf_counter() - started)
        if self._stop.is_set():
            raise EpisodeError("the episode is over and takes no more frames")
        try:
            future = self._pool.submit(self._one, frame)
        except RuntimeError as error:  # stopped by another thread just now
            raise EpisodeError("the episode is over and takes no more frames") from error
        self._ahead.append((future, frame.nbytes))
        self._bytes += frame.nbytes

    def drain(self) -> None:
        """Wait until everything is written.

        Raises:
            EpisodeError, StorageError: a frame could not be written.
        """
        while self._ahead:
            self._settle()
        self._pool.shutdown()

    def stop(self) -> None:
        """Drop what waits, and wait for the frame in hand."""
        self._stop.set()
        self._pool.shutdown()  # what waits does nothing; cancelled, it would surprise a producer that waits for it

    def _full(self, more: int) -> bool:
        too_many = len(self._ahead) >= _MOST_FRAMES or self._bytes + more > _MOST_BYTES
        return too_many and len(self._ahead) >= 2  # so that one frame can be fetched while another is encoded

    def _settle(self) -> None:
        future, size = self._ahead[0]
        future.result()  # an error stays first in the queue: every later call meets it again
        self._ahead.popleft()
        self._bytes -= size

    def _one(self, frame: npt.NDArray[np.generic]) -> None:
        if self._stop.is_set():
            return
        if self._turns is None:
            self._work(frame)
            return
        with self._turns:
            self._work(frame)
