"""Which episodes are bad, and what says so."""

import pytest

from knonik_assets.configs.card import EPISODE_CHECKS, CheckThresholds
from knonik_assets.quality.examine import EpisodeRow
from knonik_assets.quality.expectations import COLUMNS, offenders
from knonik_assets.quality.judge import judge, read_quality, write_quality
from knonik_loader.errors import EpisodeError

HEALTHY = {
    "frames": 20,
    "fps": 30.0,
    "streams": "rgb_a 4x4, s 3",
    "backward_steps": 0,
    "max_gap": 1.0,
    "jitter": 0.01,
    "non_finite": 0,
    "dimmest": 200.0,
    "frozen": 0.0,
    "saturated": 0.0,
    "blur": 1.0,
    "constant_channels": 0,
    "offset": 0.01,
}
ILL = {
    "no_frames_cut": {"cut": 2},
    "has_frames": {"frames": 0},
    "timestamps_increase": {"backward_steps": 1},
    "no_gaps": {"max_gap": 3.0},
    "steady_clock": {"jitter": 0.9},
    "same_shape": {"streams": "rgb_a 5x5, s 3"},
    "finite_values": {"non_finite": 4},
    "cameras_alive": {"frozen": 0.8},
    "cameras_lit": {"saturated": 0.9},
    "cameras_sharp": {"blur": 0.1},
    "channels_alive": {"constant_channels": 2},
    "action_follows_state": {"offset": 0.8},
    "no_duplicates": {"duplicate_of": "e0"},
    "checksums": {"damaged_files": 2},
}
REPORTED = (
    "no_frames_cut",
    "no_gaps",
    "steady_clock",
    "cameras_lit",
    "cameras_sharp",
    "channels_alive",
    "action_follows_state",
)


def rows(**changes):
    return [
        EpisodeRow("e0", **HEALTHY),
        EpisodeRow("e1", **{**HEALTHY, **changes}, notes={name: f"{name} hurts" for name in changes}),
        EpisodeRow("e2", **HEALTHY),
    ]


def test_every_check_has_an_expectation():
    assert {*COLUMNS, "every_raw_episode_present"} == set(EPISODE_CHECKS)


def test_healthy_episodes_offend_nobody():
    assert offenders(rows(), CheckThresholds()) == {check: {} for check in COLUMNS}
    assert offenders([], CheckThresholds()) == {check: {} for check in COLUMNS}


@pytest.mark.parametrize("check", list(ILL))
def test_the_right_check_names_the_episode(check):
    quality = judge(rows(**ILL[check]), CheckThresholds())
    column = next(iter(ILL[check]))
    assert {name: outcome.offenders for name, outcome in quality.checks.items() if outcome.offenders} == {
        check: {"e1": f"{column} hurts"}
    }
    only_reported = check in REPORTED
    assert quality.bad == ({} if only_reported else {"e1": f"{check}: {column} hurts"})
    assert quality.episodes["e1"].reasons == [f"{check}: {column} hurts"]


def test_two_columns_of_one_check():
    quality = judge(rows(dimmest=3.0, frozen=1.0), CheckThresholds())
    assert quality.bad == {"e1": "cameras_alive: dimmest hurts; frozen hurts"}


def test_what_was_not_measured_offends_only_where_it_should():
    unreadable = EpisodeRow("e1", frames=20, damaged_files=1, notes={"damaged_files": "gone"})
    quality = judge([EpisodeRow("e0", **HEALTHY), unreadable], CheckThresholds())
    assert quality.bad == {"e1": "checksums: gone"}


def test_thresholds_and_severity_are_the_cards():
    thresholds = CheckThresholds(max_gap=5, max_frozen=0.9, severity={"finite_values": "warn", "steady_clock": "error"})
    quality = judge(rows(max_gap=3.0, frozen=0.8, non_finite=1, jitter=0.9), thresholds)
    assert quality.bad == {"e1": "steady_clock: jitter hurts; finite_values: non_finite hurts"}
    assert quality.checks["finite_values"].severity == "warn"
    assert judge(rows(non_finite=1), thresholds).bad == {}


def test_raw_episodes_without_an_ingested_one():
    quality = judge(rows(), CheckThresholds(), {"episode_000007 (b)": "truncated"})
    assert quality.checks["every_raw_episode_present"].offenders == {"episode_000007 (b)": "truncated"}
    assert quality.bad == {}


def test_on_disk(tmp_path):
    quality = judge(rows(non_finite=1), CheckThresholds())
    with pytest.raises(EpisodeError, match="not judged yet"):
        read_quality(tmp_path)
    assert read_quality(write_quality(tmp_path, quality).parent) == quality
    (tmp_path / "quality.json").write_text("{}")
    with pytest.raises(EpisodeError, match="is damaged"):
        read_quality(tmp_path)
