"""The checks of every asset: what a person would look at before trusting a dataset."""

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from knonik_assets.configs.card import EPISODE_CHECKS, PROFILES, DatasetCard
from knonik_assets.configs.cards import CardFolder
from knonik_assets.orchestration.assets import excluded, left_out
from knonik_assets.orchestration.context import card_of, plain_failures
from knonik_assets.orchestration.packed_assets import asset_name, not_packed
from knonik_assets.orchestration.raw import observe
from knonik_assets.orchestration.show import table
from knonik_assets.quality.finding import Finding, some
from knonik_loader.khlp.types import StorageProfile

if TYPE_CHECKING:
    from knonik_assets.quality.judge import CheckOutcome, Quality

__all__ = ["all_checks"]

Partitions = dg.PartitionsDefinition[str]
ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
Answers = Mapping[str, tuple[dg.AssetCheckSeverity, Callable[[], Finding]]]
"""Check → how much its failure weighs, and what finds out."""

_FRAMES_SHOWN = 5
"""Frames of an episode that a check's table names; quality.html has more of them."""

_RAW = {
    "readable": "The raw recordings can be listed and opened.",
    "not_empty": "There is at least one episode.",
    "layout_found": "Everything that the card's layout names is in the recordings.",
}
_EPISODES = {
    "every_raw_episode_present": "Every raw episode was ingested.",
    "no_frames_cut": "Every frame of every recorded stream is in its episode: none had to be cut to the shortest.",
    "has_frames": "Every episode has enough frames.",
    "timestamps_increase": "Every clock runs strictly forward.",
    "no_gaps": "No clock leaps over frames.",
    "steady_clock": "Clocks tick evenly.",
    "same_shape": "Streams, resolutions and dimensions are those of the other episodes.",
    "finite_values": "No number is NaN or infinite.",
    "cameras_alive": "No camera is black, and none stands still while the robot moves.",
    "cameras_lit": "No camera is mostly white.",
    "cameras_sharp": "No camera is less sharp than in the other episodes.",
    "channels_alive": "Every channel of action and state moves.",
    "action_follows_state": "Action and state agree on average.",
    "no_duplicates": "No recording is there twice; a second one could stand in another split.",
    "checksums": "Every file is as it was written.",
    "fit_to_pack": "Some episodes are good, and no bad one stops the packing: the one check that decides it.",
}
_CONFIG = {
    "schema_valid": "The dataset config reads as one.",
    "streams_agree": "The dataset config names the streams that the episodes have.",
    "no_placeholders": "Nothing is left to be filled in.",
}
_PACKED = {
    "frames_conserved": "Every frame of every stream of every good episode is packed, and nothing else.",
    "intact": "Every file and payload has its checksum.",
    "psnr": "Pictures are as close to the episodes' as the profile promises.",
    "loadable": "A loader reads a batch whose numbers are the episodes'.",
    "size": "The dataset is no larger than the card allows.",
}


def all_checks(cards: CardFolder, partitions: Partitions) -> list[dg.AssetChecksDefinition]:
    """A definition an asset, which runs all or some of that asset's checks in one step."""
    return [
        _checks("raw_dataset", _RAW, cards, partitions, _raw, blocking=tuple(_RAW)),
        # one of them decides: automation lets nothing past a blocking check that failed, not even with a warning
        _checks("ingested_episodes", _EPISODES, cards, partitions, _episodes, blocking=("fit_to_pack",)),
        _checks("dataset_config", _CONFIG, cards, partitions, _config, blocking=("schema_valid", "streams_agree")),
        *(
            _checks(asset_name(profile), _PACKED, cards, partitions, partial(_packed, profile=profile), blocking=())
            for profile in PROFILES
        ),
    ]


def _checks(
    asset: str,
    descriptions: Mapping[str, str],
    cards: CardFolder,
    partitions: Partitions,
    answers: Callable[[DatasetCard], Answers],
    blocking: tuple[str, ...],
) -> dg.AssetChecksDefinition:
    with warnings.catch_warnings():
        # partitioned checks are marked as a preview in this release, which is pinned and tested
        warnings.simplefilter("ignore", dg.PreviewWarning)
        specs = [
            dg.AssetCheckSpec(
                name,
                asset=asset,
                description=text,
                blocking=name in blocking,
                partitions_def=partitions,
            )
            for name, text in descriptions.items()
        ]

    @dg.multi_asset_check(name=f"{asset}_checks", specs=specs, can_subset=True)
    def checks(context: dg.AssetCheckExecutionContext) -> Any:  # noqa: ANN401 - Dagster wants no iterator type here
        wanted = {key.name for key in context.selected_asset_check_keys}
        stopped = []
        with plain_failures():
            for name, (severity, find) in answers(card_of(context, cards)).items():
                if name in wanted:
                    found = find()
                    if name in blocking and severity == ERROR and not found.passed:
                        stopped.append(f"{name}: {found.message}")
                    yield dg.AssetCheckResult(
                        passed=found.passed,
                        asset_key=asset,
                        check_name=name,
                        severity=severity,
                        description=found.message,
                        metadata={**found.numbers, **({"details": table(found.table)} if found.table else {})},
                    )
        if stopped:
            # Dagster's own failure would name the checks only, and people look at failures first
            raise dg.Failure(description="; ".join(stopped), allow_retries=False)

    return checks


def _raw(card: DatasetCard) -> Answers:
    facts = observe(card, fingerprints=False)
    count = len(facts.episodes)
    problem = facts.layout_problem or facts.problem
    return {
        "readable": (
            ERROR,
            lambda: Finding(not facts.problem, facts.problem or f"{facts.files} files read as {facts.source_format}"),
        ),
        "not_empty": (ERROR, lambda: Finding(count > 0, f"{count} episodes in {card.raw}")),
        "layout_found": (
            ERROR,
            lambda: Finding(not problem, problem or f"{len(facts.streams)} streams found", [*facts.streams]),
        ),
    }


def _episodes(card: DatasetCard) -> Answers:
    from knonik_assets.quality.expectations import limits_text
    from knonik_assets.quality.frame_expectations import FRAME_CHECKS
    from knonik_assets.quality.judge import read_quality

    quality = read_quality(card.episodes)
    asked = limits_text(quality.thresholds)
    ours, out = excluded(card), left_out(card)
    any_good = any(name not in out for name in quality.episodes)

    def answer(name: str) -> tuple[dg.AssetCheckSeverity, Callable[[], Finding]]:
        check = quality.checks[name]
        blocks = check.severity == "error" and (card.on_bad_episode == "block" or not any_good)
        count = len(quality.episodes)
        return ERROR if blocks else WARN, lambda: _episode_finding(
            card, check, ours, count, asked[name], name in FRAME_CHECKS
        )

    return {
        **{name: answer(name) for name in EPISODE_CHECKS},
        "fit_to_pack": (ERROR, lambda: _fit_to_pack(card, quality, ours, out)),
    }


def _fit_to_pack(card: DatasetCard, quality: "Quality", ours: Collection[str], out: Mapping[str, str]) -> Finding:
    """Whether packing may go on: under ``block`` no episode is bad or missing, and in any case some are good."""
    good = [name for name in quality.episodes if name not in out]
    rows = [{"episode": name, "reason": reason} for name, reason in out.items()]
    if not good:
        return Finding(
            False, f"no episode is good: {some([f'{name}: {reason}' for name, reason in out.items()])}", rows
        )
    if card.on_bad_episode == "block":
        bad = {
            name: f"{check}: {said}"
            for check, outcome in quality.checks.items()
            if outcome.severity == "error"
            for name, said in outcome.offenders.items()
            if name not in ours
        }
        if bad:
            listed = [{"episode": name, "reason": reason} for name, reason in bad.items()]
            words = some([f"{name}: {reason}" for name, reason in bad.items()])
            return Finding(False, f"on_bad_episode is block: {words}", listed)
    return Finding(True, f"{len(good)} of {len(quality.episodes)} episodes are packed", rows)


def _episode_finding(
    card: DatasetCard, check: "CheckOutcome", ours: Collection[str], count: int, asked: str, by_frame: bool
) -> Finding:
    """Offenders that the card doesn't exclude itself."""
    offenders = {name: said for name, said in check.offenders.items() if name not in ours}
    numbers: dict[str, int | float | str] = {"asks": asked, "episodes": count, "episodes_that_fail": len(offenders)}
    if by_frame:
        numbers["frames_that_fail"] = sum(frames.count for name, frames in check.frames.items() if name in offenders)
    if not offenders:
        return Finding(True, f"{count} episodes are fine", numbers=numbers)
    then = "left out of the packs" if check.severity == "error" and card.on_bad_episode == "exclude" else "reported"
    rows = [row for name, said in offenders.items() for row in _offending_rows(name, said, check, by_frame)]
    return Finding(False, f"{some([f'{name}: {said}' for name, said in offenders.items()])} ({then})", rows, numbers)


def _offending_rows(name: str, said: str, check: "CheckOutcome", by_frame: bool) -> list[dict[str, Any]]:
    """An episode that fails, then its first frames that do."""
    if not by_frame:
        return [{"episode": name, "reason": said}]
    whole: dict[str, Any] = {"episode": name, "frame": None, "stream": None, "reason": said}
    frames = check.frames.get(name)
    if frames is None:
        return [whole]
    shown = frames.first[:_FRAMES_SHOWN]
    rows = [whole, *({"episode": name, **one.model_dump()} for one in shown)]
    if frames.count > len(shown):
        rows.append({**whole, "reason": f"and {frames.count - len(shown)} frames more"})
    return rows


def _config(card: DatasetCard) -> Answers:
    from knonik_assets.configs.dataset import CONFIG
    from knonik_assets.episodes.remote import retelling
    from knonik_assets.episodes.view import view_of
    from knonik_assets.quality import config

    def in_view(find: Callable[[Path], Finding]) -> Callable[[], Finding]:
        def found() -> Finding:
            with view_of(card.episodes) as view, retelling(view.folder, view.where):
                finding = find(view.folder)
                return replace(finding, message=finding.message.replace(str(view.folder), view.where))

        return found

    return {
        "schema_valid": (ERROR, in_view(lambda folder: config.check_schema(folder / CONFIG))),
        "streams_agree": (
            ERROR,
            in_view(lambda folder: config.check_streams(folder / CONFIG, folder, left_out(card))),
        ),
        "no_placeholders": (WARN, in_view(lambda folder: config.check_placeholders(folder / CONFIG))),
    }


def _packed(card: DatasetCard, profile: StorageProfile) -> Answers:
    from knonik_assets.quality import packed

    if profile not in card.pack:
        return {}
    dataset = packed.PackedDataset(card.packed_folder(profile) / "hlp_manifest.json")
    streams = card.pack[profile].get("streams")
    return {
        "frames_conserved": (
            ERROR,
            lambda: packed.check_conserved(dataset, card.episodes, not_packed(card, profile), streams),
        ),
        "intact": (ERROR, lambda: packed.check_intact(dataset)),
        "psnr": (WARN, lambda: packed.check_psnr(dataset, card.checks.psnr_floor)),
        "loadable": (ERROR, lambda: packed.check_loadable(dataset, card.episodes)),
        "size": (WARN, lambda: packed.check_size(dataset, card.checks.max_packed_gb)),
    }
