"""Runs in which something goes wrong on the way: workers that die, sources that vanish, fail_fast in the middle."""

import os
import shutil
from pathlib import Path

import pytest

from knonik_assets import ingest as ingest_module
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.ingest import run
from knonik_assets.ingesting.one_episode import ingest_episode
from knonik_loader.errors import ConfigError, EpisodeError, StorageError
from tests.support.road import ingest_config, tree, write_raw

CONFIG = ingest_config(cameras=1)


@pytest.fixture
def raw(tmp_path):
    return write_raw(tmp_path / "raw", [5, 6, 7], cameras=1)


def die_on_one(task):
    """Die in the middle of episode_1, leaving what a dead worker leaves."""
    if task.ref.source_id == "episode_1":
        (Path(task.out) / ".knonik" / "tmp" / "episode_000001.dead").mkdir(parents=True, exist_ok=True)
        os._exit(9)
    return ingest_episode(task)


def test_a_worker_that_dies_costs_its_own_episode_only(raw, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(ingest_module, "ingest_episode", die_on_one)
    report = run(CONFIG, raw, out, workers=2)
    assert [(o.episode_id, o.status) for o in report.episodes] == [
        ("episode_000000", "written"),
        ("episode_000001", "failed"),
        ("episode_000002", "written"),
    ]
    assert "died 2 times" in report.failed[0].reason
    assert not report.ok
    assert not list((out / ".knonik" / "tmp").iterdir())
    monkeypatch.undo()
    report = run(CONFIG, raw, out, engine="inline")
    assert [o.status for o in report.episodes] == ["skipped", "written", "skipped"]
    run(CONFIG, raw, tmp_path / "undisturbed", engine="inline")
    assert tree(out) == tree(tmp_path / "undisturbed")


def test_an_episode_whose_source_breaks_stays_as_it_was(raw, tmp_path):
    out = tmp_path / "out"
    run(CONFIG, raw, out, engine="inline")
    before = tree(out)
    (raw / "episode_1.hdf5").write_bytes(b"broken")
    report = run(CONFIG, raw, out, engine="inline")
    assert [o.status for o in report.episodes] == ["skipped", "failed", "skipped"]
    assert any("stays" in warning for warning in report.failed[0].warnings)
    assert tree(out) == before


def test_fail_fast_in_the_middle_says_what_was_not_reached(raw, tmp_path):
    (raw / "episode_1.hdf5").write_bytes(b"broken")
    report = run(CONFIG, raw, tmp_path / "out", engine="inline", fail_fast=True)
    assert [o.status for o in report.episodes] == ["written", "failed"]
    assert report.not_reached == ["episode_000002"]
    assert not report.ok


def test_a_full_disk_stops_the_run_and_keeps_what_is_done(raw, tmp_path, monkeypatch):
    def refuse(task):
        if task.ref.source_id == "episode_1":
            raise StorageError(f"cannot write to {task.out}: No space left on device.")
        return ingest_episode(task)

    out = tmp_path / "out"
    monkeypatch.setattr(ingest_module, "ingest_episode", refuse)
    with pytest.raises(StorageError, match="No space left"):
        run(CONFIG, raw, out, engine="inline")
    assert EpisodeReader(out / "episode_000000").verify() == []
    assert not (out / "episode_000002").exists()
    assert not (out / "config.json").exists()


def test_lost_bookkeeping_is_taken_from_the_episodes(raw, tmp_path):
    out = tmp_path / "out"
    run(CONFIG, raw, out, engine="inline")
    shutil.rmtree(out / ".knonik")
    (raw / "episode_0.hdf5").unlink()
    report = run(CONFIG, raw, out, engine="inline")
    assert [(o.episode_id, o.status) for o in report.episodes] == [
        ("episode_000001", "skipped"),
        ("episode_000002", "skipped"),
    ]


def test_a_limited_run_is_the_beginning_of_the_whole_one(raw, tmp_path):
    out = tmp_path / "out"
    report = run({**CONFIG, "episode_limit": 1}, raw, out, engine="inline")
    assert [o.episode_id for o in report.written] == ["episode_000000"]
    assert report.warnings == []
    report = run(CONFIG, raw, out, engine="inline", prune=True)
    assert [o.status for o in report.episodes] == ["skipped", "written", "written"]
    run(CONFIG, raw, tmp_path / "whole", engine="inline")
    assert tree(out) == tree(tmp_path / "whole")


def test_metadata_that_ingest_fills_in_itself_is_refused_before_anything_is_written(raw, tmp_path):
    with pytest.raises(ConfigError, match="episode_id"):
        run({**CONFIG, "metadata": {"episode_id": "mine"}}, raw, tmp_path / "out", engine="inline")
    assert not (tmp_path / "out").exists()


def test_episodes_that_differ_leave_no_dataset_config_but_a_warning(tmp_path):
    raw = write_raw(tmp_path / "raw", [5], cameras=1)
    other = write_raw(tmp_path / "other", [5, 5], cameras=1, size=(104, 112))
    shutil.copy(other / "episode_1.hdf5", raw)
    report = run(CONFIG, raw, tmp_path / "out", engine="inline")
    assert len(report.written) == 2
    assert any("config.json was not written" in warning and "height" in warning for warning in report.warnings)
    assert not (tmp_path / "out" / "config.json").exists()


def test_knobs_without_meaning_are_reported(raw, tmp_path):
    config = {**CONFIG, "preset": {"rgb": {"codec": "jpeg", "gop": 5}}}
    report = run(config, raw, tmp_path / "out", engine="inline")
    assert report.warnings == ["rgb.gop has no effect with codec jpeg"]


def test_nothing_at_all_is_an_error_with_the_first_reason(tmp_path):
    raw = write_raw(tmp_path / "raw", [5, 5], cameras=1)
    for path in raw.iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(EpisodeError, match=r"2 tried\); episode_0: "):
        run(CONFIG, raw, tmp_path / "out", engine="inline")
    assert (tmp_path / "out" / "ingest_report.json").exists()


@pytest.mark.parametrize("what", ["input", "output"])
def test_links_in_a_circle_are_a_mistake_in_the_call(tmp_path, what):
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "raw").mkdir()
    places = {"input": tmp_path / "raw", "output": tmp_path / "out", what: tmp_path / "circle"}
    with pytest.raises(ConfigError, match=f"{what} .*circle leads nowhere"):
        run({"dir_type": "rosbag"}, **places)
