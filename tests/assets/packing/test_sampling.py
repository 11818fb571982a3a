"""What sampled frames say: sizes against JPEG, PSNR against the very episodes, and contact sheets."""

import math
import shutil

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from knonik_assets.cli import main
from knonik_assets.configs.documents import load_document, write_json
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.pack import pack
from knonik_assets.packing.album import Moment, moments, open_album
from knonik_assets.packing.inspect import inspect_path, render, save_frames, save_sheet
from knonik_assets.packing.sampling import SAMPLES
from knonik_loader.errors import ConfigError
from tests.assets.packing.support import LENGTHS, SIZE, read_all, write_episode, write_episodes
from tests.support.road import write_raw
from tests.support.stamps import read_stamp


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("episodes"), instruction="stack")


@pytest.fixture(scope="module")
def compressed(episodes, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed")
    return pack(episodes, out, "d", 9, 3, storage_profile="training_compressed", engine="inline")[0].parent


def stream(report, key="rgb_cam_0"):
    return next(one for one in report["streams"] if one["key"] == key)


def test_moments_are_spread_evenly_and_distinct(episodes, compressed):
    for path in (episodes, compressed, compressed / "hlp_manifest.json"):
        found = moments(open_album(path), 8)
        assert found == moments(open_album(path), 8)
        assert len(set(found)) == 8
        starts = {"episode_000000": 0, "episode_000001": LENGTHS[0], "episode_000002": LENGTHS[0] + LENGTHS[1]}
        places = [starts[moment.episode] + moment.frame for moment in found]
        assert set(np.diff(places)) == {sum(LENGTHS) // 8}
    assert len(moments(open_album(episodes), 1000)) == sum(LENGTHS)


def test_sizes_are_told_against_jpegs_of_the_same_frames(episodes, compressed):
    sampled = moments(open_album(compressed), SAMPLES)
    wanted = [
        len(
            simplejpeg.encode_jpeg(
                next(EpisodeReader(episodes / at.episode).rgb("cam_0", at.frame, at.frame + 1)), 90, "RGB", "420"
            )
        )
        for at in sampled
    ]
    one = stream(inspect_path(compressed))
    assert one["frames"] == sum(LENGTHS)
    assert one["of_jpeg"] == pytest.approx(one["bytes"] / sum(LENGTHS) / np.mean(wanted), rel=1e-3)
    report = inspect_path(compressed)
    assert report["samples"]["moments"] == SAMPLES
    assert "of JPEG: against quality 90, 4:2:0, of 12 sampled frames" in render(report).plain
    # the episodes hold JPEGs of quality 92 in 4:4:4 or 4:2:0: somewhat more than these
    assert 1 < stream(inspect_path(episodes))["of_jpeg"] < 2.5
    assert stream(inspect_path(compressed), "state")["of_jpeg"] is None


def test_psnr_is_measured_against_the_episodes_that_were_packed(episodes, compressed):
    report = inspect_path(compressed)
    assert report["samples"]["psnr_y"] == f"12 frames of {episodes.resolve()}"
    packed = read_all(compressed / "hlp_manifest.json")
    luma = np.array([0.299, 0.587, 0.114])
    found = []
    for at in moments(open_album(compressed), SAMPLES):
        own = next(EpisodeReader(episodes / at.episode).rgb("cam_1", at.frame, at.frame + 1)).astype(float)
        error = np.square((own - packed[at.episode]["rgb_cam_1"][at.frame]) @ luma).mean()
        found.append(10 * math.log10(255**2 / error) if error else math.inf)
    one = stream(report, "rgb_cam_1")
    assert one["psnr_y"] == pytest.approx(min(found), abs=0.01)
    assert one["psnr_y_mean"] == pytest.approx(np.mean([value for value in found if value < math.inf]), abs=0.01)
    assert not one["equal"]


def test_passed_pictures_are_equal_and_resized_ones_are_compared_at_their_size(episodes, tmp_path):
    options = {"storage_profile": "training_fast", "engine": "inline"}
    pack(episodes, tmp_path, "d", 9, resize="cam_1=40x48", **options)
    report = inspect_path(tmp_path)
    assert (stream(report)["psnr_y"], stream(report)["equal"]) == (None, True)
    assert "equal" in render(report).plain
    small = stream(report, "rgb_cam_1")
    assert small["psnr_y"] > 35
    assert not small["equal"]


def test_episodes_that_are_gone_or_changed_are_not_compared(compressed, episodes, tmp_path):
    copy = shutil.copytree(compressed, tmp_path / "copy")
    own = shutil.copytree(episodes, tmp_path / "episodes")
    report = copy / "pack_report.json"
    said = load_document(report)
    write_json(report, {**said, "input_dir": str(own)})
    assert str(own) in inspect_path(copy)["samples"]["psnr_y"]
    assert str(own) in inspect_path(copy / "hlp_000000.khlp")["samples"]["psnr_y"]
    for episode, length in enumerate(LENGTHS):
        shutil.rmtree(own / f"episode_{episode:06d}")
        write_episode(own, episode, length, fps=25)
    told = inspect_path(copy)
    manifest = {entry["name"]: entry.get("psnr_y") for entry in load_document(copy / "hlp_manifest.json")["streams"]}
    assert told["samples"]["psnr_y"] == "measured when it was packed"
    assert stream(told)["psnr_y"] == manifest["cam_0"]
    assert inspect_path(copy / "hlp_000000.khlp")["samples"]["psnr_y"] == ""
    # told by the caller, and of a dataset that was copied without its report
    report.unlink()
    assert str(episodes) in inspect_path(copy, episodes=episodes)["samples"]["psnr_y"]
    shutil.rmtree(own)
    for path in (own, copy / "hlp_manifest.json"):
        with pytest.raises(ConfigError, match="no folder of episodes"):
            inspect_path(copy, episodes=path)
    with pytest.raises(ConfigError, match="no packed dataset"):
        inspect_path(episodes, episodes=episodes)


def test_a_contact_sheet_shows_every_camera_at_moments_from_everywhere(episodes, compressed, tmp_path):
    for source in (episodes, compressed):
        sheet = np.asarray(Image.open(save_sheet(source, tmp_path / source.name)))
        wanted = moments(open_album(source), 6)
        assert sheet.shape[1] == 6 * 244 + 4
        for column, at in enumerate(wanted):
            x = 4 + 244 * column
            for camera in range(2):
                y = 36 + 18 + camera * (SIZE[0] + 18 + 4)
                stamp = read_stamp(sheet[y : y + SIZE[0], x : x + SIZE[1]])
                assert stamp == (camera, int(at.episode[-6:]), at.frame)
    assert main(["inspect", str(compressed), "--out", str(tmp_path / "cli")]) == 0
    assert [path.name for path in (tmp_path / "cli").iterdir()] == ["contact_sheet.png"]
    with pytest.raises(ConfigError, match="index and holds no frames"):
        save_sheet(compressed / "hlp_index.khli", tmp_path)


def test_damaged_frames_of_a_sheet_are_marked(compressed, tmp_path):
    copy = shutil.copytree(compressed, tmp_path / "copy")
    for path in copy.glob("hlp_*.khlp"):
        data = bytearray(path.read_bytes())
        data[64 : len(data) // 2] = bytes(len(data) // 2 - 64)
        path.write_bytes(data)
    sheet = np.asarray(Image.open(save_sheet(copy, tmp_path)))
    assert (sheet == (255, 110, 110)).all(2).any()
    assert not (np.asarray(Image.open(save_sheet(compressed, tmp_path))) == (255, 110, 110)).all(2).any()


def test_frames_of_raw_data(tmp_path):
    raw = write_raw(tmp_path / "raw", [5, 6, 7, 8], cameras=2)
    album = open_album(raw)
    (name,) = [name for name in album.names if name.endswith("1")]
    assert Moment(name, 5) not in moments(album, 100), "the second of four is not opened to be sampled"
    (path,) = save_frames(raw, ["1:5"], tmp_path / "png")
    image = np.asarray(Image.open(path))
    half = image.shape[1] // 2
    assert [read_stamp(part) for part in (image[:, :half], image[:, half:])] == [(0, 1, 5), (1, 1, 5)]
    assert save_sheet(raw, tmp_path / "png").is_file()
    with pytest.raises(ConfigError, match="frame 6"):
        save_frames(raw, ["1:6"], tmp_path / "png")


def test_numbers_alone_have_no_picture(tmp_path):
    episodes = write_episodes(tmp_path / "episodes", (5,), cameras=0, depth=False)
    with pytest.raises(ConfigError, match="no picture to show: it has no camera"):
        save_sheet(episodes, tmp_path / "png")
    with pytest.raises(ConfigError, match="has no camera"):
        save_frames(episodes, ["0:1"], tmp_path / "png")
    assert not (tmp_path / "png").exists()
    assert inspect_path(episodes)["samples"] == {"moments": 0, "jpeg": "quality 90, 4:2:0", "psnr_y": ""}
    assert main(["inspect", str(episodes), "--frames", "0:1"]) == 2
