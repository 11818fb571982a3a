"""What is expected of every frame, as a Great Expectations suite over the frame table, and which frames offend."""

from __future__ import annotations

import gc
import hashlib
import json
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knonik_assets.configs.card import CheckThresholds
from knonik_assets.configs.documents import write_whole
from knonik_assets.quality.frame_table import FrameFacts, frame_table
from knonik_assets.quality.gx import gx_expectations, gx_validate
from knonik_assets.quality.versions import FRAMES_VERSION

if TYPE_CHECKING:
    from great_expectations.core import ExpectationValidationResult

__all__ = ["FRAMES", "FRAME_CHECKS", "Beyond", "FrameAnswers", "Offender"]

FRAMES = ".knonik/frame_offenders.json"

FRAME_CHECKS = ("timestamps_increase", "no_gaps", "finite_values", "cameras_alive", "cameras_lit")
"""Checks that single frames decide."""

_MOST_KEPT = 10
"""Offending rows of one episode and limit that are kept; the others are counted."""
_ROWS_AT_ONCE = 100_000
"""Rows of the frame table that are validated together: some 40 MB with what is made of them meanwhile."""
_INDEX = ["episode", "stream", "frame"]
_WHERE = "episode, frame and camera"


@dataclass(frozen=True)
class Offender:
    """One row of the frame table that is beyond a limit."""

    frame: int
    stream: str
    """The camera; empty where the clock or the numbers offend."""
    value: float
    reason: str


@dataclass
class Beyond:
    """The rows of one episode that are beyond one limit."""

    count: int = 0
    first: list[Offender] = field(default_factory=list)


@dataclass
class _Answer:
    """What the suite says of one episode."""

    key: str
    asked: dict[str, int] = field(default_factory=dict)
    """Column → rows that have a value there."""
    beyond: dict[str, Beyond] = field(default_factory=dict)
    """Limit, as in `_limits` → rows beyond it."""


class FrameAnswers:
    """What the suite says of the frames of every episode of an output, remembered for as long as nothing changes.

    Args:
        folder: of the episodes; the answers are kept in `FRAMES` there.
        thresholds: of the card.
    """

    def __init__(self, folder: Path, thresholds: CheckThresholds) -> None:
        self._store = folder / FRAMES
        self._limits = _limits(thresholds)
        asked = [FRAMES_VERSION, metadata.version("great_expectations"), self._limits]
        self._suite = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
        self._answers = _remembered(self._store, self._suite)
        self._waiting: list[tuple[str, str, FrameFacts]] = []
        self._new = False

    def knows(self, name: str, key: str) -> bool:
        """Whether the frames of an episode were asked already, as they are now."""
        return name in self._answers and self._answers[name].key == key

    def take(self, name: str, key: str, facts: FrameFacts | None) -> None:
        """Ask the frames of an episode, now or together with later ones; None: it is damaged and has none."""
        self._new = True
        self._answers[name] = _Answer(key)
        if facts is not None:
            self._waiting.append((name, key, facts))
            if sum(len(each) for _, _, each in self._waiting) >= _ROWS_AT_ONCE:
                self._ask()
                gc.collect()  # Great Expectations' batches refer to themselves, and to the table

    def finish(self, names: Collection[str]) -> bool:
        """Ask what waits, and remember the answers for the episodes that there are; returns whether any is new."""
        self._ask()
        changed = self._new or set(self._answers) != set(names)
        self._answers = {name: self._answers[name] for name in names if name in self._answers}
        if changed:
            self._store.parent.mkdir(exist_ok=True)
            kept = {"suite": self._suite, "episodes": {name: asdict(each) for name, each in self._answers.items()}}
            write_whole(self._store, json.dumps(kept).encode())
            self._new = False
        return changed

    @property
    def digest(self) -> str:
        """Changes with any answer."""
        said = [self._suite, {name: asdict(each) for name, each in self._answers.items()}]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def offenders(self) -> dict[str, dict[str, Beyond]]:
        """Check → episode → its frames that offend, all limits of the check together."""
        found: dict[str, dict[str, Beyond]] = {check: {} for check, _, _ in self._limits.values()}
        for name, answer in self._answers.items():
            for limit, beyond in answer.beyond.items():
                all_of = found[self._limits[limit][0]].setdefault(name, Beyond())
                all_of.count += beyond.count
                all_of.first.extend(beyond.first)
        return found

    def results(self) -> list[ExpectationValidationResult]:
        """Great Expectations' results over the frames of all episodes, whenever they were asked; for its page."""
        expectations = _expectations(self._limits)
        from great_expectations.core import ExpectationValidationResult

        results = []
        for limit, expectation in expectations.items():
            column = self._limits[limit][1]
            asked = sum(answer.asked.get(column, 0) for answer in self._answers.values())
            bad = {name: answer.beyond[limit] for name, answer in self._answers.items() if limit in answer.beyond}
            count = sum(beyond.count for beyond in bad.values())
            rows = [
                {column: round(each.value, 4), _WHERE: " ".join([name, f"frame {each.frame}", each.stream]).rstrip()}
                for name, beyond in bad.items()
                for each in beyond.first
            ]
            share = 100 * count / max(asked, 1)
            result = {
                "element_count": asked,
                "unexpected_count": count,
                "unexpected_percent": share,
                "unexpected_percent_total": share,
                "unexpected_percent_nonmissing": share,
                "missing_count": 0,
                "missing_percent": 0.0,
                "unexpected_index_column_names": [_WHERE],
                "partial_unexpected_counts": [
                    {"value": value, "count": times} for value, times in Counter(row[column] for row in rows).items()
                ],
                "partial_unexpected_list": [row[column] for row in rows[:20]],
                "unexpected_list": [row[column] for row in rows],
                "unexpected_index_list": rows,
            }
            results.append(
                ExpectationValidationResult(
                    success=not count,
                    expectation_config=expectation.configuration,
                    result=result,
                    exception_info={"raised_exception": False, "exception_message": None, "exception_traceback": None},
                )
            )
        return results

    def _ask(self) -> None:
        """Validate the frames that wait."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        table = frame_table([(name, facts) for name, _, facts in waiting])
        told = {name: facts.told for name, _, facts in waiting}
        counted = table.groupby("episode", sort=False)[list({column for _, column, _ in self._limits.values()})].count()
        for name, counts in counted.iterrows():
            self._answers[str(name)].asked = {str(column): int(count) for column, count in counts.items()}
        for each in gx_validate("frames", table, list(_expectations(self._limits).values()), _INDEX).results:
            limit, column = each.expectation_config.meta["limit"], each.expectation_config.kwargs["column"]
            for row in each.result.get("unexpected_index_list") or []:
                name, frame, value = row["episode"], int(row["frame"]), float(row[column])
                beyond = self._answers[name].beyond.setdefault(limit, Beyond())
                beyond.count += 1
                if len(beyond.first) < _MOST_KEPT:
                    reason = told[name].get(frame) if column == "not_finite" else None
                    said = reason or _words(column, frame, value)
                    beyond.first.append(Offender(frame, row["stream"], value, said))


def _limits(thresholds: CheckThresholds) -> dict[str, tuple[str, str, dict[str, float | bool]]]:
    """Name of a limit → check, column of the frame table, and between what its values lie.

    They are those of the episode table: an episode has a frame beyond one exactly where its own row is.
    """
    return {
        "clock advances": ("timestamps_increase", "step", {"min_value": 0, "strict_min": True}),
        "gap": ("no_gaps", "step", {"max_value": thresholds.max_gap}),
        "numbers": ("finite_values", "not_finite", {"max_value": 0}),
        "dark": ("cameras_alive", "luma", {"min_value": thresholds.black_level}),
        "frozen": ("cameras_alive", "still", {"max_value": thresholds.max_frozen}),
        "white": ("cameras_lit", "white", {"max_value": thresholds.max_saturated}),
    }


def _expectations(limits: dict[str, tuple[str, str, dict[str, float | bool]]]) -> dict[str, Any]:
    gxe = gx_expectations()
    return {
        name: gxe.ExpectColumnValuesToBeBetween(column=column, meta={"check": check, "limit": name}, **bounds)
        for name, (check, column, bounds) in limits.items()
    }


def _words(column: str, frame: int, value: float) -> str:
    """What is wrong with a frame, for people."""
    return {
        "step": f"{value:.2f} frame periods after frame {frame - 1}",
        "not_finite": f"{value:.0f} values that are no number",
        "luma": f"the brightest pixels have luma {value:.0f} of 255 at most, as in half of the camera's pictures",
        "still": f"the camera shows one picture for {value:.0%} of the episode while the robot moves",
        "white": f"{value:.0%} of the pixels are white at least, as in half of the camera's pictures",
    }[column]


def _remembered(store: Path, suite: str) -> dict[str, _Answer]:
    """What an earlier run was told under the same limits; a store that is missing or damaged only costs time."""
    try:
        data = json.loads(store.read_bytes())
        return {name: _answer(each) for name, each in data["episodes"].items()} if data["suite"] == suite else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _answer(data: dict[str, Any]) -> _Answer:
    beyond = {
        limit: Beyond(int(each["count"]), [Offender(**one) for one in each["first"]])
        for limit, each in data["beyond"].items()
    }
    return _Answer(str(data["key"]), {column: int(count) for column, count in data["asked"].items()}, beyond)
