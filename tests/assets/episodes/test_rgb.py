"""Colour streams through every codec: each frame comes back as itself, wherever reading begins."""

import random

import av
import numpy as np
import pytest

from knonik_assets.configs.presets import PRESETS, Preset
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.episodes.video import scan
from knonik_loader.errors import ConfigError, EpisodeError
from tests.assets.episodes.support import open_writer, write_stamped
from tests.support.stamps import read_stamp

CODECS = [
    pytest.param({"codec": "vp9", "quality": 18, "gop": 3}, id="vp9"),
    pytest.param({"codec": "vp9", "quality": 18, "gop": 1, "speed": 9}, id="vp9-every-frame-key"),
    pytest.param({"codec": "vp9", "quality": 24, "gop": 30, "speed": 3, "chroma": "444"}, id="vp9-444"),
    pytest.param({"codec": "av1", "quality": 24, "gop": 4}, id="av1"),
    pytest.param({"codec": "av1", "quality": 24, "gop": 1}, id="av1-every-frame-key"),
    pytest.param({"codec": "h264", "quality": 18, "gop": 5}, id="h264"),
    pytest.param({"codec": "h264", "quality": 18, "gop": 2, "speed": 9, "chroma": "444"}, id="h264-444"),
    pytest.param({"codec": "jpeg", "quality": 90}, id="jpeg"),
    pytest.param({"codec": "jpeg", "quality": 90, "chroma": "444"}, id="jpeg-444"),
]


def luma(image):
    return np.asarray(image, float) @ (0.299, 0.587, 0.114)


@pytest.mark.parametrize("size", [(96, 112), (97, 113)])
@pytest.mark.parametrize("rgb", CODECS)
def test_every_range_gives_the_frames_of_the_linear_read(tmp_path, rgb, size):
    frames = 13
    arrays = write_stamped(tmp_path, 5, frames, size=size, rgb=rgb)
    reader = EpisodeReader(tmp_path / "episode_000000")
    linear = list(reader.rgb("cam_0"))
    assert len(linear) == frames
    for index, image in enumerate(linear):
        assert image.shape == (*size, 3)
        assert image.dtype == np.uint8
        assert read_stamp(image) == (0, 5, index)
        # Clearly nearer to its own frame than 30 dB, edges of padded pictures included.
        assert np.mean((luma(image) - luma(arrays["cam_0"][index])) ** 2) < 65
    rng = random.Random(3)
    for _ in range(12):
        start = rng.randrange(frames)
        stop = rng.randrange(start, frames + 1)
        part = list(reader.rgb("cam_0", start, stop))
        assert len(part) == stop - start
        assert all(np.array_equal(a, b) for a, b in zip(part, linear[start:stop], strict=True))
    assert reader.verify() == []


@pytest.mark.parametrize("rgb", CODECS)
def test_keyframes_stand_exactly_every_gop_and_colours_are_tagged(tmp_path, rgb):
    rng = np.random.default_rng(0)
    with open_writer(tmp_path, rgb=rgb) as writer:
        writer.add_rgb("cam")
        for index in range(14):
            # Cuts, noise and frozen pictures: what makes encoders place keyframes, or drop frames, of their own accord.
            if index % 5 == 0:
                image = rng.integers(0, 255, (64, 80, 3)).astype(np.uint8)
            writer.rgb("cam", image)
        writer.commit()
    gop = 1 if rgb["codec"] == "jpeg" else rgb["gop"]
    (path,) = (tmp_path / "episode_000000").glob("rgb_cam.*")
    table = scan(path)
    assert table.is_key.tolist() == [index % gop == 0 for index in range(14)]
    assert table.pts.tolist() == [round(1000 * index / 30) for index in range(14)]
    assert path.suffix == {"vp9": ".webm", "av1": ".webm", "h264": ".mkv", "jpeg": ".mkv"}[rgb["codec"]]
    if rgb["codec"] != "jpeg":
        with av.open(str(path)) as container:
            frame = next(container.decode(video=0))
            assert (int(frame.colorspace), int(frame.color_range)) == (6, 1)
            assert frame.format.name == f"yuv{rgb.get('chroma', '420')}p"


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_named_preset_keeps_every_frame(tmp_path, name):
    write_stamped(tmp_path, 2, 7, preset=Preset.model_validate(PRESETS[name]))
    reader = EpisodeReader(tmp_path / "episode_000000")
    assert [read_stamp(image) for image in reader.rgb("cam_0")] == [(0, 2, index) for index in range(7)]


@pytest.mark.parametrize("fps", [0.2, 7.5, 29.97, 240.0, 1000.0, 3333.0])
@pytest.mark.parametrize("codec", ["vp9", "av1", "h264", "jpeg"])
def test_frames_stay_apart_at_any_rate(tmp_path, codec, fps):
    write_stamped(tmp_path, 1, 9, rgb={"codec": codec, "quality": 30}, fps=fps)
    reader = EpisodeReader(tmp_path / "episode_000000")
    assert [read_stamp(image)[2] for image in reader.rgb("cam_0")] == list(range(9))
    assert [read_stamp(image)[2] for image in reader.rgb("cam_0", 7)] == [7, 8]


@pytest.mark.parametrize("codec", ["vp9", "av1", "h264", "jpeg"])
def test_more_decoder_threads_give_the_same_pictures(tmp_path, codec):
    write_stamped(tmp_path, 1, 20, rgb={"codec": codec, "quality": 30, "gop": 6})
    path = tmp_path / "episode_000000"
    one, many = EpisodeReader(path), EpisodeReader(path, decode_threads=3)
    for start, stop in ((0, 20), (5, 6), (17, 20)):
        pairs = zip(one.rgb("cam_0", start, stop), many.rgb("cam_0", start, stop), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("codec", ["vp9", "h264", "jpeg"])
def test_the_smallest_pictures(tmp_path, codec):
    with open_writer(tmp_path, rgb={"codec": codec, "quality": 20}) as writer:
        writer.add_rgb("cam")
        for value in (0, 120, 255):
            writer.rgb("cam", np.full((1, 1, 3), value, np.uint8))
        writer.commit()
    out = [int(image[0, 0, 0]) for image in EpisodeReader(tmp_path / "episode_000000").rgb("cam")]
    assert np.allclose(out, [0, 120, 255], atol=6)


def test_a_size_that_the_encoder_cannot_take_is_told_with_a_way_out(tmp_path):
    with open_writer(tmp_path, rgb={"codec": "av1"}) as writer:
        writer.add_rgb("cam")
        with pytest.raises(EpisodeError, match=r"libsvtav1 cannot encode 1x1 pictures.*another rgb\.codec"):
            writer.rgb("cam", np.zeros((1, 1, 3), np.uint8))


def test_a_knob_that_the_encoder_does_not_have_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"rgb\.chroma '444' .*'av1'"):
        open_writer(tmp_path, rgb={"codec": "av1", "chroma": "444"})
    assert list(tmp_path.iterdir()) == []


def test_speeds_differ_and_all_work(tmp_path):
    sizes = {}
    for codec in ("vp9", "h264", "av1"):
        for speed in range(3 if codec == "av1" else 0, 10):
            out = tmp_path / f"{codec}{speed}"
            write_stamped(out, 1, 4, rgb={"codec": codec, "quality": 30, "speed": speed})
            (path,) = (out / "episode_000000").glob("rgb_*")
            sizes[codec, speed] = path.read_bytes()
    assert sizes["vp9", 0] != sizes["vp9", 9]
    assert len({data for (codec, _), data in sizes.items() if codec == "h264"}) > 5


def test_the_hint_for_packing_is_recorded(tmp_path):
    write_stamped(tmp_path, 1, 2, rgb={"shard_size": 7})
    assert EpisodeReader(tmp_path / "episode_000000").rgb_info("cam_0").params["shard_size"] == 7
