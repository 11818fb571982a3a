"""Map a function over items, inline, in worker processes or on Ray: outcomes come as they end, errors included.

An item never costs another one anything: what its function raises becomes its outcome, and a worker that dies
(``os._exit``, out of memory, a crash inside a library) costs its own item one attempt.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from knonik_loader.errors import ConfigError, EpisodeError, KnonikError

__all__ = ["Engine", "EngineName", "Outcome", "check_call", "default_workers", "map_tasks"]

EngineName = Literal["inline", "processes", "ray"]
Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Item, Value]):
    """What became of one item."""

    index: int
    """Position among the items given."""
    item: Item
    value: Value | None
    """What the function returned; None where it failed."""
    error: KnonikError | None
    attempts: int
    details: str = ""
    """Traceback of an error that nobody meant to raise."""
    died: bool = False
    """The worker died of it, every time."""

    @property
    def ok(self) -> bool:
        """Whether the function returned."""
        return self.error is None


@dataclass(frozen=True, slots=True)
class _Answer:
    """What comes back from a worker: always picklable, whatever the function raised."""

    value: Any = None
    error: KnonikError | None = None
    details: str = ""
    died: bool = False


class _Caught:
    """Holds what its block raised. Ctrl-C and exits pass through."""

    error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.error = error
            return True
        return False


def _attempt(fn: Callable[[Any], Any], item: Any) -> _Answer:  # noqa: ANN401 - any item
    with _Caught() as caught:
        return _Answer(fn(item))
    error = caught.error
    return _Answer(error=error) if isinstance(error, KnonikError) else _unexpected(error)


def _unexpected(error: BaseException | None) -> _Answer:
    details = "".join(traceback.format_exception(error))
    text = " ".join(str(error).split())
    return _Answer(error=EpisodeError(f"unexpected {type(error).__name__}: {text}"), details=details)


def _died(attempts: int) -> _Answer:
    times = "once" if attempts == 1 else f"{attempts} times in a row"
    return _Answer(
        error=EpisodeError(
            f"its worker process died {times} (out of memory, or a crash inside a library); try it alone."
        ),
        died=True,
    )


def default_workers() -> int:
    """Cores this process may use, after affinity and container limits."""
    import loky

    return int(loky.cpu_count())


def map_tasks(
    fn: Callable[[Item], Value],
    items: Iterable[Item],
    *,
    engine: EngineName = "processes",
    workers: int | None = None,
    attempts: int = 2,
    ray_options: Mapping[str, Any] | None = None,
) -> Generator[Outcome[Item, Value], None, None]:
    """Call ``fn`` on every item and yield outcomes in the order in which they end: an `Engine` for one call.

    Closing the generator early ends the workers and what they are at.

    Raises:
        ConfigError: no such engine, ``workers`` or ``attempts`` below 1, or Ray is not installed.
    """
    todo = list(items)
    check_call(engine, workers, attempts, ray_options)
    return _map_once(Engine(engine, workers, ray_options), fn, todo, attempts)


def _map_once(
    engine: Engine, fn: Callable[[Item], Value], todo: Sequence[Item], attempts: int
) -> Generator[Outcome[Item, Value], None, None]:
    with engine, closing(engine.map(fn, todo, attempts=attempts)) as outcomes:
        yield from outcomes


def check_call(
    engine: str, workers: int | None = None, attempts: int = 2, ray_options: Mapping[str, Any] | None = None
) -> None:
    """Refuse what `map_tasks` would refuse, without starting anything.

    Raises:
        ConfigError: see `map_tasks`.
    """
    for name, value in (("workers", workers), ("attempts", attempts)):
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"{name} must be at least 1, a whole number, not {value!r}.")
    if engine not in ("inline", "processes", "ray"):
        raise ConfigError(f"engine must be inline, processes or ray, not {engine!r}.")
    if engine == "inline" and workers is not None and workers > 1:
        raise ConfigError(f"engine inline does one thing at a time: leave out workers ({workers}), or take processes.")
    if ray_options and engine != "ray":
        raise ConfigError(f"ray options are for engine ray only, not {engine}; remove them.")
    if engine == "ray":
        _import_ray()


class Engine:
    """Where work is done. Workers are started by the first work and kept until the block ends.

    Args:
        name: ``inline`` (in this thread, one after the other), ``processes`` or ``ray``.
        workers: items worked on at once; None: one a core. ``inline`` has one.
        ray_options: ``address`` and further keywords of ``ray.init``; ``task``: options of every task, such as
            ``{"num_cpus": 2}``.

    Raises:
        ConfigError: no such engine, ``workers`` below 1, or Ray is not installed.
    """

    def __init__(
        self, name: EngineName = "processes", workers: int | None = None, ray_options: Mapping[str, Any] | None = None
    ) -> None:
        check_call(name, workers, ray_options=ray_options)
        self.name = name
        self._workers = workers
        self._options = dict(ray_options or {})
        self._pool: list[_Lane] = []
        self._ray: Any = None
        self._ray_is_ours = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lane in self._pool:
            lane.close(kill=kind is not None)
        if self._ray_is_ours:
            self._ray.shutdown()
        self._pool, self._ray, self._ray_is_ours = [], None, False

    @property
    def lanes(self) -> int:
        """Items that are worked on at once, where there are enough of them."""
        if self.name == "inline":
            return 1
        if self._workers is not None:
            return self._workers
        if self.name == "ray":
            return max(1, int(self._cluster().cluster_resources().get("CPU", 1)))
        return default_workers()

    def map(
        self, fn: Callable[[Item], Value], items: Sequence[Item], *, attempts: int = 2, ahead: int | None = None
    ) -> Generator[Outcome[Item, Value], None, None]:
        """Call ``fn`` on every item and yield outcomes in the order in which they end.

        Closing the generator early ends the workers and what they are at.

        Args:
            fn: picklable, and living in a module that imports no orchestration.
            items: picklable; an empty list starts no process.
            attempts: how often an item is tried whose worker dies. What ``fn`` raises is never tried again.
            ahead: no item is begun that lies this far behind the first one whose outcome is still to come, so that a
                caller who needs the outcomes in order holds fewer than this many back.
        """
        todo = list(items)
        if not todo:
            return
        queue = _Queue(len(todo), ahead)
        answers: Generator[tuple[int, int, _Answer], None, None]
        if self.name == "inline":
            answers = ((index, 1, _attempt(fn, item)) for index, item in enumerate(todo))
        elif self.name == "processes":
            self._pool += [_Lane() for _ in range(min(self.lanes, len(todo)) - len(self._pool))]
            answers = _in_processes(fn, todo, self._pool, attempts, queue)
        else:
            answers = _on_ray(fn, todo, self._cluster(), self.lanes, attempts, queue, self._options.get("task", {}))
        with closing(answers):
            for index, tried, answer in answers:
                yield Outcome(index, todo[index], answer.value, answer.error, tried, answer.details, answer.died)

    def _cluster(self) -> Any:  # noqa: ANN401 - an optional module
        """Ray, connected."""
        if self._ray is None:
            ray = _import_ray()
            if not ray.is_initialized():
                _start_ray(ray, self._workers, {key: value for key, value in self._options.items() if key != "task"})
                self._ray_is_ours = True
            self._ray = ray
        return self._ray


class _Queue:
    """Which item is begun next, and whether it may be already."""

    def __init__(self, count: int, ahead: int | None) -> None:
        self._waiting = deque((index, 1) for index in range(count))
        self._begun: set[int] = set()
        self._ahead = ahead or count

    def __len__(self) -> int:
        return len(self._waiting) + len(self._begun)

    def take(self) -> tuple[int, int] | None:
        """The next item and how often it will have been tried; None where none may be begun."""
        if not self._waiting:
            return None
        index, _ = self._waiting[0]
        if index - min(self._begun, default=index) >= self._ahead:
            return None
        self._begun.add(index)
        return self._waiting.popleft()

    def again(self, index: int, tried: int) -> None:
        """The item is to be tried once more, before all others."""
        self._begun.remove(index)
        self._waiting.appendleft((index, tried + 1))

    def done(self, index: int) -> None:
        """The item's outcome was handed out."""
        self._begun.remove(index)


# -- processes ---------------------------------------------------------------------------------------------------


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


class _Lane:
    """One worker process at a time, replaced when it died. It is started by the first item it gets."""

    def __init__(self) -> None:
        self._executor: Any = None

    def submit(self, fn: Callable[[Any], Any], item: Any) -> Future[_Answer]:  # noqa: ANN401 - any item
        from concurrent.futures.process import BrokenProcessPool
        from multiprocessing import resource_tracker as multiprocessing_tracker

        import loky
        from loky.backend import get_context, resource_tracker

        future: Future[_Answer]
        if self._executor is not None:
            try:
                future = self._executor.submit(_attempt, fn, item)
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
            future = self._executor.submit(_attempt, fn, item)
        return future

    def close(self, *, kill: bool) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, kill_workers=kill)


def _in_processes(
    fn: Callable[[Any], Any], todo: Sequence[Any], lanes: Sequence[_Lane], attempts: int, queue: _Queue
) -> Generator[tuple[int, int, _Answer], None, None]:
    from concurrent.futures.process import BrokenProcessPool

    free = list(lanes)
    running: dict[Future[_Answer], tuple[_Lane, int, int]] = {}
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
                answer: _Answer | None = None
                if isinstance(error, BrokenProcessPool):
                    lane.close(kill=True)
                    if tried >= attempts:
                        answer = _died(tried)
                elif error is not None:
                    # a function, an item or a result that does not pickle
                    answer = _unexpected(error)
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
        for lane in lanes if not finished else ():
            lane.close(kill=True)


# -- Ray ---------------------------------------------------------------------------------------------------------


def _import_ray() -> Any:  # noqa: ANN401 - an optional module
    try:
        import ray
    except ImportError as error:
        raise ConfigError("engine ray needs Ray: pip install 'knonik[ray]', or use engine processes.") from error
    return ray


def _on_ray(
    fn: Callable[[Any], Any],
    todo: Sequence[Any],
    ray: Any,  # noqa: ANN401 - an optional module
    lanes: int,
    attempts: int,
    queue: _Queue,
    options: Mapping[str, Any],
) -> Generator[tuple[int, int, _Answer], None, None]:
    # max_retries=0: attempts are counted here, as in the other engines
    task = ray.remote(_attempt).options(max_retries=0, **options)
    deaths = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
    running: dict[Any, tuple[int, int]] = {}
    try:
        while queue:
            while len(running) < lanes and (begun := queue.take()) is not None:
                running[task.remote(fn, todo[begun[0]])] = begun
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                index, tried = running.pop(reference)
                try:
                    answer = ray.get(reference)
                except deaths:
                    if tried < attempts:
                        queue.again(index, tried)
                        continue
                    answer = _died(tried)
                except ray.exceptions.RayTaskError as error:
                    # a result that does not pickle: what the function raises is an answer
                    answer = _unexpected(error)
                yield index, tried, answer
                queue.done(index)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _start_ray(ray: Any, workers: int | None, options: Mapping[str, Any]) -> None:  # noqa: ANN401 - an optional module
    """Join the cluster that the options name, or start a private one for the time of this run."""
    settings: dict[str, Any] = {"log_to_driver": False, **options}
    if settings.setdefault("address", "local") == "local":
        settings.setdefault("include_dashboard", False)
        settings.setdefault("num_cpus", workers or default_workers())
    try:
        ray.init(**settings)
    except (ConnectionError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"Ray cannot be reached with {dict(options)}: {' '.join(str(error).split())}") from error
