"""Codec ``copy``: a source video's packets, unchanged, or an error that leaves the stream usable."""

from fractions import Fraction

import av
import numpy as np
import pytest

from knonik_assets.episodes.reader import EpisodeReader
from knonik_loader.errors import EpisodeError
from tests.assets.episodes.support import open_writer
from tests.support.stamps import episode_arrays, read_stamp


def make_video(path, codec, options, frames=24, gop=6, b_frames=0, times=None, size=(96, 112)):
    """A stamped source video; ``times`` in milliseconds."""
    pictures = episode_arrays(3, frames, 1, *size)["cam_0"]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=30)
        context = stream.codec_context
        context.height, context.width, context.pix_fmt = *size, "yuv420p"
        context.gop_size, context.max_b_frames, context.time_base = gop, b_frames, Fraction(1, 1000)
        context.options = options
        for index, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
            frame.pts, frame.time_base = (times[index] if times else round(index * 1000 / 30)), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def payloads(path):
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


def copy(tmp_path, source, skip=0, only=None):
    """Copy the packets of a file from number ``skip`` on, ``only`` so many."""
    with open_writer(tmp_path / "out", rgb={"codec": "copy"}) as writer, av.open(str(source)) as container:
        writer.add_rgb("cam")
        packets = [packet for packet in container.demux(video=0) if packet.size][skip:]
        writer.rgb_packets("cam", container.streams.video[0], iter(packets[:only]))
        writer.commit()
    return EpisodeReader(tmp_path / "out" / "episode_000000")


X264 = {"crf": "20", "preset": "medium"}
SOURCES = [
    pytest.param("a.mp4", "libx264", X264, 0, ".mkv", "h264", id="h264"),
    pytest.param("a.mp4", "libx264", X264 | {"x264-params": "b-adapt=0"}, 2, ".mkv", "h264", id="h264-b-frames"),
    pytest.param("a.mkv", "libx264", X264 | {"x264-params": "b-adapt=0"}, 3, ".mkv", "h264", id="h264-b-frames-mkv"),
    pytest.param("a.mp4", "libx264", X264 | {"x264-params": "open-gop=1:b-adapt=0"}, 2, ".mkv", "h264", id="open-gop"),
    pytest.param("a.webm", "libvpx-vp9", {"crf": "20", "b": "0", "cpu-used": "8"}, 0, ".webm", "vp9", id="vp9-alt-ref"),
    pytest.param("a.mp4", "libsvtav1", {"crf": "30", "preset": "9"}, 0, ".webm", "av1", id="av1"),
]


@pytest.mark.parametrize(("file", "codec", "options", "b_frames", "suffix", "name"), SOURCES)
def test_packets_come_through_unchanged_and_frames_in_order(
    tmp_path, file, codec, options, b_frames, suffix, name, monkeypatch
):
    monkeypatch.setenv("SVT_LOG", "1")
    source = make_video(tmp_path / file, codec, options, b_frames=b_frames)
    reader = copy(tmp_path, source)
    assert payloads(reader.path / f"rgb_cam{suffix}") == payloads(source)
    assert [read_stamp(image)[2] for image in reader.rgb("cam")] == list(range(24))
    linear = list(reader.rgb("cam"))
    for start in range(24):
        part = list(reader.rgb("cam", start, min(start + 4, 24)))
        assert all(np.array_equal(a, b) for a, b in zip(part, linear[start : start + 4], strict=True))
    info = reader.rgb_info("cam")
    assert (info.height, info.width, info.codec, info.params["copied"]) == (96, 112, name, True)


def test_a_range_of_a_longer_video_starts_at_zero(tmp_path):
    source = make_video(tmp_path / "a.mp4", "libx264", X264)
    reader = copy(tmp_path, source, skip=6, only=12)
    assert [read_stamp(image)[2] for image in reader.rgb("cam")] == list(range(6, 18))
    with av.open(str(reader.path / "rgb_cam.mkv")) as container:
        assert next(container.demux(video=0)).pts == 0


def test_uneven_times_keep_every_frame(tmp_path):
    times = [0, 1, 2, 40, 41, 300, *range(1000, 1018)]
    source = make_video(tmp_path / "a.mkv", "libx264", X264 | {"x264-params": "b-adapt=0"}, b_frames=2, times=times)
    reader = copy(tmp_path, source)
    assert [read_stamp(image)[2] for image in reader.rgb("cam", 2)] == list(range(2, 24))


def test_packets_that_begin_inside_a_group_are_refused_and_frames_are_encoded_instead(tmp_path):
    source = make_video(tmp_path / "a.mp4", "libx264", X264)
    pictures = episode_arrays(3, 5, 1)["cam_0"]
    with open_writer(tmp_path / "out", rgb={"codec": "copy", "quality": 20}) as writer:
        writer.add_rgb("cam")
        with av.open(str(source)) as container:
            packets = [packet for packet in container.demux(video=0) if packet.size][1:]
            with pytest.raises(EpisodeError, match=r"'rgb_cam'.*no keyframe.*encode the frames instead"):
                writer.rgb_packets("cam", container.streams.video[0], iter(packets))
        for picture in pictures:
            writer.rgb("cam", picture)
        metadata = writer.commit()
    params = metadata.stream_params["rgb_cam"]
    assert (params["codec"], params["quality"], params["copied"]) == ("vp9", 20, False)
    assert "inactive" not in params
    reader = EpisodeReader(tmp_path / "out" / "episode_000000")
    assert [read_stamp(image)[2] for image in reader.rgb("cam")] == list(range(5))


def test_an_open_group_at_the_start_is_refused_and_leaves_no_file(tmp_path):
    options = X264 | {"x264-params": "open-gop=1:b-adapt=0:scenecut=0"}
    source = make_video(tmp_path / "a.mp4", "libx264", options, b_frames=2, gop=8)
    with av.open(str(source)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        starts = [i for i, packet in enumerate(packets) if packet.is_keyframe and i]
        leading = [i for i in starts if any(p.pts < packets[i].pts for p in packets[i + 1 :])]
        if not leading:
            pytest.skip("this x264 closed every group")
        with open_writer(tmp_path / "out", rgb={"codec": "copy"}) as writer:
            writer.add_rgb("cam")
            with pytest.raises(EpisodeError, match="before the first keyframe"):
                writer.rgb_packets("cam", container.streams.video[0], iter(packets[leading[0] :]))
            assert list((tmp_path / "out" / ".knonik" / "tmp").glob("*/*")) == []
            writer.rgb("cam", episode_arrays(3, 1, 1)["cam_0"][0])
            assert writer.commit().stream_params["rgb_cam"]["codec"] == "vp9"


def test_two_frames_of_one_millisecond_cannot_be_copied(tmp_path):
    source = make_video(tmp_path / "a.mp4", "libx264", X264)
    with av.open(str(source)) as container, open_writer(tmp_path / "out", rgb={"codec": "copy"}) as writer:
        writer.add_rgb("cam")
        packets = [packet for packet in container.demux(video=0) if packet.size]
        for index, packet in enumerate(packets):
            packet.pts = packet.dts = index
            packet.time_base = Fraction(1, 4000)
        with pytest.raises(EpisodeError, match="same presentation time"):
            writer.rgb_packets("cam", container.streams.video[0], iter(packets))


def test_after_copying_no_frame_is_taken(tmp_path):
    source = make_video(tmp_path / "a.mp4", "libx264", X264)
    with av.open(str(source)) as container, open_writer(tmp_path / "out", rgb={"codec": "copy"}) as writer:
        writer.add_rgb("cam")
        writer.rgb_packets("cam", container.streams.video[0], container.demux(video=0))
        with pytest.raises(EpisodeError, match="takes no further frames"):
            writer.rgb("cam", np.zeros((96, 112, 3), np.uint8))
        with pytest.raises(EpisodeError, match="empty stream"):
            writer.rgb_packets("cam", container.streams.video[0], iter(()))
        assert writer.commit().episode_length == 24


@pytest.mark.parametrize("name", ["h265_video.mp4", "var_fps_video.mp4"])
def test_real_videos_are_copied_frame_for_frame(tmp_path, real_data, name):
    source = real_data / "video" / name
    with av.open(str(source)) as container:
        stream = container.streams.video[0]
        frames = sorted(((frame.pts, frame) for frame in container.decode(stream)), key=lambda pair: pair[0])
        count = len(frames)
        first, last = (frames[i][1].to_ndarray(format="rgb24").astype(int) for i in (0, -1))
    try:
        reader = copy(tmp_path, source)
    except EpisodeError as error:
        pytest.fail(f"{name}: {error}")
    assert reader.length == count
    assert payloads(next(reader.path.glob("rgb_cam.*"))) == payloads(source)
    (got,) = reader.rgb("cam", count - 1)
    assert np.abs(got.astype(int) - last).mean() < 8
    assert np.abs(next(reader.rgb("cam")).astype(int) - first).mean() < 8


def test_a_turned_phone_video_is_not_copied(tmp_path):
    source = make_video(tmp_path / "a.mp4", "libx264", X264)
    upright = b"".join(value.to_bytes(4, "big") for value in (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30))
    turned = b"".join(value.to_bytes(4, "big") for value in (0, 1 << 16, 0, 0xFFFF0000, 0, 0, 0, 0, 1 << 30))
    data = source.read_bytes()
    track = data.index(b"tkhd")
    at = data.index(upright, track)
    source.write_bytes(data[:at] + turned + data[at + len(turned) :])
    with pytest.raises(EpisodeError, match=r"turned by -?90 degrees"):
        copy(tmp_path, source)
