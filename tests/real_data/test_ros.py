"""Bags of other people: what is in them, counted by rosbags and the mcap library message by message."""

import sqlite3
from collections import Counter

import numpy as np
import pytest
from mcap.reader import make_reader
from rosbags.highlevel import AnyReader
from rosbags.rosbag1 import Reader as Reader1
from rosbags.typesys import Stores, get_typestore

from knonik_assets.sources.base_contract import as_array
from knonik_assets.sources.ros.gather import gather
from knonik_assets.sources.ros.recording import Recording, find_bags
from knonik_assets.sources.ros.types import Types
from knonik_loader.errors import EpisodeError
from tests.assets.sources.support import frames, only_episode, source, stream

TURTLE = {
    "/rosout": 10, "/turtle1/cmd_vel": 357, "/turtle2/cmd_vel": 208, "/tf": 2688, "/tf_static": 1, "/turtle1/color_sensor": 1351, "/turtle1/pose": 1344,
    "/turtle2/color_sensor": 1344, "/turtle2/pose": 1344,
}  # fmt: skip
WBAG = dict(
    zip(["AAA", "BBB", "CCC", "DDD", "EEE", "FFF", "GGG", "HHH"], (804, 742, 742, 753, 804, 772, 731, 726), strict=True)
)
COUNTS = {
    "ros1_rosbagjs/example.bag": TURTLE,
    "ros1_rosbagjs/example-bz2.bag": TURTLE,
    "ros1_rosbagjs/example-lz4.bag": TURTLE,
    "ros1_rosbagjs/example-unsorted-chunks.bag": {"foo": 3},
    "ros1_rosbagjs/no-messages.bag": {},
    "ros2_db3/wbag": WBAG,
    "ros2_mcap/wbag": WBAG,
    "ros2_db3/talker": {"/topic": 10, "/rosout": 10},
    "ros2_mcap/talker": {"/topic": 10, "/rosout": 10},
    "ros2_compressed/file_compression": {"/rosout": 392, "/topic": 383},
    "ros2_compressed/message_compression": {"/rosout": 758, "/topic": 369},
    "ros2_compressed/compressed_bag": {},
}


def gathered(path):
    (ref,) = find_bags(path, [])
    recording = Recording(ref)
    found = gather(recording, Types(distro=recording.distro))
    recording.close()
    return found


@pytest.mark.parametrize("name", COUNTS)
def test_every_message_of_every_topic_is_met(real_data, name):
    path = real_data / "ros" / name
    assert gathered(path).counts == COUNTS[name]
    with only_episode(path, "rosbag") as episode:
        assert episode.streams == ()
        assert ("no camera" if COUNTS[name] else "holds no message") in episode.facts.nothing
        numbers = {topic: count for topic, count in COUNTS[name].items() if topic.endswith("cmd_vel")}
        assert episode.facts.attributes["ros_skipped"] == dict(COUNTS[name].items() - numbers.items())
        assert not [text for text in episode.facts.warnings if "cut off" in text or "counts" in text]


@pytest.mark.parametrize("name", [name for name in COUNTS if name.endswith(".bag")])
def test_counts_of_ros1_bags_by_rosbags(real_data, name):
    with Reader1(real_data / "ros" / name) as reader:
        assert Counter(connection.topic for connection, _, _ in reader.messages()) == COUNTS[name]


@pytest.mark.parametrize("name", ["ros2_db3/wbag", "ros2_db3/talker", "ros2_compressed/message_compression"])
def test_counts_of_databases_by_sqlite(real_data, name):
    found: Counter[str] = Counter()
    for path in (real_data / "ros" / name).glob("*.db3"):
        database = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
        query = "SELECT name, count(*) FROM messages JOIN topics ON topics.id = topic_id GROUP BY name"
        found.update(dict(database.execute(query)))
        database.close()
    assert found == COUNTS[name]


@pytest.mark.parametrize("name", ["ros2_mcap/wbag", "ros2_mcap/talker"])
def test_counts_of_mcap_files_by_mcap(real_data, name):
    found: Counter[str] = Counter()
    for path in (real_data / "ros" / name).glob("*.mcap"):
        with path.open("rb") as file:
            found.update(channel.topic for _, channel, _ in make_reader(file).iter_messages())
    assert found == COUNTS[name]


def test_an_empty_file_is_refused(real_data):
    with pytest.raises(EpisodeError, match="0 bytes"):
        only_episode(real_data / "ros" / "ros1_rosbagjs" / "empty-file.bag", "rosbag")


def test_a_raw_picture_and_a_png(real_data):
    path = real_data / "ros" / "ros1_ros_numpy" / "test.bag"
    with AnyReader([path], default_typestore=get_typestore(Stores.ROS1_NOETIC)) as reader:
        found = {c.topic: reader.deserialize(raw, c.msgtype) for c, _, raw in reader.messages()}
        times = {c.topic: time for c, time, _ in reader.messages()}
    with only_episode(path, "rosbag") as episode:
        (picture,) = frames(episode, "image")
        np.testing.assert_array_equal(picture, found["/image"].data.reshape(240, 360, 3))
        (png,) = frames(episode, "compressedimage")
        assert png.data == found["/compressedimage"].data.tobytes()
        assert as_array(png).shape == (2, 2, 3)
        pose = found["/pose"]
        wanted = [pose.position.x, pose.position.y, pose.position.z]
        np.testing.assert_allclose(episode.numeric(stream(episode, "pose"))[0, :3], wanted, rtol=1e-6)
        assert episode.facts.timestamps.tolist() == [times[episode.facts.attributes["ros_clock"]] / 1e9]
        assert sorted(episode.facts.attributes["ros_skipped"]) == [
            "/occupancygrid", "/point", "/pointcloud", "/quaternion", "/vector3",
        ]  # fmt: skip
    # All header stamps are zero, so asking for them falls back and says so.
    with only_episode(path, "rosbag", time_source="header") as episode:
        assert any("/image: has header stamps that are zero" in text for text in episode.facts.warnings)


def test_joints_of_a_bag_without_a_camera(real_data):
    """Row by row and time by time, though no episode comes of it."""
    path = real_data / "ros" / "ros1_careslab" / "test.bag"
    with AnyReader([path], default_typestore=get_typestore(Stores.ROS1_NOETIC)) as reader:
        wanted: dict[str, list] = {}
        for connection, time, raw in reader.messages():
            if connection.msgtype == "sensor_msgs/msg/JointState":
                position = reader.deserialize(raw, connection.msgtype).position
                wanted.setdefault(connection.topic, []).append((time, list(position)))
    assert sum(len(rows) for rows in wanted.values()) == 1405
    found = gathered(path)
    assert sorted(found.numeric) == sorted(wanted)
    for topic, rows in wanted.items():
        assert found.numeric[topic].log_ns.tolist() == [time for time, _ in rows]
        np.testing.assert_array_equal(found.rows[topic, "sensor_msgs/msg/JointState"].array(), [row for _, row in rows])
    with only_episode(path, "rosbag") as episode:
        assert "numbers alone" in episode.facts.nothing


def test_a_folder_of_bags(real_data):
    found = source(real_data / "ros" / "ros1_rosbagjs", "rosbag")
    assert [ref.source_id for ref in found.episodes()] == [
        "empty-file", "example-bz2", "example-lz4", "example-unsorted-chunks", "example", "no-messages",
    ]  # fmt: skip
