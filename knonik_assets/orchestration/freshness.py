"""How old a dataset may become before Dagster calls it overdue."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise

import dagster as dg
from dagster._utils.schedules import cron_string_iterator

from knonik_assets.configs.card import DatasetCard
from knonik_assets.configs.cards import CardFolder
from knonik_loader.khlp.types import StorageProfile

__all__ = ["Freshness", "freshness", "longest_pause"]

_TICKS = 100
"""Of a schedule, to see its longest pause: a quarter of a year of nights, years of months."""
_SLACK = 1.25
"""A re-pack is overdue a quarter of the pause after it was due."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """What Dagster is told of one asset."""

    policy: dg.FreshnessPolicy | None = None
    """None: the asset is never overdue."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """For the asset's page: the limit, and whose it is."""


def freshness(cards: CardFolder, profile: StorageProfile | None = None) -> Freshness:
    """The limit of an asset: the shortest time that any card allows, as Dagster judges an asset, not its partitions.

    Args:
        cards: of all datasets.
        profile: of a packed asset; only cards that ask for it count, and their schedules do too.
    """
    limits = [
        (*limit, name)
        for name, card in cards.cards.items()
        if profile is None or profile in card.pack
        for limit in [_limit(card, packed=profile is not None)]
        if limit is not None
    ]
    if not limits:
        return Freshness()
    hours, key, name = min(limits)
    said = f"{hours:g} hours after the newest build of any dataset"
    whose = (
        f"the shortest of {len(limits)} cards' limits: {key} of {name!r}" if len(limits) > 1 else f"{key} of {name!r}"
    )
    return Freshness(
        dg.FreshnessPolicy.time_window(fail_window=datetime.timedelta(hours=hours)), {"overdue": f"{said} ({whose})"}
    )


def longest_pause(cron: str) -> float:
    """Hours between two ticks of a schedule, where they are furthest apart."""
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC).timestamp()
    ticks = islice(cron_string_iterator(start, cron, "UTC"), _TICKS)
    return max((after - before).total_seconds() / 3600 for before, after in pairwise(ticks))


def _limit(card: DatasetCard, *, packed: bool) -> tuple[float, str] | None:
    """Hours, and the key of the card that says so."""
    if card.fresh_hours is not None:
        return card.fresh_hours, "fresh_hours"
    if packed and card.schedule is not None:
        return _SLACK * longest_pause(card.schedule), f"schedule {card.schedule!r}"
    return None
