"""Looking at packed files and episodes: facts, damage with its place, and single frames as pictures."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from knonik_assets.cli import main
from knonik_assets.pack import pack
from knonik_assets.packing.album import moments, open_album
from knonik_assets.packing.inspect import inspect_path, render, save_frames
from knonik_assets.packing.sampling import SAMPLES
from knonik_assets.packing.stored import open_packed
from knonik_loader.errors import ConfigError, EpisodeError, FormatError, SourceError
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.khlp.writer import ShardInput, write_hlp
from tests.assets.packing.support import LENGTHS, SIZE, write_episodes
from tests.support.packed import edit_manifest
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


def a_payload(folder, *, sampled):
    """A byte of a frame of hlp_000001 that looking without --verify reads, or does not."""
    file = folder / "hlp_000001.khlp"
    albums = open_album(folder), open_album(file)
    seen = [{(moment.episode, moment.frame) for moment in moments(album, SAMPLES)} for album in albums]
    with open_packed(file) as opened:
        for shard in range(opened.index.num_shards):
            where, table = opened.index.shard(shard), opened.index.records(shard, 0)
            back = table.key_back.astype(int)
            keys = {row - int(back[row]) for row in range(where.frames) if back[row]}
            for row in range(where.frames):
                times = [(where.episode_id, where.first_frame + row) in some for some in seen]
                if all(times) if sampled else not any(times) and row not in keys:
                    return int(table.offsets[row] + table.sizes[row] // 2)
    raise AssertionError("no such frame")


def test_damage_is_found_and_placed(packed):
    clean = inspect_path(packed / "hlp_000001.khlp")
    assert clean["damage"] == []
    flip(packed / "hlp_000001.khlp", a_payload(packed, sampled=False))
    assert inspect_path(packed)["damage"] == []  # nothing reads all payloads unless asked to
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


def test_damage_in_a_sampled_frame_is_told_without_being_asked_for(packed):
    flip(packed / "hlp_000001.khlp", a_payload(packed, sampled=True))
    for path in (packed, packed / "hlp_000001.khlp"):
        (damage,) = inspect_path(path)["damage"]
        for word in ("hlp_000001.khlp", "episode_00000", "rgb_cam_0", "frame", "crc32c"):
            assert word in damage
        assert len(inspect_path(path, verify=True)["damage"]) == 1


def test_bytes_between_frames_and_a_file_of_another_pack_are_damage_too(packed, tmp_path):
    path = packed / "hlp_000001.khlp"
    with open_packed(path) as opened:
        shards = [opened.index.shard(number) for number in range(opened.index.num_shards)]
    ends = [shard.data_offset + shard.data_length for shard in shards]
    # of the shards that do not end where the next one begins
    padding = next(end for end, shard in zip(ends, shards[1:], strict=False) if end < shard.data_offset)
    flip(path, padding)
    assert any("padding" in text for text in inspect_path(path, verify=True)["damage"])
    assert any("padding" in text for text in inspect_path(packed, verify=True)["damage"])
    flip(path, padding)
    assert inspect_path(packed, verify=True)["damage"] == []
    manifest = packed / "hlp_manifest.json"
    edit_manifest(manifest, lambda data: data["hlps"][0].update(crc32c=data["hlps"][0]["crc32c"] ^ 1))
    (damage,) = inspect_path(packed, verify=True)["damage"]
    assert "hlp_000000.khlp" in damage
    assert "not the file that the manifest describes" in damage
    edit_manifest(manifest, lambda data: data.update(num_episodes=4))
    (damage,) = inspect_path(packed)["damage"]
    assert "num_episodes is 4, but there are 3" in damage
    edit_manifest(manifest, lambda data: data.update(num_hlps=7))
    with pytest.raises(FormatError, match="says 7 files"):
        inspect_path(packed)


def test_the_command_says_so_with_its_exit_code(packed, episodes, tmp_path, capsys):
    assert main(["inspect", str(packed), "--verify"]) == 0
    assert "rgb_cam_0" in capsys.readouterr().out
    flip(packed / "hlp_000001.khlp", a_payload(packed, sampled=False))
    for path in (packed, packed / "hlp_000001.khlp"):
        assert main(["inspect", str(path), "--verify"]) == 1
        assert "damaged: " in capsys.readouterr().out
        assert main(["inspect", str(path), "--verify", "--json"]) == 1
        assert len(json.loads(capsys.readouterr().out)["damage"]) == 1
        assert main(["inspect", str(path)]) == 0
        capsys.readouterr()
    flip(packed / "hlp_000001.khlp", -10)
    assert main(["inspect", str(packed / "hlp_000001.khlp")]) == 1
    assert capsys.readouterr().err.count("error: ") == 1
    assert main(["inspect", str(tmp_path / "nowhere")]) == 2
    assert main(["inspect", str(episodes), "--frames", "1:4", "--out", str(tmp_path / "png")]) == 0
    assert (tmp_path / "png" / "episode_000001_000004.png").is_file()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"fps": 30,', '"fps": 15,'),
        ('"shard_size": ', '"shard_size": 1'),
        ('"codec": "kdlt"', '"codec": "kimg"'),
        ('"name": "cam_0"', '"name": "wrist"'),
        ('"storage_profile": "training_compressed"', '"storage_profile": "training_fast"'),
    ],
)
def test_a_manifest_that_was_edited_is_one_clear_error(packed, capsys, old, new):
    manifest = packed / "hlp_manifest.json"
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new))
    for arguments in (["inspect", str(packed)], ["inspect", str(manifest), "--verify"]):
        assert main(arguments) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {manifest}: was changed after it was packed")
        assert "hlp_manifest.<generation>.json" in line


def test_what_is_nothing_known_says_what_was_looked_for(tmp_path):
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "note.txt", tmp_path / "empty"):
        with pytest.raises(SourceError) as caught:
            inspect_path(path)
        for word in (path.name, "HDF5", "LeRobot", ".khlp", "hlp_manifest.json", "metadata.json"):
            assert word in str(caught.value)


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
    (copy / "episode_000000" / "metadata.json").write_text("{")
    report = inspect_path(copy)
    assert [text for text in report["damage"] if "episode_000000" in text]
    assert report["facts"]["episodes"] == 3
    assert report["facts"]["frames"] == LENGTHS[1] + LENGTHS[2]
    with pytest.raises(EpisodeError, match=r"episode_000000.metadata\.json"):
        inspect_path(copy / "episode_000000")


def test_edited_annotations_are_no_damage(episodes, tmp_path):
    copy = shutil.copytree(episodes / "episode_000001", tmp_path / "episode_000001")
    told = copy / "annotations" / "language"
    (file,) = [path for path in told.iterdir() if b"stack" in path.read_bytes()]
    file.write_bytes(file.read_bytes().replace(b"stack", b"unstack"))
    assert inspect_path(copy)["damage"] == inspect_path(copy, verify=True)["damage"] == []
    shutil.rmtree(told)
    for verify in (False, True):
        assert all("missing" in text for text in inspect_path(copy, verify)["damage"])
        assert inspect_path(copy, verify)["damage"]


def test_long_paths_are_not_broken(packed, capsys):
    path = packed / "hlp_000001.khlp"
    flip(path, 3000)
    damage = inspect_path(path, verify=True)["damage"]
    main(["inspect", str(path), "--verify"])
    assert [line for line in capsys.readouterr().out.splitlines() if "damaged" in line] == [f"damaged: {damage[0]}"]


def test_lines_fit_and_columns_align(packed, episodes):
    for path in (packed, packed / "hlp_000000.khlp", episodes, episodes / "episode_000000"):
        lines = render(inspect_path(path)).plain.splitlines()[1:]
        assert max(map(len, lines)) <= 100
        (head,) = [line for line in lines if "of raw" in line]
        table = [line for line in lines[lines.index(head) + 1 :] if not re.match(r"  (of JPEG|PSNR-Y):", line)]
        assert len(table) == 5
        ends = {line[: head.index("of raw") - 1].rstrip()[-1] for line in table}
        assert all(end.isdigit() for end in ends)
        assert {line[head.index("kind") - 1] for line in table} == {" "}


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


def test_names_inside_a_file_lead_nowhere_else(tmp_path):
    stream = StreamInfo(0, "rgb", "cam", "kimg", (8, 8, 3), "uint8", 30.0, None, {})
    records = {0: make_codec(stream).encode([np.zeros((8, 8, 3), np.uint8)])}
    shard = ShardInput("../../escaped/0", "raw", bytes(32), 0, np.zeros(1), records)
    path = tmp_path / "a.khlp"
    write_hlp(path, profile="training_fast", streams=[stream], hlp_id=bytes(16), shards=[shard])
    (picture,) = save_frames(path, ["../../escaped/0:0"], tmp_path / "in" / "png")
    assert picture.parent == tmp_path / "in" / "png"
    assert picture.is_file()
