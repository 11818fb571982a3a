"""The frame table and what is expected of it: every offender is named by episode and frame, and agrees with its episode."""

import itertools
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from knonik_assets.configs.card import CheckThresholds
from knonik_assets.quality import episode_table, frame_expectations
from knonik_assets.quality.episode_table import episode_rows
from knonik_assets.quality.examine import EpisodeRow, examine
from knonik_assets.quality.expectations import offenders, reported_offenders
from knonik_assets.quality.frame_expectations import FRAME_CHECKS, FRAMES, FrameAnswers
from knonik_assets.quality.frame_table import FRAME_COLUMNS, FrameFacts, frame_facts, frame_table
from knonik_assets.quality.judge import judge


def spoilt(arrays):
    arrays["action"][17, 2] = np.nan
    arrays["action"][18, 0] = np.inf
    arrays["state"][17, 1] = np.nan


def late(arrays):
    arrays["timestamps"][10:] += 3 / 30


def stops(arrays):
    arrays["timestamps"][7] = arrays["timestamps"][6]


def dark(arrays):
    arrays["cam_1"][4:] = 3


def frozen(arrays):
    arrays["cam_0"][6:] = arrays["cam_0"][6]


def white(arrays):
    arrays["cam_0"][:, :, :80] = 255


def nothing(arrays):
    del arrays


def asked(out, **thresholds):
    """The rows of every episode, and what the suite says of their frames."""
    answers = FrameAnswers(out, CheckThresholds(**thresholds))
    return episode_rows(out, engine="inline", frames=answers), answers


def named(answers):
    """Check → (episode, frame, stream) of every offender."""
    return {
        check: [(name, one.frame, one.stream) for name, beyond in by_episode.items() for one in beyond.first]
        for check, by_episode in answers.offenders().items()
        if by_episode
    }


def test_a_row_a_frame_and_one_a_sampled_picture(episode):
    path = episode(change=spoilt)
    row = examine(path)
    facts = frame_facts(path, row)
    table = frame_table([("e", facts), ("f", facts)])
    assert tuple(table.columns) == FRAME_COLUMNS
    assert len(table) == 2 * len(facts) == 2 * (24 + 2 * 12)
    frames = table[(table["episode"] == "f") & (table["stream"] == "")]
    assert frames["frame"].tolist() == list(range(24))
    np.testing.assert_allclose(frames["time"], np.arange(24) / 30)
    np.testing.assert_allclose(frames["step"], [np.nan, *[1] * 23])
    assert frames["not_finite"].tolist() == [0] * 17 + [2, 1] + [0] * 5
    assert frames["luma"].isna().all()
    pictures = table[(table["episode"] == "e") & (table["stream"] == "rgb_cam_1")]
    assert pictures["frame"].tolist() == np.unique(np.linspace(0, 23, 12).astype(int)).tolist()
    assert pictures["luma"].min() >= row.dimmest
    assert pictures["step"].isna().all()
    assert frame_table([]).empty


@pytest.mark.parametrize(
    ("fault", "check", "frames", "stream"),
    [
        (spoilt, "finite_values", [17, 18], ""),
        (late, "no_gaps", [10], ""),
        (stops, "timestamps_increase", [7], ""),
        (dark, "cameras_alive", [4, 6, 8, 10, 12, 14, 16, 18, 20, 23], "rgb_cam_1"),
        (frozen, "cameras_alive", [6, 8, 10, 12, 14, 16, 18, 20, 23], "rgb_cam_0"),
        (white, "cameras_lit", [0, 2, 4, 6, 8, 10], "rgb_cam_0"),
    ],
)
def test_every_offender_is_named_by_episode_and_frame(episode, tmp_path, fault, check, frames, stream):
    episode(0)
    episode(1, change=fault)
    _, answers = asked(tmp_path / "episodes")
    said = [one for one in named(answers)[check] if one[2] == stream]
    assert said[: len(frames)] == [("episode_000001", frame, stream) for frame in frames]


def test_words(episode, tmp_path):
    episode(0, change=lambda arrays: (spoilt(arrays), late(arrays)))
    _, answers = asked(tmp_path / "episodes")
    found = answers.offenders()
    assert [one.reason for one in found["finite_values"]["episode_000000"].first] == [
        "state: channel 1 is nan; action: channel 2 is nan",
        "action: channel 0 is inf",
    ]
    assert [one.reason for one in found["no_gaps"]["episode_000000"].first] == ["4.00 frame periods after frame 9"]


@pytest.mark.parametrize("codec", ["h264", "jpeg"])
def test_frames_and_episodes_agree(episode, tmp_path, codec):
    """A check names frames of exactly the episodes that it names, whatever the limits."""
    faults = (nothing, spoilt, late, stops, dark, frozen, white)
    for number, fault in enumerate(faults):
        episode(number, change=fault, codec=codec)
    out = tmp_path / "episodes"
    for thresholds in (
        {},
        {"max_gap": 5, "black_level": 2, "max_frozen": 0.9, "max_saturated": 0.9},
        {"max_gap": 1.0001, "black_level": 255, "max_frozen": 0.1, "max_saturated": 0.01},
    ):
        rows, answers = asked(out, **thresholds)
        by_episode, by_frame = offenders(rows, CheckThresholds(**thresholds)), answers.offenders()
        assert set(by_frame) == set(FRAME_CHECKS)
        assert {check: set(by_frame[check]) for check in FRAME_CHECKS} == {
            check: set(by_episode[check]) for check in FRAME_CHECKS
        }


def test_answers_are_remembered_until_an_episode_or_a_limit_changes(episode, tmp_path, monkeypatch):
    first, second = episode(0, change=late), episode(1)
    out, validated, measured = tmp_path / "episodes", [], []
    validate = frame_expectations.gx_validate

    def counted(name, table, *rest):
        validated.append(sorted(set(table["episode"])))
        return validate(name, table, *rest)

    def measure(path, roles):
        measured.append(path.name)
        return examine(path, roles)

    monkeypatch.setattr(frame_expectations, "gx_validate", counted)
    monkeypatch.setattr(episode_table, "examine", measure)

    def ask(**thresholds):
        validated.clear()
        measured.clear()
        return named(asked(out, **thresholds)[1]), list(validated), list(measured)

    late_frame = {"no_gaps": [(first.name, 10, "")]}
    assert ask() == (late_frame, [[first.name, second.name]], [first.name, second.name])
    assert ask() == (late_frame, [], [])
    assert ask(min_frames=3) == (late_frame, [], [])  # no frame is asked for that
    assert ask(max_gap=5) == ({}, [[first.name, second.name]], [])  # asked again; nothing is measured again
    assert ask() == (late_frame, [[first.name, second.name]], [])
    third = episode(2, change=spoilt)
    both = {**late_frame, "finite_values": [(third.name, 17, ""), (third.name, 18, "")]}
    assert ask() == (both, [[third.name]], [third.name])
    for damage in ("{", "[]", json.dumps({"suite": 1}), '{"episodes": 3}'):
        (out / FRAMES).write_text(damage)
        assert ask() == (both, [[first.name, second.name, third.name]], [])
    (first / "metadata.json").unlink()
    assert ask()[0] == {"finite_values": both["finite_values"]}
    assert list(json.loads((out / FRAMES).read_text())["episodes"]) == [second.name, third.name]


def test_a_damaged_episode_has_no_frames(episode, tmp_path):
    path = episode(0, change=late)
    (path / "rgb_cam_0.mkv").write_bytes(b"")
    out = tmp_path / "episodes"
    assert named(asked(out)[1]) == {}
    _, answers = asked(out, max_gap=5)
    assert named(answers) == {}
    assert answers.results()[0].result["element_count"] == 0


def many(count, frames, bad):
    """Frames of episodes that were never written; ``bad`` of each hold a number that is none."""
    for number in range(count):
        numbers = np.zeros(frames)
        numbers[:bad] = 1
        times = np.arange(frames) / 30
        yield f"e{number}", FrameFacts(times, np.r_[np.nan, np.ones(frames - 1)], numbers)


def test_many_offenders_are_counted_and_few_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(frame_expectations, "_ROWS_AT_ONCE", 1000)
    answers = FrameAnswers(tmp_path, CheckThresholds())
    for name, facts in many(10, 300, 40):
        answers.take(name, "key", facts)
    answers.finish([f"e{number}" for number in range(10)])
    found = answers.offenders()["finite_values"]
    assert list(found) == [f"e{number}" for number in range(10)]
    assert {(beyond.count, len(beyond.first)) for beyond in found.values()} == {(40, 10)}
    (result,) = (each for each in answers.results() if each.expectation_config.meta["check"] == "finite_values")
    assert (result.result["element_count"], result.result["unexpected_count"]) == (3000, 400)
    again = FrameAnswers(tmp_path, CheckThresholds())
    assert again.offenders() == answers.offenders()
    assert again.digest == answers.digest


def test_memory_is_that_of_the_frames_at_once(tmp_path):
    """A million frames pass; at no time more than two batches of them are held."""
    answers = FrameAnswers(tmp_path, CheckThresholds())
    warm = list(itertools.islice(many(1, 10, 1), 1))
    answers.take("warm", "key", warm[0][1])
    answers.finish(["warm"])  # Great Expectations is imported now
    tracemalloc.start()
    try:
        for name, facts in many(20, 50_000, 3):
            answers.take(name, "key", facts)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 60_000_000  # with those of all ten batches kept it is 90 MB


def test_the_page_and_the_verdicts_name_frames(episode, tmp_path):
    episode(0)
    episode(1, change=lambda arrays: (spoilt(arrays), late(arrays)))
    out = tmp_path / "episodes"
    rows, answers = asked(out)
    said, page = reported_offenders(out, rows, CheckThresholds(), answers)
    text = page.read_text()
    for word in ("not_finite", "step", "still", "episode_000001 frame 17", "episode_000001 frame 10", "max_gap"):
        assert word in text
    quality = judge(rows, CheckThresholds(), None, said, answers.offenders())
    frames = quality.checks["finite_values"].frames["episode_000001"]
    assert frames.count == 2
    assert [(one.frame, one.stream) for one in frames.first] == [(17, ""), (18, "")]
    assert quality.checks["has_frames"].frames == {}
    # the page is made anew when a frame says something else
    before = page.read_bytes()
    rows, answers = asked(out, max_gap=5)
    reported_offenders(out, rows, CheckThresholds(max_gap=5), answers)
    assert Path(page).read_bytes() != before


def test_an_episode_whose_frames_offend_fails_whatever_its_row_says(tmp_path):
    answers = FrameAnswers(tmp_path, CheckThresholds())
    for name, facts in many(1, 20, 1):
        answers.take(name, "key", facts)
    answers.finish(["e0"])
    row = EpisodeRow("e0", frames=20, backward_steps=0, max_gap=1, jitter=0, non_finite=0)
    quality = judge([row], CheckThresholds(), frames=answers.offenders())
    assert quality.bad == {"e0": "finite_values: frame 0: 1 values that are no number"}
