"""Files that other people's programs wrote, ingested; values by hand from zarr, h5py and protobuf."""

import json

import numpy as np
import pytest
import zarr

from knonik.ingest import run
from knonik_assets.episodes.reader import EpisodeReader
from knonik_loader.errors import SourceError

PRESET = {"rgb": {"codec": "jpeg", "quality": 95, "chroma": "444"}}


def ingested(out, config, raw):
    report = run({"preset": PRESET, **config}, raw, out)
    assert not report.failed
    return report, [out / episode.episode_id for episode in report.written]


def said(episode):
    return json.loads((episode / "metadata.json").read_text())


def rows(episode, name):
    return zarr.open_array(str(episode / name), mode="r")[:]


def test_a_replay_buffer_of_diffusion_policy(real_data, tmp_path):
    _, (episode,) = ingested(tmp_path / "out", {"dir_type": "zarr", "fps": 10}, real_data / "zarr")
    metadata = said(episode)
    assert metadata["episode_length"] == 763
    assert metadata["stream_roles"] == {"action": "action", "state": "state"}
    action = rows(episode, "action")
    assert action[0].tolist() == [229, 110]
    assert action[762].tolist() == [292, 323]
    np.testing.assert_allclose(
        rows(episode, "state")[400], [377.0, 440.0, 286.7016296386719, 284.9940490722656, 0.8979942202568054]
    )
    frames = list(EpisodeReader(episode).rgb("img"))
    assert len(frames) == 763
    for place, mean in ((0, 249.5723), (400, 249.5263), (762, 250.7615)):
        assert abs(frames[place].mean() - mean) < 0.5


def test_demos_in_robomimics_layout(real_data, tmp_path):
    raw = real_data / "hdf5/lift_robomimic_layout.hdf5"
    _, episodes = ingested(tmp_path / "out", {"dir_type": "hdf5"}, raw)
    assert [said(episode)["episode_length"] for episode in episodes] == [121, 128, 98]
    assert [said(episode)["filter_keys"] for episode in episodes] == [["train"], ["train"], ["valid"]]
    assert {said(episode)["robot_type"] for episode in episodes} == {"Panda"}
    assert {said(episode)["fps"] for episode in episodes} == {20}
    assert rows(episodes[2], "actions")[-1].tolist() == [0, 0, 0, 0, 0, 0, 1]
    frames = list(EpisodeReader(episodes[1]).rgb("agentview_image"))
    assert abs(frames[7].mean() - 222.1447) < 0.5
    assert sorted(said(episodes[0])["rgb_streams"]) == ["agentview_image", "robot0_eye_in_hand_image"]


def test_a_debug_set_of_octo(real_data, tmp_path):
    config = {
        "dir_type": "rlds",
        "fps": 5,
        "layout": {"images": {"main": "observation.image_0"}, "numeric": {"action": "action"}},
    }
    report, episodes = ingested(tmp_path / "out", config, real_data / "rlds/octo_bridge_debug")
    assert len(episodes) == 50
    assert {episode.frames for episode in report.written} == {10}
    first, last = episodes[25], episodes[49]
    assert (said(first)["source_id"], said(last)["source_id"]) == ("val-00000#0", "val-00000#24")
    for episode, text in ((first, "flip pot upright which is in sink"), (last, "turn lever vertical to front")):
        assert f"instruction: {text}" in (episode / "annotations/language/episode.yaml").read_text()
    np.testing.assert_allclose(rows(last, "action")[0, 3:], [1.4855578e-07, 5.160165e-07, 5.3699253e-08, 1])
    assert said(last)["episode_metadata"]["file_path"].endswith("turn_lever_vertical_to-front/val/out.npy")


@pytest.mark.parametrize(
    ("config", "raw", "words"),
    [
        ({"dir_type": "calvin"}, "calvin/training", r"ep_start_end_ids\.npy is missing"),
        ({"dir_type": "episodic", "data_type": "npy"}, "calvin/training", '"dir_type": "calvin"'),
        ({"dir_type": "d3il"}, "d3il/environments/dataset/data/aligning", "a download of their own"),
        ({"dir_type": "episodic", "data_type": "zarr"}, "zarr/pusht_demo.zarr", '"dir_type": "zarr"'),
    ],
)
def test_what_cannot_be_ingested_says_why(real_data, tmp_path, config, raw, words):
    with pytest.raises(SourceError, match=words):
        run(config, real_data / raw, tmp_path / "out")
    assert not (tmp_path / "out").exists()
