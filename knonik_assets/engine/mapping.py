"""Map a function over items, inline, in worker processes or on Ray: outcomes come as they end, errors included.

An item never costs another one anything: what its function raises becomes its outcome, and a worker that dies
(``os._exit``, out of memory, a crash inside a library) costs its own item one attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from knonik_assets.engine.cluster import import_ray, on_ray, start_ray
from knonik_assets.engine.processes import Lane, close_all, in_processes
from knonik_assets.engine.work import Answer, WorkQueue, attempt, default_workers
from knonik_loader.errors import ConfigError, KnonikError

__all__ = ["Engine", "EngineName", "Outcome", "check_call", "map_tasks"]

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
        import_ray()


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
        self._pool: list[Lane] = []
        self._ray: Any = None
        self._ray_is_ours = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_all(self._pool, kill=kind is not None)
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
        queue = WorkQueue(len(todo), ahead)
        answers: Generator[tuple[int, int, Answer], None, None]
        if self.name == "inline":
            answers = ((index, 1, attempt(fn, item)) for index, item in enumerate(todo))
        elif self.name == "processes":
            self._pool += [Lane() for _ in range(min(self.lanes, len(todo)) - len(self._pool))]
            answers = in_processes(fn, todo, self._pool, attempts, queue)
        else:
            answers = on_ray(fn, todo, self._cluster(), self.lanes, attempts, queue, self._options.get("task", {}))
        with closing(answers):
            for index, tried, answer in answers:
                yield Outcome(index, todo[index], answer.value, answer.error, tried, answer.details, answer.died)

    def _cluster(self) -> Any:  # noqa: ANN401 - an optional module
        """Ray, connected."""
        if self._ray is None:
            ray = import_ray()
            if not ray.is_initialized():
                start_ray(ray, self._workers, {key: value for key, value in self._options.items() if key != "task"})
                self._ray_is_ours = True
            self._ray = ray
        return self._ray
