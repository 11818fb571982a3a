"""What every asset and check needs: the card of its partition, plain failures, progress in Dagster's log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from knonik_assets.configs.card import DatasetCard
from knonik_assets.configs.cards import CardFolder
from knonik_loader.errors import KnonikError, StorageError

__all__ = ["RETRIES", "LogProgress", "card_of", "plain_failures"]

RETRIES = dg.RetryPolicy(max_retries=3, delay=20, backoff=dg.Backoff.EXPONENTIAL)
"""For steps that write: about two minutes for whoever else writes there, or for a network to come back."""

Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext


@contextmanager
def plain_failures() -> Iterator[None]:
    """Errors that Knonik raises on purpose reach the UI as their message.

    Only storage may be better a little later: a share that answers again, another run that lets go of the output.
    """
    try:
        yield
    except KnonikError as error:
        raise dg.Failure(
            description=str(error),
            metadata={"error": type(error).__name__},
            allow_retries=isinstance(error, StorageError),
        ) from error


def card_of(context: Context, cards: CardFolder) -> DatasetCard:
    """The card of the partition that runs, as its file says now.

    Raises:
        ConfigError: the card is broken or gone.
    """
    return cards.card(context.partition_key)


class LogProgress:
    """Writes progress to a log, a line every few seconds at most.

    Args:
        log: Dagster's.
        every_s: seconds between two lines; the first and the last always come.
    """

    def __init__(self, log: logging.Logger, every_s: float = 2.0) -> None:
        self._log = log
        self._every_s = every_s
        self._done = self._total = 0
        self._what = "episodes"
        self._next = 0.0

    def begin(self, total: int, what: str = "episodes", folder: Path | None = None) -> None:
        """So many pieces of work lie ahead."""
        del folder
        self._done, self._total, self._what, self._next = 0, total, what, 0.0
        if total:
            self._log.info("%s: 0 of %d", what, total)

    def advance(self, text: str = "", count: int = 1) -> None:
        """One is done, or several."""
        self._done += count
        if self._done == self._total or time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every_s
            self._log.info("%s: %d of %d%s", self._what, self._done, self._total, f" ({text})" if text else "")

    def end(self) -> None:
        """The work is over."""
