"""What a format knows beside its streams reaches ``metadata.json`` and, where it has a place there, ``config.json``."""

import json

import pytest

from knonik.ingest import run
from tests.assets.sources.bags import Bag
from tests.support.mutations import FAMILIES
from tests.support.stamps import episode_arrays

QUICK = {"rgb": {"codec": "jpeg", "quality": 90}}
FOUR = ["a", "b", "c", "d"]


def written(config, raw, out):
    run({**config, "preset": QUICK}, raw, out, engine="inline")
    metadata = json.loads((out / "episode_000000" / "metadata.json").read_text())
    return metadata, json.loads((out / "config.json").read_text())


KNOWN = {
    "hdf5": ({"qpos": "state", "action": "action"}, {}, True),
    "demos": ({"actions": "action"}, {}, False),
    "npz": ({"state": "state", "action": "action"}, {}, False),
    "zarr": ({"state": "state", "action": "action"}, {}, True),
    "npy_separate": ({"action": "action"}, {}, False),
    "calvin": ({"actions": "action", "robot_obs": "state"}, {"actions": 7, "robot_obs": 15}, True),
    "d3il": ({"action": "action"}, {"action": 3}, False),
    "lerobot_v2": ({"state": "state", "action": "action"}, {"state": FOUR}, True),
    "lerobot_v3": ({"state": "state", "action": "action"}, {"state": FOUR, "action": ["x", "y", "z", "w"]}, True),
    "replay": ({"state": "state", "action": "action"}, {}, False),
    "rlds": ({"state": "state", "action": "action"}, {}, True),
}


@pytest.mark.parametrize("family", KNOWN)
def test_roles_channel_names_and_language(tmp_path, family):
    roles, names, told = KNOWN[family]
    raw, out = tmp_path / "raw", tmp_path / "out"
    raw.mkdir()
    FAMILIES[family].write(raw)
    metadata, config = written(FAMILIES[family].config, raw / FAMILIES[family].root, out)
    assert metadata["stream_roles"] == {role: stream for stream, role in roles.items()}
    for stream, wanted in names.items():
        found = metadata["channel_names"][stream]
        assert found == wanted if isinstance(wanted, list) else len(found) == wanted
        assert config["streams"]["numeric"][stream]["channel_names"] == found
    for stream, role in roles.items():
        assert config["roles"][role] == stream
    assert (out / "episode_000000" / "annotations" / "language" / "episode.yaml").exists() == told


@pytest.mark.parametrize("ros", [1, 2])
def test_cameras_and_joints_of_a_recording(tmp_path, ros):
    from tests.assets.sources.test_ros_topics import camera_info

    bag = Bag(ros=ros)
    for t, picture in enumerate(episode_arrays(0, 4)["cam_0"]):
        bag.rgb("/cam/image_raw", (t + 30) * 33_333_333, picture)
        bag.joints("/joints", (t + 30) * 33_333_333, [t, -t], ["hip", "slide"])
        camera_info(bag, "/cam/camera_info", (t + 30) * 33_333_333, 112)
    urdf = '<robot name="r"><joint name="hip" type="revolute"/><joint name="slide" type="prismatic"/></robot>'
    bag.text("/robot_description", 30 * 33_333_333, urdf)
    raw = bag.write1(tmp_path / "run.bag") if ros == 1 else bag.write2(tmp_path / "run")
    metadata, config = written({"dir_type": "rosbag"}, raw, tmp_path / "out")
    assert metadata["urdf_joints"] == ["hip", "slide"]
    assert metadata["camera_info"]["/cam/camera_info"]["K"] == list(range(9))
    assert metadata["channel_names"]["joints"] == ["hip", "slide"]
    assert config["streams"]["numeric"]["joints"]["channel_names"] == ["hip", "slide"]
