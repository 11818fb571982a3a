"""What runs without anybody asking: re-packs on each card's cron; and the jobs that the schedules start."""

import logging
import re
from typing import TYPE_CHECKING

import dagster as dg

from knonik_assets.configs.card import PROFILES, DatasetCard
from knonik_assets.configs.cards import CardFolder
from knonik_assets.orchestration.inputs import run_tags
from knonik_assets.orchestration.packed_assets import asset_name
from knonik_loader.errors import ConfigError

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

__all__ = ["BUILD_JOB", "REPACK_JOB", "jobs", "repack_schedules"]

BUILD_JOB = "build_dataset"
REPACK_JOB = "repack"

_log = logging.getLogger(__name__)


def jobs() -> "list[UnresolvedAssetJobDefinition]":
    """``build_dataset``: everything for one dataset; ``repack``: its packed profiles and their checks."""
    packed = dg.AssetSelection.assets(*(asset_name(profile) for profile in PROFILES))
    return [
        dg.define_asset_job(
            BUILD_JOB,
            selection=dg.AssetSelection.all(),
            description="From raw recordings to packed datasets, with every check.",
        ),
        dg.define_asset_job(
            REPACK_JOB,
            selection=packed,
            description="Pack again what changed; without changes nothing is written.",
        ),
    ]


def repack_schedules(cards: CardFolder) -> list[dg.ScheduleDefinition]:
    """One schedule for every card that has a cron; a cron that Dagster refuses is logged and costs only its own."""
    made: dict[str, dg.ScheduleDefinition] = {}
    for card in cards.cards.values():
        if card.schedule is None:
            continue
        # Dagster's names have neither dots nor dashes, so that two datasets may want the same one
        schedule = "repack_" + re.sub(r"[^A-Za-z0-9_]", "_", card.name)
        while schedule in made:
            schedule += "_"
        try:
            made[schedule] = _schedule(schedule, card, card.schedule, cards)
        except dg.DagsterInvalidDefinitionError as error:
            _log.warning("%s: schedule: %s", card.path, error)
    return list(made.values())


def _schedule(schedule: str, card: DatasetCard, cron: str, cards: CardFolder) -> dg.ScheduleDefinition:
    name = card.name

    @dg.schedule(
        name=schedule,
        cron_schedule=cron,
        job_name=REPACK_JOB,
        description=f"Packs {name} again when its episodes or its card changed.",
        metadata={"dataset": name},
    )
    def repack(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        try:
            current = cards.card(name)
        except ConfigError as error:
            return dg.SkipReason(str(error))
        if not current.profiles:
            return dg.SkipReason(f"{name} asks for no packed profile")
        # the key makes a tick that is evaluated twice start one run
        key = f"{name} {context.scheduled_execution_time.isoformat()}"
        return dg.RunRequest(run_key=key, partition_key=name, tags=run_tags(current))

    return repack
