"""What recordings hold that is no time, no number and no camera: each is said, none is guessed."""

import base64
import json

import pytest
from mcap.writer import Writer

from knonik_loader.errors import EpisodeError
from tests.assets.sources.bags import START, Bag, at
from tests.assets.sources.support import jpeg, only_episode
from tests.assets.sources.test_ros_damage import PICTURES, N, recorded, shown


def write_one_json(path, time=START, **message):
    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        image = {"format": "jpeg", "data": base64.b64encode(jpeg(PICTURES[0])).decode(), **message}
        schema = writer.register_schema("foxglove.CompressedImage", "jsonschema", b"{}")
        channel = writer.register_channel("/cam/compressed", "json", schema)
        writer.add_message(channel, time, json.dumps(image).encode(), time)
        writer.finish()
    return path


@pytest.mark.parametrize("time", [1 << 63, (1 << 64) - 1])
def test_times_of_recording_that_are_none(tmp_path, time):
    with pytest.raises(EpisodeError, match=f"message 0: was recorded at {time} ns, which is no time"):
        only_episode(write_one_json(tmp_path / "run.mcap", time), "rosbag")


def test_stamps_that_no_clock_shows(tmp_path):
    with pytest.raises(EpisodeError, match=r"message 0: is stamped at .* which is no time"):
        only_episode(write_one_json(tmp_path / "run.mcap", timestamp={"sec": 10**30, "nsec": 0}), "rosbag")


def test_text_is_no_number(tmp_path):
    """Neither one that looks like a number, nor its digits one by one."""
    path = tmp_path / "run.mcap"
    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        one = writer.register_channel("/one", "json", writer.register_schema("std_msgs/Float64", "jsonschema", b"{}"))
        many = writer.register_schema("std_msgs/Float64MultiArray", "jsonschema", b"{}")
        digits, texts = (writer.register_channel(name, "json", many) for name in ("/digits", "/texts"))
        for channel, data in ((one, "12"), (digits, "123"), (texts, ["1", "2"])):
            writer.add_message(channel, at(0), json.dumps({"data": data}).encode(), at(0))
        cameras = writer.register_schema("foxglove.CompressedImage", "jsonschema", b"{}")
        image = {"format": "jpeg", "data": base64.b64encode(jpeg(PICTURES[0])).decode()}
        camera = writer.register_channel("/cam/compressed", "json", cameras)
        writer.add_message(camera, at(0), json.dumps(image).encode(), at(0))
        writer.finish()
    with only_episode(path, "rosbag") as episode:
        assert [one.name for one in episode.streams] == ["cam"]
        told = [text for text in episode.facts.warnings if "holds text" in text]
        assert len(told) == 3


def test_a_camera_that_nobody_understands_is_why_there_is_no_frame(tmp_path):
    path = tmp_path / "run.mcap"
    with path.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        schema = writer.register_schema("foxglove.RawImage", "flatbuffer", b"x")
        writer.add_message(writer.register_channel("/cam", "flatbuffer", schema), at(0), b"zzzz", at(0))
        writer.finish()
    with only_episode(path, "rosbag") as episode:
        assert "/cam (foxglove/RawImage): left out: messages in 'flatbuffer'" in episode.facts.nothing


def test_a_bag_that_ends_before_its_first_message_says_so(tmp_path):
    whole = recorded("bag").write1(tmp_path / "whole.bag", "bz2").read_bytes()
    (tmp_path / "cut.bag").write_bytes(whole[: len(whole) // 10])
    with only_episode(tmp_path / "cut.bag", "rosbag") as episode:
        assert "no message can be read" in episode.facts.nothing
        assert "cut off" in episode.facts.nothing
    Bag(ros=1).write1(tmp_path / "empty.bag")
    with only_episode(tmp_path / "empty.bag", "rosbag") as episode:
        assert "holds no message" in episode.facts.nothing


def test_a_file_that_the_metadata_lists_twice_is_read_once(tmp_path):
    folder = recorded().write2(tmp_path / "run")
    meta = folder / "metadata.yaml"
    meta.write_text(meta.read_text().replace("  - run.mcap\n", "  - run.mcap\n  - ./run.mcap\n"))
    assert meta.read_text().count("run.mcap") >= 2
    pictures, values, warnings = shown(folder)
    assert pictures == values == list(range(N))
    assert any("lists a file twice" in text for text in warnings)
