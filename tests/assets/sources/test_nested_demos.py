"""Demos of robomimic and LIBERO: what their files say, and what other people got wrong about them."""

import json

import h5py
import numpy as np
import pytest

from knonik.ingest import run
from knonik_loader.errors import EpisodeError
from tests.assets.sources.support import frames, only_episode, source, stream
from tests.support.stamps import episode_arrays, read_stamp

ROWS = 6


def identities(pictures):
    return [read_stamp(picture) for picture in pictures]


def libero(path, demos=(0, 2, 10), convention="opengl", turn=lambda video: video[:, ::-1]):
    """A task's file as LIBERO's own script writes it: obs[t] is what actions[t] led to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = json.dumps({"language_instruction": "put the bowl on the plate"})
        data.attrs["bddl_file_name"] = "put_the_bowl.bddl"
        data.attrs["macros_image_convention"] = convention
        data.attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": 20, "robots": ["Panda"]}})
        for demo in demos:
            known = episode_arrays(demo, ROWS)
            group = data.create_group(f"demo_{demo}")
            group.attrs["num_samples"] = ROWS
            group["obs/agentview_rgb"] = turn(known["cam_0"])
            group["obs/eye_in_hand_rgb"] = turn(known["cam_1"])
            group["obs/agentview_depth"] = np.repeat(np.arange(16.0)[None, :, None, None] + 1, ROWS, 0).repeat(16, 2)
            group["obs/joint_states"] = known["state"]
            group["actions"] = known["action"]
            group["rewards"] = group["dones"] = np.r_[np.zeros(ROWS - 1), 1].astype(np.uint8)
            group["next_obs/agentview_rgb"] = known["cam_1"]
        file["mask/train"] = np.array([b"demo_0", b"demo_10"])
        file["mask/20_percent"] = np.array([b"demo_10"])
    return path


KINDS = [{"dir_type": "hdf5"}, {"demos": "data/demo_*"}]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alone", [True, False])
def test_both_ways_to_name_it_read_the_same(tmp_path, kind, alone):
    path = libero(tmp_path / "task_demo.hdf5")
    found = source(path if alone else tmp_path, orientation="flip_vertical", **kind)
    refs = found.episodes()
    assert [ref.source_id for ref in refs] == [f"task_demo.hdf5#demo_{demo}" for demo in (0, 2, 10)]
    with found.open(refs[2]) as opened:
        assert {(spec.kind, spec.name) for spec in opened.streams} == {
            ("rgb", "agentview_rgb"),
            ("rgb", "eye_in_hand_rgb"),
            ("depth", "agentview_depth"),
            ("numeric", "joint_states"),
            ("numeric", "actions"),
            ("numeric", "rewards"),
            ("numeric", "dones"),
        }
        assert {spec.fps for spec in opened.streams} == {20}
        assert identities(frames(opened, "agentview_rgb")) == [(0, 10, frame) for frame in range(ROWS)]
        assert identities(frames(opened, "eye_in_hand_rgb")) == [(1, 10, frame) for frame in range(ROWS)]
        np.testing.assert_array_equal(frames(opened, "agentview_depth")[0][:, 0], np.arange(16, 0, -1))
        assert opened.facts.language.instruction == "put the bowl on the plate"


@pytest.mark.parametrize(
    ("turn", "orientation"),
    [
        (lambda video: video, "as_stored"),
        (lambda video: video[:, ::-1], "flip_vertical"),
        (lambda video: video[:, ::-1, ::-1], "rotate_180"),
    ],
)
def test_the_three_orientations_that_are_about(tmp_path, turn, orientation):
    libero(tmp_path / "task_demo.hdf5", turn=turn)
    with only_episode(tmp_path, "hdf5", orientation=orientation) as opened:
        assert identities(frames(opened, "agentview_rgb")) == [(0, 0, frame) for frame in range(ROWS)]


def test_metadata_says_how_pictures_were_stored_and_turned(tmp_path):
    libero(tmp_path / "raw" / "task_demo.hdf5", demos=(10,))
    report = run({"dir_type": "hdf5", "orientation": "rotate_180"}, tmp_path / "raw", tmp_path / "out")
    said = json.loads((tmp_path / "out" / report.written[0].episode_id / "metadata.json").read_text())
    assert said["orientation"] == "rotate_180"
    assert said["image_convention"] == "opengl"
    assert said["observation_of_row"] == "after_action"
    assert said["filter_keys"] == ["20_percent", "train"]
    assert said["robot_type"] == "Panda"


def test_rows_are_paired_as_they_are_stored(tmp_path):
    libero(tmp_path / "task_demo.hdf5", turn=lambda video: video)
    with only_episode(tmp_path, "hdf5") as opened:
        shown = [frame for _, _, frame in identities(frames(opened, "agentview_rgb"))]
        np.testing.assert_array_equal(opened.numeric(stream(opened, "actions"))[:, 0], shown)


def test_a_count_that_contradicts_the_rows_is_told(tmp_path):
    path = libero(tmp_path / "task_demo.hdf5")
    with h5py.File(path, "r+") as file:
        file["data/demo_0"].attrs["num_samples"] = 9
    with only_episode(tmp_path, "hdf5") as opened:
        assert any("num_samples says 9 rows, actions has 6" in text for text in opened.facts.warnings)


def test_raw_simulator_files_give_their_numbers_and_say_so(tmp_path):
    with h5py.File(tmp_path / "demo.hdf5", "w") as file:
        for demo in (1, 2):
            group = file.create_group(f"data/demo_{demo}")
            group["states"] = np.zeros((9, 32))
            group["actions"] = np.arange(63.0).reshape(9, 7)
    found = source(tmp_path, "hdf5")
    assert [ref.source_id for ref in found.episodes()] == ["demo.hdf5#demo_1", "demo.hdf5#demo_2"]
    with found.open(found.episodes()[0]) as opened:
        assert [spec.name for spec in opened.streams] == ["actions", "states"]
        assert any("no pictures" in text for text in opened.facts.warnings)


def test_a_demo_without_anything(tmp_path):
    path = libero(tmp_path / "task_demo.hdf5")
    with h5py.File(path, "r+") as file:
        file.create_group("data/demo_3")
    found = source(tmp_path, "hdf5")
    with pytest.raises(EpisodeError, match="no stream was found"):
        found.open(found.episodes()[2])


def test_names_that_are_not_there_are_a_warning_for_this_reader(tmp_path):
    libero(tmp_path / "task_demo.hdf5")
    layout = {"images": {"top": "obs.agentview_image", "wrist": "obs.eye_in_hand_rgb"}}
    with only_episode(tmp_path, "hdf5", layout=layout) as opened:
        assert [spec.name for spec in opened.streams] == ["wrist"]
        assert any("nearest is 'obs.agentview_rgb'" in text for text in opened.facts.warnings)


def test_real_robomimic_layout(real_data):
    found = source(real_data / "hdf5/lift_robomimic_layout.hdf5", "hdf5")
    refs = found.episodes()
    lengths = []
    for ref in refs:
        with found.open(ref) as opened:
            assert not any("next" in spec.source for spec in opened.streams)
            lengths.append(stream(opened, "actions").length)
            assert {spec.shape for spec in opened.streams if spec.kind == "rgb"} == {(128, 128, 3)}
    assert (len(refs), sum(lengths)) == (3, 347)
