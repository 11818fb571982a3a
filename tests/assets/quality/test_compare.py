"""What shows only beside other episodes or between streams: copies, blur, stuck channels, action and state apart."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageFilter

from knonik_assets.configs.card import CheckThresholds
from knonik_assets.quality import expectations
from knonik_assets.quality.episode_table import episode_rows
from knonik_assets.quality.examine import examine
from knonik_assets.quality.expectations import offenders, reported_offenders


def moving(arrays):
    """Action and state that follow each other in every channel."""
    steps = np.arange(len(arrays["state"]))[:, None]
    arrays["state"][:] = np.sin(steps / 5 + np.arange(4))
    arrays["action"][:] = arrays["state"] + 0.01


def blur(camera):
    def change(arrays):
        moving(arrays)
        for frame in arrays[camera]:
            frame[:] = np.asarray(Image.fromarray(frame).filter(ImageFilter.GaussianBlur(4)))

    return change


def test_a_recording_that_is_there_twice(episode, tmp_path):
    episode(0, change=moving)
    episode(1, change=moving)
    twin = episode(2, change=moving)
    first = tmp_path / "episodes" / "episode_000000"
    # the same files under another number, as after copying a raw file
    for path in first.rglob("*"):
        if path.is_file() and path.name != "metadata.json":
            (twin / path.relative_to(first)).write_bytes(path.read_bytes())
    text = (
        (first / "metadata.json").read_text().replace("episode_000000", "episode_000002").replace('"episode_0"', '"b"')
    )
    (twin / "metadata.json").write_text(text)
    rows = episode_rows(tmp_path / "episodes", engine="inline")
    assert [row.duplicate_of for row in rows] == [None, None, "episode_000000"]
    found = offenders(rows, CheckThresholds())
    assert found["no_duplicates"] == {"episode_000002": "the same recording as episode_000000"}


def test_a_camera_out_of_focus(episode, tmp_path):
    for number in range(4):
        episode(number, change=blur("cam_1") if number == 2 else moving)
    rows = episode_rows(tmp_path / "episodes", engine="inline")
    found = offenders(rows, CheckThresholds())["cameras_sharp"]
    assert set(found) == {"episode_000002"}
    assert "camera cam_1" in found["episode_000002"]
    # too few episodes to know what is usual
    assert all(row.blur is None for row in episode_rows(_three(tmp_path), engine="inline"))


def _three(tmp_path):
    folder = tmp_path / "three"
    folder.mkdir()
    for path in sorted((tmp_path / "episodes").glob("episode_*"))[:3]:
        path.rename(folder / path.name)
    return folder


def test_a_white_camera(episode):
    def white(arrays):
        moving(arrays)
        arrays["cam_0"][:, :, :80] = 255

    row = examine(episode(change=white))
    assert row.saturated == pytest.approx(80 / 112, abs=0.05)
    assert "camera cam_0" in row.notes["saturated"]
    assert offenders([row], CheckThresholds())["cameras_lit"]


def test_a_channel_that_never_moves(episode):
    def stuck(arrays):
        moving(arrays)
        arrays["state"][:, 2] = 0.5

    row = examine(episode(change=stuck))
    assert row.constant_channels == 1
    assert row.notes["constant_channels"] == "state: channels 2 never change"
    assert offenders([row], CheckThresholds())["channels_alive"]
    assert not offenders([row], CheckThresholds(max_constant_channels=1))["channels_alive"]


def test_action_and_state_that_disagree(episode):
    def apart(arrays):
        moving(arrays)
        arrays["action"][:, 3] += 0.9

    row = examine(episode(change=apart))
    assert row.offset == pytest.approx(0.91 / 2, abs=0.05)
    assert "in channel 3" in row.notes["offset"]
    assert offenders([row], CheckThresholds())["action_follows_state"]
    calm = examine(episode(1, change=moving))
    assert calm.offset < 0.02
    assert calm.constant_channels == 0


def test_steps_are_not_compared_with_positions(episode):
    def steps(arrays):
        moving(arrays)
        arrays["action"][:] = np.diff(arrays["state"], axis=0, append=arrays["state"][-1:])
        arrays["state"] += 5

    assert examine(episode(change=steps)).offset is None


def test_roles_may_come_from_outside(episode, tmp_path):
    path = episode(change=moving)
    assert examine(path, {"action": "state", "state": "action"}).notes["offset"].startswith("action and state differ")
    # a stream that is not there binds nothing
    assert examine(path, {"state": "gone"}).offset is None


def test_the_page_of_expectations(episode, tmp_path):
    def dark(arrays):
        moving(arrays)
        arrays["cam_0"][:] = 4

    episode(0, change=moving)
    episode(1, change=dark)
    out = tmp_path / "episodes"
    rows = episode_rows(out, engine="inline")
    found, page = reported_offenders(out, rows, CheckThresholds())
    assert found == offenders(rows, CheckThresholds())
    assert set(found["cameras_alive"]) == {"episode_000001"}
    text = page.read_text()
    assert "dimmest" in text
    assert "episode_000001" in text
    _, page = reported_offenders(tmp_path, [], CheckThresholds())
    assert "no episodes" in page.read_text()


def test_the_same_table_is_validated_once(episode, tmp_path, monkeypatch):
    episode(0, change=moving)
    out = tmp_path / "episodes"
    rows, calls = episode_rows(out, engine="inline"), []
    validate = expectations._validate

    def counted(*arguments):
        calls.append(arguments)
        return validate(*arguments)

    monkeypatch.setattr(expectations, "_validate", counted)

    def ask(rows=rows, **thresholds):
        calls.clear()
        return reported_offenders(out, rows, CheckThresholds(**thresholds))[0], len(calls)

    first, asked = ask()
    assert asked == 1
    assert ask() == (first, 0)
    assert ask(min_frames=25) == ({**first, "has_frames": {"episode_000000": "frames is 24.0"}}, 1)
    assert ask(min_frames=25)[1] == 0
    assert ask()[1] == 1
    other = [replace(rows[0], jitter=0.5)]
    assert ask(other)[1] == 1
    (out / "quality.html").unlink()
    assert ask(other)[1] == 1
    for damage in ("{", "[]", '{"key": 1}'):
        (out / ".knonik/expectations.json").write_text(damage)
        assert ask(other)[1] == 1
