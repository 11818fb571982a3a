"""Everything that Dagster loads. Light on purpose: nothing that reads or writes data is imported before it runs."""

from __future__ import annotations

import logging
from pathlib import Path

import dagster as dg

from knonik_assets.configs.card import card_folder
from knonik_assets.configs.cards import scan_cards
from knonik_assets.orchestration.assets import episode_assets
from knonik_assets.orchestration.automation import jobs, repack_schedules
from knonik_assets.orchestration.checks import all_checks
from knonik_assets.orchestration.inputs import ANNOUNCED, announcer, input_assets
from knonik_assets.orchestration.packed_assets import packed_assets
from knonik_assets.orchestration.watching import watch_sensor

__all__ = ["build_definitions", "defs"]

_log = logging.getLogger(__name__)


def build_definitions(folder: Path | None = None) -> dg.Definitions:
    """The assets, checks, jobs and schedules over the cards of a folder.

    A broken card keeps its partition, where every asset fails with what is wrong with the card, and takes nothing
    else down.

    Args:
        folder: of the cards; default: see `card_folder`.
    """
    cards = scan_cards(folder or card_folder())
    for problem in cards.problems.values():
        _log.warning("Dataset card cannot be used: %s", problem.error)
    if not cards.names:
        _log.warning("No dataset cards (*.yaml) in %s", cards.path)
    partitions = dg.StaticPartitionsDefinition(cards.names)
    owners = sorted({owner for card in cards.cards.values() for owner in card.owners})
    return dg.Definitions(
        assets=[
            *input_assets(partitions),
            *episode_assets(cards, partitions, owners),
            *packed_assets(cards, partitions, owners),
        ],
        asset_checks=all_checks(cards, partitions),
        jobs=jobs(),
        schedules=repack_schedules(cards),
        sensors=[watch_sensor(cards)],
        resources={ANNOUNCED: announcer(cards)},
        # the work itself is spread over processes by the engine; a process a step would only import everything again
        executor=dg.in_process_executor,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """What ``workspace.yaml`` names."""
    return build_definitions()
