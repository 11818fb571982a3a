"""Packed frames are the episodes' frames, in every profile, whatever the order and the number of workers."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.pack import pack
from knonik_assets.packing.existing import read_manifest
from knonik_assets.packing.stored import open_packed
from knonik_loader.errors import ConfigError, LoginRequired
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.verify import verify_file
from tests.assets.packing.support import LENGTHS, PROFILES, SIZE, depth_m, read_all, write_episode, write_episodes
from tests.support.road import tree
from tests.support.stamps import read_stamp


@pytest.fixture(scope="module")
def jpeg_episodes(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("jpeg"))


@pytest.fixture(scope="module")
def video_episodes(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("video"), codec="vp9", jitter=True, instruction="pick up the cube")


def check_everything(manifest, episodes, lengths=LENGTHS):
    found = read_all(manifest)
    assert list(found) == [f"episode_{episode:06d}" for episode in range(len(lengths))]
    for episode, (name, streams) in enumerate(found.items()):
        reader = EpisodeReader(episodes / name)
        assert set(streams) == {"time", "rgb_cam_0", "rgb_cam_1", "depth_front", "state", "action"}
        for camera in range(2):
            stamps = [read_stamp(frame) for frame in streams[f"rgb_cam_{camera}"]]
            assert stamps == [(camera, episode, frame) for frame in range(lengths[episode])]
        np.testing.assert_array_equal(streams["time"], reader.frame_time())
        for numeric in ("state", "action"):
            np.testing.assert_array_equal(streams[numeric], reader.numeric(numeric))
        for frame, image in enumerate(streams["depth_front"]):
            np.testing.assert_allclose(image, depth_m(episode, frame), atol=1e-6)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("source", ["jpeg_episodes", "video_episodes"])
def test_every_frame_row_and_time_is_the_episodes_own(request, tmp_path, source, profile):
    episodes = request.getfixturevalue(source)
    paths = pack(episodes, tmp_path, "d", shard_size=7, window_size=3, storage_profile=profile, engine="inline", seed=5)
    assert paths[0] == tmp_path / "hlp_manifest.json"
    assert all(path.is_file() for path in paths)
    check_everything(paths[0], episodes)
    manifest = read_manifest(paths[0])
    assert (manifest.num_episodes, manifest.num_frames) == (3, sum(LENGTHS))
    assert manifest.num_shards == sum(-(-length // 7) for length in LENGTHS) == 11
    assert manifest.num_hlps == 4 == len(list(tmp_path.glob("hlp_*.khlp")))
    assert (tmp_path / "hlp_manifest.1.json").read_bytes() == paths[0].read_bytes()
    lossless = profile == "training_fast" and source == "jpeg_episodes"
    for stream in manifest.streams:
        assert (stream.psnr_y is None) == (stream.kind != "rgb" or lossless)
        assert stream.psnr_y is None or 30 < stream.psnr_y < 70
    for path, entry in zip(paths[2:], manifest.hlps, strict=True):
        assert path.stat().st_size == entry.bytes
        assert verify_file(path, entry.metadata_offset) == []


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("codec", ["jpeg", "h264"])
def test_odd_sizes_come_back_whole(tmp_path, codec, profile):
    episodes = write_episodes(tmp_path / "episodes", (13,), codec=codec, size=(81, 99))
    manifest = pack(episodes, tmp_path / "out", "d", 5, storage_profile=profile, engine="inline")[0]
    check_everything(manifest, episodes, (13,))
    assert read_manifest(manifest).streams[0].shape == (81, 99, 3)
    packed = read_all(manifest)["episode_000000"]["rgb_cam_0"]
    own = np.stack(list(EpisodeReader(episodes / "episode_000000").rgb("cam_0")))
    # the last row and column are pictures too, not padding
    for edge in (np.s_[:, -1], np.s_[:, :, -1]):
        assert np.abs(packed[edge].astype(int) - own[edge]).mean() < 8


def test_source_jpegs_pass_byte_for_byte_unless_a_quality_is_asked_for(jpeg_episodes, tmp_path):
    def payloads(folder, **options):
        manifest = pack(jpeg_episodes, folder, "d", 8, storage_profile="training_fast", engine="inline", **options)[0]
        found = {}
        for entry in read_manifest(manifest).hlps:
            with open_packed(folder / entry.uri) as packed:
                stream = next(stream for stream in packed.index.streams if stream.key == "rgb_cam_1")
                for shard in range(packed.index.num_shards):
                    where, table = packed.index.shard(shard), packed.index.records(shard, stream.stream_id)
                    for row in range(len(table)):
                        data = packed.read(int(table.offsets[row]), int(table.sizes[row]))
                        found[where.episode_id, where.first_frame + row] = data
        return found

    stored = {
        (f"episode_{episode:06d}", frame): data
        for episode in range(len(LENGTHS))
        for frame, data in enumerate(EpisodeReader(jpeg_episodes / f"episode_{episode:06d}").rgb_jpegs("cam_1"))
    }
    assert payloads(tmp_path / "same") == stored
    again = payloads(tmp_path / "other", quality=60)
    assert set(again) == set(stored)
    assert all(again[place] != stored[place] for place in stored)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_bytes_inline_with_two_workers_and_again(video_episodes, tmp_path, profile):
    options = {"shard_size": 6, "window_size": 4, "storage_profile": profile, "split": "train=0.5,val=0.5", "seed": 1}
    trees = []
    for name, engine in (("one", {"engine": "inline"}), ("two", {"workers": 2}), ("three", {"workers": 1})):
        pack(video_episodes, tmp_path / name, "d", **options, **engine)
        trees.append(tree(tmp_path / name))
    assert trees[0] == trees[1] == trees[2]
    assert sorted(trees[0])[-2:] == ["hlp_manifest.1.json", "hlp_manifest.json"]
    assert not list(tmp_path.glob("*/.knonik/progress/*"))


PACK = """
import sys
from knonik_assets.pack import pack
if __name__ == "__main__":
    for profile in sys.argv[3:]:
        pack(sys.argv[1], f"{sys.argv[2]}/{profile}", "d", 6, 4, storage_profile=profile, engine="inline", seed=2)
"""


def test_the_same_bytes_from_another_process_with_another_hash_seed(video_episodes, tmp_path):
    for profile in PROFILES:
        pack(video_episodes, tmp_path / "here" / profile, "d", 6, 4, storage_profile=profile, engine="inline", seed=2)
    for hash_seed in ("1", "77"):
        arguments = [sys.executable, "-c", PACK, str(video_episodes), str(tmp_path / hash_seed), *PROFILES]
        subprocess.run(arguments, env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True, timeout=120)
        for profile in PROFILES:
            assert tree(tmp_path / hash_seed / profile) == tree(tmp_path / "here" / profile)


def test_episode_mode_keeps_episodes_whole_and_in_order(jpeg_episodes, tmp_path):
    manifest = pack(
        jpeg_episodes, tmp_path, "d", 10, 3, pack_mode="episode", storage_profile="training_fast", engine="inline"
    )[0]
    check_everything(manifest, jpeg_episodes)
    held = []
    for entry in read_manifest(manifest).hlps:
        with open_packed(tmp_path / entry.uri) as packed:
            held.append([packed.index.shard(i).episode_id[-1] for i in range(packed.index.num_shards)])
    # 3, 1 and 4 shards: the second doesn't fit beside the first, the third is longer than a window and stays whole
    assert held == [["0"] * 3, ["1"], ["2"] * 4]


def test_the_index_knows_clocks_instructions_and_splits(video_episodes, jpeg_episodes, tmp_path):
    split = {"train": 0.6, "val": 0.4}
    pack(video_episodes, tmp_path / "v", "d", split=split, seed=1, storage_profile="training_fast", engine="inline")
    index = DatasetIndex.from_bytes((tmp_path / "v" / "hlp_index.khli").read_bytes())
    assert index.episodes.language == ["pick up the cube"] * 3
    assert not index.episodes.regular.any()
    for row in range(3):
        reader = EpisodeReader(video_episodes / f"episode_{row:06d}")
        np.testing.assert_array_equal(index.frame_times(row), reader.frame_time())
    assert set(index.episodes.split) == {"train", "val"}
    pack(jpeg_episodes, tmp_path / "j", "d", storage_profile="training_fast", engine="inline")
    index = DatasetIndex.from_bytes((tmp_path / "j" / "hlp_index.khli").read_bytes())
    assert index.episodes.regular.all()
    assert index.episodes.split == [""] * 3
    assert index.episodes.t0.tolist() == [0, 100, 200]


def test_splits_stay_when_episodes_are_added(tmp_path):
    def splits(out, count):
        write_episodes(tmp_path / "episodes", (3,) * count, cameras=0, depth=False)
        pack(tmp_path / "episodes", out, "d", 2, split="train=0.5,val=0.5", seed=4, engine="inline")
        episodes = DatasetIndex.from_bytes((out / "hlp_index.khli").read_bytes()).episodes
        return dict(zip(episodes.episode_id, episodes.split, strict=True))

    few, many = splits(tmp_path / "few", 8), splits(tmp_path / "many", 12)
    assert set(few.values()) == {"train", "val"}
    assert {name: many[name] for name in few} == few


def test_statistics_are_those_of_the_train_split(tmp_path):
    write_episodes(tmp_path / "episodes", (40,) * 6, cameras=0, depth=False)
    paths = pack(tmp_path / "episodes", tmp_path / "out", "d", split="train=0.5,val=0.5", seed=4, engine="inline")
    episodes = DatasetIndex.from_bytes(paths[1].read_bytes()).episodes
    train = [name for name, split in zip(episodes.episode_id, episodes.split, strict=True) if split == "train"]
    assert 0 < len(train) < 6
    rows = np.concatenate([EpisodeReader(tmp_path / "episodes" / name).numeric("state") for name in train])
    rows = rows.astype(np.float64)
    stats = read_manifest(paths[0]).stats["state"]
    assert stats.count == len(rows)
    np.testing.assert_allclose(stats.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats.std, rows.std(0), rtol=1e-12)
    np.testing.assert_allclose(stats.q01, np.quantile(rows, 0.01, 0), rtol=1e-12)
    np.testing.assert_allclose(stats.q99, np.quantile(rows, 0.99, 0), rtol=1e-12)


def test_resize_averages_areas(jpeg_episodes, tmp_path):
    options = {"storage_profile": "training_fast", "quality": 100, "chroma": 444, "engine": "inline"}
    manifest = pack(jpeg_episodes, tmp_path, "d", 8, resize="cam_0=40x48", **options)[0]
    shapes = {stream.info().key: stream.shape for stream in read_manifest(manifest).streams}
    assert (shapes["rgb_cam_0"], shapes["rgb_cam_1"]) == ((40, 48, 3), (*SIZE, 3))
    packed = read_all(manifest)["episode_000002"]["rgb_cam_0"]
    for frame, image in enumerate(EpisodeReader(jpeg_episodes / "episode_000002").rgb("cam_0")):
        means = image.reshape(40, 2, 48, 2, 3).mean((1, 3))
        assert np.abs(packed[frame] - means).max() < 6


def test_streams_and_episodes_can_be_chosen(jpeg_episodes, tmp_path):
    options = {"streams": ["cam_1", "state"], "exclude": {"episode_000001": "blurred"}, "engine": "inline"}
    manifest = pack(jpeg_episodes, tmp_path, "d", **options)[0]
    found = read_all(manifest)
    assert {name: set(streams) for name, streams in found.items()} == {
        name: {"time", "rgb_cam_1", "state"} for name in ("episode_000000", "episode_000002")
    }
    report = json.loads((tmp_path / "pack_report.json").read_text())
    assert report["excluded"] == {"episode_000001": "blurred"}
    assert report["frames"] == 54
    manifest = pack(jpeg_episodes, tmp_path / "two", "d", episodes="episode_000002", engine="inline")[0]
    assert list(read_all(manifest)) == ["episode_000002"]


def test_the_report_names_the_engine_that_did_the_work(jpeg_episodes, tmp_path):
    """What only copies a little is done before a process has started."""
    options = {"storage_profile": "training_fast", "streams": ["cam_0", "cam_1", "state"]}
    pack(jpeg_episodes, tmp_path, "d", engine="processes", workers=2, **options)
    report = json.loads((tmp_path / "pack_report.json").read_text())
    assert (report["engine"], report["workers"]) == ("inline", 1)


def test_the_presets_shard_size_is_a_hint(tmp_path):
    write_episodes(tmp_path / "episodes", (9,), cameras=1, depth=False, shard_size=4)
    assert read_manifest(pack(tmp_path / "episodes", tmp_path / "a", "d", engine="inline")[0]).shard_size == 4
    assert read_manifest(pack(tmp_path / "episodes", tmp_path / "b", "d", 5, engine="inline")[0]).shard_size == 5


def test_a_rate_off_the_clock_is_recorded_and_warned_of(jpeg_episodes, tmp_path):
    with pytest.warns(UserWarning, match=r"fps 50 is recorded.*3 of 3 episodes.*episode_000000 runs at 30"):
        paths = pack(jpeg_episodes, tmp_path / "a", "d", fps=50, streams=["state"], engine="inline")
    assert '"fps": 50,' in paths[0].read_text()
    paths = pack(jpeg_episodes, tmp_path / "b", "d", fps=30.2, streams=["state"], engine="inline")
    assert read_manifest(paths[0]).fps == 30.2


def test_values_that_are_not_finite_are_counted_and_warned_of(tmp_path):
    write_episode(tmp_path / "episodes", 0, 12, cameras=0, depth=False, spoil=np.nan)
    with pytest.warns(UserWarning, match=r"state has 1 values that are not finite.*channels: 1 \(1\)"):
        manifest = pack(tmp_path / "episodes", tmp_path / "out", "d", engine="inline")[0]
    stats = read_manifest(manifest).stats["state"]
    assert stats.non_finite == [0, 1, 0, 0]
    assert stats.mean[1] == pytest.approx(np.delete(np.arange(12), 2).mean())
    assert np.isnan(read_all(manifest)["episode_000000"]["state"][2, 1])


def test_progress_hears_of_every_file_and_episode(jpeg_episodes, tmp_path):
    heard = []

    class Listener:
        def begin(self, total, what="episodes", folder=None):
            heard.append((total, what))

        def advance(self, text="", count=1):
            heard.append((text, count))

        def end(self):
            heard.append("end")

    pack(jpeg_episodes, tmp_path, "d", 10, 4, storage_profile="training_fast", engine="inline", progress=Listener())
    assert heard[0] == (8, "shards")
    assert [(text.split(":")[0], count) for text, count in heard[1:3]] == [
        ("hlp_000000.khlp", 4),
        ("hlp_000001.khlp", 4),
    ]
    assert heard[3:5] == ["end", (3, "episodes to compare")]
    del heard[:]
    # few files and several workers: shards are the unit of work, the last one of a file told with the file
    options = {"storage_profile": "training_compressed", "workers": 2, "progress": Listener()}
    pack(jpeg_episodes, tmp_path / "two", "d", 10, 8, **options)
    assert heard[:9] == [(8, "shards"), *[("", 1)] * 7, ("hlp_000000.khlp: 64 frames", 1)]


def test_the_input_is_never_written(jpeg_episodes, tmp_path, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in jpeg_episodes.rglob("*")}
    pack(jpeg_episodes, tmp_path, "d", engine="inline")
    for place in (jpeg_episodes, jpeg_episodes / "episode_000000" / "packed"):
        with pytest.raises(ConfigError, match=r"same directory|inside the episode"):
            pack(jpeg_episodes, place, "d", engine="inline")
    assert {path: path.stat().st_mtime_ns for path in jpeg_episodes.rglob("*")} == before
    monkeypatch.setenv("KNONIK_ISSUER", "https://login.example.org")
    with pytest.raises(LoginRequired):
        pack(jpeg_episodes, tmp_path / "closed", "d")
    assert not (tmp_path / "closed").exists()
