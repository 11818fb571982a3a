"""Answers to the dataset config fill what is open; what the episodes prove cannot be answered otherwise."""

import json

import pytest

from knonik_assets.configs.dataset import build_dataset_config
from knonik_loader.errors import ConfigError, EpisodeError


def episode(out, number, fps=30.0, channel_names=None):
    folder = out / f"episode_{number:06d}"
    folder.mkdir(parents=True)
    metadata = {
        "episode_id": folder.name,
        "dataset": "d",
        "robot_type": "unknown",
        "fps": fps,
        "rgb_streams": ["cam"],
        "depth_streams": [],
        "numeric_streams": ["qpos", "action"],
        "stream_params": {
            "rgb_cam": {"width": 64, "height": 48, "codec": "vp9", "fps": fps},
            "qpos": {"dim": 3},
            "action": {"dim": 2},
        },
        "stream_roles": {"action": "action"},
        "channel_names": {"qpos": channel_names} if channel_names else {},
    }
    (folder / "metadata.json").write_text(json.dumps(metadata))
    return out


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"fps": 20}, ["fps is 30.0", "not 20"]),
        ({"streams": {"rgb": {"cam": {"width": 65}}}}, ["streams.rgb.cam.width is 64"]),
        ({"streams": {"rgb": {"cma": {"width": 64}}}}, ["'cma'", "'cam'"]),
        ({"streams": {"numeric": {"qpos": {"channel_names": ["a"]}}}}, ["1 channel_names for 3"]),
        ({"roles": {"state": "qpso"}}, ["'qpso'", "'qpos'?"]),
        ({"roles": {"state": "qpos"}, "arms": [{"name": "left", "indices": [0, 2]}]}, ["'left'", "position 2"]),
        ({"arms": [{"name": "left", "gripper": -1}]}, ["'left'", "position -1"]),
        ({"arms": [{"nam": "left"}]}, ["arms[0]", "'nam'", "'name'"]),
    ],
)
def test_wrong_answers(tmp_path, answers, words):
    with pytest.raises(ConfigError) as caught:
        build_dataset_config(episode(tmp_path, 0), answers)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_what_is_open_may_be_answered_and_what_is_proven_confirmed(tmp_path):
    answers = {"fps": 30, "streams": {"numeric": {"qpos": {"channel_names": ["a", "b", "c"]}}}, "robot_type": "arm"}
    config = build_dataset_config(episode(tmp_path, 0), answers)
    assert config.streams.numeric["qpos"].channel_names == ["a", "b", "c"]
    assert config.streams.numeric["qpos"].dim == 3
    assert (config.robot_type, config.roles.action) == ("arm", "action")


def test_episodes_of_two_rates_are_named(tmp_path):
    episode(tmp_path, 0)
    path = episode(tmp_path, 1, fps=25.0) / "episode_000001" / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata["stream_params"]["rgb_cam"]["fps"] = 30.0
    path.write_text(json.dumps(metadata))
    with pytest.raises(EpisodeError, match=r"episode_000000 has 30 .* episode_000001 25"):
        build_dataset_config(tmp_path)
