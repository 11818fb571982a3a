"""The dataset config: what is proven, what waits for an answer, and answers."""

import json

import pytest

from knonik_assets.configs.dataset import (
    CONFIG,
    DatasetConfig,
    build_dataset_config,
    dataset_config_schema,
    load_dataset_config,
    placeholders,
    write_dataset_config,
)
from knonik_loader.errors import ConfigError, EpisodeError
from tests.support.road import ingest_config, write_raw


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    from knonik_assets.ingest import run

    root = tmp_path_factory.mktemp("config")
    write_raw(root / "raw", [6, 7], cameras=1)
    run(ingest_config(cameras=1, language={"instruction": "wave"}), root / "raw", root / "out", engine="inline")
    return root / "out"


def test_what_ingest_can_prove_is_filled_in(episodes):
    config = load_dataset_config(episodes / CONFIG)
    assert (config.dataset, config.fps, config.timestamps.origin) == ("stamped", 30, "source")
    assert (config.streams.rgb["cam_0"].height, config.streams.rgb["cam_0"].width) == (96, 112)
    assert {name: stream.dim for name, stream in config.streams.numeric.items()} == {"state": 4, "action": 4}
    assert config.language.instructions == ["wave"]
    assert (config.roles.action, config.roles.state) == ("action", "state")
    assert {"action_semantics", "arms[0].name"} <= set(placeholders(config))


def test_answers_fill_placeholders(episodes):
    answers = {
        "roles": {"action": "action", "state": "state"},
        "action_semantics": "joint_position",
        "arms": [{"name": "only", "indices": [0, 1, 2], "gripper": 3}],
        "robot_type": "stand",
    }
    config = build_dataset_config(episodes, answers)
    assert placeholders(config) == []
    assert config.arms[0].indices == [0, 1, 2]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"rolls": {}}, ["rolls", "roles"]),
        ({"roles": {"action": "acton"}}, ["acton", "action"]),
        ({"action_semantics": "joint_positions"}, ["joint_position"]),
    ],
)
def test_wrong_answers_are_named(episodes, answers, words):
    with pytest.raises(ConfigError) as caught:
        build_dataset_config(episodes, answers)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_episodes_that_disagree_are_named(episodes, tmp_path):
    for name in ("episode_000000", "episode_000001"):
        (tmp_path / name).mkdir()
        metadata = json.loads((episodes / name / "metadata.json").read_text())
        if name.endswith("1"):
            metadata["stream_params"]["rgb_cam_0"]["width"] = 99
        (tmp_path / name / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(EpisodeError, match=r"episode_000000.*episode_000001.*width"):
        build_dataset_config(tmp_path)


def test_it_round_trips_and_has_a_schema(episodes, tmp_path):
    config = build_dataset_config(episodes)
    assert load_dataset_config(write_dataset_config(tmp_path, config)) == config
    schema = dataset_config_schema()
    assert set(schema["properties"]) == set(DatasetConfig.model_fields)
