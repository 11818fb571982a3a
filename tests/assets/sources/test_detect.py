"""Every family is recognised by its files, and what has a reader is described so that it can be ingested."""

import json

import h5py
import numpy as np
import pytest

from knonik_assets.configs.load import load_ingest_config, parse_yaml
from knonik_assets.sources.detect import config_text, detect
from knonik_assets.sources.detect_table import render
from knonik_assets.sources.registry import READABLE, open_source
from knonik_loader.errors import SourceError
from tests.assets.sources.support import V3, jpeg, padded_rows, write_hdf5
from tests.support.stamps import episode_arrays

ROWS = 5


def touch(root, *names):
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"{}")
    return root


FAMILIES = {
    "lerobot_v2": ["meta/info.json", "meta/episodes.jsonl", "data/chunk-000/episode_000000.parquet"],
    "rlds": [
        "bridge/1.0.0/features.json",
        "bridge/1.0.0/dataset_info.json",
        "bridge/1.0.0/bridge-train.tfrecord-00000-of-00001",
    ],
    "calvin": ["training/ep_start_end_ids.npy", "training/episode_0000012.npz"],
    "zarr": ["pusht.zarr/.zgroup", "pusht.zarr/data/", "pusht.zarr/meta/episode_ends/.zarray"],
    "episodic + zarr": ["episode_0/.zgroup", "episode_10/zarr.json"],
    "episodic + npy": ["episode_0.npz", "episode_1.npz"],
    "d3il": ["train_files.pkl", "all_data/"],
    "rosbag": ["run_1/metadata.yaml", "run_1/run_1_0.mcap"],
    "npy_separate": ["action.npy", "cam/000000.npy"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_recognised_and_broken_files_told(tmp_path, family):
    found = detect(touch(tmp_path, *FAMILIES[family]))
    assert found.dir_type + (f" + {found.data_type}" if found.data_type else "") == family
    assert family in READABLE
    assert found.warnings
    assert not found.readable  # these files are empty
    assert json.loads(json.dumps(found.to_dict()))["family"] == found.family
    with pytest.raises(SourceError, match="no config that would ingest it"):
        config_text(found)


@pytest.mark.parametrize("name", ["run.bag", "run.mcap", "run.db3"])
def test_single_recordings(tmp_path, name):
    touch(tmp_path, name)
    assert detect(tmp_path / name).dir_type == "rosbag"
    assert detect(tmp_path).episodes == 1


def test_what_is_no_raw_dataset(tmp_path):
    with pytest.raises(SourceError, match="no such file"):
        detect(tmp_path / "absent")
    with pytest.raises(SourceError, match="no known dataset"):
        detect(touch(tmp_path / "other", "readme.txt"))
    with pytest.raises(SourceError, match="packed"):
        detect(touch(tmp_path / "packed", "hlp_manifest.json"))
    with pytest.raises(SourceError, match="ingested"):
        detect(touch(tmp_path / "episodes", "episode_000000/metadata.json"))
    with pytest.raises(SourceError, match="cannot be read: File name too long"):
        detect(tmp_path / ("x" * 300))


def reads_all(found):
    """Open every episode with the config that detect gives, as ingest would."""
    config = load_ingest_config(parse_yaml(config_text(found), "what detect wrote"))
    source = open_source(config, config.data_dir)
    streams = []
    for ref in source.episodes():
        with source.open(ref) as episode:
            streams.append([(spec.kind, spec.name) for spec in episode.streams])
            # what is suspicious stays so until the config says otherwise; nothing else is
            assert [warning for warning in episode.facts.warnings if "jpeg_channel_order" not in warning] == []
    return streams


def test_a_lerobot_dataset(tmp_path):
    found = detect(V3(tmp_path / "set", [5, 6], {"left": [1, 1]}).write())
    assert (found.dir_type, found.version, found.episodes, found.fps) == ("lerobot_v3", "v3.0", 2, 30)
    assert [(one["kind"], one["name"], one["encoding"]) for one in found.streams] == [
        ("rgb", "left", "video"),
        ("numeric", "state", "raw"),
        ("numeric", "action", "raw"),
    ]
    assert found.config["metadata"] == {"dataset": "set", "robot_type": "tester"}
    assert reads_all(found) == [[("rgb", "left"), ("numeric", "state"), ("numeric", "action")]] * 2
    text = render(found).plain
    assert "LeRobot v3 (v3.0)" in text
    assert "rgb      left    5       96 x 112 x 3  30 fps  video             observation.images.left" in text


def test_a_dataset_in_a_folder_below_is_found(tmp_path):
    V3(tmp_path / "downloads" / "set", [5], {}).write()
    found = detect(tmp_path)
    assert found.path == str(tmp_path / "downloads" / "set")
    assert any("the dataset is in" in warning for warning in found.warnings)
    assert reads_all(found)


def test_a_version_that_the_files_contradict(tmp_path):
    dataset = V3(tmp_path / "set", [5], {})
    dataset.info["codebase_version"] = "v2.1"
    found = detect(dataset.write())
    assert found.dir_type == "lerobot_v3"
    assert any("v2.1" in warning for warning in found.warnings)


def aloha(folder, episodes=2, **more):
    for number in range(episodes):
        known = episode_arrays(number, ROWS)
        path = write_hdf5(
            folder / f"episode_{number}.hdf5",
            **{
                "observations.images.top": padded_rows([jpeg(picture) for picture in known["cam_0"]]),
                "observations.qpos": known["state"],
                "action": known["action"],
            },
            **more,
        )
        with h5py.File(path, "r+") as file:
            file.attrs["compress"] = True
    return folder


def test_aloha_files_look_swapped_and_have_no_rate(tmp_path):
    found = detect(aloha(tmp_path))
    assert (found.dir_type, found.data_type, found.episodes) == ("episodic", "hdf5", 2)
    assert any("jpeg_channel_order" in warning for warning in found.warnings)
    assert any("no frame rate" in warning for warning in found.warnings)
    assert found.config["layout"]["images"] == {"top": {"key": "observations.images.top"}}
    assert reads_all(found) == [[("rgb", "top"), ("numeric", "action"), ("numeric", "qpos")]] * 2


def test_episodes_with_different_streams_get_no_layout(tmp_path):
    aloha(tmp_path, 2)
    write_hdf5(tmp_path / "episode_2.hdf5", action=np.zeros((ROWS, 4)))
    found = detect(tmp_path)
    assert "layout" not in found.config
    assert any("different streams" in warning for warning in found.warnings)


def test_streams_of_different_length_are_told(tmp_path):
    write_hdf5(tmp_path / "episode_0.hdf5", action=np.zeros((ROWS, 4)), top=np.zeros((ROWS - 1, 16, 16, 3), np.uint8))
    assert any("differ in length" in warning and f"top {ROWS - 1}" in warning for warning in detect(tmp_path).warnings)


@pytest.mark.parametrize("alone", [True, False])
def test_nested_demos(tmp_path, alone):
    with h5py.File(tmp_path / "task_demo.hdf5", "w") as file:
        data = file.create_group("data")
        data.attrs["macros_image_convention"] = "opengl"
        data.attrs["problem_info"] = json.dumps({"language_instruction": "go"})
        for demo in range(3):
            data[f"demo_{demo}/actions"] = np.zeros((ROWS, 7))
            data[f"demo_{demo}/obs/view_rgb"] = np.zeros((ROWS, 16, 16, 3), np.uint8)
    found = detect(tmp_path / "task_demo.hdf5" if alone else tmp_path)
    assert (found.config["demos"], found.episodes, found.language) == ("data/demo_*", 3, "go")
    assert any("upside down" in warning for warning in found.warnings)
    assert reads_all(found) == [[("rgb", "view_rgb"), ("numeric", "actions")]] * 3


def test_hdf5_files_of_another_name(tmp_path):
    write_hdf5(tmp_path / "recording.h5", action=np.zeros((ROWS, 4)))
    found = detect(tmp_path)
    assert not found.readable
    assert any("rename" in warning for warning in found.warnings)


def test_broken_episodes_are_told_by_name(tmp_path):
    aloha(tmp_path, 3)
    (tmp_path / "episode_0.hdf5").write_bytes(b"broken")
    found = detect(tmp_path)
    assert any("episode_0.hdf5" in warning for warning in found.warnings)
    assert len(found.streams) == 3


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("hdf5/aloha_sim_jpeg", "episodic"),
        ("hdf5/lift_robomimic_layout.hdf5", "episodic"),
        ("lerobot/bimanual_sample_v3", "lerobot_v3"),
        ("lerobot/record-test_v3_videos_missing", "lerobot_v3"),
        ("lerobot/aloha_sim_v2_1", "lerobot_v2"),
        ("lerobot/gr00t_robot_sim.PickNPlace", "lerobot_v2"),
        ("calvin", "calvin"),
        ("zarr", "zarr"),
        ("rlds/octo_bridge_debug", "rlds"),
        ("ros/ros1_rosbagjs", "rosbag"),
        ("ros/ros2_mcap", "rosbag"),
        ("ros/ros2_db3", "rosbag"),
        ("ros/ros2_compressed", "rosbag"),
    ],
)
def test_real_data(real_data, path, family):
    assert detect(real_data / path).dir_type == family
