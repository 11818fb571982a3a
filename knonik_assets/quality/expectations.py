"""What is expected of every ingested episode, as a Great Expectations suite over the episode table."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from knonik_assets.configs.card import CheckThresholds
from knonik_assets.configs.documents import write_whole
from knonik_assets.quality.episode_table import table_of
from knonik_assets.quality.examine import EpisodeRow
from knonik_assets.quality.frame_expectations import FrameAnswers
from knonik_assets.quality.gx import gx_expectations, gx_validate
from knonik_assets.quality.versions import SUITE_VERSION

__all__ = ["COLUMNS", "EXPECTATIONS", "REPORT", "Offenders", "limits_text", "offenders", "reported_offenders"]

Offenders = dict[str, dict[str, str]]
"""Check → episode → what is wrong with it."""

REPORT = "quality.html"
EXPECTATIONS = ".knonik/expectations.json"

COLUMNS = {
    "no_frames_cut": ("cut",),
    "has_frames": ("frames",),
    "timestamps_increase": ("backward_steps",),
    "no_gaps": ("max_gap",),
    "steady_clock": ("jitter",),
    "same_shape": ("streams",),
    "finite_values": ("non_finite",),
    "cameras_alive": ("dimmest", "frozen"),
    "cameras_lit": ("saturated",),
    "cameras_sharp": ("blur",),
    "channels_alive": ("constant_channels",),
    "action_follows_state": ("offset",),
    "no_duplicates": ("duplicate_of",),
    "checksums": ("damaged_files",),
}
"""Check → columns of the episode table that it looks at."""


def offenders(rows: Sequence[EpisodeRow], thresholds: CheckThresholds) -> Offenders:
    """Validate the episode table.

    Returns:
        Check → episode → what is wrong with it; an empty dict for a check that every episode passes.
    """
    return _offenders(rows, _validate(rows, thresholds)) if rows else {check: {} for check in COLUMNS}


def reported_offenders(
    out: Path, rows: Sequence[EpisodeRow], thresholds: CheckThresholds, frames: FrameAnswers | None = None
) -> tuple[Offenders, Path]:
    """`offenders`, with Great Expectations' own page about the table beside ``quality.json``; returns both.

    The page shows what the suite over the frame table found too, where that is given. What was found is kept in
    ``.knonik/expectations.json``: the same table under the same thresholds is not validated again, and Great
    Expectations, whose import takes seconds, is not even loaded for it.
    """
    page, store = out / REPORT, out / EXPECTATIONS
    key = f"{_key(rows, thresholds)} {frames.digest if frames else ''}"
    known = _remembered(store, key)
    if known is not None and page.is_file():
        return known, page
    if not rows:
        found = offenders(rows, thresholds)
        text = "<!doctype html><title>No episodes</title><p>There are no episodes to look at.</p>\n"
    else:
        result = _validate(rows, thresholds)
        found, text = _offenders(rows, result), _page(result, frames)
    store.unlink(missing_ok=True)  # before the page: what is remembered never belongs to another page
    write_whole(page, text.encode())
    store.parent.mkdir(exist_ok=True)
    write_whole(store, json.dumps({"key": key, "offenders": found}).encode())
    return found, page


def _key(rows: Sequence[EpisodeRow], thresholds: CheckThresholds) -> str:
    """Digest of all that a validation depends on."""
    suite = [SUITE_VERSION, metadata.version("great_expectations"), thresholds.model_dump(mode="json")]
    text = json.dumps([*suite, *(vars(row) for row in rows)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _remembered(store: Path, key: str) -> Offenders | None:
    """What an earlier run found of the same table; a store that is missing or damaged only costs time."""
    try:
        data = json.loads(store.read_bytes())
        kept = {
            str(check): {str(name): str(said) for name, said in each.items()}
            for check, each in data["offenders"].items()
        }
        return kept if data["key"] == key and set(kept) == set(COLUMNS) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _offenders(rows: Sequence[EpisodeRow], result: Any) -> Offenders:  # noqa: ANN401 - GX's result object
    found: Offenders = {check: {} for check in COLUMNS}
    by_name = {row.episode: row for row in rows}
    for each in result.results:
        check, column = each.expectation_config.meta["check"], each.expectation_config.kwargs["column"]
        for unexpected in each.result.get("unexpected_index_list") or []:
            name = unexpected["episode"]
            said = by_name[name].notes.get(column) or f"{column} is {unexpected[column]}"
            found[check][name] = f"{found[check][name]}; {said}" if name in found[check] else said
    return found


def _page(result: Any, frames: FrameAnswers | None) -> str:  # noqa: ANN401 - GX's result object
    """Great Expectations' page over the episode table, and over the frame table where that was asked."""
    from great_expectations.core import ExpectationSuiteValidationResult
    from great_expectations.render.renderer import ValidationResultsPageRenderer
    from great_expectations.render.view import DefaultJinjaPageView

    results = [*result.results, *(frames.results() if frames else ())]
    good = sum(bool(each.success) for each in results)
    shown = ExpectationSuiteValidationResult(
        success=good == len(results),
        results=results,
        suite_name="episodes and frames" if frames else "episodes",
        statistics={
            "evaluated_expectations": len(results),
            "successful_expectations": good,
            "unsuccessful_expectations": len(results) - good,
            "success_percent": 100 * good / len(results),
        },
        meta=result.meta,
    )
    return str(DefaultJinjaPageView().render(ValidationResultsPageRenderer().render(shown)))


def limits_text(thresholds: CheckThresholds) -> dict[str, str]:
    """Check → what it asks of an episode, in words: its columns and their limits."""
    said = {
        "every_raw_episode_present": "every recording became an episode",
        "same_shape": "streams as in most episodes",
        "no_duplicates": "no content twice",
    }
    for check, column, limit in _limits(thresholds):
        (bound, value), *_ = limit.items()
        words = f"{column} at {'least' if bound == 'min_value' else 'most'} {value:g}"
        said[check] = f"{said[check]}, {words}" if check in said else words
    return said


def _limits(thresholds: CheckThresholds) -> list[tuple[str, str, dict[str, float]]]:
    """Check, column of the episode table, and between what its values lie."""
    return [
        ("no_frames_cut", "cut", {"max_value": thresholds.max_cut}),
        ("has_frames", "frames", {"min_value": thresholds.min_frames}),
        ("timestamps_increase", "backward_steps", {"max_value": 0}),
        ("no_gaps", "max_gap", {"max_value": thresholds.max_gap}),
        ("steady_clock", "jitter", {"max_value": thresholds.max_jitter}),
        ("finite_values", "non_finite", {"max_value": 0}),
        ("cameras_alive", "dimmest", {"min_value": thresholds.black_level}),
        ("cameras_alive", "frozen", {"max_value": thresholds.max_frozen}),
        ("cameras_lit", "saturated", {"max_value": thresholds.max_saturated}),
        ("cameras_sharp", "blur", {"min_value": thresholds.min_sharpness}),
        ("channels_alive", "constant_channels", {"max_value": thresholds.max_constant_channels}),
        ("action_follows_state", "offset", {"max_value": thresholds.max_offset}),
        ("checksums", "damaged_files", {"max_value": 0}),
    ]


def _suite(rows: Sequence[EpisodeRow], thresholds: CheckThresholds) -> list[Any]:
    gxe = gx_expectations()
    usual = Counter(row.streams for row in rows if row.streams).most_common(1)
    wanted: list[Any] = [
        gxe.ExpectColumnValuesToBeBetween(column=column, meta={"check": check}, **limit)
        for check, column, limit in _limits(thresholds)
    ]
    wanted.append(gxe.ExpectColumnValuesToBeNull(column="duplicate_of", meta={"check": "no_duplicates"}))
    if usual:
        wanted.append(
            gxe.ExpectColumnValuesToBeInSet(column="streams", value_set=[usual[0][0], ""], meta={"check": "same_shape"})
        )
    return wanted


def _validate(rows: Sequence[EpisodeRow], thresholds: CheckThresholds) -> Any:  # noqa: ANN401 - GX's result object
    return gx_validate("episodes", table_of(rows), _suite(rows, thresholds), ["episode"])
