"""What detect writes ingests as it is, family by family, and says in comments what keys cannot."""

import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest

from knonik.ingest import detect, run
from knonik_assets.carding import add_card
from knonik_assets.cli import main
from knonik_assets.configs.card import CheckThresholds, load_card
from knonik_assets.configs.load import load_document, load_ingest_config, parse_yaml
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.quality.episode_table import episode_rows
from knonik_assets.quality.expectations import offenders
from knonik_assets.sources.detect import config_text
from tests.assets.sources.bags import Bag
from tests.assets.sources.support import V2, V3, write_hdf5
from tests.support import calvin_data
from tests.support.mutations import FAMILIES
from tests.support.stamps import episode_arrays, read_stamp

QUICK = {"rgb": {"codec": "jpeg", "quality": 90}}


def ingested(config: Path, out: Path, capsys) -> list[EpisodeReader]:
    """Ingest with a config that detect wrote, from the command line as a user does."""
    capsys.readouterr()
    assert main(["ingest", "--config", str(config), "--output", str(out), "--engine", "inline", "--quiet"]) == 0
    return [EpisodeReader(path) for path in sorted(out.glob("episode_*"))]


@pytest.mark.parametrize(("family", "suffix"), [*((family, "yaml") for family in FAMILIES), ("rlds", "json")])
def test_what_is_written_ingests_as_it_is(tmp_path, capsys, family, suffix):
    raw = tmp_path / "raw"
    raw.mkdir()
    FAMILIES[family].write(raw)
    found = detect(raw)
    path = tmp_path / f"config.{suffix}"
    assert main(["detect", str(raw), "--write", str(path)]) == 0
    assert load_document(path) == found.config
    assert path.read_text().startswith("{" if suffix == "json" else f"# {found.family}")
    readers = ingested(path, tmp_path / "out", capsys)
    assert len(readers) == found.episodes
    first = readers[0].metadata
    names = {
        kind: {one["name"] for one in found.streams if one["kind"] == kind} for kind in ("rgb", "depth", "numeric")
    }
    assert set(first.rgb_streams) == names["rgb"]
    assert set(first.depth_streams) == names["depth"]
    assert set(first.numeric_streams) == names["numeric"]
    assert first.fps == pytest.approx(found.config["fps"])
    assert first.dataset == found.config["metadata"]["dataset"]


@pytest.mark.parametrize("family", ["hdf5", "lerobot_v3", "rlds", "npy_separate"])
def test_every_stream_has_a_word_about_its_shape(tmp_path, family):
    FAMILIES[family].write(tmp_path)
    found = detect(tmp_path)
    lines = config_text(found).splitlines()
    for stream in found.streams:
        shape = " x ".join(map(str, stream["shape"]))
        (line,) = [line for line in lines if line.startswith(f"    {stream['name']}: ")]
        assert f"# {shape}" in line
        assert not stream["fps"] or f"{stream['fps']:g} fps" in line


def aloha(folder: Path) -> Path:
    """Files that ALOHA's recorder compressed: JPEG rows, no rate, no clock."""
    from tests.assets.sources.support import jpeg, padded_rows

    known = episode_arrays(0, 4)
    rows = padded_rows([jpeg(picture, "BGR") for picture in known["cam_0"]])
    path = write_hdf5(folder / "episode_0.hdf5", **{"observations.images.top": rows, "action": known["action"]})
    with h5py.File(path, "r+") as file:
        file.attrs["compress"] = True
    return folder


def test_exchanged_colours_are_a_choice_with_a_reason(tmp_path, capsys):
    aloha(tmp_path / "raw")
    assert main(["detect", str(tmp_path / "raw"), "--write", str(tmp_path / "c.yaml")]) == 0
    text = (tmp_path / "c.yaml").read_text()
    assert "fps: 30  # ASSUMED" in text
    assert "# jpeg_channel_order: bgr" in text
    assert "jpeg_channel_order" not in load_document(tmp_path / "c.yaml")
    (tmp_path / "c.yaml").write_text(text.replace("# jpeg_channel_order: bgr", "jpeg_channel_order: bgr"))
    (reader,) = ingested(tmp_path / "c.yaml", tmp_path / "out", capsys)
    assert read_stamp(next(iter(reader.rgb("top")))) == (0, 0, 0)


def test_upside_down_pictures_are_a_choice_with_a_reason(tmp_path):
    with h5py.File(tmp_path / "task_demo.hdf5", "w") as file:
        file.create_group("data").attrs["macros_image_convention"] = "opengl"
        file["data/demo_0/actions"] = np.zeros((4, 7))
        file["data/demo_0/obs/view_rgb"] = np.zeros((4, 16, 16, 3), np.uint8)
    text = config_text(detect(tmp_path))
    assert "# orientation: flip_vertical" in text
    assert "# orientation: rotate_180" in text
    chosen = text.replace("# orientation: flip_vertical", "orientation: flip_vertical")
    assert load_ingest_config(parse_yaml(chosen, "here")).orientation == "flip_vertical"


def test_a_rate_that_only_the_clock_shows(tmp_path):
    times = 5 + np.arange(6) / 12.5
    write_hdf5(tmp_path / "episode_0.hdf5", action=np.zeros((6, 3)), timestamps=times)
    found = detect(tmp_path)
    assert found.fps == found.config["fps"] == 12.5
    assert "fps: 12.5  # as the clock of the data shows it" in config_text(found)


NASTY = ["a: b", "# c", "yes", "1e3", "ünï\u2028code", "q'\"uote", "{x}", "- d", "null", "0x1F", "tab\tbed", "a😀"]


def test_names_that_yaml_could_take_for_something_else(tmp_path):
    for name in NASTY:
        folder = tmp_path / f"raw {name}"
        with h5py.File(write_hdf5(folder / "episode_0.hdf5", action=np.ones((4, 2))), "r+") as file:
            file[name] = np.ones((4, 3))
            file.attrs["language_instruction"] = f"say {name}\nand\x07 more: # this"
        found = detect(folder)
        assert found.readable, name
        assert parse_yaml(config_text(found), name) == found.config


# -- what looks suspicious ---------------------------------------------------------------------------------------------


def told(path: Path, *words: str) -> None:
    warnings = detect(path).warnings
    for word in words:
        assert any(word in warning for warning in warnings), (word, warnings)


def test_channels_that_never_change_are_named(tmp_path):
    dataset = V3(tmp_path / "set", [5], {"left": [1]})
    told(dataset.write(), "episode 0: state: channel a never changes", "episode 0: action: channels z, w never change")
    write_hdf5(tmp_path / "still" / "episode_0.hdf5", action=np.ones((4, 3)))
    told(tmp_path / "still", "episode_0: action: never changes")


def follower(rows=60):
    """Angles in radians of a follower that trails its leader by a step: (action, state)."""
    phase = np.arange(rows + 1)[:, None] / 9 + np.arange(3)
    leader = np.sin(phase) * [0.9, 0.7, 1.1]
    return leader[1:].copy(), leader[:-1].copy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_follower_that_is_zeroed_differently_from_its_leader(tmp_path, dtype):
    """Seventeen degrees between two arms stayed unseen through a whole training."""
    action, state = follower()
    state[:, 1] -= np.deg2rad(17)
    write_hdf5(tmp_path / "episode_0.hdf5", action=action.astype(dtype), qpos=state.astype(dtype))
    (told,) = [text for text in detect(tmp_path).warnings if "zeroed alike" in text]
    assert "action lies +0.296 beside qpos, there and back, in channel 1 (21% of its range)" in told


def test_an_arm_of_a_lerobot_dataset_that_lies_17_degrees_beside_its_leader(tmp_path):
    """Told of the raw data by the joint's name, and of the ingested episode with the distance, in the dataset's unit."""
    dataset = V3(tmp_path / "raw", [60, 60], {"left": [2]})
    dataset.info["features"]["observation.state"]["names"] = ["pan", "lift", "elbow", "wrist"]
    commanded, measured = (np.pad(np.rad2deg(rows), ((0, 0), (0, 1))) for rows in follower())

    def rows(episode):
        state = measured - [0, 17 * (episode == 0), 0, 0]
        columns = {"observation.state": state, "action": commanded}
        kind = pa.list_(pa.float32(), 4)
        return dataset.rows(episode) | {name: pa.array(list(map(list, found)), kind) for name, found in columns.items()}

    root = dataset.write(rows)
    (told,) = [text for text in detect(root).warnings if "zeroed alike" in text]
    assert "action lies +16.9 beside state, there and back, in channel lift (21% of its range)" in told  # and a lag
    run({"dir_type": "lerobot_v3", "preset": QUICK}, root, tmp_path / "out", engine="inline")
    off, even = episode_rows(tmp_path / "out", engine="inline")
    assert off.offset == pytest.approx(17 / np.ptp(measured[:, 1]), abs=0.01)
    assert off.notes["offset"].endswith("on average in channel 1")
    assert float(off.notes["offset"].split()[5]) == pytest.approx(17, abs=0.5)
    assert even.offset < 0.01
    assert set(offenders([off, even], CheckThresholds(max_offset=0.2))["action_follows_state"]) == {"episode_000000"}


@pytest.mark.parametrize("kind", ["same", "deltas", "other width", "few rows", "still", "one way", "lost"])
def test_streams_that_do_not_follow_each_other_are_not_compared(tmp_path, kind):
    action, state = follower()
    if kind == "deltas":
        action, state = np.diff(state, axis=0, append=0), state + 3
    elif kind == "other width":
        action = action[:, :2] + 5
    elif kind == "few rows":
        action, state = action[:4] + 5, state[:4]
    elif kind == "still":
        action, state = np.ones_like(action), np.zeros_like(state)
    elif kind == "one way":
        action, state = np.linspace(0.2, 1.2, 60)[:, None], np.linspace(0, 1, 60)[:, None]
    elif kind == "lost":
        state = np.full_like(state, np.nan)
    write_hdf5(tmp_path / "episode_0.hdf5", action=action, qpos=state)
    assert not [text for text in detect(tmp_path).warnings if "zeroed alike" in text]


def test_numbers_that_are_none(tmp_path):
    action = np.arange(12.0).reshape(4, 3)
    action[2, 1] = np.nan
    write_hdf5(tmp_path / "episode_0.hdf5", action=action)
    told(tmp_path, "action: 1 of 4 rows hold NaN or infinity")


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([0, 0.1, 0.2, 0.5, 0.6, 0.7], "1 gaps (frames lost while recording?), the longest of 0.3 s behind frame 2"),
        ([0, 0.1, 0.2, 0.15, 0.3, 0.4], "goes backwards at 1 frames, first behind frame 2"),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "the clock starts at 0.1 s, not at 0"),
    ],
)
def test_trouble_with_the_clock(tmp_path, times, words):
    write_hdf5(tmp_path / "episode_0.hdf5", action=np.random.rand(6, 3), timestamps=np.array(times, float))
    told(tmp_path, words)


def test_a_rate_that_the_clock_contradicts(tmp_path):
    path = write_hdf5(tmp_path / "episode_0.hdf5", action=np.random.rand(6, 3), timestamps=np.arange(6) / 10)
    with h5py.File(path, "r+") as file:
        file.attrs["fps"] = 30
    told(tmp_path, "the data says 30 frames a second, its clock shows 10")


def test_totals_that_are_wrong(tmp_path):
    dataset = V2(tmp_path / "two", [4, 5], ("left",))
    dataset.info |= {"total_episodes": 3, "total_frames": 12, "total_videos": 1}
    told(dataset.write(), "says 3 episodes, 2 are there", "says 12 frames, 9 are", "says 1 videos, 2 are")
    dataset = V3(tmp_path / "three", [4, 5], {"left": [2]})
    dataset.info |= {"total_episodes": 3, "total_frames": 12}
    told(dataset.write(), "says 3 episodes, 2 are there", "says 12 frames, 9 are")


def test_missing_files_leave_no_config(tmp_path, capsys):
    dataset = V3(tmp_path / "set", [4, 5], {"left": [2]})
    dataset.write()
    dataset.video_path("left", 0).unlink()
    told(tmp_path, "the video of left is missing", "none of the 2 episodes tried can be opened")
    told(tmp_path, "episode 0: videos/", "in layout.images. The same of 1 more episode.")
    assert main(["detect", str(tmp_path)]) == 1
    assert "LeRobot v3" in capsys.readouterr().out
    assert main(["detect", str(tmp_path), "--write", str(tmp_path / "c.yaml")]) == 1
    assert "no config that would ingest it" in capsys.readouterr().err
    assert not (tmp_path / "c.yaml").exists()


def test_the_first_episode_that_opens_is_shown(tmp_path):
    for number in range(5):
        write_hdf5(tmp_path / f"episode_{number}.hdf5", action=np.random.rand(6, 3))
    for number in (0, 2, 4):
        (tmp_path / f"episode_{number}.hdf5").write_bytes(b"broken")
    found = detect(tmp_path)
    assert found.readable
    assert [stream["name"] for stream in found.streams] == ["action"]


def test_a_recording_without_a_camera_says_so(tmp_path):
    bag = Bag(ros=1)
    bag.joints("/joints", 10**9, [1, 2])
    bag.write1(tmp_path / "run.bag")
    told(tmp_path, "no camera that can be decoded", "its one episode has no stream")


# -- several datasets --------------------------------------------------------------------------------------------------


@pytest.fixture
def several(tmp_path):
    V3(tmp_path / "all" / "three", [4], {}).write()
    V2(tmp_path / "all" / "deep" / "two", [4], ()).write()
    write_hdf5(tmp_path / "all" / "arms" / "episode_0.hdf5", action=np.ones((4, 2)))
    return tmp_path / "all"


def test_all_datasets_of_a_folder_are_listed(several, capsys):
    assert main(["detect", str(several)]) == 1
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()[1:]] == [
        str(several / name) for name in ("arms", "deep/two", "three")
    ]
    assert "holds 3 datasets; name one of them" in said.err
    assert main(["detect", str(several), "--json"]) == 1
    listed = json.loads(capsys.readouterr().out)["datasets"]
    assert [one["dir_type"] for one in listed] == ["episodic", "lerobot_v2", "lerobot_v3"]
    assert main(["detect", str(several), "--write", str(several / "c.yaml")]) == 1
    assert not (several / "c.yaml").exists()


def test_a_folder_of_replay_buffers_lists_each(tmp_path):
    from knonik_assets.sources.detect import datasets_in
    from tests.support.zarr_data import replay_buffer, zipped

    replay_buffer(tmp_path / "a.zarr", [4])
    zipped(replay_buffer(tmp_path / "made.zarr", [4]), tmp_path / "b.zarr.zip")
    assert [family.root.name for family in datasets_in(tmp_path)] == ["a.zarr", "b.zarr.zip"]


def test_both_splits_of_calvin_are_one_dataset(tmp_path):
    calvin_data.calvin(tmp_path / "training", [(100, 103)])
    calvin_data.calvin(tmp_path / "validation", [(200, 203), (300, 304)])
    found = detect(tmp_path)
    assert (found.path, found.episodes) == (str(tmp_path), 3)


# -- cards -------------------------------------------------------------------------------------------------------------


def test_a_card_takes_the_comments_over(tmp_path):
    aloha(tmp_path / "raw")
    path, found = add_card("arms", tmp_path / "raw", tmp_path / "cards")
    text = path.read_text()
    assert "  fps: 30  # ASSUMED" in text
    assert "  # jpeg_channel_order: bgr" in text
    assert "      top: {key: observations.images.top}  # 96 x 112 x 3, jpeg" in text
    config = load_card(path).ingest_config()
    assert config.layout == load_ingest_config(found.config).layout
    assert config.metadata["dataset"] == "arms"


def test_a_config_is_a_dict_for_run(tmp_path):
    (tmp_path / "raw").mkdir()
    FAMILIES["hdf5"].write(tmp_path / "raw")
    found = detect(tmp_path / "raw")
    report = run({**found.config, "preset": QUICK}, output=tmp_path / "out", engine="inline")
    assert [one.frames for one in report.written] == [4, 4, 4]
