"""``config.json`` against the episodes."""

import json

import pytest

from knonik_assets.configs.dataset import CONFIG, build_dataset_config, write_dataset_config
from knonik_assets.quality.config import check_placeholders, check_schema, check_streams


@pytest.fixture
def out(episode, tmp_path):
    episode(0, frames=3)
    folder = tmp_path / "episodes"
    write_dataset_config(folder, build_dataset_config(folder))
    return folder


def edit(out, change):
    data = json.loads((out / CONFIG).read_text())
    change(data)
    (out / CONFIG).write_text(json.dumps(data))


def test_a_fresh_config(out):
    assert check_schema(out / CONFIG).passed
    assert check_streams(out / CONFIG, out, ()).passed
    left = check_placeholders(out / CONFIG)
    assert not left.passed
    assert "action_semantics" in [row["to_be_filled"] for row in left.table]


def test_a_config_that_is_none(out):
    edit(out, lambda data: data.update(fps="fast"))
    for finding in (check_schema(out / CONFIG), check_streams(out / CONFIG, out, ()), check_placeholders(out / CONFIG)):
        assert not finding.passed
        assert "fps" in finding.message


def test_a_camera_of_another_size(out):
    edit(out, lambda data: data["streams"]["rgb"]["cam_1"].update(width=7))
    finding = check_streams(out / CONFIG, out, ())
    assert finding.message == "rgb stream cam_1 differs"


def test_an_episode_that_is_left_out_does_not_count(out, episode):
    episode(1, frames=3, cameras=1)
    assert not check_streams(out / CONFIG, out, ()).passed
    assert check_streams(out / CONFIG, out, ["episode_000001"]).passed
