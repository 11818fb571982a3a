"""What recorders really write into files of arrays, read right or refused in words."""

import json
import zipfile

import h5py
import numpy as np
import pytest
import zarr

from knonik_loader.errors import EpisodeError, SourceError
from tests.assets.sources.support import frames, jpeg, only_episode, source, stream, write_hdf5
from tests.support.stamps import episode_arrays, read_stamp
from tests.support.zarr_data import group, put, replay_buffer

ROWS = 12
STATE = np.arange(ROWS * 3, dtype=np.float64).reshape(ROWS, 3)
MAP = (ROWS, 72, 80)
MAP_MM = np.full(MAP, 700, np.uint16)


def opened(folder, **datasets):
    write_hdf5(folder / "episode_0.hdf5", **{"action": STATE, **datasets})
    return only_episode(folder)


def kinds(episode):
    return {spec.name: spec.kind for spec in episode.streams}


def said(episode, words):
    return [text for text in episode.facts.warnings if words in text]


@pytest.mark.parametrize("shape", [(ROWS, 50, 14), (ROWS, 9, 9), (ROWS, 16, 16)], ids=["ahead", "inertia", "tactile"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_small_matrix_a_row_is_numbers_not_depth(tmp_path, shape, dtype):
    values = np.random.default_rng(0).normal(scale=100, size=shape).astype(dtype)
    with opened(tmp_path, matrix=values) as episode:
        rows = episode.numeric(stream(episode, "matrix", "numeric"))
    np.testing.assert_array_equal(rows, values.reshape(ROWS, -1).astype(np.float32))


def test_what_is_called_depth_is_depth_however_small(tmp_path):
    small = np.full((ROWS, 12, 16), 2.5, np.float32)
    with opened(tmp_path, **{"depth.front": small, "near_depth": small[..., None]}) as episode:
        assert kinds(episode) == {"action": "numeric", "front": "depth", "near_depth": "depth"}
        assert (frames(episode, "front")[3] == 2.5).all()


def test_a_layout_makes_small_maps_depth_or_grey_pictures(tmp_path):
    small = np.full((ROWS, 12, 16), 0.5, np.float32)
    write_hdf5(tmp_path / "episode_0.hdf5", far=small, grey=small)
    with only_episode(tmp_path, layout={"images": {"grey": "grey"}, "depths": {"far": "far"}}) as episode:
        assert (frames(episode, "far")[0] == 0.5).all()
        assert (frames(episode, "grey")[0] == 128).all()


def test_maps_that_nothing_calls_depth_are_told(tmp_path):
    maps = {"infrared": np.ones(MAP, np.uint16), "grey": np.ones(MAP, np.float32)}
    with opened(tmp_path, **maps, cam_depth=np.ones(MAP, np.float32)) as episode:
        (text,) = said(episode, "taken as depth")
    assert "grey, infrared" in text
    assert "cam_depth" not in text


def test_depth_of_eight_bits_is_told(tmp_path):
    with opened(tmp_path, cam_depth=np.full(MAP, 9, np.uint8)) as episode:
        assert said(episode, "depth of 8 bits is taken as millimetres")


def test_a_depth_camera_has_grey_pictures_of_8_bits_too(tmp_path):
    grey = np.zeros(MAP, np.uint8)
    maps = {"depth_cam.infra1": grey, "depth_cam.depth": MAP_MM, "depth_images.head": grey}
    with opened(tmp_path, **maps) as episode:
        assert kinds(episode) == {"action": "numeric", "infra1": "rgb", "depth": "depth", "head": "depth"}


def test_numbers_of_8_bits_that_begin_late_are_no_single_picture(tmp_path):
    with opened(tmp_path, pad=np.ones((ROWS - 1, 5, 5), np.uint8)) as episode:
        assert kinds(episode) == {"action": "numeric", "pad": "numeric"}


def test_labels_among_pictures_are_told(tmp_path):
    with opened(tmp_path, cam_mask=np.ones(MAP, np.uint8), cam=np.ones(MAP, np.uint8)) as episode:
        (text,) = said(episode, "labels")
    assert text.endswith(": cam_mask")


def test_rows_without_numbers_are_left_out_and_cost_nothing_else(tmp_path):
    with opened(tmp_path, states=np.zeros((ROWS, 0))) as episode:
        assert kinds(episode) == {"action": "numeric"}
        assert said(episode, "states (float64 (12, 0))")


@pytest.mark.parametrize("goal", [(1, 96, 112, 3), (96, 112, 3), (1, 96, 112)])
def test_one_picture_of_the_goal_does_not_cut_the_episode(tmp_path, goal):
    rows = 64
    pictures = np.full((rows, 96, 112, 3), 7, np.uint8)
    action = np.zeros((rows, 2), np.float32)
    with opened(tmp_path, action=action, cam=pictures, goal=np.zeros(goal, np.uint8)) as episode:
        assert kinds(episode) == {"action": "numeric", "cam": "rgb"}
        assert said(episode, "left out, as their first axis isn't time: goal")


def test_pictures_of_an_episode_of_one_frame_are_pictures(tmp_path):
    with opened(tmp_path, action=STATE[:1], cam=np.zeros((1, 96, 112, 3), np.uint8)) as episode:
        assert kinds(episode) == {"action": "numeric", "cam": "rgb"}


def test_times_since_1970_among_the_numbers_are_told_to_stand_still(tmp_path):
    times = 1.7e9 + np.arange(ROWS) / 30
    with opened(tmp_path, wall=times, far=STATE + 1e6, still=np.full(ROWS, 1.7e9 + 0.1)) as episode:
        for spec in episode.streams:
            episode.numeric(spec)
        (text,) = said(episode, "lose their last digits")
    assert "wall: values as large as 1.7e+09" in text


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_camera_that_came_late_is_damage_not_left_out(tmp_path, kind):
    pictures = [jpeg(picture) for picture in episode_arrays(0, ROWS)["cam_0"]]
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = STATE
        rows = file.create_dataset("cam", (ROWS,), dtype=h5py.vlen_dtype(kind))
        for place, data in enumerate(pictures):
            rows[place] = np.frombuffer(data, kind)
    with only_episode(tmp_path) as episode:
        assert stream(episode, "cam", "rgb").encoding == "jpeg"
    with h5py.File(tmp_path / "episode_0.hdf5", "r+") as file:
        file["cam"][0] = np.zeros(0, kind)
    with pytest.raises(EpisodeError, match=r"cam, row 0: no JPEG or PNG picture \(no bytes at all\)"):
        only_episode(tmp_path)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1)])
def test_a_clock_of_one_column_is_a_clock(tmp_path, shape):
    with opened(tmp_path, timestamp=(np.arange(ROWS) / 20).reshape(shape)) as episode:
        np.testing.assert_allclose(episode.facts.timestamps, np.arange(ROWS) / 20)
        assert kinds(episode) == {"action": "numeric"}


@pytest.mark.parametrize(("unit", "factor"), [("milliseconds", 1e3), ("microseconds", 1e6), ("nanoseconds", 1e9)])
def test_floats_that_step_like_another_unit_are_not_taken_as_seconds(tmp_path, unit, factor):
    with opened(tmp_path, timestamps=np.arange(ROWS) / 20 * factor) as episode:
        assert episode.facts.timestamps is None
        assert said(episode, f"looks like {unit}")
    with pytest.raises(EpisodeError, match=f"looks like {unit}.*store seconds, or say fps if they are"):
        only_episode(tmp_path, layout={"numeric": {"action": "action"}, "timestamps": "timestamps"})


@pytest.mark.parametrize("step", [1 / 500, 1 / 30, 1.5, 30.0])
def test_slow_and_fast_clocks_in_seconds_stay(tmp_path, step):
    write_hdf5(tmp_path / "episode_0.hdf5", action=STATE, timestamps=np.arange(ROWS) * step)
    with only_episode(tmp_path, **({"fps": 1 / step} if step > 2 else {})) as episode:
        np.testing.assert_allclose(episode.facts.timestamps, np.arange(ROWS) * step)


@pytest.mark.parametrize("first", [0, 2**62, 2**63, 2**64 - 10**9])
def test_clocks_of_64_bits_without_a_sign_are_clocks(tmp_path, first):
    ticks = np.arange(ROWS, dtype=np.uint64) * np.uint64(33_333_333) + np.uint64(first)
    with opened(tmp_path, timestamps=ticks) as episode:
        times = episode.facts.timestamps
        assert abs(times[0] - first / 1e9) < 1e-5 * max(1, first / 1e9)
        np.testing.assert_allclose(np.diff(times), 1 / 30, atol=1e-5)


@pytest.mark.parametrize("missed", [0, 1])
def test_numbers_of_frames_are_no_clock_unless_the_rate_says_so(tmp_path, missed):
    numbers = np.arange(ROWS) + missed * (np.arange(ROWS) > 5)
    with opened(tmp_path, timestamps=numbers) as episode:
        assert episode.facts.timestamps is None
        assert said(episode, "numbers of frames rather than times")
    with only_episode(tmp_path, fps=1.0) as episode:
        np.testing.assert_array_equal(episode.facts.timestamps, numbers)


def test_floats_that_count_by_one_are_seconds_and_that_is_told(tmp_path):
    with opened(tmp_path, timestamps=np.arange(ROWS, dtype=np.float64)) as episode:
        np.testing.assert_array_equal(episode.facts.timestamps, np.arange(ROWS))
        assert said(episode, "counts by one; taken as seconds: say fps")


def test_whole_seconds_since_1970_are_a_clock(tmp_path):
    with opened(tmp_path, timestamps=1_700_000_000 + np.arange(ROWS)) as episode:
        np.testing.assert_array_equal(episode.facts.timestamps, 1_700_000_000 + np.arange(ROWS))


def test_numbers_that_were_never_written_are_told_or_refused(tmp_path):
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = STATE
        file.create_dataset("effort", (ROWS, 3), "f4")
        reward = file.create_dataset("reward", (ROWS,), "f4", chunks=(4,))
        reward[8:] = 1
    with only_episode(tmp_path) as episode:
        assert said(episode, "effort: was never written and reads as 0.0")
        assert said(episode, "reward: 2 of 3 chunks were never written and read as 0.0")
    with h5py.File(tmp_path / "episode_0.hdf5", "r+") as file:
        qpos = file.create_dataset("qpos", (ROWS, 3), "f4", chunks=(4, 3))
        qpos[:4] = STATE[:4]
    with pytest.raises(EpisodeError, match=r"qpos: 2 of 3 chunks were never written \(an interrupted recording\)"):
        only_episode(tmp_path)


INSTRUCTIONS = {
    "text": "pick it",
    "one row": np.array([b"pick it"]),
    "every row": np.array([b"pick it"] * ROWS),
}


@pytest.mark.parametrize("value", INSTRUCTIONS.values(), ids=INSTRUCTIONS)
def test_an_instruction_that_is_a_dataset_is_said(tmp_path, value):
    with opened(tmp_path, language_instruction=value, fps=25) as episode:
        assert episode.facts.language.instruction == "pick it"
        assert stream(episode, "action").fps == 25


ATTRIBUTES = {
    "bytes in an array": (np.array([b"pick it"]), "pick it", ()),
    "latin-1": (np.bytes_("größer".encode("latin1")), "größer", ()),
    "several": (np.array(["pick it", "lift it"], h5py.string_dtype()), "pick it", ("lift it",)),
}


@pytest.mark.parametrize(("value", "wanted", "rephrases"), ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_an_instruction_in_an_attribute_of_any_kind_is_said(tmp_path, value, wanted, rephrases):
    with h5py.File(write_hdf5(tmp_path / "episode_0.hdf5", action=STATE), "r+") as file:
        file.attrs["language_instruction"] = value
    with only_episode(tmp_path) as episode:
        assert (episode.facts.language.instruction, episode.facts.language.rephrases) == (wanted, rephrases)


@pytest.mark.parametrize(("listed", "wanted"), [(["put", "it", "down"], "put it down"), (list("go on"), "go on")])
def test_an_instruction_in_words_or_letters_is_joined(tmp_path, listed, wanted):
    with h5py.File(write_hdf5(tmp_path / "task.hdf5", **{"data.demo_0.actions": STATE}), "r+") as file:
        file["data"].attrs["problem_info"] = json.dumps({"language_instruction": listed})
    with only_episode(tmp_path, dir_type="hdf5") as episode:
        assert episode.facts.language.instruction == wanted


def buffer(folder, *lengths, **arrays):
    """A replay buffer whose rows are numbered, with further arrays in ``data``."""
    store = group(folder / "buffer.zarr")
    for name, values in {"action": np.arange(3.0 * sum(lengths)).reshape(-1, 3) + 1, **arrays}.items():
        put(store, f"data.{name}", values, 4)
    put(store, "meta.episode_ends", np.cumsum(lengths), 100)
    return store


def test_a_table_in_a_replay_buffer_is_one_for_every_episode(tmp_path):
    root = buffer(tmp_path, 4, 4, 8, goals=np.zeros((5, 2)), per_episode=np.zeros((3, 1)))
    found = source(root, "zarr")
    for ref in found.episodes():
        with found.open(ref) as episode:
            assert kinds(episode) == {"action": "numeric"}
            assert said(episode, "first axis isn't time: goals (5, 2), per_episode (3, 1)")


def test_an_episode_whose_only_chunk_is_lost_is_not_read_as_zeros(tmp_path):
    root = buffer(tmp_path, 4, 4)
    (root / "data" / "action" / "1.0").unlink()
    found = source(root, "zarr")
    first, second = found.episodes()
    with found.open(first) as episode:
        assert episode.numeric(stream(episode, "action"))[0].tolist() == [1, 2, 3]
    with pytest.raises(EpisodeError, match="1 of 1 chunks are missing"):
        found.open(second)


def test_chunks_whose_description_is_lost_are_damage(tmp_path):
    root = buffer(tmp_path, 4, 4, state=np.ones((8, 2)))
    (root / "data" / "state" / ".zarray").unlink()
    with pytest.raises(SourceError, match=r"state holds chunks of an array, but what describes them .* is missing"):
        source(root, "zarr").episodes()


def test_what_a_mac_packs_beside_a_store_is_passed_over(tmp_path):
    store = tmp_path / "store.zarr"
    replay_buffer(store, [4, 3])
    with zipfile.ZipFile(tmp_path / "sent.zarr.zip", "w") as archive:
        for path in sorted(store.rglob("*")):
            if path.is_file():
                archive.write(path, f"store.zarr/{path.relative_to(store).as_posix()}")
        archive.writestr("__MACOSX/store.zarr/._data", b"resource fork")
        archive.writestr("store.zarr/data/.DS_Store", b"window")
    found = source(tmp_path / "sent.zarr.zip", "zarr")
    assert len(found.episodes()) == 2


def test_an_instruction_of_robocasa_is_said(tmp_path):
    with h5py.File(write_hdf5(tmp_path / "demo.hdf5", **{"data.demo_0.actions": STATE}), "r+") as file:
        file["data/demo_0"].attrs["ep_meta"] = json.dumps({"lang": "open the drawer", "layout_id": 3})
    with only_episode(tmp_path, dir_type="hdf5") as episode:
        assert episode.facts.language.instruction == "open the drawer"


PARTS = {
    "demos": ({f"data.demo_{number}.actions": STATE for number in range(2)}, r"2 groups like data\.\*\.actions.*demos"),
    "steps": (
        {f"{name}.{key}": np.zeros(7) for name in range(12) for key in ("action", "qpos")},
        r"12 groups like \*\.action: it holds a group for every step",
    ),
    "frames": ({f"frame_{name:03d}.action": np.zeros(7) for name in range(12)}, r"12 groups like \*\.action"),
}


@pytest.mark.parametrize(("arrays", "told"), PARTS.values(), ids=PARTS)
def test_demos_and_steps_side_by_side_are_no_streams(tmp_path, arrays, told):
    write_hdf5(tmp_path / "episode_0.hdf5", **arrays)
    with pytest.raises(EpisodeError, match=told):
        only_episode(tmp_path)


def test_numbered_arms_and_cameras_are_streams(tmp_path):
    arms = {f"arms.{number}.qpos": STATE for number in range(4)}
    with opened(tmp_path, **arms) as episode:
        assert set(kinds(episode)) == {"action", *(f"{number}_qpos" for number in range(4))}


def test_many_numbered_things_over_time_are_streams(tmp_path):
    things = {f"objects.{number}.pose": np.full((ROWS, 7), number, np.float32) for number in range(14)}
    with opened(tmp_path, **things) as episode:
        assert set(kinds(episode)) == {"action", *(f"{number}_pose" for number in range(14))}


def test_a_dataset_for_every_frame_leaves_the_streams_alone(tmp_path):
    pictures = {f"images.{number}": np.zeros((96, 112, 3), np.uint8) for number in range(ROWS * 2)}
    with opened(tmp_path, **pictures) as episode:
        assert kinds(episode) == {"action": "numeric"}
        (text,) = said(episode, "first axis isn't time")
    assert text.endswith("(24 in all)")


@pytest.mark.parametrize("key", ["../../etc", ".", "..", "./action/.."])
def test_a_layout_of_dots_names_nothing(tmp_path, key):
    write_hdf5(tmp_path / "episode_0.hdf5", action=STATE)
    with pytest.raises(SourceError, match="which isn't there"):
        only_episode(tmp_path, layout={"numeric": {"x": key}})


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_single_values_of_a_zarr_store_say_what_attributes_would(tmp_path, version, shape):
    store = group(tmp_path / "episode_0", version)
    put(store, "action", STATE + 1, 4, version)
    for name, value in (("language_instruction", np.array("pick it")), ("fps", np.array(20, np.int32))):
        kind = str if version == 3 and value.dtype.kind == "U" else value.dtype
        array = zarr.create_array(str(store / name), shape=shape, dtype=kind, zarr_format=version)
        array[...] = value.reshape(shape)
    with only_episode(tmp_path, data_type="zarr") as episode:
        assert episode.facts.language.instruction == "pick it"
        assert stream(episode, "action").fps == 20
        assert kinds(episode) == {"action": "numeric"}


def test_single_values_of_an_npz_archive_may_have_an_axis(tmp_path):
    np.savez(tmp_path / "episode_0.npz", action=STATE, language_instruction=np.array(["pick it"]), fps=np.array([20]))
    with only_episode(tmp_path, data_type="npy") as episode:
        assert episode.facts.language.instruction == "pick it"
        assert stream(episode, "action").fps == 20


def test_the_raw_instruction_of_robomind_is_said(tmp_path):
    with opened(tmp_path, language_raw=np.array([b"take it"]), language_distilbert=np.zeros((1, 1, 768))) as episode:
        assert episode.facts.language.instruction == "take it"


def test_pictures_that_are_called_depth_are_told(tmp_path):
    """Depth painted in colours, or squeezed into a JPEG, is a picture."""
    pictures = episode_arrays(0, ROWS)["cam_0"]
    encoded = np.array([jpeg(picture) for picture in pictures])
    with opened(tmp_path, cam_depth=pictures, wrist_depth=encoded, **{"depth_camera.rgb": pictures}) as episode:
        assert set(kinds(episode).values()) == {"numeric", "rgb"}
        (text,) = said(episode, "no distance can be read")
        assert [read_stamp(frame)[2] for frame in frames(episode, "cam_depth")] == list(range(ROWS))
    assert text.endswith(": cam_depth, wrist_depth")
