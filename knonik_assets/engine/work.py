"""What every way of working shares: what is begun next, what comes back, and what an error becomes."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from knonik_loader.errors import EpisodeError, KnonikError

__all__ = ["Answer", "WorkQueue", "attempt", "default_workers", "died", "unexpected"]


@dataclass(frozen=True, slots=True)
class Answer:
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


def attempt(fn: Callable[[Any], Any], item: Any) -> Answer:  # noqa: ANN401 - any item
    """Call a function; what it raises is an answer, too. Ctrl-C and exits pass through."""
    with _Caught() as caught:
        return Answer(fn(item))
    error = caught.error
    return Answer(error=error) if isinstance(error, KnonikError) else unexpected(error)


def unexpected(error: BaseException | None) -> Answer:
    """The answer of an error that nobody meant to raise, with its traceback."""
    details = "".join(traceback.format_exception(error))
    text = " ".join(str(error).split())
    return Answer(error=EpisodeError(f"unexpected {type(error).__name__}: {text}"), details=details)


def died(attempts: int) -> Answer:
    """The answer of an item that its workers died of."""
    times = "once" if attempts == 1 else f"{attempts} times in a row"
    return Answer(
        error=EpisodeError(
            f"its worker process died {times} (out of memory, or a crash inside a library); try it alone."
        ),
        died=True,
    )


def default_workers() -> int:
    """Cores this process may use, after affinity and container limits."""
    import loky

    return int(loky.cpu_count())


class WorkQueue:
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
