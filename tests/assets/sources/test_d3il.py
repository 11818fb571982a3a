"""D3IL tasks: states without running what a pickle says, pictures by number, actions derived."""

import json
import pickle
import pickletools
import struct

import numpy as np
import pytest

from knonik.ingest import run
from knonik_assets.sources.base_contract import Expected, SourceContract
from knonik_assets.sources.detect import detect
from knonik_assets.sources.images import decode_image
from knonik_assets.sources.safe_pickle import load_pickle
from knonik_loader.errors import EpisodeError, SourceError
from tests.assets.sources.support import frames, only_episode, source, stream
from tests.support.d3il_data import record, states
from tests.support.stamps import episode_arrays, read_stamp


def identities(pictures):
    return [read_stamp(decode_image(picture)) for picture in pictures]


def rows_of(number):
    return 11 + number % 3


class TestAligning(SourceContract):
    def make_data(self, folder):
        for number in range(11):
            record(folder / "aligning", number, rows_of(number), protocol=(0, 2, 4, 5)[number % 4])
        return folder / "aligning"

    def make_source(self, root):
        layout = {
            "images": {"bp": "bp-cam", "hand": "inhand-cam"},
            "numeric": {"pos": "robot.c_pos", "box": "push-box.pos", "action": "action"},
        }
        return source(root, "d3il", layout=layout)

    def expected(self):
        def one(number):
            rows = rows_of(number)
            known, found = states(number, rows), episode_arrays(number, rows)
            desired = known["robot"]["des_c_pos"]
            return Expected(
                numeric={
                    "pos": known["robot"]["c_pos"],
                    "box": known["push-box"]["pos"],
                    "action": desired[1:] - desired[:-1],
                },
                pictures={"bp": found["cam_0"][:-1], "hand": found["cam_1"][:-1]},
                depth={},
                timestamps=known["robot"]["time_stamp"],
            )

        return {f"env_{number}": one(number) for number in range(11)}

    def change(self, root, source_id):
        path = root / "all_data" / "state" / f"{source_id}.pkl"
        known = states(int(source_id[4:]), rows_of(int(source_id[4:])))
        known["robot"]["c_pos"][3, 1] += 1
        path.write_bytes(pickle.dumps(known))


@pytest.mark.parametrize(
    ("task", "state", "width", "names"),
    [
        ("aligning", "all_data/state", 3, ("dx", "dy", "dz")),
        ("pushing", "all_data", 2, ("dx", "dy")),
        ("avoiding", ".", 2, ("dx", "dy")),
        ("sorting/2_boxes", "state", 2, ("dx", "dy")),
        ("stacking", "all_data", 8, (*(f"dj{joint}" for joint in range(7)), "gripper_width")),
    ],
)
def test_the_action_of_each_task(tmp_path, task, state, width, names):
    record(tmp_path / task, 3, 6, state=state)
    with only_episode(tmp_path / task, "d3il") as opened:
        spec = stream(opened, "action")
        assert (spec.shape, spec.length, spec.role, spec.channel_names) == ((width,), 5, "action", names)
        robot = states(3, 6)["robot"]
        rows = opened.numeric(spec)
        if task == "stacking":
            np.testing.assert_allclose(rows[:, :7], np.diff(robot["des_j_pos"], axis=0))
            np.testing.assert_allclose(rows[:, 7], robot["gripper_width"][1:])
        else:
            np.testing.assert_allclose(rows, np.diff(robot["des_c_pos"], axis=0)[:, :width])
        assert opened.facts.attributes["derived_action"].startswith("robot.des_")
        assert identities(frames(opened, "bp-cam")) == [(0, 3, frame) for frame in range(5)]


def test_subtasks_at_once(tmp_path):
    for boxes in (2, 4):
        for number in (1, 12):
            record(tmp_path / f"sorting/{boxes}_boxes", number, 4, state="state")
    refs = source(tmp_path / "sorting", "d3il").episodes()
    assert [ref.source_id for ref in refs] == ["2_boxes/env_1", "2_boxes/env_12", "4_boxes/env_1", "4_boxes/env_12"]


def test_ingest_cuts_to_the_usable_steps_and_says_so(tmp_path):
    record(tmp_path / "pushing", 0, 6, pictures=6, state="all_data")
    report = run({"dir_type": "d3il", "fps": 10}, tmp_path / "pushing", tmp_path / "out")
    assert [episode.frames for episode in report.written] == [5]
    said = json.loads((tmp_path / "out/episode_000000/metadata.json").read_text())
    assert said["trimmed"]["rgb_bp-cam"] == 1
    assert said["derived_action"].endswith("the first 2 numbers")


def test_the_lists_that_name_a_recording(tmp_path):
    record(tmp_path / "aligning", 0, 4)
    record(tmp_path / "aligning", 1, 4)
    (tmp_path / "aligning/train_files.pkl").write_bytes(pickle.dumps(["env_0.pkl", "../../etc/passwd"]))
    (tmp_path / "aligning/eval_files.pkl").write_bytes(pickle.dumps(np.array(["env_1.pkl"])))
    found = source(tmp_path / "aligning", "d3il")
    refs = found.episodes()
    assert [ref.source_id for ref in refs] == ["env_0", "env_1"]
    for ref, wanted in zip(refs, ("train_files", "eval_files"), strict=True):
        with found.open(ref) as opened:
            assert opened.facts.attributes["split_lists"] == [wanted]


def test_lists_of_rows_are_arrays_and_what_is_none_is_named(tmp_path):
    """Some recorders append to lists and never make arrays of them."""
    known = states(3, 6)
    robot = {name: list(values) for name, values in known["robot"].items()}
    robot["des_c_pos"] = known["robot"]["des_c_pos"].tolist()
    folder = tmp_path / "aligning"
    folder.mkdir()
    (folder / "env_3.pkl").write_bytes(pickle.dumps({**known, "robot": {**robot, "note": {"a": 1}}}))
    with only_episode(folder, "d3il") as opened:
        desired = known["robot"]["des_c_pos"]
        wanted = (desired[1:] - desired[:-1]).astype(np.float32)
        np.testing.assert_array_equal(opened.numeric(stream(opened, "action")), wanted)
        rows = opened.numeric(stream(opened, "c_pos"))
        np.testing.assert_array_equal(rows, known["robot"]["c_pos"].astype(np.float32))
        (text,) = [text for text in opened.facts.warnings if "no array of numbers" in text]
    assert text.endswith(": note")


def test_a_recording_of_one_step_has_no_action(tmp_path):
    record(tmp_path / "aligning", 3, 1)
    with pytest.raises(EpisodeError, match="a single step, and an action is the difference of two"):
        only_episode(tmp_path / "aligning", "d3il")


def test_a_task_that_no_folder_names(tmp_path):
    record(tmp_path / "mine", 0, 4)
    with only_episode(tmp_path / "mine", "d3il") as opened:
        assert any("named like a task" in text for text in opened.facts.warnings)


def test_pictures_that_are_missing(tmp_path):
    record(tmp_path / "aligning", 0, 6)
    images = tmp_path / "aligning/all_data/images"
    (images / "bp-cam/env_0/2.png").unlink()
    with pytest.raises(EpisodeError, match="picture 2 is missing"):
        only_episode(tmp_path / "aligning", "d3il")
    for path in (images / "bp-cam/env_0").iterdir():
        path.unlink()
    with pytest.raises(EpisodeError, match=r"no numbered \.jpg"):
        only_episode(tmp_path / "aligning", "d3il")
    (images / "bp-cam/env_0").rmdir()
    with only_episode(tmp_path / "aligning", "d3il") as opened:
        assert any("bp-cam has no pictures" in text for text in opened.facts.warnings)
        assert len(frames(opened, "inhand-cam")) == 5


def test_links_out_of_the_dataset_are_refused(tmp_path):
    record(tmp_path / "aligning", 0, 6)
    path = tmp_path / "aligning/all_data/images/bp-cam/env_0/2.png"
    path.rename(tmp_path / "secret.png")
    path.symlink_to(tmp_path / "secret.png")
    with pytest.raises(EpisodeError, match="link that leads out"):
        only_episode(tmp_path / "aligning", "d3il")


def test_folders_with_lists_alone(tmp_path):
    (tmp_path / "train_files.pkl").write_bytes(pickle.dumps(["env_0.pkl"]))
    with pytest.raises(SourceError, match=r"only lists are here \(train_files\.pkl.*download of their own"):
        source(tmp_path, "d3il").episodes()
    with pytest.raises(SourceError, match="no such folder"):
        source(tmp_path / "absent", "d3il").episodes()


def test_it_is_recognised(tmp_path):
    record(tmp_path / "aligning", 0, 6)
    found = detect(tmp_path)
    assert (found.dir_type, found.episodes) == ("d3il", 1)


class Trap:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return (self.call, self.args)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_nothing_in_a_pickle_is_run(tmp_path, protocol):
    record(tmp_path / "aligning", 0, 6)
    path = tmp_path / "aligning/all_data/state/env_0.pkl"
    path.write_bytes(pickle.dumps(states(0, 6) | {"x": Trap(open, str(tmp_path / "ran"), "w")}, protocol=protocol))
    with pytest.raises(EpisodeError, match="is not run"):
        only_episode(tmp_path / "aligning", "d3il")
    assert not (tmp_path / "ran").exists()


PLAIN = {
    "numbers": [1, -2.5, True, None, 10**30],
    "text": ["a", "ä", b"bytes", b"", bytearray(b"more")],
    "nested": {"tuple": (1, (2, 3)), "set": {1, 2}},
    "arrays": [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(3, dtype=">i2"),
        np.array(["ab", "c"]),
        np.array([True, False]),
        np.array([{"a": np.arange(2)}, None], object),
        np.zeros((0, 3)),
        np.float32(1.5),
        np.array(7),
    ],
}


def same(left, right):
    if isinstance(right, (np.ndarray, np.generic)) and np.asarray(right).dtype != object:
        np.testing.assert_array_equal(left, right)
    elif isinstance(right, dict):
        assert set(left) == set(right)
        assert all(same(left[key], right[key]) for key in right)
    elif isinstance(right, (list, tuple, np.ndarray)):
        assert len(left) == len(right)
        assert all(same(*pair) for pair in zip(left, right, strict=True))
    else:
        assert left == right
    return True


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_comes_back_as_it_was(protocol):
    assert same(load_pickle(pickle.dumps(PLAIN, protocol=protocol), "here"), PLAIN)


def test_names_of_numpy_2_and_1(tmp_path):
    data = pickle.dumps(np.arange(3), protocol=2)
    assert b"numpy._core" in data
    old = data.replace(b"numpy._core", b"numpy.core")
    np.testing.assert_array_equal(load_pickle(old, "here"), np.arange(3))


HUGE = struct.pack("<Q", 1 << 40)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x05\x8e" + HUGE + b"abc.",  # bytes of a terabyte
        b"\x80\x05\x96" + HUGE + b"abc.",  # a byte array of a terabyte
        b"\x80\x02cnumpy\nndarray\n(J\xff\xff\xff\x7ftR.",  # an array of eight gigabytes
        b"\x80\x02cbuiltins\nbytearray\n(J\xff\xff\xff\x7ftR.",
        b"\x80\x02]" + b"q\x00" + b"".join(b"(h%ch%cl" % (n, n) + b"q%c" % (n + 1) for n in range(60)) + b".",
        b"(" * 5000,
        b"",
        b"\x80\x02cos\nsystem\n(U\x04trueT.",
        b"\x80\x02}\x8c\x01x\x8c\x01ys\x8c\x05statesb.",
    ],
)
def test_pickles_made_to_hurt(data):
    with pytest.raises(EpisodeError, match="here"):
        load_pickle(data, "here")


def test_a_memo_of_two_thousand_million_places_takes_no_memory():
    assert load_pickle(b"\x80\x02U\x01ar\xff\xff\xff\x7f.", "here") == "a"


def test_real_lists(real_data):
    folder = real_data / "d3il/environments/dataset/data"
    count = 0
    for path in sorted(folder.rglob("*_files*.pkl")):
        data = path.read_bytes()
        names = [arg for _, arg, _ in pickletools.genops(data) if isinstance(arg, str) and arg.endswith(".pkl")]
        assert [str(name) for name in load_pickle(data, str(path))] == names or len(names) == 0
        count += 1
    assert count == 10
    for path in folder.rglob("*.pkl"):
        load_pickle(path.read_bytes(), str(path))
    for task in ("aligning", "pushing", "stacking"):
        with pytest.raises(SourceError, match="download of their own"):
            source(folder / task, "d3il").episodes()
