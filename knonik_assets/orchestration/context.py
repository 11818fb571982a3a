"""What every asset and check needs: the card of its partition, plain failures, progress in Dagster's log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from knonik_assets.configs.card import PROFILES, DatasetCard
from knonik_assets.configs.cards import CardFolder
from knonik_assets.quality.versions import ROWS_VERSION, SUITE_VERSION
from knonik_loader.errors import KnonikError, StorageError

__all__ = ["CODE_VERSIONS", "RETRIES", "LogProgress", "card_of", "observation", "plain_failures"]

CODE_VERSIONS = {
    "raw_dataset": "1",
    "ingested_episodes": f"1.{ROWS_VERSION}.{SUITE_VERSION}",
    "dataset_config": "1",
    **{f"khlp_{profile}": "1" for profile in PROFILES},
}
"""Asset → version of its stage; counted up when the same input gives another result, which makes the asset stale."""

RETRIES = dg.RetryPolicy(max_retries=3, delay=20, backoff=dg.Backoff.EXPONENTIAL)
"""For steps that write: about two minutes for whoever else writes there, or for a network to come back."""

_GUESS_S = 10.0
"""Seconds of work before the pace says something, and of what is left that is worth a word."""

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
    """Writes progress to a log, a line every few seconds at most, and reports it as metadata now and then.

    Args:
        log: Dagster's.
        every_s: seconds between two lines; the first and the last always come.
        report: takes metadata about the progress, see `observation`; None: nobody wants it.
        report_every_s: seconds between two reports; work that takes less is not reported at all.
        clock: seconds.
    """

    def __init__(
        self,
        log: logging.Logger,
        every_s: float = 2.0,
        report: Callable[[dict[str, str | int | float]], None] | None = None,
        report_every_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._every_s = every_s
        self._report = report
        self._report_every_s = report_every_s
        self._clock = clock
        self._done = self._total = 0
        self._what = "episodes"
        self._began = self._next = self._next_report = 0.0

    def begin(self, total: int, what: str = "episodes", folder: Path | None = None) -> None:
        """So many pieces of work lie ahead."""
        del folder
        self._done, self._total, self._what, self._next = 0, total, what, 0.0
        self._began = self._clock()
        self._next_report = self._began + self._report_every_s
        if total:
            self._log.info("%s: 0 of %d", what, total)

    def advance(self, text: str = "", count: int = 1) -> None:
        """One is done, or several."""
        self._done += count
        now = self._clock()
        if self._done == self._total or now >= self._next:
            self._next = now + self._every_s
            said = f" ({text})" if text else ""
            self._log.info("%s: %d of %d%s%s", self._what, self._done, self._total, said, self._forecast(now))
        if self._report is not None and now >= self._next_report and self._done < self._total:
            self._next_report = now + self._report_every_s
            self._report(
                {
                    "progress": f"{self._done} of {self._total} {self._what}{self._forecast(now)}",
                    "percent": round(100 * self._done / self._total, 1),
                    "per_minute": round(60 * self._done / (now - self._began), 2),
                }
            )

    def end(self) -> None:
        """The work is over."""

    def _forecast(self, now: float) -> str:
        """How long the rest takes at the pace so far; nothing while that is a guess, or for a short while."""
        passed = now - self._began
        left = passed / max(self._done, 1) * (self._total - self._done)
        return f", about {_span(left)} left" if passed >= _GUESS_S and left >= _GUESS_S else ""


def observation(context: dg.AssetExecutionContext) -> Callable[[dict[str, str | int | float]], None]:
    """Reports progress as observations of the asset, which its page shows while the run goes on."""

    def report(metadata: dict[str, str | int | float]) -> None:
        context.log_event(dg.AssetObservation(context.asset_key, partition=context.partition_key, metadata=metadata))

    return report


def _span(seconds: float) -> str:
    """A while, as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
