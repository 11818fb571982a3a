"""Decides which ingested episodes are good enough to be packed, and writes it down in ``quality.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from knonik_assets.configs.card import EPISODE_CHECKS, CheckThresholds, Severity
from knonik_assets.episodes.view import read_beside
from knonik_assets.quality.examine import EpisodeRow
from knonik_assets.quality.expectations import Offenders, offenders
from knonik_assets.quality.frame_expectations import Beyond
from knonik_assets.storage import Place
from knonik_loader.errors import EpisodeError

__all__ = [
    "QUALITY",
    "CheckOutcome",
    "OffendingFrame",
    "OffendingFrames",
    "Quality",
    "Verdict",
    "judge",
    "read_quality",
    "write_quality",
]

QUALITY = "quality.json"

_ONLY_REPORTED = (
    "no_frames_cut",
    "no_gaps",
    "steady_clock",
    "cameras_lit",
    "cameras_sharp",
    "channels_alive",
    "action_follows_state",
)
"""Checks that make no episode bad unless the card says so: worth knowing and rarely worth losing data for."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Verdict(_Strict):
    """What becomes of one episode."""

    status: Literal["ok", "bad"]
    reasons: list[str] = []
    """Why it is bad, or what was noticed about a good one."""


class OffendingFrame(_Strict):
    """One frame that a check names."""

    frame: int
    stream: str = ""
    """The camera; empty where the clock or the numbers are meant."""
    reason: str


class OffendingFrames(_Strict):
    """The frames of one episode that a check names."""

    count: int
    first: list[OffendingFrame]


class CheckOutcome(_Strict):
    """One check over all episodes."""

    severity: Severity
    offenders: dict[str, str]
    """Episode → what is wrong with it."""
    frames: dict[str, OffendingFrames] = {}
    """Episode → which frames of it, where single frames are to blame."""


class Quality(_Strict):
    """The content of ``quality.json``."""

    version: Literal[1] = 1
    episodes: dict[str, Verdict]
    checks: dict[str, CheckOutcome]
    thresholds: CheckThresholds

    @property
    def bad(self) -> dict[str, str]:
        """Episode → why, of those that should not be packed."""
        return {name: "; ".join(verdict.reasons) for name, verdict in self.episodes.items() if verdict.status == "bad"}


def judge(
    rows: Sequence[EpisodeRow],
    thresholds: CheckThresholds,
    missing: Mapping[str, str] | None = None,
    said: Offenders | None = None,
    frames: Mapping[str, Mapping[str, Beyond]] | None = None,
) -> Quality:
    """Hold every episode against the expectations.

    Args:
        rows: the episode table.
        thresholds: of the card.
        missing: raw episodes without an ingested one → why.
        said: what the expectations say of the table, where that is known already.
        frames: check → episode → frames that offend; an episode with such frames fails the check.
    """
    said = offenders(rows, thresholds) if said is None else said
    found = {"every_raw_episode_present": dict(missing or {}), **{check: dict(each) for check, each in said.items()}}
    for check, by_episode in (frames or {}).items():
        for name, beyond in by_episode.items():
            found[check].setdefault(name, f"frame {beyond.first[0].frame}: {beyond.first[0].reason}")
    checks = {
        name: CheckOutcome(
            severity=thresholds.severity.get(name, "warn" if name in _ONLY_REPORTED else "error"),
            offenders=found[name],
            frames={episode: _named(beyond) for episode, beyond in (frames or {}).get(name, {}).items()},
        )
        for name in EPISODE_CHECKS
    }
    episodes = {}
    for row in rows:
        reasons = {
            name: check.offenders[row.episode] for name, check in checks.items() if row.episode in check.offenders
        }
        bad = any(checks[name].severity == "error" for name in reasons if name != "every_raw_episode_present")
        episodes[row.episode] = Verdict(
            status="bad" if bad else "ok", reasons=[f"{name}: {reason}" for name, reason in reasons.items()]
        )
    return Quality(episodes=episodes, checks=checks, thresholds=thresholds)


def _named(beyond: Beyond) -> OffendingFrames:
    first = [OffendingFrame(frame=one.frame, stream=one.stream, reason=one.reason) for one in beyond.first]
    return OffendingFrames(count=beyond.count, first=first)


def write_quality(out: Path, quality: Quality) -> Path:
    """Replace ``quality.json`` in an output directory; returns its path."""
    path = out / QUALITY
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(quality.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n")
    partial.replace(path)
    return path


def read_quality(out: Path | Place) -> Quality:
    """What was decided about the episodes of an output.

    Raises:
        EpisodeError: nothing was, or the file is damaged.
        StorageError: it cannot be read.
    """
    data, path = read_beside(out, QUALITY), out / QUALITY
    if data is None:
        raise EpisodeError(f"{path} is missing: the episodes were not judged yet; materialise them first.")
    try:
        return Quality.model_validate_json(data)
    except ValidationError as error:
        raise EpisodeError(f"{path} is damaged; materialise the episodes again.") from error
