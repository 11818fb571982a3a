"""What the assets are made from but Dagster doesn't make: the blocks of a card, and the raw files.

Each is an external asset whose data version is reported at the beginning of every run and by the sensor, so that a
change makes stale exactly what depends on it.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_TAG, extract_data_version_from_entry

from knonik_assets.configs.card import PROFILES, DatasetCard
from knonik_assets.configs.cards import CardFolder
from knonik_assets.sources.remote.listing import state_at
from knonik_assets.storage import Place
from knonik_loader.errors import ConfigError, StorageError

__all__ = [
    "ANNOUNCED",
    "INPUTS",
    "SEEN",
    "announce",
    "announcer",
    "input_assets",
    "input_key",
    "input_versions",
    "listing",
    "run_tags",
]

ANNOUNCED = "card_versions"
"""Resource that every asset asks for, so that versions are reported before its step begins."""

SEEN = "raw_listing"
"""Metadata of ``raw_dataset``: digest of the listing that it was made from."""

_SOURCE_KEYS = ("dir_type", "data_type", "demos", "streams", "timestamps", "msg_path", "layout", "strict")
"""Keys of the ingest block that decide what is found in the raw data."""

_PACKED_CHECKS = {"psnr_floor", "max_packed_gb"}
"""Thresholds of checks that look at packed datasets: they decide about no episode."""

INPUTS: Mapping[str, str] = {
    "raw_files": "Names, sizes and times of change of the raw files.",
    "source": "Card: where the raw data lies, and how it is read.",
    "ingest": "Card: how episodes are written.",
    "checks": "Card: thresholds of the checks, and how much a failure weighs.",
    "config": "Card: answers to what recordings cannot say.",
    "exclude": "Card: episodes that are left out.",
    **{f"pack_{profile}": f"Card: options of {profile}." for profile in PROFILES},
}
"""Input → what it is."""


def input_key(name: str) -> dg.AssetKey:
    """The external asset of an input."""
    return dg.AssetKey(["inputs", name])


def input_assets(partitions: dg.PartitionsDefinition[str]) -> list[dg.AssetSpec]:
    """An external asset for every input, with the cards as partitions."""
    return [
        dg.AssetSpec(input_key(name), description=text, group_name="inputs", partitions_def=partitions)
        for name, text in INPUTS.items()
    ]


def listing(root: Place | Path) -> str:
    """Digest of the names, sizes and times of change of all files below a folder: cheap, and enough to see a change.

    Of an object store: names, sizes and etags.

    Raises:
        StorageError: an object store cannot be asked.
    """
    place = Place.of(root, "raw")
    return state_at(place) if place.is_remote else _listed(place.path)


def _listed(root: Path) -> str:
    digest = hashlib.sha256()
    if root.is_file():
        status = root.stat()
        digest.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            try:
                status = path.stat()
            except OSError:
                continue  # gone meanwhile, or a link to nowhere: the next look tells
            said = f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n"
            digest.update(said.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def input_versions(card: DatasetCard, raw: str | None = None) -> dict[str, str]:
    """Input → digest of what it says now; ``raw``: the listing, where it is known already."""
    ingest = dict(card.ingest)
    blocks: dict[str, Any] = {
        "source": [str(card.raw), {key: ingest.get(key) for key in _SOURCE_KEYS}],
        "ingest": [str(card.episodes), ingest],
        "checks": [card.checks.model_dump(mode="json", exclude=_PACKED_CHECKS), card.config.get("roles")],
        "config": card.config,
        "exclude": card.exclude,
        **{f"pack_{profile}": [str(card.packed), card.name, card.pack.get(profile)] for profile in PROFILES},
    }
    return {"raw_files": raw or listing(card.raw), **{name: _digest(block) for name, block in blocks.items()}}


def announce(instance: dg.DagsterInstance, card: DatasetCard, raw: str | None = None) -> list[str]:
    """Report the versions that changed since they were last reported; returns the inputs that did.

    Raises:
        StorageError: raw data in an object store cannot be listed.
    """
    changed = []
    for name, version in input_versions(card, raw).items():
        record = instance.get_latest_data_version_record(input_key(name), is_source=True, partition_key=card.name)
        known = extract_data_version_from_entry(record.event_log_entry) if record is not None else None
        if known is not None and known.value == version:
            continue
        changed.append(name)
        said: dict[str, Any] = {"partition": card.name, "tags": {DATA_VERSION_TAG: version}}
        # Staleness reads an external asset's observations, automation asks whether it was materialised, and when. In
        # this order: a step that reads the input remembers the materialisation, and a later observation makes it stale.
        instance.report_runless_asset_event(dg.AssetObservation(input_key(name), **said))
        instance.report_runless_asset_event(dg.AssetMaterialization(input_key(name), **said))
    return changed


def announcer(cards: CardFolder) -> dg.ResourceDefinition:
    """The resource that reports the versions of a run's card before any step begins."""

    @dg.resource(description="Reports what the card and the raw files are like when a run begins.")
    def card_versions(context: dg.InitResourceContext) -> None:
        name = context.run.tags.get("dagster/partition") if context.run is not None else None
        if name is None or context.run is None or context.instance is None:
            return
        try:
            card = cards.card(name)
            _tag(context.instance, context.run, card)
            announce(context.instance, card)
        except (ConfigError, StorageError):
            return  # the assets fail with what is wrong with it

    return card_versions


def _tag(instance: dg.DagsterInstance, run: dg.DagsterRun, card: DatasetCard) -> None:
    """Give a run that was started by hand the tags that schedules and the sensor give theirs."""
    missing = {key: value for key, value in run_tags(card).items() if key not in run.tags}
    if missing and instance.has_run(run.run_id):
        instance.add_run_tags(run.run_id, missing)


def run_tags(card: DatasetCard) -> dict[str, str]:
    """What runs of a dataset are found by in the UI."""
    return {"dataset": card.name, **card.tags}


def _digest(block: Any) -> str:  # noqa: ANN401 - values of a card
    return hashlib.sha256(json.dumps(block, sort_keys=True, default=str).encode()).hexdigest()
