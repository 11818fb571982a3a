"""The assets from raw recordings to episodes: each card is a partition of all of them."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from knonik_assets.configs.card import DatasetCard
from knonik_assets.configs.cards import CardFolder
from knonik_assets.orchestration.context import (
    CODE_VERSIONS,
    RETRIES,
    LogProgress,
    card_of,
    observation,
    plain_failures,
)
from knonik_assets.orchestration.freshness import freshness
from knonik_assets.orchestration.inputs import ANNOUNCED, SEEN, input_key, listing
from knonik_assets.orchestration.raw import RawFacts, observe
from knonik_assets.orchestration.show import card_metadata, episode_pictures, stream_table, table
from knonik_assets.quality.finding import size_text
from knonik_assets.storage import Place

if TYPE_CHECKING:
    from knonik_assets.episodes.view import EpisodesView
    from knonik_assets.ingesting.report import IngestReport
    from knonik_assets.quality.examine import EpisodeRow
    from knonik_assets.quality.judge import Quality

__all__ = ["WHEN_NEW", "episode_assets", "episode_names", "episodes_there", "excluded", "left_out"]

WHEN_NEW = dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed()
"""Materialise when something upstream is new and no blocking check of it failed."""


def episode_assets(
    cards: CardFolder, partitions: dg.PartitionsDefinition[str], owners: list[str]
) -> list[dg.AssetsDefinition]:
    """``raw_dataset``, ``ingested_episodes`` and ``dataset_config`` over these cards."""
    fresh = freshness(cards)

    @dg.asset(
        partitions_def=partitions,
        deps=[input_key("raw_files"), input_key("source")],
        required_resource_keys={ANNOUNCED},
        code_version=CODE_VERSIONS["raw_dataset"],
        group_name="episodes",
        kinds={"file"},
        owners=owners,
        freshness_policy=fresh.policy,
        metadata={"cards": _card_table(cards), **fresh.metadata},
    )
    def raw_dataset(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        """Raw recordings as they lie: looked at and fingerprinted, never changed.

        The data version is a digest of every episode's content, so that a file that was only touched or copied makes
        nothing stale. The table `cards` below lists every dataset with its card, broken ones first.
        """
        with plain_failures():
            card = card_of(context, cards)
            seen = listing(card.raw)  # before looking inside: what comes meanwhile is new to the sensor
            facts = observe(card)
        for warning in facts.warnings:
            context.log.warning(warning)
        return dg.MaterializeResult(
            metadata={**_raw_metadata(card, facts), SEEN: seen}, data_version=dg.DataVersion(facts.fingerprint)
        )

    @dg.asset(
        partitions_def=partitions,
        deps=[raw_dataset, input_key("ingest"), input_key("checks")],
        required_resource_keys={ANNOUNCED},
        pool="ingest",
        retry_policy=RETRIES,
        code_version=CODE_VERSIONS["ingested_episodes"],
        group_name="episodes",
        kinds={"python"},
        owners=owners,
        freshness_policy=fresh.policy,
        metadata=fresh.metadata,
        automation_condition=WHEN_NEW,
    )
    def ingested_episodes(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        """Episode directories: frame-aligned streams with one clock, checksummed and judged.

        Only new and changed recordings are worked on; a run that was killed goes on where it stopped. Every episode is
        held against the card's `checks`; the verdicts are in `quality.json`, Great Expectations' page about them beside
        it. Bad episodes stay out of the packs, by name and with the reason, or stop the packing where the card says
        `on_bad_episode: block`. A repaired recording heals with the next materialisation.
        """
        with plain_failures():
            return _ingest(context, card_of(context, cards))

    @dg.asset(
        partitions_def=partitions,
        deps=[ingested_episodes, input_key("config"), input_key("exclude")],
        required_resource_keys={ANNOUNCED},
        code_version=CODE_VERSIONS["dataset_config"],
        group_name="episodes",
        kinds={"json"},
        owners=owners,
        freshness_policy=fresh.policy,
        metadata=fresh.metadata,
        automation_condition=WHEN_NEW,
    )
    def dataset_config(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        """`config.json`: what the streams are and mean, for whoever trains.

        Made from the episodes that are good. What recordings cannot say (robot, arms, meaning of the action) is
        answered by the card's `config` block; what is left open stands there as `<FILL:…>`, and a check names it.
        """
        with plain_failures():
            return _write_config(card_of(context, cards))

    return [raw_dataset, ingested_episodes, dataset_config]


def _card_table(cards: CardFolder) -> dg.TableMetadataValue:
    rows = [
        {
            "dataset": name,
            "state": "ready",
            "card": card.path.name,
            "packs": ", ".join(card.profiles),
            "schedule": card.schedule or "",
            "description": card.description,
        }
        for name, card in sorted(cards.cards.items())
    ]
    rows += [
        {"dataset": problem.name, "state": "broken", "card": problem.path.name, "description": str(problem.error)}
        for problem in cards.problems.values()
    ]
    # broken cards first: a table of many rows is cut off
    return table(
        sorted(rows, key=lambda row: row["state"]), ["dataset", "state", "card", "packs", "schedule", "description"]
    )


def _raw_metadata(card: DatasetCard, facts: RawFacts) -> dict[str, Any]:
    return {
        "source_format": facts.source_format,
        "episodes": len(facts.episodes),
        "files": facts.files,
        "bytes": facts.bytes,
        "size": size_text(facts.bytes),
        "streams": table(facts.streams),
        **({"problem": facts.problem or facts.layout_problem} if facts.problem or facts.layout_problem else {}),
        "raw": dg.MetadataValue.path(str(card.raw)),
        "fingerprint": facts.fingerprint,
        **card_metadata(card),
    }


def _ingest(context: dg.AssetExecutionContext, card: DatasetCard) -> dg.MaterializeResult[Any]:
    from knonik_assets.episodes.view import view_of
    from knonik_assets.ingest import run
    from knonik_assets.quality.episode_table import episode_rows
    from knonik_assets.quality.expectations import EXPECTATIONS, reported_offenders
    from knonik_assets.quality.frame_expectations import FrameAnswers
    from knonik_assets.quality.judge import judge, write_quality

    report = run(
        card.ingest_config(),
        input=str(card.raw),
        output=str(card.episodes),
        engine=card.engine,
        dataset_config=False,
        ray_options=card.ray,
        progress=LogProgress(context.log, report=observation(context)),
    )
    for warning in report.warnings:
        context.log.warning(warning)
    lost = {
        episode.episode_id: f"{episode.source_id}: {episode.reason}"
        for episode in report.failed + report.empty
        if not {episode.episode_id, episode.source_id} & set(card.exclude)
    }
    for name, reason in lost.items():
        context.log.error("%s was not ingested: %s", name, reason)
    with view_of(card.episodes) as view:
        frames = FrameAnswers(view.folder, card.checks)
        rows = episode_rows(
            view,
            engine=card.engine,
            ray_options=card.ray,
            roles=card.config.get("roles"),
            say=context.log.debug,
            frames=frames,
        )
        said, page = reported_offenders(view.folder, rows, card.checks, frames)
        quality = judge(rows, card.checks, lost, said, frames.offenders())
        path = write_quality(view.folder, quality)
        for name in (page.name, EXPECTATIONS, path.name):
            view.sent(name)
        for name, reason in quality.bad.items():
            context.log.warning("%s is bad: %s", name, reason)
        return dg.MaterializeResult(
            metadata={
                **_episode_metadata(card, report, rows, quality, view),
                "quality": dg.MetadataValue.path(str(card.episodes / path.name)),
                # a path to be copied: browsers follow no link from a server's page to a file
                "expectations": dg.MetadataValue.path(str(card.episodes / page.name)),
                "folder": dg.MetadataValue.path(str(card.episodes)),
                **card_metadata(card),
            },
            data_version=dg.DataVersion(_version(view.folder, rows, quality)),
        )


def _write_config(card: DatasetCard) -> dg.MaterializeResult[Any]:
    from knonik_assets.configs.dataset import build_dataset_config, write_dataset_config
    from knonik_assets.episodes.remote import retelling
    from knonik_assets.episodes.view import view_of

    out = left_out(card)
    with view_of(card.episodes) as view, retelling(view.folder, view.where):
        path = write_dataset_config(view.folder, build_dataset_config(view.folder, card.config, exclude=out))
        view.sent(path.name)
        text = path.read_text()
    return dg.MaterializeResult(
        metadata={
            "config": dg.MetadataValue.path(str(card.episodes / path.name)),
            "content": dg.MetadataValue.md(f"```json\n{text}\n```"),
        },
        data_version=dg.DataVersion(hashlib.sha256(text.encode()).hexdigest()),
    )


def _version(folder: Path, rows: list["EpisodeRow"], quality: "Quality") -> str:
    """Digest of the episodes' content and of the verdicts, which decide what is packed."""
    digest = hashlib.sha256()
    for row in rows:
        metadata = folder / row.episode / "metadata.json"
        digest.update(f"{row.episode} {quality.episodes[row.episode].status}\n".encode())
        digest.update(hashlib.sha256(metadata.read_bytes()).digest())
    return digest.hexdigest()


def _episode_metadata(
    card: DatasetCard, report: "IngestReport", rows: list["EpisodeRow"], quality: "Quality", view: "EpisodesView"
) -> dict[str, Any]:
    bad = quality.bad
    good = [row.episode for row in rows if row.episode not in bad]
    shown = {**dict(list(bad.items())[:2]), **dict.fromkeys(good[:1], "")}
    frames = sum(row.frames for row in rows)
    # bad and remarkable episodes first: a table of many rows is cut off
    listed = sorted(rows, key=lambda row: (row.episode not in bad, not quality.episodes[row.episode].reasons))
    return {
        **episode_pictures(view, shown),
        "episodes": len(rows),
        "bad_episodes": len(bad),
        "written": len(report.written),
        "unchanged": len(report.skipped),
        "failed": len(report.failed),
        "frames": frames,
        "size": size_text(sum(row.bytes for row in rows)),
        "bytes": sum(row.bytes for row in rows),
        "seconds": round(report.seconds, 2),
        "frames_per_second": round(report.frames / report.seconds, 1) if report.frames and report.seconds else 0.0,
        "minutes_recorded": round(sum(row.seconds or 0 for row in rows) / 60, 2),
        "episode_table": table([_shown_row(row, quality) for row in listed]),
        **(stream_table(view, good[0], card.config.get("roles") or {}) if good else {}),
        "checks": table(_check_rows(card, quality)),
    }


def _check_rows(card: DatasetCard, quality: "Quality") -> list[dict[str, Any]]:
    """What was asked of every episode, the failed checks first."""
    from knonik_assets.quality.expectations import limits_text

    said = limits_text(card.checks)
    rows = [
        {
            "check": name,
            "asks": said.get(name, ""),
            "severity": check.severity,
            "fail_it": len(check.offenders),
        }
        for name, check in quality.checks.items()
    ]
    return sorted(rows, key=lambda row: not row["fail_it"])


def _shown_row(row: "EpisodeRow", quality: "Quality") -> dict[str, Any]:
    verdict = quality.episodes[row.episode]
    return {
        "episode": row.episode,
        "source": row.source_id,
        "verdict": verdict.status,
        "noticed": "; ".join(verdict.reasons),
        "frames": row.frames,
        "seconds": row.seconds,
        "max_gap": row.max_gap,
        "jitter": row.jitter,
        "size": size_text(row.bytes).replace(" ", "\N{NO-BREAK SPACE}"),
    }


def episode_names(place: Place) -> dict[str, str]:
    """Episode → its name in the source, of those whose metadata can be read."""
    from knonik_assets.episodes.metadata import read_metadata
    from knonik_assets.episodes.view import view_of
    from knonik_loader.errors import EpisodeError

    names = {}
    with view_of(place) as view:
        for name in view.names:
            try:
                names[name] = read_metadata(view.folder / name).source_id
            except EpisodeError:
                continue  # damaged: it fails its checksums and is left out for that
    return names


def episodes_there(card: DatasetCard) -> list[str]:
    """The ingested episodes in natural order.

    Raises:
        EpisodeError: there are none.
    """
    from knonik_assets.episodes.view import view_of

    with view_of(card.episodes) as view:
        return view.names


def excluded(card: DatasetCard) -> dict[str, str]:
    """Episode → why the card excludes it, under its own name or the source's."""
    if not card.exclude:
        return {}
    names = episode_names(card.episodes)
    return {
        episode: card.exclude[name]
        for episode, source in names.items()
        for name in (source, episode)
        if name in card.exclude
    }


def left_out(card: DatasetCard) -> dict[str, str]:
    """Episode → why it stays out of the packs: bad, excluded by the card, or not judged.

    Raises:
        EpisodeError: the episodes were not judged yet.
    """
    from knonik_assets.quality.judge import read_quality

    quality = read_quality(card.episodes)
    there = episodes_there(card)
    new = [name for name in there if name not in quality.episodes]
    bad = {name: reason for name, reason in quality.bad.items() if name in there}
    return {**dict.fromkeys(new, "not judged yet; materialise ingested_episodes"), **bad, **excluded(card)}
