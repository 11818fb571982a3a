"""What the episode table says of healthy and ill episodes."""

import json
import os

import numpy as np
import pytest

from knonik_assets.quality import episode_table
from knonik_assets.quality.episode_table import episode_rows, table_of
from knonik_assets.quality.examine import examine


def freeze(camera, start):
    def change(arrays):
        arrays[camera][start:] = arrays[camera][start]

    return change


@pytest.mark.parametrize("codec", ["h264", "jpeg"])
def test_a_healthy_episode(episode, codec):
    row = examine(episode(codec=codec))
    assert (row.episode, row.source_id, row.frames, row.fps) == ("episode_000000", "episode_0", 24, 30)
    assert row.streams == "rgb_cam_0 96x112, rgb_cam_1 96x112, action 4, state 4"
    assert (row.backward_steps, row.non_finite, row.damaged_files, row.frozen) == (0, 0, 0, 0)
    assert row.max_gap == pytest.approx(1)
    assert row.jitter == pytest.approx(0, abs=1e-6)
    assert row.seconds == pytest.approx(23 / 30)
    assert row.dimmest > 100
    assert row.bytes > 1000


@pytest.mark.parametrize("codec", ["h264", "vp9", "jpeg"])
@pytest.mark.parametrize(("start", "share"), [(0, 1.0), (8, 16 / 24)])
def test_a_frozen_camera(episode, codec, start, share):
    row = examine(episode(codec=codec, change=freeze("cam_1", start)))
    assert row.frozen == pytest.approx(share, abs=0.13)
    assert "camera cam_1 shows one picture" in row.notes["frozen"]
    assert "cam_0" not in row.notes["frozen"]


def test_a_robot_at_rest_is_no_frozen_camera(episode):
    def rest(arrays):
        for name, values in arrays.items():
            if name != "timestamps":
                values[6:] = values[6]

    assert examine(episode(change=rest)).frozen == 0


def test_a_black_camera(episode):
    def dark(arrays):
        arrays["cam_0"][:] = 4

    row = examine(episode(change=dark))
    assert row.dimmest < 10
    assert "camera cam_0" in row.notes["dimmest"]


def test_numbers_that_are_none(episode):
    def spoil(arrays):
        arrays["action"][17, 2] = np.nan
        arrays["action"][18, 0] = np.inf

    row = examine(episode(change=spoil))
    assert row.non_finite == 2
    assert row.notes["non_finite"].startswith("action: 2 values that are no number, the first in row 17, channel 2")


def test_a_clock_with_a_gap(episode):
    def late(arrays):
        arrays["timestamps"][10:] += 3 / 30

    row = examine(episode(change=late))
    assert row.max_gap == pytest.approx(4)
    assert row.jitter > 0.4
    assert row.backward_steps == 0
    assert "before frame 10" in row.notes["max_gap"]


def test_a_flipped_byte(episode):
    path = episode()
    video = path / "rgb_cam_0.mkv"
    data = bytearray(video.read_bytes())
    data[len(data) // 2] ^= 1
    video.write_bytes(data)
    row = examine(path)
    assert row.damaged_files == 1
    assert row.notes["damaged_files"] == "rgb_cam_0.mkv differs from its checksum"
    assert row.frames == 24
    assert row.max_gap is None


def test_metadata_that_cannot_be_read(episode):
    path = episode()
    (path / "metadata.json").write_text("{")
    row = examine(path)
    assert row.damaged_files == 1
    assert "metadata.json" in row.notes["damaged_files"]


def test_rows_are_remembered_until_a_file_changes(episode, tmp_path, monkeypatch):
    first, second = episode(0), episode(1)
    out = tmp_path / "episodes"
    rows = episode_rows(out, engine="inline")
    measured = []
    monkeypatch.setattr(
        episode_table, "examine", lambda path, roles: measured.append(path.name) or examine(path, roles)
    )
    assert episode_rows(out, engine="inline") == rows
    assert measured == []
    os.utime(second / "metadata.json", (1, 1))
    assert episode_rows(out, engine="inline") == rows
    assert measured == [second.name]
    (first / "metadata.json").unlink()  # no episode any more
    assert [row.episode for row in episode_rows(out, engine="inline")] == [second.name]
    stored = json.loads((out / ".knonik" / "quality_rows.json").read_text())
    assert list(stored["rows"]) == [second.name]


def test_a_damaged_store_only_costs_time(episode, tmp_path):
    episode()
    out = tmp_path / "episodes"
    rows = episode_rows(out, engine="inline")
    (out / ".knonik" / "quality_rows.json").write_text('{"rows": [1]}')
    assert episode_rows(out, engine="inline") == rows


def test_measuring_in_processes_gives_the_same(episode, tmp_path):
    for number in range(5):
        episode(number, frames=4)
    out = tmp_path / "episodes"
    lines = []
    parallel = episode_rows(out, engine="processes", workers=2, say=lines.append)
    (out / ".knonik" / "quality_rows.json").unlink()
    assert parallel == episode_rows(out, engine="inline")
    assert len(lines) == 5
    assert "5 of 5" in lines[-1]


def test_the_table_has_a_number_where_a_number_belongs(episode, tmp_path):
    episode()
    frame = table_of(episode_rows(tmp_path / "episodes", engine="inline"))
    assert frame["frames"].tolist() == [24.0]
    assert frame["streams"].tolist() == ["rgb_cam_0 96x112, rgb_cam_1 96x112, action 4, state 4"]
    assert "notes" not in frame
