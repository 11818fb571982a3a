"""Recordings of every container against the shipped contract, over frames that say who they are."""

import numpy as np
import pytest
from rosbags.highlevel import AnyReader

from knonik_assets.sources.base_contract import Expected, SourceContract, as_array
from knonik_assets.sources.ros.compression import unpacked
from knonik_assets.sources.ros.recording import BagRef, Recording
from tests.assets.sources.bags import CONTAINERS, at, bag_of, png16
from tests.assets.sources.support import frames, png, source, stream
from tests.support.stamps import episode_arrays, read_stamp


def length(episode: int) -> int:
    return 4 + episode % 3


def near(episode: int) -> np.ndarray:
    rows = length(episode)
    return (np.arange(rows * 12 * 16, dtype=np.uint16).reshape(rows, 12, 16) + 400 + episode) % 5000


def recording(how: str, episode: int):
    """Two cameras, one of them compressed, two depth cameras, joints and a command, all at the same times."""
    bag, arrays = bag_of(how), episode_arrays(episode, length(episode))
    for t in range(length(episode)):
        ns = at(t)
        bag.rgb("/front/rgb/image_raw", ns, arrays["cam_0"][t])
        bag.compressed("/side/image_raw/compressed", ns, png(arrays["cam_1"][t]), "rgb8; png compressed bgr8")
        values = near(episode)[t]
        bag.image("/front/depth/image_rect", ns, values.tobytes(), "16UC1", height=12, width=16)
        data = bytes(12) + png16(values)
        bag.compressed("/side/depth/image_raw/compressedDepth", ns, data, "16UC1; compressedDepth png")
        bag.joints("/joint_states", ns, arrays["state"][t], ("a", "b", "c", "d"))
        bag.floats("/arm/command", ns, arrays["action"][t])
        bag.text("/chatter", ns, "hello")
    return bag


def known(episode: int) -> Expected:
    arrays, metres = episode_arrays(episode, length(episode)), near(episode).astype(np.float32) / np.float32(1000)
    return Expected(
        numeric={"joint_states": arrays["state"], "arm_command": arrays["action"]},
        pictures={"front": arrays["cam_0"], "side": arrays["cam_1"]},
        depth={"front": metres, "side": metres},
        timestamps=np.array([at(t) / 1e9 for t in range(length(episode))]),
    )


class RosContract(SourceContract):
    how = ""
    episodes = range(3)

    def make_data(self, folder):
        for episode in self.episodes:
            recording(self.how, episode).write(folder / f"run_{episode}", self.how)
        return folder

    def make_source(self, root):
        return source(root, "rosbag")

    def expected(self):
        return {f"run_{episode}": known(episode) for episode in self.episodes}

    def change(self, root, source_id):
        path = root / source_id
        if not path.exists():
            path = path.with_suffix(".bag")
        if path.is_file():
            path.unlink()
        else:
            for one in path.iterdir():
                one.unlink()
            path.rmdir()
        bag = recording(self.how, int(source_id.split("_")[1]))
        topic, kind, ns, message = bag.messages[-2]
        message.data[0] += 1
        bag.messages[-2] = (topic, kind, ns, message)
        bag.write(root / source_id, self.how)


class TestBag(RosContract):
    how = "bag"
    episodes = range(11)


class TestBagLz4(RosContract):
    how = "bag lz4"


class TestMcap(RosContract):
    how = "mcap storage"


class TestSqlite(RosContract):
    how = "sqlite3"


class TestSqliteMessages(RosContract):
    how = "sqlite3 message"


class TestMcapFiles(RosContract):
    how = "mcap file"


@pytest.mark.parametrize("how", CONTAINERS)
def test_every_container_holds_the_same(tmp_path, how):
    """Frame by frame; the compressed ones unpack to where nothing is left of them afterwards."""
    found = source(recording(how, 2).write(tmp_path / "run", how), "mcap")
    with found.open(found.episodes()[0]) as episode:
        for camera, name in enumerate(("front", "side")):
            assert [read_stamp(as_array(one)) for one in frames(episode, name, "rgb")] == [
                (camera, 2, t) for t in range(length(2))
            ]
        np.testing.assert_array_equal(
            episode.numeric(stream(episode, "joint_states")), episode_arrays(2, length(2))["state"]
        )
        assert episode.facts.attributes["ros_skipped"] == {"/chatter": length(2)}
        assert episode.facts.warnings == []


@pytest.mark.parametrize("how", CONTAINERS)
def test_message_by_message_as_rosbags_reads_it(tmp_path, how):
    """Topic, time and every byte, both while scanning and when asked for again."""
    path = recording(how, 1).write(tmp_path / "run", how)
    with AnyReader([path]) as reader:
        wanted = sorted((c.topic, time, bytes(raw)) for c, time, raw in reader.messages())
    recorded = Recording(BagRef("run", path))
    found = list(recorded.scan(lambda channel: None))
    heads = list(recorded.scan(lambda channel: 9))
    assert [one.data[:9] for _, one in found] == [one.data[:9] for _, one in heads]
    plain = (lambda data: unpacked(data, "x")) if how.endswith("message") else bytes
    assert sorted((one.channel.topic, one.time, bytes(plain(one.data))) for _, one in found) == wanted
    again = [recorded.read(file, one.block, one.offset, one.length) for file, one in found]
    assert [bytes(data) for data in again] == [bytes(one.data) for _, one in found]
    recorded.close()
