"""Runs of ingest: incremental, numbered for ever, one at a time, never losing a good episode to a bad one."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.ingest import run
from knonik_assets.ingesting.lock import OutputLock
from knonik_loader.errors import ConfigError, EpisodeError, LoginRequired, SourceError, StorageError
from tests.support.road import ingest_config, tree, write_raw
from tests.support.stamps import read_stamp

CONFIG = ingest_config(cameras=1)


@pytest.fixture
def raw(tmp_path):
    return write_raw(tmp_path / "raw", [8, 9, 10], cameras=1)


def ingest(raw, out, config=CONFIG, **options):
    return run(config, raw, out, engine=options.pop("engine", "inline"), **options)


def names(outcomes):
    return [outcome.episode_id for outcome in outcomes]


def test_every_frame_row_and_time_arrives(raw, tmp_path):
    report = ingest(raw, tmp_path / "out")
    assert [outcome.frames for outcome in report.written] == [8, 9, 10]
    for episode, length in enumerate([8, 9, 10]):
        reader = EpisodeReader(tmp_path / "out" / f"episode_{episode:06d}")
        assert [read_stamp(frame) for frame in reader.rgb("cam_0")] == [(0, episode, t) for t in range(length)]
        np.testing.assert_array_equal(reader.numeric("action")[:, 0], np.arange(length))
        np.testing.assert_allclose(reader.frame_time(), np.arange(length) / 30, atol=1e-9)
        assert reader.metadata.source_id == f"episode_{episode}"
        assert reader.verify() == []


def test_unchanged_episodes_are_skipped_and_changed_ones_replaced(raw, tmp_path):
    out = tmp_path / "out"
    ingest(raw, out)
    before = tree(out)
    assert names(ingest(raw, out).skipped) == ["episode_000000", "episode_000001", "episode_000002"]
    assert tree(out) == before
    shutil.copy(raw / "episode_2.hdf5", raw / "episode_1.hdf5")
    report = ingest(raw, out)
    assert (names(report.written), len(report.skipped)) == (["episode_000001"], 2)
    assert EpisodeReader(out / "episode_000001").length == 10
    report = ingest(raw, out, {**CONFIG, "fps": 20})
    assert len(report.written) == 3


def test_moving_the_data_changes_nothing(raw, tmp_path):
    ingest(raw, tmp_path / "out")
    shutil.move(raw, tmp_path / "elsewhere")
    assert len(ingest(tmp_path / "elsewhere", tmp_path / "out").skipped) == 3


def test_a_damaged_episode_is_made_again(raw, tmp_path):
    out = tmp_path / "out"
    ingest(raw, out)
    before = tree(out)
    (out / "episode_000001" / "rgb_cam_0.mkv").unlink()
    assert names(ingest(raw, out).written) == ["episode_000001"]
    assert tree(out) == before


def test_numbers_belong_to_their_source_for_ever(raw, tmp_path):
    out = tmp_path / "out"
    (raw / "episode_0.hdf5").rename(tmp_path / "late.hdf5")
    ingest(raw, out)
    assert EpisodeReader(out / "episode_000000").metadata.source_id == "episode_1"
    (tmp_path / "late.hdf5").rename(raw / "episode_0.hdf5")
    (raw / "episode_10.hdf5").write_bytes((raw / "episode_0.hdf5").read_bytes())
    ingest(raw, out)
    ids = {path.name: EpisodeReader(path).metadata.source_id for path in sorted(out.glob("episode_*"))}
    assert ids == {
        "episode_000000": "episode_1",
        "episode_000001": "episode_2",
        "episode_000002": "episode_0",
        "episode_000003": "episode_10",
    }
    (raw / "episode_1.hdf5").unlink()
    assert any("prune" in warning for warning in ingest(raw, out).warnings)
    assert (out / "episode_000000").exists()
    ingest(raw, out, prune=True)
    assert not (out / "episode_000000").exists()
    assert len(list(out.glob("episode_*"))) == 3


def test_a_bad_episode_fails_alone_and_keeps_its_number(raw, tmp_path):
    (raw / "episode_1.hdf5").write_bytes(b"not hdf5")
    report = ingest(raw, tmp_path / "out")
    assert (names(report.written), names(report.failed)) == (["episode_000000", "episode_000002"], ["episode_000001"])
    assert "episode_1" in report.failed[0].reason
    saved = json.loads((tmp_path / "out" / "ingest_report.json").read_text())
    assert [episode["status"] for episode in saved["episodes"]] == ["written", "failed", "written"]


def test_fail_fast_stops_at_the_first(raw, tmp_path):
    (raw / "episode_0.hdf5").write_bytes(b"not hdf5")
    with pytest.raises(EpisodeError):
        ingest(raw, tmp_path / "out", fail_fast=True)
    assert not list((tmp_path / "out").glob("episode_*"))


def test_a_run_without_any_episode_fails(tmp_path):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "episode_0.hdf5").write_bytes(b"nothing")
    with pytest.raises(EpisodeError, match="episode_0"):
        ingest(tmp_path / "raw", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError):
        ingest(tmp_path / "empty", tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


def test_the_shortest_stream_decides_and_the_cut_is_recorded(raw, tmp_path):
    with h5py.File(raw / "episode_0.hdf5", "a") as file:
        action = file["action"][:5]
        del file["action"]
        file["action"] = action
    report = ingest(raw, tmp_path / "out")
    reader = EpisodeReader(tmp_path / "out" / "episode_000000")
    assert reader.length == 5
    assert sum(reader.metadata.trimmed.values()) == 3 * len(reader.metadata.trimmed) > 0
    assert report.written[0].warnings
    assert [read_stamp(frame)[2] for frame in reader.rgb("cam_0")] == list(range(5))


def test_the_same_bytes_whatever_the_workers(raw, tmp_path):
    ingest(raw, tmp_path / "one")
    ingest(raw, tmp_path / "two", engine="processes", workers=2)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_a_second_run_is_told_who_holds_the_output(raw, tmp_path):
    with OutputLock(tmp_path / "out", "the first run"), pytest.raises(StorageError, match="the first run"):
        ingest(raw, tmp_path / "out")
    assert len(ingest(raw, tmp_path / "out").written) == 3


def test_an_existing_dataset_config_is_kept_unless_forced(raw, tmp_path):
    out = tmp_path / "out"
    ingest(raw, out)
    (out / "config.json").write_text("mine")
    ingest(raw, out)
    assert (out / "config.json").read_text() == "mine"
    ingest(raw, out, force_config=True)
    assert json.loads((out / "config.json").read_text())["dataset"] == "stamped"


def test_language_by_strength(raw, tmp_path):
    def told(config):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        ingest(raw, out, {**config, "episode_limit": 1})
        language = EpisodeReader(out / "episode_000000").language()
        return language.instruction if language else None

    assert told(CONFIG) is None
    weak = {**CONFIG, "metadata": {"dataset": "d", "language_instruction": "from metadata"}}
    assert told(weak) == "from metadata"
    with h5py.File(raw / "episode_0.hdf5", "a") as file:
        file.attrs["language_instruction"] = "from source"
    assert told(weak) == "from source"
    assert told({**weak, "language": {"instruction": "from block"}}) == "from block"
    assert told({**weak, "language": False}) is None


def test_copy_without_packets_is_encoded_and_says_so(raw, tmp_path):
    report = ingest(raw, tmp_path / "out", {**CONFIG, "preset": {"rgb": {"codec": "copy"}}})
    reader = EpisodeReader(tmp_path / "out" / "episode_000000")
    assert reader.rgb_info("cam_0").codec == "vp9"
    assert any("cannot be copied" in warning for warning in [*report.warnings, *report.written[0].warnings])


def test_turned_pictures_are_why_packets_are_not_copied(raw, tmp_path):
    config = {**CONFIG, "preset": {"rgb": {"codec": "copy"}}, "orientation": "rotate_180"}
    report = ingest(raw, tmp_path / "out", config)
    assert any("cannot be copied" in text and "rotate_180" in text for text in report.written[0].warnings)


def test_mistaken_calls_leave_the_output_alone(raw, tmp_path, monkeypatch):
    out = tmp_path / "out"
    for options in ({"engine": "threads"}, {"workers": 0}):
        with pytest.raises(ConfigError):
            ingest(raw, out, **options)
    with pytest.raises(ConfigError, match="same directory"):
        ingest(raw, raw)
    with pytest.raises(ConfigError, match="output"):
        run(CONFIG, raw)
    with pytest.raises(ConfigError, match="input"):
        run(CONFIG, output=out)
    monkeypatch.setenv("KNONIK_ISSUER", "https://login.example.org")
    with pytest.raises(LoginRequired):
        ingest(raw, out)
    assert not out.exists()


@pytest.mark.parametrize("place", [".", "episodes", "a/b"])
def test_raw_data_is_never_written_into(raw, place):
    before = tree(raw)
    with pytest.raises(ConfigError, match="never writes into raw data"):
        ingest(raw, raw / place)
    assert tree(raw) == before


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_somebody_else_put_there_is_left_alone(raw, tmp_path, kind):
    out = tmp_path / "out"
    out.mkdir()
    mine = out / "episode_000001"
    if kind == "folder":
        mine.mkdir()
        (mine / "notes.txt").write_text("mine")
    elif kind == "file":
        mine.write_text("mine")
    else:
        mine.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"episode_000001 stands where episode_1 belongs"):
        ingest(raw, out)
    assert mine.is_symlink() or "mine" in ((mine / "notes.txt") if kind == "folder" else mine).read_text()


FOREIGN = {"name": "calibration", "version": 3}


@pytest.mark.parametrize("beside", [None, "frame_time/0", "rgb_cam_0.mkv", "notes.txt"])
@pytest.mark.parametrize("text", [json.dumps(FOREIGN), json.dumps([FOREIGN]), "3"])
def test_another_tools_folder_of_that_name_is_left_alone(raw, tmp_path, beside, text):
    out = tmp_path / "out"
    for name in ("episode_000001", "calibration", "episode_000007"):
        folder = out / name
        folder.mkdir(parents=True)
        (folder / "metadata.json").write_text(text)
        if beside is not None:
            (folder / beside).parent.mkdir(exist_ok=True)
            (folder / beside).write_text("theirs")
    before = tree(out)
    for prune in (False, True):
        with pytest.raises(StorageError, match=r"out/episode_000001 stands where episode_1 belongs.*: move it away"):
            ingest(raw, out, prune=prune)
        assert tree(out) == before
    shutil.move(out / "episode_000001", tmp_path / "elsewhere")
    report = ingest(raw, out, prune=True)
    assert (names(report.written), report.pruned) == ([f"episode_{number:06d}" for number in range(3)], [])
    assert any("episode_000007/metadata.json is no ingested episode's" in warning for warning in report.warnings)
    kept = {name: data for name, data in before.items() if not name.startswith("episode_000001")}
    assert {name: data for name, data in tree(out).items() if name in kept} == kept
    # nor is one taken away that came to stand where an episode was
    shutil.rmtree(out / "episode_000001")
    shutil.move(tmp_path / "elsewhere", out / "episode_000001")
    (raw / "episode_1.hdf5").unlink()
    assert ingest(raw, out, prune=True).pruned == []
    assert {name: data for name, data in tree(out).items() if name in before} == before


@pytest.mark.parametrize(("text", "what"), [(None, "lost"), ("{", "damaged")])
def test_what_stands_in_an_episode_without_metadata_is_named(raw, tmp_path, text, what):
    out = tmp_path / "out"
    ingest(raw, out)
    wanted = tree(out)
    folder = out / "episode_000001"
    (folder / "metadata.json").unlink()
    if text is not None:
        (folder / "metadata.json").write_text(text)
    (folder / "labels").mkdir()
    for name in ("notes.txt", "labels/1.txt", "labels/2.txt", "labels/3.txt"):
        (folder / name).write_text("mine")
    before = tree(out)
    with pytest.raises(StorageError) as caught:
        ingest(raw, out)
    assert str(caught.value) == (
        f"{folder} stands where episode_1 belongs and looks like an episode whose metadata.json is {what}, but holds "
        "what no ingest wrote: move that (labels/1.txt, labels/2.txt, labels/3.txt and 1 more) away, and the episode "
        "is ingested again; or name another output."
    )
    assert tree(out) == before
    shutil.rmtree(folder / "labels")
    (folder / "notes.txt").unlink()
    assert names(ingest(raw, out).written) == ["episode_000001"]
    assert tree(out) == wanted


@pytest.mark.parametrize("text", ["", '{"dataset": "d", "robot', '{"source_fingerprint": "x"}'])
def test_an_episode_of_damaged_metadata_is_written_again(raw, tmp_path, text):
    out = tmp_path / "out"
    ingest(raw, out)
    before = tree(out)
    (out / "episode_000001" / "metadata.json").write_text(text)
    assert names(ingest(raw, out).written) == ["episode_000001"]
    assert tree(out) == before


@pytest.mark.parametrize("lost", ["metadata.json", "frame_time"])
def test_a_damaged_episode_is_written_again(raw, tmp_path, lost):
    out = tmp_path / "out"
    ingest(raw, out)
    before = tree(out)
    path = out / "episode_000001" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert names(ingest(raw, out).written) == ["episode_000001"]
    assert tree(out) == before


def test_depth_that_the_preset_empties_is_warned_of(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    with h5py.File(raw / "episode_0.hdf5", "w") as file:
        file["depth"] = np.full((4, 16, 16), 1.5, np.float32)
        file["action"] = np.zeros((4, 2), np.float32)
    config = {"dir_type": "episodic", "data_type": "hdf5", "preset": {"depth": {"max_m": 0.5}}}
    (outcome,) = ingest(raw, tmp_path / "out", config).written
    assert any("depth_depth keeps no reading at all: 1024 lay above" in text for text in outcome.warnings)
    config["preset"]["depth"]["max_m"] = 2
    (outcome,) = ingest(raw, tmp_path / "out", config).written
    assert not any("no reading" in text for text in outcome.warnings)
    with h5py.File(raw / "episode_0.hdf5", "r+") as file:
        file["depth"][...] *= -1
    (outcome,) = ingest(raw, tmp_path / "out", config).written
    assert any("1024 were zero, negative or not finite" in text for text in outcome.warnings)


def test_what_is_only_assumed_is_said(raw, tmp_path):
    """A guessed rate shifts every offset in seconds, and exchanged channels look almost right."""
    config = {key: value for key, value in CONFIG.items() if key not in ("fps", "layout")}
    layout = {**CONFIG["layout"]}
    del layout["timestamps"]
    for path in raw.glob("*.hdf5"):
        with h5py.File(path, "a") as file:
            del file["timestamps"]
    report = ingest(raw, tmp_path / "assumed", {**config, "layout": layout})
    assert all(any("30 is assumed" in warning for warning in episode.warnings) for episode in report.written)
    report = ingest(raw, tmp_path / "said", {**config, "layout": layout, "fps": 30})
    assert not any("assumed" in warning for episode in report.written for warning in episode.warnings)


@pytest.mark.parametrize(("order", "warned"), [(None, True), ("rgb", False), ("bgr", False)])
def test_pictures_of_an_aloha_recorder_are_warned_of_until_their_order_is_said(tmp_path, order, warned):
    sample = Path(__file__).parents[3] / "dagster_home" / "sample" / "aloha_sim"
    config = {"dir_type": "episodic", "data_type": "hdf5", "fps": 50, "episode_limit": 1}
    config["layout"] = {"images": {"top": "observations.images.top"}}
    config["preset"] = {"rgb": {"codec": "jpeg"}}
    if order is not None:
        config["jpeg_channel_order"] = order
    (episode,) = ingest(sample, tmp_path / "out", config).written
    assert any("exchanged" in warning for warning in episode.warnings) == warned
