"""Looking at packed files and episodes: facts, damage with its place, and single frames as pictures."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from knonik_assets.pack import pack
from knonik_assets.packing.inspect import inspect_path, render, save_frames
from knonik_loader.errors import ConfigError, FormatError
from tests.assets.packing.support import LENGTHS, SIZE, write_episodes
from tests.support.road import write_raw
from tests.support.stamps import read_stamp


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("episodes"), instruction="stack")


@pytest.fixture(scope="module")
def whole(episodes, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed")
    return pack(episodes, out, "d", 9, 3, storage_profile="training_compressed", engine="inline", split="train=1")[0]


@pytest.fixture
def packed(whole, tmp_path):
    return shutil.copytree(whole.parent, tmp_path / "copy")


def test_a_packed_dataset(packed):
    report = inspect_path(packed, verify=True)
    assert report == inspect_path(packed / "hlp_manifest.json", verify=True)
    assert json.loads(json.dumps(report)) == report
    assert (report["kind"], report["damage"]) == ("manifest", [])
    assert report["facts"]["frames"] == sum(LENGTHS)
    assert report["facts"]["splits"] == {"train": 3}
    streams = {stream["key"]: stream for stream in report["streams"]}
    assert set(streams) == {"rgb_cam_0", "rgb_cam_1", "depth_front", "state", "action"}
    assert streams["state"]["bytes"] == sum(LENGTHS) * 16
    assert streams["state"]["of_raw"] == 1
    assert streams["rgb_cam_0"]["psnr_y"] > 30
    assert 0 < streams["rgb_cam_0"]["of_raw"] < 0.5
    held = sum(inspect_path(path)["streams"][0]["bytes"] for path in packed.glob("*.khlp"))
    assert held == report["streams"][0]["bytes"]
    text = render(report).plain
    for word in ("training_compressed", "rgb_cam_0", "80 x 96 x 3", "dB", "100.0 %"):
        assert word in text, text


def test_files_episodes_and_raw_data(packed, episodes, tmp_path):
    report = inspect_path(packed / "hlp_000000.khlp", verify=True)
    assert (report["kind"], report["facts"]["shards"], report["damage"]) == ("khlp", 3, [])
    report = inspect_path(packed / "hlp_index.khli")
    assert (report["kind"], report["facts"]["frames"]) == ("index", sum(LENGTHS))
    report = inspect_path(episodes / "episode_000001", verify=True)
    assert (report["kind"], report["facts"]["frames"], report["damage"]) == ("episode", LENGTHS[1], [])
    assert report["facts"]["instruction"] == "stack"
    report = inspect_path(episodes)
    assert (report["kind"], report["facts"]["episodes"], report["damage"]) == ("episodes", 3, [])
    assert {stream["key"] for stream in report["streams"]} >= {"rgb_cam_0", "depth_front", "state"}
    assert all(stream["bytes"] > 0 and stream["episodes"] == 3 for stream in report["streams"])
    raw = write_raw(tmp_path / "raw", [5], cameras=1)
    report = inspect_path(raw)
    assert (report["kind"], report["detection"]["episodes"]) == ("raw", 1)
    assert "episodic" in render(report).plain
    with pytest.raises(ConfigError, match="no checksums"):
        inspect_path(raw, verify=True)
    with pytest.raises(ConfigError, match="nowhere"):
        inspect_path(tmp_path / "nowhere")


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 0xFF
    path.write_bytes(data)


def test_damage_is_found_and_placed(packed):
    clean = inspect_path(packed / "hlp_000001.khlp")
    assert clean["damage"] == []
    flip(packed / "hlp_000001.khlp", 3000)
    assert inspect_path(packed)["damage"] == []  # nothing reads payloads unless asked to
    for damage in (
        inspect_path(packed, verify=True)["damage"],
        inspect_path(packed / "hlp_000001.khlp", True)["damage"],
    ):
        assert len(damage) == 1
        for word in ("hlp_000001.khlp", "shard", "episode_00000", "rgb_cam_", "frame", "crc32c"):
            assert word in damage[0]
    assert "damaged:" in render(inspect_path(packed, verify=True)).plain
    flip(packed / "hlp_000002.khlp", -10)
    assert any("hlp_000002.khlp" in text for text in inspect_path(packed)["damage"])
    with pytest.raises(FormatError, match=r"hlp_000002\.khlp"):
        inspect_path(packed / "hlp_000002.khlp")


def test_missing_cut_and_exchanged_files_are_named(packed):
    one, two = packed / "hlp_000000.khlp", packed / "hlp_000001.khlp"
    data = one.read_bytes()
    one.unlink()
    assert [text for text in inspect_path(packed)["damage"] if "missing" in text] == [f"{one} is missing"]
    one.write_bytes(data[:-1])
    assert any(f"{one} has {len(data) - 1} bytes instead of {len(data)}" in t for t in inspect_path(packed)["damage"])
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    assert inspect_path(packed)["damage"]
    flip(packed / "hlp_index.khli", 100)
    assert any("hlp_index.khli" in text for text in inspect_path(packed)["damage"])


def test_damaged_episodes_are_found(episodes, tmp_path):
    copy = shutil.copytree(episodes, tmp_path / "copy")
    flip(copy / "episode_000001" / "rgb_cam_0.mkv", 2000)
    assert inspect_path(copy)["damage"] == []
    assert len(inspect_path(copy, verify=True)["damage"]) == 1
    (copy / "episode_000002" / "depth_front.hdf5").unlink()
    assert "missing" in inspect_path(copy)["damage"][0]
    assert "missing" in inspect_path(copy / "episode_000002")["damage"][0]


def test_frames_become_pictures(packed, episodes, tmp_path):
    for number, (source, name) in enumerate(
        [
            (packed, "episode_000002"),
            (packed / "hlp_manifest.json", "2"),
            (episodes, "episode_000002"),
            (episodes / "episode_000002", "2"),
        ]
    ):
        paths = save_frames(source, [f"{name}:30", f"{name}:7"], tmp_path / str(number))
        assert [path.name for path in paths] == ["episode_000002_000030.png", "episode_000002_000007.png"]
        for path, frame in zip(paths, (30, 7), strict=True):
            image = np.asarray(Image.open(path))
            height, width = SIZE
            assert image.shape == (height, 2 * width + 16, 3)
            assert read_stamp(image[:, :width]) == (0, 2, frame)
            assert read_stamp(image[:, width : 2 * width]) == (1, 2, frame)
            assert image[0, 2 * width].tolist() == [0, 0, 0]  # the depth camera's pixel without a reading
            assert image[1, 2 * width].min() > 0
    assert save_frames(packed / "hlp_000000.khlp", [], tmp_path) == []


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("2", ["EP:N", "'2'"]),
        ("episode_000002:31", ["31", "episode_000002", "31"]),
        ("9:0", ["episode", "'9'"]),
    ],
)
def test_frames_that_are_not_there_are_named(packed, episodes, tmp_path, wanted, words):
    for source in (packed, episodes):
        with pytest.raises(ConfigError) as caught:
            save_frames(source, [wanted], tmp_path / "out")
        for word in words:
            assert word in str(caught.value)
    assert not (tmp_path / "out").exists()
