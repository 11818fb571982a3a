"""How old a dataset may become before Dagster calls it overdue."""

import datetime
from itertools import islice, pairwise

import dagster as dg
from dagster._utils.schedules import cron_string_iterator

from knonik_assets.configs.card import DatasetCard
from knonik_assets.configs.cards import CardFolder
from knonik_loader.khlp.types import StorageProfile

__all__ = ["freshness_policy", "longest_pause"]

_TICKS = 100
"""Of a schedule, to see its longest pause: a quarter of a year of nights, years of months."""
_SLACK = 1.25
"""A re-pack is overdue a quarter of the pause after it was due."""


def freshness_policy(cards: CardFolder, profile: StorageProfile | None = None) -> dg.FreshnessPolicy | None:
    """The policy of an asset: the shortest time that any card allows, as Dagster judges an asset, not its partitions.

    Args:
        cards: of all datasets.
        profile: of a packed asset; only cards that ask for it count, and their schedules do too.
    """
    hours = [
        limit
        for card in cards.cards.values()
        if profile is None or profile in card.pack
        for limit in [_hours(card, packed=profile is not None)]
        if limit is not None
    ]
    if not hours:
        return None
    return dg.FreshnessPolicy.time_window(fail_window=datetime.timedelta(hours=min(hours)))


def longest_pause(cron: str) -> float:
    """Hours between two ticks of a schedule, where they are furthest apart."""
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC).timestamp()
    ticks = islice(cron_string_iterator(start, cron, "UTC"), _TICKS)
    return max((after - before).total_seconds() / 3600 for before, after in pairwise(ticks))


def _hours(card: DatasetCard, *, packed: bool) -> float | None:
    if card.fresh_hours is not None:
        return card.fresh_hours
    return _SLACK * longest_pause(card.schedule) if packed and card.schedule is not None else None
