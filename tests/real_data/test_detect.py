"""Recordings that other tools wrote: recognised, described, and ingested with the config that detect writes."""

import pytest

from knonik.ingest import detect, run
from knonik_assets.configs.load import parse_yaml
from knonik_assets.sources.detect import config_text
from knonik_loader.errors import SourceError

QUICK = {"rgb": {"codec": "jpeg", "quality": 80}}


@pytest.mark.parametrize(
    ("path", "frames"),
    [
        ("hdf5/aloha_sim_jpeg", 60),
        ("hdf5/lift_robomimic_layout.hdf5", 121),
        ("hdf5/robosuite_raw_lift_demo.hdf5", 482),
        ("lerobot/aloha_sim_v2_1", 200),
        ("lerobot/aloha_sim_v3_images", 30),
        ("lerobot/bimanual_sample_v3", 70),
        ("lerobot/gr00t_robot_sim.PickNPlace", 416),
        ("lerobot/oracle_v3_many_files", 87),
        ("rlds/octo_bridge_debug", 10),
        ("ros/ros1_ros_numpy", 1),
        ("zarr", 763),
    ],
)
def test_the_config_ingests_as_it_is(real_data, tmp_path, path, frames):
    found = detect(real_data / path)
    config = parse_yaml(config_text(found), "what detect wrote")
    assert config == found.config
    report = run({**config, "episode_limit": 1, "preset": QUICK}, output=tmp_path / "out", engine="inline")
    assert [one.frames for one in report.written] == [frames]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("calvin", "ep_start_end_ids.npy is missing"),
        ("lerobot/record-test_v3_videos_missing", "the video of front is missing"),
        ("ros/ros1_careslab", "no camera"),
        ("ros/ros2_mcap", "no camera"),
        ("d3il/environments/dataset/data/aligning", "a download of their own"),
    ],
)
def test_what_cannot_be_ingested_says_why(real_data, path, words):
    found = detect(real_data / path)
    assert any(words in warning for warning in found.warnings), found.warnings
    assert not found.readable
    with pytest.raises(SourceError, match="no config that would ingest it"):
        config_text(found)


def test_what_looks_wrong_is_told(real_data):
    told = " | ".join(detect(real_data / "lerobot/gr00t_robot_sim.PickNPlace").warnings)
    for words in ("info.json says 2 videos, 5 are there", "egoview", "data_path", "the clock starts at 0.05 s"):
        assert words in told
    assert "jpeg_channel_order" in " ".join(detect(real_data / "hdf5/aloha_sim_jpeg").warnings)


def test_folders_of_many_datasets(real_data):
    with pytest.raises(SourceError, match="holds 6 datasets; name one of them"):
        detect(real_data / "lerobot")
    with pytest.raises(SourceError, match="holds 3 datasets"):
        detect(real_data / "d3il")
