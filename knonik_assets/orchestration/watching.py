"""The sensor that looks at raw data and cards, reports what changed, and asks for a run where recordings are new."""

import json
import time
from typing import Any

import dagster as dg

from knonik_assets.configs.card import DatasetCard
from knonik_assets.configs.cards import CardFolder, scan_cards
from knonik_assets.orchestration.automation import BUILD_JOB
from knonik_assets.orchestration.inputs import SEEN, announce, listing, run_tags
from knonik_loader.errors import StorageError

__all__ = ["watch_sensor"]

_BUDGET_S = 30.0
"""A tick that takes longer goes on with the next dataset in the next tick; Dagster ends one after 60 s."""


def watch_sensor(cards: CardFolder) -> dg.SensorDefinition:
    """One sensor for all cards; it is switched on in the UI.

    Its cursor holds, by dataset, the listing seen last: a folder that is still being copied into differs from one look
    to the next, and is left alone until it doesn't.
    """

    @dg.sensor(
        name="watch_datasets",
        job_name=BUILD_JOB,
        minimum_interval_seconds=30,
        description="Builds a dataset when its raw recordings changed and have come to rest; reports changed cards.",
    )
    def watch_datasets(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        state: dict[str, Any] = json.loads(context.cursor) if context.cursor else {}
        seen: dict[str, str] = state.get("seen", {})
        found = scan_cards(cards.path).cards
        known = [name for name in sorted(found) if name in cards.names]  # new cards come with the next reload
        start = known.index(state["next"]) if state.get("next") in known else 0
        wanted, said, following = [], [], None
        deadline = time.monotonic() + _BUDGET_S
        for count, name in enumerate(known[start:] + known[:start]):
            if count and time.monotonic() > deadline:
                following = name
                break
            card = found[name]
            try:
                now = listing(card.raw)
            except StorageError as error:
                said.append(f"{name}: {error}")
                continue
            announce(context.instance, card, now)
            if now == _built_from(context.instance, card):
                pass
            elif now != seen.get(name):
                said.append(f"{name}: changed, waiting for it to come to rest")
            else:
                wanted.append(_request(card, now))
            seen[name] = now
        cursor = json.dumps({"seen": {name: seen[name] for name in known if name in seen}, "next": following})
        skipped = None if wanted else "; ".join(said) or f"nothing new in {len(known)} datasets"
        return dg.SensorResult(run_requests=wanted, skip_reason=skipped, cursor=cursor)

    return watch_datasets


def _built_from(instance: dg.DagsterInstance, card: DatasetCard) -> str | None:
    """The listing that the dataset was last looked at with, whoever started that run."""
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(dg.AssetKey("raw_dataset"), asset_partitions=[card.name]), limit=1
    ).records
    materialisation = records[0].asset_materialization if records else None
    value = materialisation.metadata.get(SEEN) if materialisation is not None else None
    return str(value.value) if value is not None else None


def _request(card: DatasetCard, now: str) -> dg.RunRequest:
    # the key makes one state of the folder start one run, also when that run fails
    return dg.RunRequest(run_key=f"{card.name} raw {now}", partition_key=card.name, tags=run_tags(card))
