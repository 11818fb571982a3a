"""Video topics: every picture to the last one, each with its own message's time, whatever order they are coded in."""

import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from knonik_loader.errors import EpisodeError
from tests.assets.sources.bags import Bag, at, bag_of
from tests.assets.sources.support import frames, only_episode, stream
from tests.support.stamps import episode_arrays, read_stamp

ROOT = Path(__file__).parents[3]
N = 22
PICTURES = episode_arrays(4, N)["cam_0"]


def access_units(codec="libx264", b_frames=0, gop=8, pictures=PICTURES):
    """(number of the picture, its packet) in the order of decoding."""
    context = av.CodecContext.create(codec, "w")
    context.height, context.width = pictures[0].shape[:2]
    context.pix_fmt = "yuv420p"
    context.time_base = Fraction(1, 30)
    context.framerate = 30
    context.gop_size = gop
    context.max_b_frames = b_frames
    context.thread_count = 1
    context.options = {
        "libx264": {"crf": "16", "preset": "veryfast", "x264-params": f"bframes={b_frames}:scenecut=0:b-adapt=0"},
        "libx265": {
            "preset": "ultrafast",
            "x265-params": f"bframes={b_frames}:keyint={gop}:log-level=none:repeat-headers=1",
        },
        "libsvtav1": {"preset": "10", "crf": "30"},
        "libvpx-vp9": {"crf": "20", "b": "0", "cpu-used": "8", "lag-in-frames": "0"},
    }[codec]
    out = []
    for number, picture in enumerate([*pictures, None]):
        frame = None if picture is None else av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        if frame is not None:
            frame.pts = number
        out += [(packet.pts, bytes(packet)) for packet in context.encode(frame)]
    assert sorted(number for number, _ in out) == list(range(len(pictures)))
    return out


def record(units, bag=None, form="h264", stamp="arrival"):
    """Messages in the order of decoding; their times are those of arrival, or of presentation."""
    bag = bag or Bag()
    for place, (number, data) in enumerate(units):
        bag.video("/cam/image_raw/compressed_video", at(place if stamp == "arrival" else number), data, form)
    return bag


def numbers(episode, name="cam_compressed_video"):
    return [read_stamp(one)[2] for one in frames(episode, name)]


@pytest.mark.parametrize("stamp", ["arrival", "presentation"])
@pytest.mark.parametrize("b_frames", [0, 2, 3])
def test_h264_to_the_last_picture(tmp_path, b_frames, stamp):
    """Pictures that were sent in another order than they are shown come in order, the last two among them."""
    units = access_units(b_frames=b_frames)
    assert ([number for number, _ in units] != list(range(N))) == bool(b_frames)
    with only_episode(record(units, stamp=stamp).write2(tmp_path / "run"), "rosbag") as episode:
        assert stream(episode, "cam_compressed_video").length == N
        assert numbers(episode) == list(range(N))
        np.testing.assert_array_equal(episode.facts.timestamps, [at(t) / 1e9 for t in range(N)])
        assert not [text for text in episode.facts.warnings if "missing" in text]
        told = [text for text in episode.facts.warnings if "order of presentation" in text]
        assert bool(told) == (stamp == "arrival" and b_frames > 0)


@pytest.mark.parametrize(
    ("codec", "form", "b_frames"),
    [("libx265", "h265", 0), ("libx265", "hevc", 2), ("libsvtav1", "av1", 0), ("libvpx-vp9", "vp9", 0)],
)
def test_other_codecs(tmp_path, codec, form, b_frames):
    pictures = episode_arrays(4, N, height=128, width=160)["cam_0"]
    units = access_units(codec, b_frames, pictures=pictures)
    bag = record(units, form=form, stamp="presentation")
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert numbers(episode) == list(range(N))


@pytest.mark.parametrize("how", ["bag", "sqlite3"])
def test_video_in_other_containers(tmp_path, how):
    with only_episode(record(access_units(), bag_of(how)).write(tmp_path / "run", how), "rosbag") as episode:
        assert numbers(episode) == list(range(N))


def test_a_video_as_a_second_camera_is_sampled_at_the_first(tmp_path):
    bag = record(access_units(b_frames=2), stamp="presentation")
    for t in range(2 * N):
        bag.rgb("/clock/image_raw", at(t, 60) + 1000, PICTURES[t // 2])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        clock = np.array([at(t, 60) + 1000 for t in range(2 * N)])
        times = np.array([at(t) for t in range(N)])
        assert numbers(episode) == [int(np.abs(times - one).argmin()) for one in clock]


def test_pictures_before_the_first_keyframe_are_lost_and_counted(tmp_path):
    """A recording that begins in the middle of a group of pictures."""
    units = access_units(gop=8)[3:]
    with only_episode(record(units).write2(tmp_path / "run"), "rosbag") as episode:
        assert numbers(episode) == list(range(8, N))
        assert episode.facts.timestamps[0] == at(5) / 1e9
        assert any("5 of 19 messages hold no picture" in text for text in episode.facts.warnings)


def test_messages_recorded_out_of_order_are_decoded_in_the_order_of_their_times(tmp_path):
    units = access_units()
    bag = Bag()
    for place in [0, 1, 3, 2, 4, 6, 5, *range(7, N)]:
        bag.video("/cam/compressed_video", at(place), units[place][1])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert numbers(episode) == list(range(N))


def test_parameter_sets_in_messages_of_their_own(tmp_path):
    """Some senders put them into a message before the keyframe: it holds no picture."""
    bag = Bag()
    count = 0
    for number, data in access_units():
        at_slice = data.rfind(b"\x00\x00\x01") if number % 8 == 0 else 0
        for part in (data[:at_slice], data[at_slice:]) if at_slice > 8 else (data,):
            bag.video("/cam/compressed_video", at(number) + count, part)
            count += 1
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert numbers(episode) == list(range(N))


def test_a_message_lost_in_the_middle_is_never_another_picture(tmp_path):
    """What follows up to the next keyframe is damaged in ways that no decoder tells: it is left out, and counted."""
    units = access_units(gop=8)
    del units[5]
    bag = record(units, stamp="presentation")
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert numbers(episode) == [*range(5), *range(8, N)]
        np.testing.assert_array_equal(episode.facts.timestamps, [at(t) / 1e9 for t in [*range(5), *range(8, N)]])
        assert any("in 1 place a message is missing" in text for text in episode.facts.warnings)


def test_behind_a_gap_among_pictures_that_change_places_nothing_is_made_up(tmp_path):
    units = access_units(b_frames=2, gop=8)
    lost = next(place for place, (number, _) in enumerate(units) if 0 < number < 8 and number % 3 == 0)
    del units[lost]
    with only_episode(record(units, stamp="presentation").write2(tmp_path / "run"), "rosbag") as episode:
        found = numbers(episode)
        assert found == sorted(set(found))
        assert found[0] == 0
        assert found[-14:] == list(range(8, N))
        assert any("a message is missing" in text for text in episode.facts.warnings)


@pytest.mark.parametrize(("codec", "form"), [("libx265", "h265"), ("libvpx-vp9", "vp9")])
def test_a_gap_in_other_codecs_is_told(tmp_path, codec, form):
    pictures = episode_arrays(4, N, height=128, width=160)["cam_0"]
    units = access_units(codec, pictures=pictures)
    del units[5]
    with only_episode(record(units, form=form, stamp="presentation").write2(tmp_path / "run"), "rosbag") as episode:
        words = "hold no picture that can be decoded" if form == "h265" else "its times have 1 hole"
        assert any(words in text for text in episode.facts.warnings), episode.facts.warnings
        assert not any("first keyframe on" in text for text in episode.facts.warnings)


@pytest.mark.parametrize(
    ("codec", "form", "b_frames"),
    [
        ("libx264", "h264", 0),
        ("libx264", "h264", 2),
        ("libx265", "h265", 0),
        ("libx265", "h265", 2),
        ("libsvtav1", "av1", 0),
        ("libvpx-vp9", "vp9", 0),
    ],
)
def test_messages_stored_in_any_order_are_decoded_as_they_were_sent(tmp_path, codec, form, b_frames):
    pictures = episode_arrays(4, N, height=128, width=160)["cam_0"]
    bag = record(access_units(codec, b_frames, pictures=pictures), form=form)
    order = np.random.default_rng(1).permutation(N)
    bag.messages = [bag.messages[place] for place in order]
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert numbers(episode) == list(range(N))
        assert not [text for text in episode.facts.warnings if "missing" in text or "hold no picture" in text]


@pytest.mark.parametrize(("codec", "form"), [("libx264", "h264"), ("libx265", "h265"), ("libsvtav1", "av1")])
def test_a_message_of_two_pictures_is_refused(tmp_path, codec, form):
    """Only messages have a time, and decoders give one of two pictures away."""
    pictures = episode_arrays(4, N, height=128, width=160)["cam_0"]
    units = [data for _, data in access_units(codec, pictures=pictures)]
    bag = Bag()
    for place in range(0, N, 2):
        bag.video("/cam/video", at(place), units[place] + units[place + 1], form)
        bag.rgb("/other/image_raw", at(place), PICTURES[place])
    path = bag.write2(tmp_path / "run")
    with pytest.raises(EpisodeError, match=r"message 0 .*more than one picture.*list the cameras"):
        only_episode(path, "rosbag")
    with only_episode(path, "rosbag", layout={"images": {"other": "other"}}) as episode:
        assert [one.name for one in episode.streams] == ["other"]
    with pytest.raises(EpisodeError, match="more than one picture"):
        only_episode(path, "rosbag", layout={"images": {"cam": "/cam/video"}})


@pytest.mark.parametrize("first", ["h264", "h265"])
def test_a_topic_that_changes_its_codec_is_refused(tmp_path, first):
    pictures = episode_arrays(4, N, height=128, width=160)["cam_0"]
    streams = {"h264": access_units(pictures=pictures), "h265": access_units("libx265", pictures=pictures)}
    second = "h265" if first == "h264" else "h264"
    bag = Bag()
    for place in range(N):
        form = first if place < 8 else second
        bag.video("/cam/video", at(place), streams[form][place][1], form)
    with pytest.raises(EpisodeError, match="a topic holds one video"):
        only_episode(bag.write2(tmp_path / "run"), "rosbag")


def test_av1_with_a_lost_message_never_waits_for_ever(tmp_path):
    """Closed with pictures in hand, the decoder would wait for ones that never come."""
    pictures = episode_arrays(4, N, height=128, width=160)["cam_0"]
    units = access_units("libsvtav1", pictures=pictures)
    del units[5]
    path = record(units, form="av1").write2(tmp_path / "run")
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from knonik_loader.errors import EpisodeError\n"
        "from tests.assets.sources.support import only_episode\n"
        "for _ in range(60):\n"
        "    try: only_episode(Path(sys.argv[1]), 'rosbag').close()\n"
        "    except EpisodeError: pass\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60, cwd=ROOT)


def test_units_without_start_codes_are_named(tmp_path):
    """As in MP4: length, then unit."""
    bag = Bag()
    for number, data in access_units():
        parts = [part for part in re.split(rb"\x00?\x00\x00\x01", data) if part]
        bag.video("/cam/video", at(number), b"".join(len(part).to_bytes(4, "big") + part for part in parts))
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert "start codes" in episode.facts.nothing


def test_no_keyframe_at_all(tmp_path):
    bag = record(access_units(gop=30)[1:])
    bag.rgb("/other/image_raw", at(0), PICTURES[0])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert [one.name for one in episode.streams] == ["other"]
        assert any("compressed_video: left out" in text for text in episode.facts.warnings)


@pytest.mark.parametrize(
    ("form", "data"), [("h266", b"\0\0\1x"), ("h264", b"nonsense"), ("", b""), ("av1", b"\xff" * 50)]
)
def test_what_is_no_video(tmp_path, form, data):
    bag = Bag()
    for t in range(3):
        bag.video("/cam/compressed_video", at(t), data, form)
        bag.rgb("/other/image_raw", at(t), PICTURES[t])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert [one.name for one in episode.streams] == ["other"]
        assert any("left out" in text for text in episode.facts.warnings)


def test_h264_inside_compressed_images(tmp_path):
    bag = Bag()
    for place, (_, data) in enumerate(access_units()):
        bag.compressed("/cam/image_raw/compressed", at(place), data, "h264")
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert numbers(episode, "cam") == list(range(N))
