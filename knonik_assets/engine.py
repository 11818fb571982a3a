"""Map a function over items, inline, in worker processes or on Ray: outcomes come as they end, errors included.

An item never costs another one anything: what its function raises becomes its outcome, and a worker that dies
(``os._exit``, out of memory, a crash inside a library) costs its own item one attempt.
"""

from __future__ import annotations

import os
import select
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from knonik_loader.errors import ConfigError, EpisodeError, KnonikError

__all__ = ["EngineName", "Outcome", "check_call", "default_workers", "map_tasks"]

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
        )
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
    """Call ``fn`` on every item and yield outcomes in the order in which they end.

    Args:
        fn: picklable, and living in a module that imports no orchestration.
        items: picklable; an empty list starts no process.
        engine: ``inline`` (in this thread, one after the other), ``processes`` or ``ray``.
        workers: items worked on at once; None: one a core. Not used by ``inline``.
        attempts: how often an item is tried whose worker dies. What ``fn`` raises is never tried again.
        ray_options: ``address`` and further keywords of ``ray.init``; ``task``: options of every task, such as
            ``{"num_cpus": 2}``.

    Closing the generator early ends the workers and what they are at.

    Raises:
        ConfigError: no such engine, ``workers`` or ``attempts`` below 1, or Ray is not installed.
    """
    todo = list(items)
    check_call(engine, workers, attempts, ray_options)
    return _run(fn, todo, engine, workers, attempts, ray_options or {})


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
    if ray_options and engine != "ray":
        raise ConfigError(f"ray options are for engine ray only, not {engine}; remove them.")
    if engine == "ray":
        _import_ray()


def _run(
    fn: Callable[[Item], Value],
    todo: Sequence[Item],
    engine: EngineName,
    workers: int | None,
    attempts: int,
    ray_options: Mapping[str, Any],
) -> Generator[Outcome[Item, Value], None, None]:
    if not todo:
        return
    answers: Generator[tuple[int, int, _Answer], None, None]
    lanes = min(workers or default_workers(), len(todo))
    if engine == "inline":
        answers = ((index, 1, _attempt(fn, item)) for index, item in enumerate(todo))
    elif engine == "processes":
        answers = _in_processes(fn, todo, lanes, attempts)
    else:
        answers = _on_ray(fn, todo, workers, attempts, ray_options)
    with closing(answers):
        for index, tried, answer in answers:
            yield Outcome(index, todo[index], answer.value, answer.error, tried, answer.details)


# -- processes ---------------------------------------------------------------------------------------------------


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


class _Lane:
    """One worker process at a time, replaced when it died. It is started by the first item it gets."""

    def __init__(self) -> None:
        self._executor: Any = None

    def submit(self, fn: Callable[[Any], Any], item: Any) -> Future[_Answer]:  # noqa: ANN401 - any item
        import loky
        from loky.backend import get_context

        if self._executor is None:
            self._executor = loky.ProcessPoolExecutor(
                max_workers=1, context=get_context("loky"), initializer=_end_with_parent, initargs=(os.getpid(),)
            )
        future: Future[_Answer] = self._executor.submit(_attempt, fn, item)
        return future

    def close(self, *, kill: bool) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=kill)
            self._executor = None


def _in_processes(
    fn: Callable[[Any], Any], todo: Sequence[Any], lanes: int, attempts: int
) -> Generator[tuple[int, int, _Answer], None, None]:
    from concurrent.futures.process import BrokenProcessPool

    waiting = deque((index, 1) for index in range(len(todo)))
    free = [_Lane() for _ in range(lanes)]
    running: dict[Future[_Answer], tuple[_Lane, int, int]] = {}
    finished = False
    try:
        while waiting or running:
            while waiting and free:
                lane, (index, tried) = free.pop(), waiting.popleft()
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
                    waiting.appendleft((index, tried + 1))
                else:
                    yield index, tried, answer
        finished = True
    finally:
        for lane in {*free, *(lane for lane, _, _ in running.values())}:
            lane.close(kill=not finished)


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
    workers: int | None,
    attempts: int,
    options: Mapping[str, Any],
) -> Generator[tuple[int, int, _Answer], None, None]:
    ray = _import_ray()
    started = not ray.is_initialized()
    if started:
        _start_ray(ray, workers, {key: value for key, value in options.items() if key != "task"})
    # max_retries=0: attempts are counted here, as in the other engines
    task = ray.remote(_attempt).options(max_retries=0, **options.get("task", {}))
    deaths = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError)
    waiting = deque((index, 1) for index in range(len(todo)))
    running: dict[Any, tuple[int, int]] = {}
    lanes = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    try:
        while waiting or running:
            while waiting and len(running) < lanes:
                index, tried = waiting.popleft()
                running[task.remote(fn, todo[index])] = (index, tried)
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                index, tried = running.pop(reference)
                try:
                    answer = ray.get(reference)
                except deaths:
                    if tried < attempts:
                        waiting.appendleft((index, tried + 1))
                        continue
                    answer = _died(tried)
                yield index, tried, answer
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if started:
            ray.shutdown()


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
