"""Results of slow calls, one after another, worked out on other threads while the ones before them are used."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import loky

__all__ = ["read_ahead"]

_T = TypeVar("_T")
_MOST_THREADS = 4
"""Several streams are read at once anyway."""


def read_ahead(calls: Iterable[Callable[[], _T]], held: int) -> Generator[_T, None, None]:
    """What each call returns, in their order; an error comes behind the results before it.

    Args:
        calls: safe on any thread; taken one after another.
        held: calls that are begun and not yet given out at most. Below 2 everything happens in this thread.

    Raises:
        Whatever a call does. No call runs any more when this generator has ended.
    """
    threads = min(held, _MOST_THREADS, int(loky.cpu_count()))
    if held < 2:
        for call in calls:
            yield call()
        return
    waiting: deque[Future[_T]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="read-ahead") as pool:
        try:
            for call in calls:
                waiting.append(pool.submit(call))
                if len(waiting) >= held:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for task in waiting:
                task.cancel()
