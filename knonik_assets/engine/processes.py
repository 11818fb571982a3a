"""Worker processes: each has a lane, is started by the first item, and costs its own item one attempt when it dies."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import FrameType
from typing import Any

from knonik_assets.engine.work import Answer, WorkQueue, attempt, died, unexpected

__all__ = ["Lane", "close_all", "in_processes"]

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Lanes fill the cores; libraries that start threads of their own in each would only get in each other's way."""


def _end_with_parent(parent: int) -> None:
    """Started in every worker: when the process that started it is gone, even by SIGKILL, the worker ends too."""

    def watch(handle: int) -> None:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()
        os._exit(1)

    if hasattr(os, "pidfd_open"):  # Linux
        handle = os.pidfd_open(parent)
        threading.Thread(target=watch, args=(handle,), name="end-with-parent", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def _start_undisturbed() -> Iterator[None]:
    """Hold Ctrl-C back while a worker starts, and have the worker never hear of it.

    A terminal sends Ctrl-C to every process of the foreground group. A worker that is just importing would print a
    traceback, and one whose parent is interrupted while starting it would be lost. A signal's mask is inherited; this
    process ends its workers itself.
    """
    caught: list[signal.Signals] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        caught.append(signal.Signals(number))

    main = threading.current_thread() is threading.main_thread()
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM) if main else ():
        if callable(signal.getsignal(number)):
            handlers[number] = signal.signal(number, note)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in caught:
            signal.raise_signal(number)


class Lane:
    """One worker process at a time, replaced when it died. It is started by the first item it gets."""

    def __init__(self) -> None:
        self._executor: Any = None

    def submit(self, fn: Callable[[Any], Any], item: Any) -> Future[Answer]:  # noqa: ANN401 - any item
        """Have the worker call a function with one item; only one at a time."""
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import resource_tracker as multiprocessing_tracker

        import loky
        from loky.backend import get_context, resource_tracker

        future: Future[Answer]
        if self._executor is not None:
            try:
                future = self._executor.submit(attempt, fn, item)
            except BrokenProcessPool:
                self.close(kill=True)  # the worker died while it had nothing to do, which costs no item an attempt
            else:
                return future
        with _start_undisturbed():
            # both let signals through again once they have started their process: before the worker's start, not in it
            resource_tracker.ensure_running()
            multiprocessing_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            self._executor = loky.ProcessPoolExecutor(
                max_workers=1,
                context=get_context("loky"),
                initializer=_end_with_parent,
                initargs=(os.getpid(),),
                env={name: os.environ.get(name, "1") for name in _THREADS},
            )
            future = self._executor.submit(attempt, fn, item)
        return future

    def close(self, *, kill: bool) -> None:
        """End the worker: at once, or when it is done. A further item starts another one."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=kill)


def close_all(lanes: Sequence[Lane], *, kill: bool) -> None:
    """End all workers together: a process takes a while to end."""
    if lanes:
        with ThreadPoolExecutor(len(lanes), thread_name_prefix="close") as pool:
            list(pool.map(lambda lane: lane.close(kill=kill), lanes))


def in_processes(
    fn: Callable[[Any], Any], todo: Sequence[Any], lanes: Sequence[Lane], attempts: int, queue: WorkQueue
) -> Generator[tuple[int, int, Answer], None, None]:
    """(index, attempts, answer) of every item, as they end; closing it early ends the workers."""
    from concurrent.futures.process import BrokenProcessPool

    free = list(lanes)
    running: dict[Future[Answer], tuple[Lane, int, int]] = {}
    finished = False
    try:
        while queue:
            while free and (begun := queue.take()) is not None:
                lane, (index, tried) = free.pop(), begun
                running[lane.submit(fn, todo[index])] = (lane, index, tried)
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                lane, index, tried = running.pop(future)
                error = future.exception()
                answer: Answer | None = None
                if isinstance(error, BrokenProcessPool):
                    lane.close(kill=True)
                    if tried >= attempts:
                        answer = died(tried)
                elif error is not None:
                    # a function, an item or a result that does not pickle
                    answer = unexpected(error)
                else:
                    answer = future.result()
                free.append(lane)
                if answer is None:
                    queue.again(index, tried)
                else:
                    yield index, tried, answer
                    queue.done(index)
        finished = True
    finally:
        if not finished:
            close_all(lanes, kill=True)
