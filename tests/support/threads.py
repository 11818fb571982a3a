"""What a test does in another thread."""

import threading
from collections.abc import Iterator
from typing import Any

from knonik_loader import LoaderClosedError

__all__ = ["asking"]


def asking(batches: Iterator[Any]) -> tuple[threading.Thread, list[str]]:
    """A thread that asks for a batch, and what it is told where the loader is shut down meanwhile."""
    told: list[str] = []

    def ask() -> None:
        try:
            next(batches)
        except LoaderClosedError as error:
            told.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, told
