"""CALVIN's own tree: steps, inclusive index, language with inclusive windows."""

import numpy as np
import pytest

from knonik_assets.sources.base_contract import Expected, NoCache, SourceContract
from knonik_assets.sources.detect import detect
from knonik_loader.errors import EpisodeError, SourceError
from tests.assets.sources.support import frames, only_episode, source, stream
from tests.support.calvin_data import calvin, step_arrays, write_language
from tests.support.stamps import read_stamp

SPANS = [(553567, 553574), (100, 109), (2000, 2004)]
WINDOWS = [(100, 103, "open the drawer"), (102, 109, "push the block"), (2000, 2004, "turn on the light")]


def identities(pictures):
    return [read_stamp(picture) for picture in pictures]


class TestCalvin(SourceContract):
    def make_data(self, folder):
        return calvin(folder, SPANS, WINDOWS)

    def make_source(self, root):
        return source(root, "calvin")

    def expected(self):
        def one(number):
            first, last = SPANS[number]
            found = {name: values[: last - first + 1] for name, values in step_arrays(number, last - first + 2).items()}
            pictures = {"rgb_static": found["rgb_static"], "rgb_gripper": found["rgb_gripper"]}
            depth = {"depth_static": found["depth_static"]}
            for part in (0, 1):
                pictures[f"rgb_tactile_{part}"] = found["rgb_tactile"][..., 3 * part : 3 * part + 3]
                depth[f"depth_tactile_{part}"] = found["depth_tactile"][..., part]
            numeric = {name: found[name] for name in ("actions", "rel_actions", "robot_obs", "scene_obs")}
            text = {1: "open the drawer", 2: "turn on the light"}.get(number)
            return Expected(numeric=numeric, pictures=pictures, depth=depth, tolerance=1e-6, instruction=text)

        return {f"{SPANS[n][0]:07d}-{SPANS[n][1]:07d}": one(n) for n in (1, 2, 0)}

    def change(self, root, source_id):
        path = root / f"episode_{source_id[:7]}.npz"
        with np.load(path) as archive:
            arrays = dict(archive)
        arrays["actions"][1] += 1
        np.savez_compressed(path, **arrays)


def test_both_ends_belong_to_an_episode(tmp_path):
    calvin(tmp_path, [(100, 109)])
    with only_episode(tmp_path, "calvin") as opened:
        assert {spec.length for spec in opened.streams} == {10}
        assert identities(frames(opened, "rgb_static")) == [(0, 0, frame) for frame in range(10)]
        np.testing.assert_array_equal(opened.numeric(stream(opened, "actions"))[:, 0], np.arange(10))


def test_rate_roles_and_channels(tmp_path):
    calvin(tmp_path, [(100, 103)])
    with only_episode(tmp_path, "calvin") as opened:
        assert {spec.fps for spec in opened.streams} == {30}
        assert stream(opened, "actions").role == "action"
        assert stream(opened, "robot_obs").role == "state"
        assert stream(opened, "robot_obs").channel_names[6:9] == ("gripper_width", "joint_0", "joint_1")
        assert stream(opened, "actions").channel_names[-1] == "gripper"


def test_windows_of_language_include_their_ends(tmp_path):
    calvin(tmp_path, [(100, 109)], WINDOWS)
    with only_episode(tmp_path, "calvin") as opened:
        assert opened.facts.language.segments == (
            (0.0, 3 / 30, "open the drawer"),
            (2 / 30, 9 / 30, "push the block"),
        )


def test_missing_language_is_told_and_no_error(tmp_path):
    found = source(calvin(tmp_path, [(100, 103)]), "calvin")
    refs = found.episodes()
    assert any("no lang_annotations" in text for text in found.warnings)
    with found.open(refs[0]) as opened:
        assert opened.facts.language is None


@pytest.mark.parametrize("place", ["auto_lang_ann.npy", "lang_paraphrase-MiniLM-L3-v2/auto_lang_ann.npy"])
def test_language_in_other_places(tmp_path, place):
    write_language(calvin(tmp_path, [(100, 103)]) / place, WINDOWS[:1])
    with only_episode(tmp_path, "calvin") as opened:
        assert opened.facts.language.instruction == "open the drawer"


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_language_that_runs_code_is_not_run(tmp_path):
    calvin(tmp_path, [(100, 103)])
    np.save(tmp_path / "auto_lang_ann.npy", {"language": Trap(str(tmp_path / "ran"))})
    with only_episode(tmp_path, "calvin") as opened:
        assert opened.facts.language is None
        assert any("is not run" in text for text in opened.facts.warnings)
    assert not (tmp_path / "ran").exists()


def test_both_splits_at_once(tmp_path):
    calvin(tmp_path / "training", [(100, 103)])
    calvin(tmp_path / "validation", [(0, 4)], [(0, 4, "now")])
    refs = source(tmp_path, "calvin").episodes()
    assert [ref.source_id for ref in refs] == ["training/0000100-0000103", "validation/0000000-0000004"]


def test_other_numbers_of_digits(tmp_path):
    calvin(tmp_path, [(8, 12)], width=6)
    with only_episode(tmp_path, "calvin") as opened:
        assert identities(frames(opened, "rgb_gripper")) == [(1, 0, frame) for frame in range(5)]


def test_steps_without_an_index_are_no_episode(tmp_path):
    (calvin(tmp_path, [(100, 103)]) / "ep_start_end_ids.npy").unlink()
    with pytest.raises(SourceError, match=r"ep_start_end_ids\.npy is missing: its 5 files are single steps"):
        source(tmp_path, "calvin").episodes()
    with pytest.raises(SourceError, match="no such folder"):
        source(tmp_path / "absent", "calvin").episodes()


def test_a_missing_step_fails_its_episode_by_name(tmp_path):
    found = source(calvin(tmp_path, [(100, 103), (200, 204)]), "calvin")
    (tmp_path / "episode_0000102.npz").unlink()
    refs = found.episodes()
    with pytest.raises(EpisodeError, match=r"1 of its 4 steps are missing, the first is episode_0000102\.npz"):
        found.open(refs[0])
    with found.open(refs[1]) as opened:
        assert len(frames(opened, "rgb_static")) == 5


def test_a_damaged_step_fails_by_name(tmp_path):
    calvin(tmp_path, [(100, 103)])
    path = tmp_path / "episode_0000102.npz"
    path.write_bytes(path.read_bytes()[:-400])
    with only_episode(tmp_path, "calvin") as opened:
        for spec in opened.streams:
            with pytest.raises(EpisodeError, match=r"episode_0000102\.npz"):
                opened.numeric(spec) if spec.kind == "numeric" else list(opened.frames(spec))


def test_a_step_of_another_shape_fails_by_name(tmp_path):
    calvin(tmp_path, [(100, 103)])
    path = tmp_path / "episode_0000102.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(path, **(arrays | {"robot_obs": np.zeros(3), "rgb_static": np.zeros((5, 5, 3), np.uint8)}))
    with only_episode(tmp_path, "calvin") as opened:
        for name in ("robot_obs", "rgb_static"):
            spec = stream(opened, name)
            with pytest.raises(EpisodeError, match=rf"episode_0000102\.npz: {name}: shape"):
                opened.numeric(spec) if spec.kind == "numeric" else list(opened.frames(spec))


@pytest.mark.parametrize("index", [np.array([[9, 3]]), np.array([[-1, 3]]), np.array([1, 2]), np.zeros((0, 2), int)])
def test_a_damaged_index(tmp_path, index):
    calvin(tmp_path, [(100, 103)])
    np.save(tmp_path / "ep_start_end_ids.npy", index)
    with pytest.raises(SourceError, match="ep_start_end_ids"):
        source(tmp_path, "calvin").episodes()


@pytest.mark.parametrize(("name", "kind"), [("rgb_static", np.float32), ("actions", np.complex64)])
def test_a_step_of_another_type_is_not_squeezed_into_the_first_ones(tmp_path, name, kind):
    """Floats of 0 to 1 would be black bytes."""
    calvin(tmp_path, [(100, 103)])
    rewrite(tmp_path / "episode_0000102.npz", name, lambda values: (values / 255).astype(kind))
    wanted = rf"episode_0000102.npz: {name}: {np.dtype(kind)}, the episode's first step"
    with only_episode(tmp_path, "calvin") as opened:
        spec = stream(opened, name)
        read = opened.numeric if spec.kind == "numeric" else lambda spec: list(opened.frames(spec))
        with pytest.raises(EpisodeError, match=wanted):
            read(spec)


def test_a_step_of_a_lesser_type_is_the_same_number(tmp_path):
    calvin(tmp_path, [(100, 103)])
    rewrite(tmp_path / "episode_0000102.npz", "actions", lambda values: np.rint(values).astype(np.int32))
    with only_episode(tmp_path, "calvin") as opened:
        assert opened.numeric(stream(opened, "actions"))[:, 0].tolist() == [0, 1, 2, 3]


def rewrite(path, name, change):
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez_compressed(path, **{**arrays, name: change(arrays[name])})


def test_missing_steps_are_counted_before_anything_is_read(tmp_path):
    calvin(tmp_path, [(100, 109)])
    for number in (103, 107):
        (tmp_path / f"episode_0000{number}.npz").unlink()
    found = source(tmp_path, "calvin")
    with pytest.raises(EpisodeError, match=r"2 of its 10 steps are missing, the first is episode_0000103\.npz"):
        found.fingerprint(found.episodes()[0], NoCache())


def test_steps_that_are_pickles_are_refused(tmp_path):
    calvin(tmp_path, [(100, 103)])
    for path in tmp_path.glob("episode_*.npz"):
        path.rename(path.with_suffix(".pkl"))
    with pytest.raises(SourceError, match="its steps are pickles"):
        source(tmp_path, "calvin").episodes()


def test_an_index_that_claims_millions_of_steps(tmp_path):
    calvin(tmp_path, [(100, 103)])
    np.save(tmp_path / "ep_start_end_ids.npy", np.array([[100, 10**15]]))
    with pytest.raises(EpisodeError):
        only_episode(tmp_path, "calvin")


def test_it_is_recognised(tmp_path):
    calvin(tmp_path / "task_D_D" / "training", [(100, 103), (200, 204)], WINDOWS)
    found = detect(tmp_path)
    assert (found.dir_type, found.episodes, found.fps) == ("calvin", 2, 30)
    assert found.language == "open the drawer"


def test_real_steps_without_an_index_are_refused_and_each_can_be_read(real_data, tmp_path):
    folder = real_data / "calvin" / "training"
    with pytest.raises(SourceError, match="its 2 files are single steps"):
        source(folder, "calvin").episodes()
    with pytest.raises(SourceError, match='"dir_type": "calvin"'):
        source(folder, data_type="npy").episodes()
    step = folder / "episode_0358482.npz"
    (tmp_path / step.name).write_bytes(step.read_bytes())
    np.save(tmp_path / "ep_start_end_ids.npy", np.array([[358482, 358482]]))
    with only_episode(tmp_path, "calvin") as opened, np.load(step) as known:
        assert {(spec.name, spec.shape) for spec in opened.streams if spec.kind == "rgb"} == {
            ("rgb_static", (200, 200, 3)),
            ("rgb_gripper", (84, 84, 3)),
            ("rgb_tactile_0", (160, 120, 3)),
            ("rgb_tactile_1", (160, 120, 3)),
        }
        np.testing.assert_array_equal(frames(opened, "rgb_tactile_1")[0], known["rgb_tactile"][..., 3:])
        np.testing.assert_array_equal(frames(opened, "depth_static")[0], np.maximum(known["depth_static"], 0))
        np.testing.assert_array_equal(
            opened.numeric(stream(opened, "robot_obs"))[0], known["robot_obs"].astype(np.float32)
        )
