"""The engine: plans become batches, by threads that share one lock and one way to end.

    feeder ── jobs ──> fetchers ── tasks ──> decoders ──> (augmenters) ──> batches in order ──> the iterator

The feeder starts as many batches ahead as ``precollate_batches`` says. A batch is one `BatchWork` whose arrays decode
threads fill in place; it is ready when nothing pending writes into it any more. Threads hold the run, never its user:
an abandoned iterator is collected, and its finalizer ends the run.
"""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from knonik_loader.engine.augment import AugmentFn, augment_sample
from knonik_loader.engine.augment_process import WorkerProcess
from knonik_loader.engine.caught import Caught
from knonik_loader.engine.decode import Decoder
from knonik_loader.engine.fetch import DecodeTask, Fetched, fetch
from knonik_loader.engine.repair import repair
from knonik_loader.engine.shared import Engine, EngineOptions
from knonik_loader.engine.work import TIMES, BatchWork, Failure, FileJob, divide, start_batch
from knonik_loader.errors import LoaderClosedError
from knonik_loader.plan.types import BatchPlan

__all__ = ["Engine", "EngineOptions", "Run"]


_live: weakref.WeakSet[Run] = weakref.WeakSet()


class Run:
    """The batches of one pass, from ``start`` to ``stop``, made ahead by threads."""

    def __init__(self, engine: Engine, epoch: int, start: int, stop: int) -> None:
        self._engine = engine
        self._epoch = epoch
        self._stop = stop
        self._pid = os.getpid()
        # An RLock: a finalizer may run anywhere, even in one of these threads while it holds the lock.
        self._lock = threading.RLock()
        self._feed, self._fetchable, self._decodable, self._augmentable, self._finished = (
            threading.Condition(self._lock) for _ in range(5)
        )
        self._jobs: deque[FileJob] = deque()
        self._tasks: deque[DecodeTask] = deque()
        self._samples: deque[tuple[BatchWork, int]] = deque()
        self._batches: deque[BatchWork] = deque()
        self._shards_waiting = 0
        self._reading: Counter[tuple[int, int]] = Counter()
        self._workers: set[WorkerProcess] = set()
        self._consumers = 0
        self._planned = self._next = self._wanted = start
        self._turn = 0
        self._memory = engine.memory.begin()
        self._foresight = engine.foresight(epoch, start, stop)
        self._closed = False
        self._reason = ""
        self._fatal: BaseException | None = None
        self._threads: list[threading.Thread] = []
        _live.add(self)

    def start(self) -> None:
        """Start the threads; batches are made ahead from now on."""
        options, engine = self._engine.options, self._engine
        stages: list[tuple[str, int, Callable[[], AbstractContextManager[Callable[[], bool]]]]] = [
            ("feed", 1, lambda: nullcontext(self._feed_one)),
            ("fetch", options.fetchers, lambda: nullcontext(self._fetch_one)),
            (
                "decode",
                options.decoders,
                lambda: nullcontext(
                    functools.partial(self._decode_one, Decoder(engine.sources, options.verify, engine.cache))
                ),
            ),
            ("augment", options.augment_threads, self._augmenting),
        ]
        for name, count, make in stages:
            for number in range(count):
                # Daemons, because a read from a stalled disk or network can't be interrupted at the interpreter's end.
                thread = threading.Thread(target=_repeat, args=(make,), name=f"knonik-{name}-{number}", daemon=True)
                self._threads.append(thread)
                thread.start()

    @property
    def step(self) -> int:
        """Batches of the pass that were handed out or raised."""
        return self._next

    def next(self) -> dict[str, Any] | None:
        """The next batch, None after the last; the error of a batch that failed, after which the next one follows.

        Raises:
            KnonikError: of this batch.
            LoaderClosedError: the run was closed.
        """
        began = time.perf_counter()
        with self._lock:
            self._consumers += 1
            try:
                self._await_batch()
            finally:
                self._consumers -= 1
            if self._next >= self._stop:
                return None
            if self._closed:
                raise LoaderClosedError(f"this pass has ended: {self._reason}.")
            if not self._batches:
                raise self._fatal or LoaderClosedError("nothing is left to hand out.")
            work = self._batches.popleft()
            self._next += 1
            ready = sum(1 for batch in self._batches if batch.ready)
            self._feed.notify()
            if self._consumers:
                self._finished.notify_all()  # the next batch may be ready as well, or there is none any more
        if not work.failures and work.result is None:
            self._augment_inline(work)
        if work.error is not None or work.result is None:
            self._engine.stats.failed()
            raise work.error or LoaderClosedError("the batch was not finished.")
        self._engine.stats.handed_out(len(work.plan), time.perf_counter() - began, ready)
        self._report(self._next >= self._stop)
        return work.result

    def _await_batch(self) -> None:
        """Wait for a batch or the end; several threads may, and each batch goes to one of them."""
        while self._next < self._stop and not self._closed:
            self._wanted = max(self._wanted, self._next + self._consumers)
            self._feed.notify()
            if self._may_hand_out():
                return
            self._finished.wait()

    def _report(self, now: bool) -> None:
        """Write a line of metrics when one is due."""
        engine = self._engine
        if engine.metrics is not None and engine.metrics.due(now):
            engine.metrics.write(engine.snapshot(self._epoch, self._next))

    def close(self, reason: str = "its iterator was dropped") -> None:
        """Make every thread end after what it is doing; returns at once. Safe to call from anywhere, repeatedly.

        Args:
            reason: what threads that still ask for batches are told.
        """
        if self._pid != os.getpid():
            return  # a forked copy: the threads, and whoever holds the lock, live in the parent
        with self._lock:
            if not self._closed:
                self._reason = reason
            self._closed = True
            for worker in self._workers:
                worker.interrupt()
            for queue in (self._jobs, self._tasks, self._samples, self._batches):
                queue.clear()
            for condition in (self._feed, self._fetchable, self._decodable, self._augmentable, self._finished):
                condition.notify_all()

    def join(self, deadline: float) -> bool:
        """Wait for the threads until a `time.monotonic` deadline; whether all have ended."""
        if self._pid != os.getpid():
            return True
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    # The stages, one step each: wait for work or the end under the lock, then work without it. What a step refers to is
    # gone when it returns, so that a waiting thread keeps no batch memory alive. False: the thread ends.

    def _wait(self, stage: str, condition: threading.Condition, ready: Callable[[], object], queued: int) -> bool:
        """Wait under the lock until there is something to do; False: the run has ended."""
        began = time.perf_counter()
        while not self._closed and not ready():
            condition.wait()
        self._engine.stats.waited(stage, time.perf_counter() - began, queued)
        return not self._closed

    def _feed_one(self) -> bool:
        options = self._engine.options
        with self._lock:
            # The feeder also wakes, and leaves, at the end of the pass.
            if not self._wait(
                "plan",
                self._feed,
                lambda: self._planned >= self._stop or self._planned < self._wanted + options.ahead,
                len(self._batches),
            ):
                return False
            if self._planned >= self._stop:
                return False
            first = self._planned
            count = min(options.window, self._stop - first)
            self._planned += count
        with Caught() as caught:
            self._start_window(first, count)
        if caught.error is None:
            return True
        with self._lock:
            self._fatal = caught.error
            self._finished.notify_all()
        return False

    def _start_window(self, first: int, count: int) -> None:
        engine = self._engine
        began = time.perf_counter()
        works = []
        for step in range(first, first + count):
            plan = self._plan(step)
            engine.stats.planned(plan)
            works.append(start_batch(plan, engine.sources, engine.streams, self._memory, self._turn))
            self._turn += 1
        jobs = divide(works, engine.sources, engine.streams, engine.options.job_shards)
        engine.stats.stage("plan", time.perf_counter() - began, count)
        with self._lock:
            if self._closed:
                return
            for job in jobs:
                for slot in job.slots:
                    works[slot].pending += 1
            self._batches.extend(works)
            self._jobs.extend(jobs)
            self._fetchable.notify_all()

    def _plan(self, step: int) -> BatchPlan:
        if self._foresight is None:
            return self._engine.plan(self._epoch, step)
        return self._foresight.plan(step, self._next)

    def _may_hand_out(self) -> bool:
        return self._batches[0].ready if self._batches else self._fatal is not None

    def _may_fetch(self) -> bool:
        if not self._jobs:
            return False
        options, job = self._engine.options, self._jobs[0]
        file = (job.dataset, job.hlp)
        if options.files is not None and file not in self._reading and len(self._reading) >= options.files:
            return False
        return self._shards_waiting == 0 or len(job.shards) <= options.shards_ahead - self._shards_waiting

    def _fetch_one(self) -> bool:
        engine = self._engine
        with self._lock:
            if not self._wait("fetch", self._fetchable, self._may_fetch, len(self._jobs)):
                return False
            job = self._jobs.popleft()
            file = (job.dataset, job.hlp)
            self._shards_waiting += len(job.shards)
            self._reading[file] += 1
        began = time.perf_counter()
        found = Fetched([])
        with Caught() as caught:
            found = fetch(job, engine.sources[job.dataset], engine.policy, engine.cache)
            engine.stats.stage("fetch", time.perf_counter() - began, bytes_read=found.bytes, reads=found.reads)
        tasks = found.tasks
        with self._lock:
            if self._closed:
                return False
            if caught.error is not None:
                job.fail(caught.error)
            for group, error in found.failed:
                group.fail(job.works, error)
            for task in tasks:
                for slot in task.slots:
                    task.works[slot].pending += 1
            self._tasks.extend(tasks)
            self._decodable.notify(len(tasks))
            self._reading[file] -= 1
            if not self._reading[file]:
                del self._reading[file]
                self._fetchable.notify_all()
            self._release(len(job.shards) if not tasks else 0)
        self._settle(job.works, job.slots)
        return True

    def _release(self, shards: int) -> None:
        if shards:
            self._shards_waiting -= shards
            self._fetchable.notify_all()

    def _decode_one(self, decoder: Decoder) -> bool:
        with self._lock:
            if not self._wait("decode", self._decodable, self._tasks.__len__, len(self._tasks)):
                return False
            task = self._tasks.popleft()
            self._release(task.shards)
        began = time.perf_counter()
        frames = 0
        with Caught() as caught:
            frames = decoder.run(task)
        self._engine.stats.stage("decode", time.perf_counter() - began, frames=frames)
        if caught.error is not None:
            with self._lock:
                for group in task.groups:
                    group.fail(task.works, caught.error)
        self._settle(task.works, task.slots)
        return True

    def _settle(self, works: Sequence[BatchWork], slots: Sequence[int]) -> None:
        """Something that wrote into these batches is done; those for which it was the last go on."""
        whole = []
        with self._lock:
            for slot in slots:
                works[slot].pending -= 1
                if not works[slot].pending:
                    whole.append(works[slot])
        for work in whole:
            self._complete(work)

    def _complete(self, work: BatchWork) -> None:
        """All frames are there, or have failed."""
        options, assembler = self._engine.options, self._engine.assembler
        if work.failures and self._mend(work):
            return
        if work.failures or (options.augment_fn is not None and not options.augment_threads):
            self._publish(work)
            return
        if options.augment_fn is None:
            self._finish(work, functools.partial(assembler.batch, work))
            return
        with Caught() as caught:
            work.samples = list(assembler.samples(work))
        with self._lock:
            if caught.error is not None:
                work.failures.append(_of_the_batch(caught.error))
                self._publish(work)
                return
            work.pending = len(work.samples)
            self._samples.extend((work, position) for position in range(len(work.samples)))
            self._augmentable.notify_all()

    def _mend(self, work: BatchWork) -> bool:
        """Read substitutes for the samples that failed, where that was asked for; whether they are on their way."""
        jobs: list[FileJob] = []
        with Caught() as caught:
            jobs = repair(work, self._engine)
        with self._lock:
            if caught.error is not None:
                work.failures.append(_of_the_batch(caught.error))
            work.pending += sum(len(job.slots) for job in jobs)
            if not self._closed:
                # First of all that is to be read, as the batch may be the next one that is asked for.
                self._jobs.extendleft(reversed(jobs))
                self._fetchable.notify_all()
        return bool(jobs)

    def _finish(self, work: BatchWork, make: Callable[[], dict[str, Any]]) -> None:
        began = time.perf_counter()
        with Caught() as caught:
            work.result = make()
        if caught.error is not None:
            work.failures.append(_of_the_batch(caught.error))
        self._engine.stats.stage("assemble", time.perf_counter() - began)
        self._publish(work)

    def _publish(self, work: BatchWork) -> None:
        with self._lock:
            work.ready = True
            self._finished.notify_all()

    @contextmanager
    def _augmenting(self) -> Iterator[Callable[[], bool]]:
        """What a thread of the augment stage repeats: the function here, or a worker process that has it."""
        pool = self._engine.processes
        if pool is None:
            yield functools.partial(self._augment_one, self._engine.options.augment_fn)
            return
        with pool.borrow() as worker:
            with self._lock:
                self._workers.add(worker)
            yield functools.partial(self._augment_one, worker)
            with self._lock:
                self._workers.discard(worker)

    def _augment_one(self, function: AugmentFn | None) -> bool:
        engine = self._engine
        with self._lock:
            if not self._wait("augment", self._augmentable, self._samples.__len__, len(self._samples)):
                return False
            if function is None:
                return False
            work, position = self._samples.popleft()
        began = time.perf_counter()
        with Caught() as caught:
            work.samples[position] = augment_sample(function, work.samples[position], work.plan.step, position)
        engine.stats.stage("augment", time.perf_counter() - began)
        with self._lock:
            if self._closed:
                # It is for nobody. Kept, it would hold this frame, and so the run, the engine and idle workers, in a
                # circle until the collector comes by.
                caught.error = None
                return False
            if caught.error is not None:
                work.failures.append(Failure(frozenset({position}), 0, caught.error))
            work.pending -= 1
            last = work.pending == 0
        if last and work.failures:
            self._publish(work)
        elif last:
            self._finish(work, functools.partial(engine.assembler.collate, work, work.samples))
        return True

    def _augment_inline(self, work: BatchWork) -> None:
        function = self._engine.options.augment_fn
        if function is None:
            return
        began = time.perf_counter()
        samples = [
            augment_sample(function, sample, work.plan.step, position)
            for position, sample in enumerate(self._engine.assembler.samples(work))
        ]
        self._engine.stats.stage("augment", time.perf_counter() - began, len(samples))
        work.result = self._engine.assembler.collate(work, samples)


def _repeat(make: Callable[[], AbstractContextManager[Callable[[], bool]]]) -> None:
    with make() as step:
        while step():
            pass


def _of_the_batch(error: BaseException) -> Failure:
    """Something that went wrong with a batch as a whole."""
    return Failure(frozenset(), TIMES, error)


@atexit.register
def _end_all() -> None:
    """Let the threads of runs that nobody ended finish what they do before the interpreter takes itself apart."""
    runs = list(_live)
    for run in runs:
        run.close()
        for source in run._engine.sources:
            source.dataset.close()  # gives up what hangs in a stalled network
    deadline = time.monotonic() + 2
    for run in runs:
        run.join(deadline)
