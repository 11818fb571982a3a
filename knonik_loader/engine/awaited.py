"""Requests that can be given up: only what an event loop awaits can be cancelled, a call that blocks can't."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["GivenUpError", "Requests"]

T = TypeVar("T")


class GivenUpError(Exception):
    """The request was given up by `Requests.give_up`."""


class Requests:
    """Requests under way, each awaited by the thread that wants its answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._under_way: set[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = set()

    def run(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to a request, which is made inside the loop that awaits it.

        Raises:
            GivenUpError: it was given up, before or while it ran.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._run(ask)
        # A notebook's cell, say: a thread whose loop runs can't run another one.
        with ThreadPoolExecutor(1, "knonik-open") as pool:
            return pool.submit(self._run, ask).result()

    def give_up(self) -> None:
        """End all requests that are under way, and those to come."""
        with self._lock:
            self._closed = True
            for loop, task in self._under_way:
                loop.call_soon_threadsafe(task.cancel)

    def _run(self, ask: Callable[[], Awaitable[T]]) -> T:
        async def awaited() -> T:
            return await ask()

        loop = asyncio.new_event_loop()
        try:
            with self._lock:
                if self._closed:
                    raise GivenUpError
                task = loop.create_task(awaited())
                self._under_way.add((loop, task))
            try:
                return loop.run_until_complete(task)
            except asyncio.CancelledError:
                raise GivenUpError from None
            finally:
                with self._lock:  # `give_up` never sees a closed loop
                    self._under_way.discard((loop, task))
        finally:
            loop.close()
