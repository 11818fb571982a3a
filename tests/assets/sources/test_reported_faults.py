"""Faults that people met with other tools and that no other test here provokes; see the tests of each family for more."""

import json
import os
import subprocess
import sys

import pytest

from knonik_assets.sources.base_contract import as_array
from tests.assets.sources.bags import bag_of
from tests.assets.sources.support import V3, frames, only_episode, source, stream
from tests.support.road import tree, write_json
from tests.support.stamps import episode_arrays, read_stamp

LENGTHS = [4, 30, 9]


def own_frames(root, name="lerobot_v3", **keys):
    """(episode, frame) of every picture of the camera ``left``, the episodes in their order."""
    found = source(root, name, **keys)
    shown = []
    for ref in found.episodes():
        with found.open(ref) as episode:
            shown += [read_stamp(as_array(picture))[1:] for picture in frames(episode, "left")]
    return shown


WANTED = [(episode, frame) for episode, length in enumerate(LENGTHS) for frame in range(length)]


def test_times_count_from_the_start_of_each_file(tmp_path):
    """Readers that counted from the start of the dataset showed frames shifted by the files before."""
    assert own_frames(V3(tmp_path / "set", LENGTHS, {"left": [1, 1, 1]}).write()) == WANTED


@pytest.mark.parametrize("wrong", [0, 1, 5])
def test_the_metadata_names_another_data_file(tmp_path, wrong):
    """An episode at the border of two files, booked before the recorder decided to begin a new one."""
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [3]}, [1, 2])
    dataset.meta[1]["data/file_index"] = wrong
    with source(dataset.write(), "lerobot_v3").open(source(dataset.root, "lerobot_v3").episodes()[1]) as episode:
        assert episode.numeric(stream(episode, "state")).tolist() == episode_arrays(1, 30)["state"].tolist()
    assert own_frames(dataset.root) == WANTED


def test_episodes_without_a_word_about_their_videos(tmp_path):
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [2, 1]})
    for row in dataset.meta:
        for key in [key for key in row if key.startswith("videos/")]:
            del row[key]
    assert own_frames(dataset.write()) == WANTED


@pytest.mark.parametrize("b_frames", [0, 3])
def test_h265_with_open_groups_of_pictures(tmp_path, b_frames):
    """x265 opens groups unless told otherwise: seeking to an episode in the middle lands behind what was asked for."""
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [3]}, codec="libx265", gop=7, b_frames=b_frames)
    assert own_frames(dataset.write()) == WANTED


def test_a_bag_folder_that_lost_its_metadata(tmp_path):
    bag = bag_of("sqlite3")
    pictures = episode_arrays(0, 4)["cam_0"]
    for t, picture in enumerate(pictures):
        bag.rgb("/left/image_raw", (t + 30) * 33_333_333, picture)
    folder = bag.write2(tmp_path / "run", "sqlite3")
    (folder / "metadata.yaml").unlink()
    with only_episode(folder, "rosbag") as episode:
        (camera,) = [spec for spec in episode.streams if spec.kind == "rgb"]
        assert [read_stamp(as_array(picture))[2] for picture in episode.frames(camera)] == [0, 1, 2, 3]


_INGEST = "import sys; from knonik_assets.ingest import run; run(*sys.argv[1:4], engine='inline')"


def test_the_same_bytes_whatever_the_order_of_sets(tmp_path):
    """Tasks numbered in the order of a set differed from run to run."""
    raw = V3(tmp_path / "raw", [3, 4, 5], {"left": [3], "right": [1, 2]}).write()
    settings = write_json(tmp_path / "config.json", {"dir_type": "lerobot_v3", "preset": {"rgb": {"codec": "jpeg"}}})
    outputs = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", _INGEST, str(settings), str(raw), str(tmp_path / seed)]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, timeout=120)
        outputs.append(tree(tmp_path / seed))
    assert outputs[0] == outputs[1]
    texts = {json.loads(data)["source_id"] for name, data in outputs[0].items() if name.endswith("/metadata.json")}
    assert texts == {"0", "1", "2"}
