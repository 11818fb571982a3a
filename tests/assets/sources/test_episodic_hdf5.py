"""What HDF5 recordings really look like, one trap a test."""

import json

import h5py
import numpy as np
import pytest

from knonik_assets.sources.base import EncodedImage
from knonik_assets.sources.base_contract import NoCache, as_array
from knonik_assets.sources.images import decode_image
from knonik_loader.errors import EpisodeError, SourceError
from tests.assets.sources.support import (
    frames,
    jpeg,
    only_episode,
    padded_rows,
    png,
    source,
    stream,
    write_hdf5,
)
from tests.support.stamps import episode_arrays, read_stamp

ROWS = 5


@pytest.fixture(scope="module")
def known():
    return episode_arrays(2, ROWS)


def identities(pictures):
    return [read_stamp(as_array(picture)) for picture in pictures]


WANTED = [(0, 2, frame) for frame in range(ROWS)]


def vlen(pictures):
    data = np.empty(len(pictures), object)
    for place, picture in enumerate(pictures):
        data[place] = np.frombuffer(picture, np.uint8)
    return {"data": data, "dtype": h5py.vlen_dtype(np.uint8)}


ENCODED = {
    "jpeg in padded rows": lambda video: padded_rows([jpeg(picture) for picture in video]),
    "png in padded rows": lambda video: padded_rows([png(picture) for picture in video]),
    "jpeg of varying length": lambda video: vlen([jpeg(picture) for picture in video]),
    "png of varying length": lambda video: vlen([png(picture) for picture in video]),
    "fixed strings": lambda video: np.array([jpeg(picture) for picture in video]),
    "opaque bytes": lambda video: np.array([jpeg(picture) for picture in video]).view(
        "V" + str(max(len(jpeg(picture)) for picture in video))
    ),
}


@pytest.mark.parametrize("how", ENCODED)
def test_encoded_pictures_are_found_and_passed_through(tmp_path, known, how):
    write_hdf5(tmp_path / "episode_0.hdf5", **{"images.top": ENCODED[how](known["cam_0"]), "action": known["action"]})
    with only_episode(tmp_path) as episode:
        spec = stream(episode, "top", "rgb")
        assert spec.encoding == ("png" if "png" in how else "jpeg")
        assert spec.shape == (96, 112, 3)
        found = frames(episode, "top")
        assert all(isinstance(one, EncodedImage) for one in found)
        assert identities(found) == WANTED
        make = png if "png" in how else jpeg
        assert [one.data for one in found] == [make(picture) for picture in known["cam_0"]]


ARRAYS = {
    "hwc": lambda video: video,
    "chw": lambda video: np.moveaxis(video, -1, 1),
    "rgba": lambda video: np.concatenate([video, np.full_like(video[..., :1], 9)], -1),
    "unit floats": lambda video: video.astype(np.float32) / 255,
    "chw unit doubles": lambda video: np.moveaxis(video / 255, -1, 1),
    "floats to 255": lambda video: video.astype(np.float32),
    "chunks of frames": lambda video: {"data": video, "chunks": (2, 96, 112, 3), "compression": "lzf"},
    "chunks of pixels": lambda video: {"data": video, "chunks": (3, 24, 28, 1), "compression": "gzip"},
}


@pytest.mark.parametrize("how", ARRAYS)
def test_arrays_of_every_layout(tmp_path, known, how):
    write_hdf5(tmp_path / "episode_0.h5", **{"top": ARRAYS[how](known["cam_0"])})
    with only_episode(tmp_path) as episode:
        assert identities(frames(episode, "top")) == WANTED
        warned = any("0..255" in warning for warning in episode.facts.warnings)
        assert warned == (how == "floats to 255")


def test_grey_pictures(tmp_path, known):
    grey = known["cam_0"][..., 1]
    write_hdf5(tmp_path / "episode_0.h5", a=grey, b=grey[..., None])
    with only_episode(tmp_path) as episode:
        for name in "ab":
            np.testing.assert_array_equal(np.stack(frames(episode, name)), np.repeat(grey[..., None], 3, -1))


def test_a_stream_of_floats_has_one_scale(tmp_path):
    """The first picture is nearly black, so it alone would pass as [0, 1]."""
    video = np.zeros((30, 16, 16, 3), np.float32)
    video[:, 0, 0] = np.linspace(1, 250, 30)[:, None]
    write_hdf5(tmp_path / "episode_0.h5", top=video)
    with only_episode(tmp_path) as episode:
        assert [int(frame[0, 0, 0]) for frame in frames(episode, "top")] == np.rint(video[:, 0, 0, 0]).tolist()


def test_a_stream_that_contradicts_its_scale_fails_by_row(tmp_path):
    video = np.full((30, 16, 16, 3), 0.5, np.float32)
    video[5] = 200
    write_hdf5(tmp_path / "episode_0.h5", top=video)
    with only_episode(tmp_path) as episode, pytest.raises(EpisodeError, match="row 5"):
        frames(episode, "top")


def test_exchanged_channels_are_put_right_only_when_asked(tmp_path, known):
    swapped = [jpeg(picture, colorspace="BGR") for picture in known["cam_0"]]
    write_hdf5(tmp_path / "episode_0.hdf5", top=padded_rows(swapped), raw=known["cam_0"])
    with only_episode(tmp_path) as episode, pytest.raises(AssertionError, match="patch"):
        identities(frames(episode, "top"))
    with only_episode(tmp_path, jpeg_channel_order="bgr") as episode:
        assert stream(episode, "top").encoding == "raw"
        assert identities(frames(episode, "top")) == WANTED
        assert identities(frames(episode, "raw")) == WANTED  # arrays are no JPEGs


def test_channel_order_without_encoded_pictures_is_warned_of(tmp_path, known):
    write_hdf5(tmp_path / "episode_0.hdf5", top=known["cam_0"])
    with only_episode(tmp_path, jpeg_channel_order="bgr") as episode:
        assert any("no effect" in warning for warning in episode.facts.warnings)


@pytest.mark.parametrize(("orientation", "turned"), [("flip_vertical", (-1, 1)), ("rotate_180", (-1, -1))])
def test_orientation_turns_pictures_and_depth(tmp_path, known, orientation, turned):
    video = known["cam_0"][:, :: turned[0], :: turned[1]]
    deep = np.arange(ROWS * 96 * 112).reshape(ROWS, 96, 112).astype(np.float32) + 1
    rows = padded_rows([jpeg(picture) for picture in video])
    write_hdf5(tmp_path / "episode_0.hdf5", a=video, b=rows, depth=deep)
    with only_episode(tmp_path, orientation=orientation) as episode:
        assert identities(frames(episode, "a")) == WANTED
        assert identities(frames(episode, "b")) == WANTED
        assert stream(episode, "b").encoding == "raw"
        np.testing.assert_array_equal(np.stack(frames(episode, "depth")), deep[:, :: turned[0], :: turned[1]])


def test_depth_by_unit(tmp_path):
    metres = np.linspace(0.3, 2, ROWS * 200).reshape(ROWS, 10, 20)
    holed = metres.copy()
    holed[0, 0, :3] = np.nan, np.inf, -1
    write_hdf5(
        tmp_path / "episode_0.hdf5",
        top_depth=np.rint(metres * 1000).astype(np.uint16),
        fine_depth=np.rint(metres * 4000).astype(np.uint16),
        float_depth=holed[..., None].astype(np.float32),
        png_depth=padded_rows([png(np.rint(one * 1000).astype(np.uint16)) for one in metres]),
    )
    layout = {
        "depth": {
            "top": "top_depth",
            "fine": {"key": "fine_depth", "unit_m": 0.00025},
            "float": "float_depth",
            "png": "png_depth",
        }
    }
    with only_episode(tmp_path, layout=layout) as episode:
        for name, step in (("top", 0.001), ("fine", 0.00025), ("png", 0.001)):
            assert stream(episode, name, "depth").shape == (10, 20)
            np.testing.assert_allclose(np.stack(frames(episode, name)), metres, atol=step / 2 + 1e-6)
        found = np.stack(frames(episode, "float"))
        assert found[0, 0, :3].tolist() == [0, 0, 0]
        np.testing.assert_allclose(found[1:], metres[1:], rtol=1e-6)
    with only_episode(tmp_path) as episode:
        assert {(spec.kind, spec.name) for spec in episode.streams} == {
            ("depth", name) for name in ("top_depth", "fine_depth", "float_depth", "png_depth")
        }


def millimetres():
    return (np.arange(ROWS * 12 * 16).reshape(ROWS, 12, 16) + 800).astype(np.uint16)


def aloha(path, known):
    """Mobile ALOHA's file with everything in it."""
    return write_hdf5(
        path,
        **{
            "observations.images.cam_high": padded_rows([jpeg(picture) for picture in known["cam_0"]]),
            "observations.images.cam_low": known["cam_1"],
            "observations.images.cam_high_depth": millimetres(),
            "observations.qpos": known["state"],
            "observations.qvel": known["state"] * 2,
            "observations.effort": known["state"] * 3,
            "base_action": known["action"][:, :2],
            "action": known["action"],
            "compress_len": np.ones((2, ROWS), np.float32),
        },
    )


def test_without_a_layout_everything_arrives_under_its_own_name(tmp_path, known):
    aloha(tmp_path / "episode_0.hdf5", known)
    with only_episode(tmp_path) as episode:
        assert {(spec.kind, spec.name) for spec in episode.streams} == {
            ("rgb", "cam_high"),
            ("rgb", "cam_low"),
            ("depth", "cam_high_depth"),
            *(("numeric", name) for name in ("qpos", "qvel", "effort", "base_action", "action")),
        }
        numbers = {
            "qpos": known["state"],
            "qvel": known["state"] * 2,
            "effort": known["state"] * 3,
            "base_action": known["action"][:, :2],
            "action": known["action"],
        }
        for name, wanted in numbers.items():
            np.testing.assert_array_equal(episode.numeric(stream(episode, name)), wanted)
        np.testing.assert_allclose(np.stack(frames(episode, "cam_high_depth")), millimetres() / 1000, rtol=1e-6)
        assert identities(frames(episode, "cam_high")) == WANTED


def test_with_a_layout_only_what_it_names(tmp_path, known):
    aloha(tmp_path / "episode_0.hdf5", known)
    layout = {
        "images": {"high": {"key": "observations.images.cam_high", "fps": 50}},
        "numeric": {"s": "observations.qpos"},
    }
    with only_episode(tmp_path, layout=layout, fps=25) as episode:
        assert [(spec.kind, spec.name, spec.fps) for spec in episode.streams] == [
            ("rgb", "high", 50),
            ("numeric", "s", 25),
        ]


def test_names_with_dots_and_slashes_win_over_paths(tmp_path, known):
    write_hdf5(tmp_path / "episode_0.hdf5", **{"obs.state": known["state"]})
    with h5py.File(tmp_path / "episode_0.hdf5", "r+") as file:
        file.create_dataset("obs.state", data=known["action"])
        file["left.arm/joint.pos"] = known["state"] * 5
    layout = {"numeric": {"whole": "obs.state", "path": "obs/state", "mixed": "left.arm.joint.pos"}}
    with only_episode(tmp_path, layout=layout) as episode:
        for name, wanted in (("whole", known["action"]), ("path", known["state"]), ("mixed", known["state"] * 5)):
            np.testing.assert_array_equal(episode.numeric(stream(episode, name)), wanted)


@pytest.mark.parametrize(
    ("block", "key", "nearest"),
    [
        ("images", "observations.images.cam_hihg", "observations.images.cam_high"),
        ("numeric", "qpos", "observations.qpos"),
        ("depth", "cam_high_depth", "observations.images.cam_high_depth"),
    ],
)
def test_a_name_that_the_source_lacks_is_an_error_with_the_nearest(tmp_path, known, block, key, nearest):
    aloha(tmp_path / "episode_0.hdf5", known)
    found = source(tmp_path, layout={block: {"x": key}})
    with pytest.raises(SourceError) as caught:
        found.open(found.episodes()[0])
    assert repr(key) in str(caught.value)
    assert f"nearest is {nearest!r}" in str(caught.value)
    assert "observations.effort" in str(caught.value)


def test_missing_time_stamps_are_an_error_too(tmp_path, known):
    aloha(tmp_path / "episode_0.hdf5", known)
    found = source(tmp_path, layout={"numeric": {"a": "action"}, "timestamps": "time"})
    with pytest.raises(SourceError, match=r"layout\.timestamps is 'time'"):
        found.open(found.episodes()[0])


@pytest.mark.parametrize(
    ("block", "key"), [("images", "action"), ("depth", "action"), ("numeric", "observations.images.cam_low")]
)
def test_a_dataset_of_another_kind_is_refused(tmp_path, known, block, key):
    aloha(tmp_path / "episode_0.hdf5", known)
    found = source(tmp_path, layout={block: {"x": key}})
    with pytest.raises(SourceError, match="is listed as"):
        found.open(found.episodes()[0])


def test_equal_names_take_their_parents_along(tmp_path, known):
    write_hdf5(tmp_path / "episode_0.h5", **{"front.rgb": known["cam_0"], "wrist.rgb": known["cam_1"]})
    with only_episode(tmp_path) as episode:
        assert [spec.name for spec in episode.streams] == ["front_rgb", "wrist_rgb"]
        assert identities(frames(episode, "wrist_rgb")) == [(1, 2, frame) for frame in range(ROWS)]


def test_tables_of_another_length_are_left_out_and_named(tmp_path, known):
    write_hdf5(tmp_path / "episode_0.h5", top=known["cam_0"], action=known["action"], intrinsics=np.zeros((50, 3)))
    with only_episode(tmp_path) as episode:
        assert [spec.name for spec in episode.streams] == ["action", "top"]
        assert any("intrinsics" in warning for warning in episode.facts.warnings)


def test_every_stream_keeps_its_own_length(tmp_path, known):
    write_hdf5(tmp_path / "episode_0.h5", top=known["cam_0"], action=known["action"][:-1])
    with only_episode(tmp_path) as episode:
        assert {spec.name: spec.length for spec in episode.streams} == {"top": ROWS, "action": ROWS - 1}


@pytest.mark.parametrize(
    ("stamps", "wanted"),
    [
        (np.arange(ROWS) / 30 + 1.7e9, None),
        ((np.arange(ROWS) * 33_333_333 + 1_700_000_000_000_000_000).astype(np.int64), "nanoseconds"),
        ((np.arange(ROWS) * 33_333).astype(np.int64), "microseconds"),
        ((np.arange(ROWS) * 33).astype(np.uint32), "milliseconds"),
    ],
)
def test_clocks(tmp_path, known, stamps, wanted):
    write_hdf5(tmp_path / "episode_0.h5", action=known["action"], clock=stamps)
    with only_episode(tmp_path, layout={"numeric": {"a": "action"}, "timestamps": "clock"}) as episode:
        times = episode.facts.timestamps
        np.testing.assert_allclose(np.diff(times), 1 / 30, atol=4e-4)
        assert times[0] == pytest.approx(float(stamps[0]) * {None: 1, "nanoseconds": 1e-9}.get(wanted, 1e-6))
        assert any(wanted in warning for warning in episode.facts.warnings) if wanted else not episode.facts.warnings


def test_a_clock_is_found_by_its_name(tmp_path, known):
    write_hdf5(tmp_path / "episode_0.h5", action=known["action"], timestamps=known["timestamps"])
    with only_episode(tmp_path) as episode:
        np.testing.assert_array_equal(episode.facts.timestamps, known["timestamps"])
        assert [spec.name for spec in episode.streams] == ["action"]


def test_an_unusable_clock_is_an_error_only_where_the_layout_names_it(tmp_path, known):
    stamps = known["timestamps"].copy()
    stamps[2] = np.nan
    write_hdf5(tmp_path / "episode_0.h5", action=known["action"], timestamps=stamps)
    with only_episode(tmp_path) as episode:
        assert episode.facts.timestamps is None
        assert any("NaN" in warning for warning in episode.facts.warnings)
    with pytest.raises(EpisodeError, match="NaN"):
        only_episode(tmp_path, layout={"numeric": {"a": "action"}, "timestamps": "timestamps"})


@pytest.mark.parametrize("where", ["language_instruction", "metadata_json", "problem_info"])
def test_language_in_attributes(tmp_path, known, where):
    path = write_hdf5(tmp_path / "episode_0.h5", action=known["action"])
    with h5py.File(path, "r+") as file:
        text = "pick it up" if where == "language_instruction" else json.dumps({"language_instruction": "pick it up"})
        file.attrs[where] = np.bytes_(text) if where == "metadata_json" else text
    with only_episode(tmp_path) as episode:
        assert episode.facts.language.instruction == "pick it up"


def libero(path, known, demos=(0, 1, 2, 10)):
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = json.dumps({"language_instruction": "put it down"})
        data.attrs["macros_image_convention"] = "opengl"
        data.attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": 20}})
        for demo in demos:
            group = data.create_group(f"demo_{demo}")
            group["obs/agentview_rgb"] = episode_arrays(demo, ROWS)["cam_0"][:, ::-1]
            group["next_obs/agentview_rgb"] = known["cam_1"]
            group["actions"] = known["action"]
            group["dones"] = np.zeros(ROWS, np.uint8)
    return path


def test_nested_demos(tmp_path, known):
    (tmp_path / "suite").mkdir()
    libero(tmp_path / "suite" / "task_demo.hdf5", known)
    (tmp_path / "suite" / "._task_demo.hdf5").write_bytes(b"resource fork")
    found = source(tmp_path, demos="data/demo_*", orientation="flip_vertical")
    refs = found.episodes()
    assert [ref.source_id for ref in refs] == [f"suite/task_demo.hdf5#demo_{demo}" for demo in (0, 1, 2, 10)]
    assert found.warnings == []
    with found.open(refs[-1]) as episode:
        assert [(spec.name, spec.fps) for spec in episode.streams] == [
            ("actions", 20),
            ("dones", 20),
            ("agentview_rgb", 20),
        ]
        assert identities(frames(episode, "agentview_rgb")) == [(0, 10, frame) for frame in range(ROWS)]
        assert episode.facts.language.instruction == "put it down"
        assert episode.numeric(stream(episode, "dones")).shape == (ROWS, 1)


def test_upside_down_pictures_are_warned_of(tmp_path, known):
    libero(tmp_path / "task_demo.hdf5", known)
    found = source(tmp_path, demos="data/demo_*")
    found.episodes()
    assert [("upside down" in warning and "orientation" in warning) for warning in found.warnings] == [True]
    turned = source(tmp_path, demos="data/demo_*", orientation="rotate_180")
    turned.episodes()
    assert turned.warnings == []


def test_one_file_as_the_dataset(tmp_path, known):
    path = libero(tmp_path / "task_demo.hdf5", known)
    refs = source(path, demos="data/demo_*").episodes()
    assert refs[0].source_id == "task_demo.hdf5#demo_0"
    assert len(source(path, "hdf5").episodes()) == 4


def test_a_pattern_without_a_match_says_what_there_is(tmp_path, known):
    libero(tmp_path / "task_demo.hdf5", known)
    with pytest.raises(SourceError, match="top groups are data"):
        source(tmp_path, demos="demos/*").episodes()


def test_a_folder_without_episodes_says_how_to_go_on(tmp_path, known):
    libero(tmp_path / "task_demo.hdf5", known)
    with pytest.raises(SourceError, match="demos"):
        source(tmp_path).episodes()
    with pytest.raises(SourceError, match="no such folder"):
        source(tmp_path / "absent").episodes()
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no HDF5 file"):
        source(tmp_path / "empty").episodes()


def test_two_files_of_one_name_are_refused(tmp_path, known):
    for suffix in ("h5", "hdf5"):
        write_hdf5(tmp_path / f"episode_1.{suffix}", action=known["action"])
    with pytest.raises(SourceError, match=r"episode_1.*both"):
        source(tmp_path).episodes()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.6, 0.95])
def test_a_truncated_file_fails_by_name_and_alone(tmp_path, known, share):
    for episode in range(3):
        write_hdf5(tmp_path / f"episode_{episode}.hdf5", top=known["cam_0"], action=known["action"])
    victim = tmp_path / "episode_1.hdf5"
    victim.write_bytes(victim.read_bytes()[: int(victim.stat().st_size * share)])
    found = source(tmp_path)
    refs = found.episodes()
    assert len(refs) == 3
    with pytest.raises(EpisodeError, match=r"episode_1\.hdf5"), found.open(refs[1]) as episode:
        frames(episode, "top")
    for ref in (refs[0], refs[2]):
        with found.open(ref) as episode:
            assert identities(frames(episode, "top")) == WANTED


def test_a_truncated_file_says_how_much_of_it_is_there(tmp_path, known):
    path = tmp_path / "episode_0.hdf5"
    write_hdf5(path, top=known["cam_0"], action=known["action"])
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2])
    with pytest.raises(EpisodeError, match=rf": {size // 2} of {size} bytes are there .*; copy it again\.$"):
        source(tmp_path).open(source(tmp_path).episodes()[0])


def test_a_broken_file_of_demos_is_listed_and_fails_by_name(tmp_path, known):
    libero(tmp_path / "task_1.hdf5", known)
    (tmp_path / "task_2.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 50)
    found = source(tmp_path, demos="data/demo_*")
    refs = found.episodes()
    assert [ref.source_id for ref in refs][-1] == "task_2.hdf5"
    assert any("task_2.hdf5" in warning for warning in found.warnings)
    with pytest.raises(EpisodeError, match=r"task_2\.hdf5"):
        found.open(refs[-1])
    with pytest.raises(EpisodeError, match=r"task_2\.hdf5"):
        found.fingerprint(refs[-1], NoCache())


def test_pictures_that_were_never_written_are_no_black_pictures(tmp_path, known):
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        video = file.create_dataset("top", (9, 96, 112, 3), np.uint8, chunks=(1, 96, 112, 3))
        video[:ROWS] = known["cam_0"]
        file["action"] = np.zeros((9, 4))
    found = source(tmp_path)
    with pytest.raises(EpisodeError, match="4 of 9 chunks were never written"):
        found.open(found.episodes()[0])


def test_a_row_without_a_picture_fails_by_row(tmp_path, known):
    rows = padded_rows([jpeg(picture) for picture in known["cam_0"]])
    rows[3] = 0
    write_hdf5(tmp_path / "episode_0.hdf5", top=rows)
    with only_episode(tmp_path) as episode, pytest.raises(EpisodeError, match=r"top, row 3.*zeros"):
        frames(episode, "top")


def test_a_picture_of_another_size_fails_by_row(tmp_path, known):
    pictures = [jpeg(picture) for picture in known["cam_0"]]
    pictures[2] = jpeg(known["cam_0"][2][:64])
    write_hdf5(tmp_path / "episode_0.hdf5", top=padded_rows(pictures))
    with only_episode(tmp_path) as episode, pytest.raises(EpisodeError, match=r"row 2: \(64, 112\)"):
        frames(episode, "top")


def test_links_into_other_files_are_refused(tmp_path, known):
    write_hdf5(tmp_path / "other.h5", top=known["cam_0"])
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = known["action"]
        file["top"] = h5py.ExternalLink("other.h5", "top")
    with pytest.raises(EpisodeError, match="links to another file"):
        only_episode(tmp_path)
    with only_episode(tmp_path, layout={"numeric": {"a": "action"}}) as episode:
        assert len(episode.streams) == 1


def test_virtual_datasets_over_other_files_are_refused(tmp_path, known):
    write_hdf5(tmp_path / "other.h5", top=known["cam_0"])
    view = h5py.VirtualLayout(known["cam_0"].shape, np.uint8)
    view[:] = h5py.VirtualSource(tmp_path / "other.h5", "top", known["cam_0"].shape)
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file.create_virtual_dataset("top", view)
    with pytest.raises(EpisodeError, match="virtual dataset"):
        only_episode(tmp_path, layout={"images": {"top": "top"}})


def test_data_kept_in_raw_files_is_refused(tmp_path):
    (tmp_path / "secret.bin").write_bytes(b"s" * 4096)
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file.create_dataset("top", (2, 32, 32), np.uint8, external=[(str(tmp_path / "secret.bin"), 0, 2048)])
    with pytest.raises(EpisodeError, match="in another file"):
        only_episode(tmp_path)


def test_links_in_circles_end(tmp_path, known):
    path = write_hdf5(tmp_path / "episode_0.hdf5", **{"a.action": known["action"]})
    with h5py.File(path, "r+") as file:
        file["a/again"] = file["a"]
        file["a/nowhere"] = h5py.SoftLink("/missing")
        file["root"] = h5py.SoftLink("/")
    with only_episode(tmp_path) as episode:
        assert [spec.name for spec in episode.streams] == ["action"]


def test_numbers_of_every_type_become_float32_rows(tmp_path, known):
    write_hdf5(
        tmp_path / "episode_0.hdf5",
        action=known["action"],
        flags=np.array([True, False, True, False, True]),
        big=np.arange(ROWS, dtype=">f8"),
        pose=np.arange(ROWS * 16.0).reshape(ROWS, 4, 4),
        ids=np.arange(ROWS) + 2**24 + 1,
    )
    with only_episode(tmp_path) as episode:
        rows = {spec.name: episode.numeric(spec) for spec in episode.streams}
        np.testing.assert_array_equal(rows["flags"][:, 0], [1, 0, 1, 0, 1])
        np.testing.assert_array_equal(rows["big"][:, 0], np.arange(ROWS))
        np.testing.assert_array_equal(rows["pose"], np.arange(ROWS * 16.0).reshape(ROWS, 16))
        assert all(value.dtype == np.float32 and value.dtype.isnative for value in rows.values())
        warnings = " ".join(episode.facts.warnings)
        assert "flattened to 16" in warnings
        assert "ids: integers beyond 2**24" in warnings


def test_names_made_safe_are_recorded(tmp_path, known):
    write_hdf5(tmp_path / "episode_0.hdf5", **{"joint pos": known["state"], "action": known["action"]})
    with only_episode(tmp_path) as episode:
        assert episode.facts.attributes["renamed_streams"] == {"joint pos": "joint_pos"}


def test_real_aloha_files_need_their_channels_exchanged(real_data):
    with only_episode(real_data / "hdf5/aloha_sim_jpeg", jpeg_channel_order="bgr") as episode:
        reds = [_cube(frame) for frame in frames(episode, "top")]
        assert reds[0] > 250
        assert sum(red > 100 for red in reds) > 30
        with h5py.File(real_data / "hdf5/aloha_sim_jpeg/episode_0.hdf5") as file:
            np.testing.assert_array_equal(
                episode.numeric(stream(episode, "qpos")), file["observations/qpos"][()].astype(np.float32)
            )
    with only_episode(real_data / "hdf5/aloha_sim_jpeg") as episode:
        found = frames(episode, "top")
        assert len(found) == 60
        assert _cube(decode_image(found[0])) == 0
        with h5py.File(real_data / "hdf5/aloha_sim_jpeg/episode_0.hdf5") as file:
            row = file["observations/images/top"][5]
        assert found[5].data == row.tobytes().rstrip(b"\0")


def _cube(picture) -> int:
    """Pixels that are plainly red."""
    red, green, blue = (picture[..., channel].astype(int) for channel in range(3))
    return int(((red > 120) & (green < 60) & (blue < 60)).sum())


def test_real_robomimic_layout(real_data):
    found = source(real_data / "hdf5/lift_robomimic_layout.hdf5", demos="data/demo_*")
    refs = found.episodes()
    with h5py.File(real_data / "hdf5/lift_robomimic_layout.hdf5") as file:
        for ref, demo in zip(refs, ("demo_0", "demo_1", "demo_2"), strict=True):
            with found.open(ref) as episode:
                names = [spec.name for spec in episode.streams]
                assert len(names) == len(set(names)) == 12
                video = file[f"data/{demo}/obs/agentview_image"][()]
                np.testing.assert_array_equal(np.stack(frames(episode, "agentview_image")), video)


def test_real_recording_without_observations_says_so(real_data):
    with only_episode(real_data / "hdf5/robosuite_raw_lift_demo.hdf5", demos="data/demo_*") as episode:
        assert [(spec.name, spec.length) for spec in episode.streams] == [("actions", 482), ("states", 482)]
        assert any("no pictures" in warning for warning in episode.facts.warnings)
