"""Zarr stores, one an episode or one for all, written by zarr-python."""

import json
import pickle
import shutil
import sys
import zipfile

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.dtype import VariableLengthBytes

from knonik_assets.sources import zarr_guard
from knonik_assets.sources.base_contract import Expected, NoCache, SourceContract
from knonik_assets.sources.detect import detect
from knonik_loader.errors import EpisodeError, KnonikError, SourceError
from tests.assets.sources.support import encode_video, frames, jpeg, only_episode, source, stream
from tests.support.stamps import episode_arrays, read_stamp
from tests.support.zarr_data import episode, group, near_depth, picture_array, put, replay_buffer, zipped

LAYOUT = {
    "images": {"front": {"key": "camera_0.rgb", "fps": 30}, "side": "camera_1/rgb"},
    "depth": {"near": "camera_0.depth"},
    "numeric": {"state": "state", "action": "action"},
    "timestamps": "timestamps",
}


def identities(pictures):
    return [read_stamp(picture) for picture in pictures]


def rows_of(number):
    return 5 + number % 3


def known(number):
    found = episode_arrays(number, rows_of(number))
    return Expected(
        numeric={"state": found["state"], "action": found["action"]},
        pictures={"front": found["cam_0"], "side": found["cam_1"]},
        depth={"near": near_depth(rows_of(number), number).astype(np.float32) / np.float32(1000)},
        tolerance=1e-6,
        timestamps=found["timestamps"],
        instruction=f"do {number}",
    )


class StorePerEpisode(SourceContract):
    version = 2

    def make_data(self, folder):
        for number in range(11):
            episode(folder / f"episode_{number}", number, rows_of(number), self.version)
        return folder

    def make_source(self, root):
        return source(root, data_type="zarr", layout=LAYOUT)

    def expected(self):
        return {f"episode_{number}": known(number) for number in range(11)}

    def change(self, root, source_id):
        zarr.open_array(str(root / source_id / "action"), mode="r+")[2, 1] += 1


class TestFormat2(StorePerEpisode):
    pass


class TestFormat3(StorePerEpisode):
    version = 3


class TestZipped(StorePerEpisode):
    def make_data(self, folder):
        for number in range(11):
            store = episode(folder / f"episode_{number}", number, rows_of(number), 2 + number % 2)
            zipped(store, folder / f"episode_{number}.zarr.zip", f"episode_{number}.zarr/" if number % 3 else "")
        return folder

    def change(self, root, source_id):
        path = root / f"{source_id}.zarr.zip"
        path.unlink()
        number = int(source_id[8:])
        store = episode(root / "again", number, rows_of(number), 2 + number % 2)
        zarr.open_array(str(store / "action"), mode="r+")[2, 1] += 1
        zipped(store, path)


LENGTHS = [5, 9, 4, 7, 3, 6, 5, 5, 4, 3, 8]


class TestReplayBuffer(SourceContract):
    def make_data(self, folder):
        return replay_buffer(folder / "demo.zarr", LENGTHS, language_instruction="push it")

    def make_source(self, root):
        return source(root, "zarr")

    def expected(self):
        def one(number):
            found = episode_arrays(number, LENGTHS[number], cameras=1)
            return Expected(
                numeric={"state": found["state"], "action": found["action"]},
                pictures={"img": found["cam_0"]},
                depth={},
                instruction="push it",
            )

        return {str(number): one(number) for number in range(len(LENGTHS))}

    def change(self, root, source_id):
        before = sum(LENGTHS[: int(source_id)])
        zarr.open_array(str(root / "data" / "img"), mode="r+")[before, 0, 0, 0] ^= 1


class TestUmi(SourceContract):
    """``.zarr.zip`` with JPEG XL chunks."""

    def make_data(self, folder):
        store = replay_buffer(folder / "dataset", LENGTHS)
        found = [episode_arrays(number, rows, cameras=1)["cam_0"] for number, rows in enumerate(LENGTHS)]
        picture_array(store, "data.camera0_rgb", np.concatenate(found)[..., ::-1], "jpegxl")
        return zipped(store, folder / "dataset.zarr.zip")

    def make_source(self, root):
        layout = {"images": {"wrist": "camera0_rgb"}, "numeric": {"pose": "data.state", "action": "data/action"}}
        return source(root, "zarr", layout=layout)

    def expected(self):
        def one(number):
            found = episode_arrays(number, LENGTHS[number], cameras=1)
            return Expected(
                numeric={"pose": found["state"], "action": found["action"]},
                pictures={"wrist": found["cam_0"][..., ::-1]},
                depth={},
            )

        return {str(number): one(number) for number in range(len(LENGTHS))}

    def change(self, root, source_id):
        folder = root.parent / "unpacked"
        shutil.unpack_archive(root, folder, "zip")
        root.unlink()
        zarr.open_array(str(folder / "data" / "action"), mode="r+")[sum(LENGTHS[: int(source_id)]), 0] += 1
        zipped(folder, root)


def test_jpeg_2000_pictures(tmp_path):
    store = replay_buffer(tmp_path / "a.zarr", [3, 4], pictures="other")
    picture_array(store, "data.agentview_image", np.concatenate([episode_arrays(5, 7, 1)["cam_0"]]), "jpeg2k")
    found = source(tmp_path, "zarr")
    with found.open(found.episodes()[1]) as opened:
        assert identities(frames(opened, "agentview_image")) == [(0, 5, frame) for frame in range(3, 7)]


def test_a_codec_that_is_not_installed_is_named_with_what_to_install(tmp_path, monkeypatch):
    store = replay_buffer(tmp_path / "a.zarr", [3, 4], pictures="other")
    picture_array(store, "data.camera0_rgb", episode_arrays(0, 7, 1)["cam_0"], "jpegxl")
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    found = source(tmp_path, "zarr")
    with pytest.raises(EpisodeError, match=r"imagecodecs_jpegxl.*pip install 'knonik\[imagecodecs\]'"):
        found.open(found.episodes()[0])
    with only_episode(tmp_path, "zarr", layout={"images": {"a": "other"}}) as opened:
        assert len(frames(opened, "a")) == 3
    assert any("knonik[imagecodecs]" in warning for warning in detect(tmp_path).warnings)


def test_a_codec_nobody_has(tmp_path):
    store = replay_buffer(tmp_path / "a.zarr", [3, 4])
    path = store / "data" / "img" / ".zarray"
    described = json.loads(path.read_text())
    path.write_text(json.dumps(described | {"compressor": {"id": "mystery"}}))
    with pytest.raises(SourceError, match=r"img.*needs the codec 'mystery'"):
        source(tmp_path, "zarr").episodes()


def test_codecs_that_run_code_are_refused(tmp_path):
    store = episode(tmp_path / "episode_0", 0, 5)
    (store / "notes").mkdir()
    described = {
        "zarr_format": 2,
        "shape": [1],
        "chunks": [1],
        "dtype": "|O",
        "fill_value": None,
        "order": "C",
        "filters": [{"id": "pickle", "protocol": 5}],
        "compressor": None,
    }
    (store / "notes" / ".zarray").write_text(json.dumps(described))

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    (store / "notes" / "0").write_bytes(pickle.dumps(np.array([Trap()], object)))
    with pytest.raises(EpisodeError, match="runs code"):
        only_episode(tmp_path, data_type="zarr")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["camera_0/rgb/1.0.0.0", "action/0.0"])
def test_a_missing_chunk_is_no_zeros(tmp_path, name):
    store = episode(tmp_path / "episode_0", 0, 9)
    (store / name).unlink()
    with pytest.raises(EpisodeError, match=r"1 of \d chunks are missing"):
        only_episode(tmp_path, data_type="zarr")


def test_a_missing_chunk_spoils_only_its_own_episode(tmp_path):
    store = replay_buffer(tmp_path / "a.zarr", [7, 7, 7])
    (store / "data" / "img" / "1.0.0.0").unlink()
    found = source(store, "zarr")
    refs = found.episodes()
    with pytest.raises(EpisodeError, match="1 of 1 chunks are missing"):
        found.open(refs[1])
    for number in (0, 2):
        with found.open(refs[number]) as opened:
            assert identities(frames(opened, "img")) == [(0, number, frame) for frame in range(7)]


def test_zeros_that_a_writer_leaves_out_are_believed_of_single_columns_and_told(tmp_path):
    store = episode(tmp_path / "episode_0", 0, 6)
    rewards = np.array([0, 0, 0, 0, 0, 1], np.float32)
    array = zarr.create_array(str(store / "reward"), shape=(6,), dtype="f4", chunks=(2,), zarr_format=2, fill_value=0)
    array[:] = rewards
    assert not (store / "reward" / "0").exists()
    with only_episode(tmp_path, data_type="zarr") as opened:
        np.testing.assert_array_equal(opened.numeric(stream(opened, "reward"))[:, 0], rewards)
        assert any("reward: 2 of 3 chunks are missing and read as 0" in text for text in opened.facts.warnings)


def test_where_episodes_end(tmp_path):
    store = replay_buffer(tmp_path / "a.zarr", [4, 5, 3])
    put(store, "meta.scales", np.zeros(3), 3)

    def ends(*values):
        shutil.rmtree(store / "meta" / "episode_ends")
        put(store, "meta.episode_ends", np.array(values, np.int64), 100)
        return source(store, "zarr")

    found = ends(4, 9)
    assert len(found.episodes()) == 2
    assert any("rows behind the last episode's end at 9" in text for text in found.warnings)
    found = ends(4, 4, 9, 12)
    refs = found.episodes()
    with found.open(refs[1]) as opened:
        assert {spec.length for spec in opened.streams} == {0}
    with found.open(refs[2]) as opened:
        assert identities(frames(opened, "img")) == [(0, 1, frame) for frame in range(5)]
    found = ends(4, 9, 14)
    refs = found.episodes()
    with pytest.raises(EpisodeError, match=r"has 12 rows, but the episode ends at 14"):
        found.open(refs[2])
    with found.open(refs[1]) as opened:
        assert len(frames(opened, "img")) == 5
    with pytest.raises(SourceError, match="empty"):
        ends().episodes()
    with pytest.raises(SourceError, match="backwards"):
        ends(9, 4).episodes()
    shutil.rmtree(store / "meta" / "episode_ends")
    with pytest.raises(SourceError, match=r"no replay buffer|meta/episode_ends is missing"):
        source(store, "zarr").episodes()


def test_floats_up_to_255_are_judged_by_the_whole_array(tmp_path):
    store = replay_buffer(tmp_path / "a.zarr", [4, 4], pictures="other")
    video = np.zeros((8, 16, 16, 3), np.float32)
    video[4:] = 200
    video[0] = 1
    put(store, "data.img", video, 3)
    with only_episode(store, "zarr", layout={"images": {"img": "img"}}) as opened:
        assert [int(picture.max()) for picture in frames(opened, "img")] == [1, 0, 0, 0]
        assert any("taken as 0..255" in text for text in opened.facts.warnings)


def test_roles_and_rate(tmp_path):
    store = replay_buffer(tmp_path / "a.zarr", [4, 4], fps=10)
    with only_episode(store, "zarr") as opened:
        assert stream(opened, "action").role == "action"
        assert {spec.fps for spec in opened.streams} == {10}


def test_names_that_are_not_there(tmp_path):
    store = replay_buffer(tmp_path / "a.zarr", [4, 4])
    layout = {"images": {"a": "imgg", "b": "img"}}
    with only_episode(store, "zarr", layout=layout) as opened:
        assert [spec.name for spec in opened.streams] == ["b"]
        assert any("'imgg'" in text and "nearest is 'img'" in text for text in opened.facts.warnings)
    with pytest.raises(SourceError, match="nearest is 'img'"):
        only_episode(store, "zarr", layout=layout, strict=True)
    episode(tmp_path / "episode_0", 0, 4)
    with pytest.raises(SourceError, match=r"nearest is 'camera_0\.rgb'"):
        only_episode(tmp_path, data_type="zarr", layout={"images": {"a": "camera_0.rbg"}})


def test_folders_without_what_is_wanted_say_how_to_go_on(tmp_path):
    with pytest.raises(SourceError, match="no such"):
        source(tmp_path / "absent", "zarr").episodes()
    replay_buffer(tmp_path / "a.zarr", [4])
    with pytest.raises(SourceError, match='"dir_type": "zarr"'):
        source(tmp_path / "a.zarr", data_type="zarr").episodes()
    replay_buffer(tmp_path / "b.zarr", [4])
    with pytest.raises(SourceError, match=r"2 stores \(a\.zarr"):
        source(tmp_path, "zarr").episodes()
    episode(tmp_path / "c" / "episode_0", 0, 4)
    with pytest.raises(SourceError, match='"data_type": "zarr"'):
        source(tmp_path / "c", "zarr").episodes()
    zipped(episode(tmp_path / "d" / "x", 0, 4), tmp_path / "c" / "episode_0.zarr.zip")
    with pytest.raises(SourceError, match="episode_0 is there twice"):
        source(tmp_path / "c", data_type="zarr").episodes()


def test_episodes_as_groups_of_one_archive(tmp_path):
    for number in (2, 10):
        episode(tmp_path / "all" / f"episode_{number}", number, 4)
    found = source(zipped(tmp_path / "all", tmp_path / "all.zip"), data_type="zarr")
    assert [ref.source_id for ref in found.episodes()] == ["episode_2", "episode_10"]
    with found.open(found.episodes()[1]) as opened:
        assert identities(frames(opened, "camera_0_rgb")) == [(0, 10, frame) for frame in range(4)]
        assert opened.facts.language.instruction == "do 10"


def test_a_store_of_one_array_in_an_archive(tmp_path):
    put(tmp_path / "store", "cam", episode_arrays(3, 4)["cam_0"], 2)
    zipped(tmp_path / "store", tmp_path / "episode_0.zip")
    with only_episode(tmp_path, data_type="zarr") as opened:
        assert identities(frames(opened, "cam")) == [(0, 3, frame) for frame in range(4)]


def test_of_two_equal_names_in_an_archive_the_last_counts(tmp_path):
    path = zipped(replay_buffer(tmp_path / "a", [4]), tmp_path / "a.zarr.zip")
    with zipfile.ZipFile(path) as archive:
        old = archive.read("data/action/0.0")
    put(tmp_path / "new", "action", episode_arrays(3, 4)["action"], 11)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("data/action/0.0", (tmp_path / "new/action/0.0").read_bytes())
    assert old != (tmp_path / "new/action/0.0").read_bytes()
    with only_episode(path, "zarr") as opened:
        np.testing.assert_array_equal(opened.numeric(stream(opened, "action")), episode_arrays(3, 4)["action"])


def read_all(root):
    with only_episode(root, data_type="zarr") as opened:
        for spec in opened.streams:
            if spec.kind == "numeric":
                opened.numeric(spec)
            else:
                list(opened.frames(spec))


@pytest.mark.parametrize("name", ["timestamps/.zarray", "camera_0/rgb/0.0.0.0", "camera_0/rgb/.zarray"])
def test_a_name_that_differs_in_the_table_of_contents_is_damage(tmp_path, name):
    """The table has no check sum: an array would get another name, or lose a chunk."""
    path = zipped(episode(tmp_path / "store", 0, 4), tmp_path / "episode_0.zip")
    data = path.read_bytes()
    at = data.rindex(name.encode())
    path.write_bytes(data[:at] + b"q" + data[at + 1 :])
    with pytest.raises(EpisodeError, match=r"another name|missing"):
        read_all(tmp_path)


@pytest.mark.parametrize("name", ["grün", "日本_1", "plain"])
def test_names_beyond_ascii_in_an_archive(tmp_path, name):
    store = group(tmp_path / "store")
    put(store, name, episode_arrays(0, 4)["action"], 4)
    zipped(store, tmp_path / "episode_0.zip")
    with only_episode(tmp_path, data_type="zarr") as opened:
        (spec,) = opened.streams
        np.testing.assert_array_equal(opened.numeric(spec), episode_arrays(0, 4)["action"])


def test_links_out_of_a_store_are_refused(tmp_path):
    store = episode(tmp_path / "raw" / "episode_0", 0, 4)
    secret = tmp_path / "secret"
    shutil.move(store / "action" / "0.0", secret)
    (store / "action" / "0.0").symlink_to(secret)
    found = source(tmp_path / "raw", data_type="zarr")
    with pytest.raises(EpisodeError, match="link that leads out"):
        found.open(found.episodes()[0])
    (store / "action" / "0.0").unlink()
    shutil.move(secret, store / "action" / "kept")
    (store / "action" / "0.0").symlink_to("kept")
    with found.open(found.episodes()[0]) as opened:
        np.testing.assert_array_equal(opened.numeric(stream(opened, "action")), episode_arrays(0, 4)["action"])
    shutil.move(store / "state", tmp_path / "state")
    (store / "state").symlink_to(tmp_path / "state")
    with pytest.raises(EpisodeError, match="link that leads out"):
        found.open(found.episodes()[0])


def test_downloads_of_the_hub_link_to_their_blobs(tmp_path):
    home = tmp_path / "datasets--a--b"
    store = episode(home / "snapshots" / "abc" / "episode_0", 0, 4)
    (home / "blobs").mkdir()
    shutil.move(store / "action" / "0.0", home / "blobs" / "d1ge57")
    (store / "action" / "0.0").symlink_to("../../../../blobs/d1ge57")
    with only_episode(store.parent, data_type="zarr") as opened:
        np.testing.assert_array_equal(opened.numeric(stream(opened, "action")), episode_arrays(0, 4)["action"])


@pytest.mark.parametrize(
    "change", [{"shape": [10**12, 4]}, {"chunks": [10**9, 4]}, {"shape": "many"}, {"dtype": "<q9"}]
)
def test_absurd_metadata_takes_no_memory(tmp_path, change):
    store = episode(tmp_path / "episode_0", 0, 4)
    path = store / "action" / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    layout = {"numeric": {"action": "action"}}
    with pytest.raises(EpisodeError, match="action"), only_episode(tmp_path, data_type="zarr", layout=layout) as opened:
        opened.numeric(stream(opened, "action"))


@pytest.mark.parametrize("codec", ["blosc", "zstd", "gzip", "lz4", "zlib", "bz2"])
def test_chunks_that_claim_more_than_they_hold_take_no_memory(tmp_path, codec, monkeypatch):
    monkeypatch.setattr(zarr_guard, "MOST_BYTES", 1 << 20)
    store = group(tmp_path / "episode_0")
    made = numcodecs.Blosc() if codec == "blosc" else numcodecs.get_codec({"id": codec})
    put(store, "action", episode_arrays(0, 4)["action"], 4, compressors=made)
    (chunk,) = [path for path in (store / "action").iterdir() if not path.name.startswith(".")]
    chunk.write_bytes(bytes(made.encode(np.zeros(4 << 20, np.uint8))))
    with only_episode(tmp_path, data_type="zarr") as opened, pytest.raises(EpisodeError, match="it claims"):
        opened.numeric(stream(opened, "action"))


REAL = (-0.004, 0.003, 0.0, -0.002, 0.001)


def real_robot(root, lengths=(6, 8), camera_fps=30, late=0):
    """replay_buffer.zarr at 10 Hz beside videos at the cameras' rate."""
    store = replay_buffer(root / "replay_buffer.zarr", list(lengths), pictures="unused")
    shutil.rmtree(store / "data" / "unused")
    times = []
    for number, rows in enumerate(lengths):
        jitter = np.resize(REAL, rows)
        jitter[0] = 0
        times.append(1.7e9 + 100 * number + np.arange(rows) / 10 + jitter)
        pictures = episode_arrays(number, 3 * rows - late, cameras=2)
        for camera in (0, 1):
            encode_video(root / f"videos/{number}/{camera}.mp4", pictures[f"cam_{camera}"], camera_fps, gop=7)
    put(store, "data.timestamp", np.concatenate(times), 100)
    return root


def test_videos_of_a_real_robot_are_looked_up_by_time(tmp_path):
    found = source(real_robot(tmp_path), "zarr")
    for number, ref in enumerate(found.episodes()):
        with found.open(ref) as opened:
            rows = (6, 8)[number]
            assert opened.facts.timestamps[0] == 1.7e9 + 100 * number
            for camera in (0, 1):
                seen = identities(frames(opened, f"camera_{camera}"))
                assert seen == [(camera, number, 3 * step) for step in range(rows)]


def test_a_video_that_ends_early_cuts_the_steps_and_says_so(tmp_path):
    found = source(real_robot(tmp_path, late=5), "zarr", layout={"images": {"top": "camera_1"}})
    with found.open(found.episodes()[1]) as opened:
        (spec,) = opened.streams
        assert spec.length == 7
        assert identities(frames(opened, "top")) == [(1, 1, 3 * step) for step in range(7)]
        assert any("no frame near step 7" in text for text in opened.facts.warnings)


def test_a_camera_without_a_video_is_named(tmp_path):
    real_robot(tmp_path)
    (tmp_path / "videos/1/0.mp4").unlink()
    found = source(tmp_path, "zarr")
    with found.open(found.episodes()[1]) as opened:
        assert [spec.name for spec in opened.streams if spec.kind == "rgb"] == ["camera_1"]
        assert any("no video of camera_0" in text for text in opened.facts.warnings)


def test_videos_without_times_need_a_rate(tmp_path):
    real_robot(tmp_path)
    shutil.rmtree(tmp_path / "replay_buffer.zarr/data/timestamp")
    with pytest.raises(EpisodeError, match="set fps"):
        only_episode(tmp_path, "zarr")
    with only_episode(tmp_path, "zarr", fps=10) as opened:
        assert identities(frames(opened, "camera_0")) == [(0, 0, 3 * step) for step in range(6)]


def with_times(root, change):
    """`real_robot` with other time stamps of the steps."""
    real_robot(root)
    store = root / "replay_buffer.zarr"
    times = zarr.open_array(str(store / "data/timestamp"), mode="r")[:]
    shutil.rmtree(store / "data/timestamp")
    put(store, "data.timestamp", change(times), 100)
    return root


@pytest.mark.parametrize(
    "change",
    [lambda times: (times * 1e9).astype(np.int64), lambda times: times[:, None]],
    ids=["nanoseconds", "one column"],
)
def test_videos_are_looked_up_by_the_clock_as_it_is_understood(tmp_path, change):
    with only_episode(with_times(tmp_path, change), "zarr") as opened:
        assert identities(frames(opened, "camera_0")) == [(0, 0, 3 * step) for step in range(6)]
        assert abs(opened.facts.timestamps[0] - 1.7e9) < 1e-3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda times: times.astype(np.float32), "data/timestamp stands still or goes backwards"),
        (lambda times: times * 1e3, "data/timestamp is missing or no clock; set fps"),
        (lambda times: (times - times[0]) * 17 + times[0], "the video has 18 frames and ends at"),
    ],
    ids=["rounded", "milliseconds", "another clock"],
)
def test_videos_that_no_clock_aligns_are_refused(tmp_path, change, told):
    """A camera would show its first frame for ever."""
    with pytest.raises(EpisodeError, match=told):
        only_episode(with_times(tmp_path, change), "zarr")


def test_a_folder_of_one_store_of_episodes_says_what_to_name(tmp_path):
    episode(tmp_path / "all.zarr" / "episode_0", 0, 4)
    with pytest.raises(SourceError, match=r"all\.zarr has them in it; name it as the input"):
        source(tmp_path, data_type="zarr").episodes()


def test_a_cut_archive_fails_by_name(tmp_path):
    path = zipped(episode(tmp_path / "x", 0, 4), tmp_path / "episode_0.zip")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    episode(tmp_path / "episode_1", 1, 4)
    found = source(tmp_path, data_type="zarr")
    refs = found.episodes()
    with pytest.raises(EpisodeError, match=r"episode_0\.zip.*zip"):
        found.open(refs[0])
    with pytest.raises(KnonikError):
        found.fingerprint(refs[0], NoCache())
    with found.open(refs[1]) as opened:
        assert len(frames(opened, "camera_0_rgb")) == 4


def test_chunks_in_folders_of_their_own(tmp_path):
    store = group(tmp_path / "episode_0")
    video = episode_arrays(2, 6, 1)["cam_0"]
    put(store, "cam", video, 2, chunk_key_encoding={"name": "v2", "separator": "/"})
    assert (store / "cam/1/0/0/0").is_file()
    with only_episode(tmp_path, data_type="zarr") as opened:
        assert identities(frames(opened, "cam")) == [(0, 2, frame) for frame in range(6)]
    (store / "cam/1/0/0/0").unlink()
    with pytest.raises(EpisodeError, match="1 of 3 chunks are missing"):
        only_episode(tmp_path, data_type="zarr")


def test_rows_of_bytes(tmp_path):
    store = group(tmp_path / "episode_0")
    pictures = [jpeg(picture) for picture in episode_arrays(2, 5, 1)["cam_0"]]
    for name, dtype in (("any", VariableLengthBytes()), ("fixed", "S40000")):
        array = zarr.create_array(str(store / name), shape=(5,), dtype=dtype, chunks=(2,), zarr_format=2)
        array[:] = np.array(pictures, object if name == "any" else dtype)
    with only_episode(tmp_path, data_type="zarr") as opened:
        for name in ("any", "fixed"):
            assert stream(opened, name).encoding == "jpeg"
            assert [frame.data for frame in frames(opened, name)] == pictures


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_packed_by_zip(tmp_path, how):
    store = episode(tmp_path / "x", 0, 4)
    with zipfile.ZipFile(tmp_path / "episode_0.zip", "w", how) as archive:
        for path in sorted(store.rglob("*")):
            archive.write(path, path.relative_to(store).as_posix())
    with only_episode(tmp_path, data_type="zarr") as opened:
        assert identities(frames(opened, "camera_0_rgb")) == [(0, 0, frame) for frame in range(4)]
    with zipfile.ZipFile(tmp_path / "episode_0.zip", "a", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("late", b"x")
    with pytest.raises(EpisodeError, match="another method than deflate"):
        only_episode(tmp_path, data_type="zarr")


def test_sharded_arrays_of_format_3(tmp_path):
    store = group(tmp_path / "episode_0", 3)
    video = episode_arrays(4, 12, 1)["cam_0"]
    array = zarr.create_array(
        str(store / "cam"), shape=video.shape, dtype="u1", chunks=(2, 96, 112, 3), shards=(4, 96, 112, 3)
    )
    array[:] = video
    with only_episode(tmp_path, data_type="zarr") as opened:
        assert identities(frames(opened, "cam")) == [(0, 4, frame) for frame in range(12)]


def test_real_replay_buffer(real_data):
    found = source(real_data / "zarr/pusht_demo.zarr", "zarr")
    (ref,) = found.episodes()
    whole = zarr.open_group(str(real_data / "zarr/pusht_demo.zarr"), mode="r")
    with found.open(ref) as opened:
        assert {(spec.kind, spec.name, spec.length, spec.shape) for spec in opened.streams} == {
            ("rgb", "img", 763, (96, 96, 3)),
            ("numeric", "action", 763, (2,)),
            ("numeric", "state", 763, (5,)),
            ("numeric", "keypoint", 763, (18,)),
            ("numeric", "n_contacts", 763, (1,)),
        }
        np.testing.assert_array_equal(np.stack(frames(opened, "img")), whole["data/img"][:])
        np.testing.assert_array_equal(
            opened.numeric(stream(opened, "keypoint")).ravel(), whole["data/keypoint"][:].ravel()
        )


def test_stores_are_recognised_and_described(tmp_path):
    for number in range(3):
        episode(tmp_path / "each" / f"episode_{number}", number, 4)
    found = detect(tmp_path / "each")
    assert (found.dir_type, found.data_type, found.episodes, found.fps) == ("episodic", "zarr", 3, 30)
    assert found.config["layout"]["images"]["camera_0_rgb"] == {"key": "camera_0.rgb"}
    assert found.language == "do 0"
    real_robot(tmp_path / "robot")
    found = detect(tmp_path / "robot")
    assert (found.dir_type, found.episodes) == ("zarr", 2)
    assert found.config["layout"]["images"]["camera_1"] == {"key": "videos.camera_1"}
    zipped(replay_buffer(tmp_path / "zip" / "a", [4, 5]), tmp_path / "zip" / "umi.zarr.zip")
    found = detect(tmp_path / "zip")
    assert (found.dir_type, found.episodes) == ("zarr", 2)
