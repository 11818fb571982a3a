"""Recordings written by rosbags' own writers, and messages to put into them."""

import io
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from tests.assets.sources.support import jpeg, png

START = 1_700_000_000_000_000_000
"""Of recordings, nanoseconds."""
FPS = 30
VIDEO = """builtin_interfaces/Time timestamp
string frame_id
uint8[] data
string format
"""
FOXGLOVE = {"foxglove_msgs/msg/CompressedVideo": VIDEO}


@cache
def store(ros: int, extra: tuple[tuple[str, str], ...] = ()):
    found = get_typestore(Stores.ROS1_NOETIC if ros == 1 else Stores.ROS2_HUMBLE)
    for name, text in (*FOXGLOVE.items(), *extra):
        found.register(get_types_from_msg(text, name))
    return found


def at(frame: float, fps: float = FPS) -> int:
    """Nanoseconds of a frame."""
    return START + round(frame * 1e9 / fps)


@dataclass
class Bag:
    """Messages to be written into a recording of any container."""

    ros: int = 2
    extra: dict[str, str] = field(default_factory=dict)
    messages: list[tuple[str, str, int, Any]] = field(default_factory=list)
    """Topic, type, time of recording, message."""

    def __post_init__(self):
        self.store = store(self.ros, tuple(self.extra.items()))

    def make(self, kind: str, **members):
        return self.store.types[kind](**members)

    def time(self, ns: int):
        return self.make("builtin_interfaces/msg/Time", sec=ns // 10**9, nanosec=ns % 10**9)

    def header(self, ns: int, frame_id: str = "f"):
        more = {"seq": 0} if self.ros == 1 else {}
        return self.make("std_msgs/msg/Header", stamp=self.time(ns), frame_id=frame_id, **more)

    def add(self, topic, kind, ns, **members):
        self.messages.append((topic, kind, ns, self.make(kind, **members)))

    def image(self, topic, ns, data, encoding, *, height, width, step=None, big=0, stamp=None):
        raw = np.frombuffer(data, np.uint8)
        step = len(raw) // height if step is None else step
        stamped = self.header(ns if stamp is None else stamp)
        members = {"height": height, "width": width, "encoding": encoding, "is_bigendian": big, "step": step}
        self.add(topic, "sensor_msgs/msg/Image", ns, header=stamped, data=raw, **members)

    def rgb(self, topic, ns, picture, **keys):
        self.image(topic, ns, picture.tobytes(), "rgb8", height=picture.shape[0], width=picture.shape[1], **keys)

    def compressed(self, topic, ns, data, form, stamp=None):
        stamped = self.header(ns if stamp is None else stamp)
        data = np.frombuffer(data, np.uint8)
        self.add(topic, "sensor_msgs/msg/CompressedImage", ns, header=stamped, format=form, data=data)

    def video(self, topic, ns, data, form="h264", stamp=None):
        kind = "foxglove_msgs/msg/CompressedVideo"
        stamp = self.time(ns if stamp is None else stamp)
        self.add(topic, kind, ns, timestamp=stamp, frame_id="f", data=np.frombuffer(data, np.uint8), format=form)

    def joints(self, topic, ns, position, name=(), stamp=None):
        empty, stamped = np.zeros(0), self.header(ns if stamp is None else stamp)
        members = {"position": np.asarray(position, float), "velocity": empty, "effort": empty}
        self.add(topic, "sensor_msgs/msg/JointState", ns, header=stamped, name=list(name), **members)

    def floats(self, topic, ns, values):
        layout = self.make("std_msgs/msg/MultiArrayLayout", dim=[], data_offset=0)
        self.add(topic, "std_msgs/msg/Float64MultiArray", ns, layout=layout, data=np.asarray(values, float))

    def text(self, topic, ns, text):
        self.add(topic, "std_msgs/msg/String", ns, data=text)

    def serialized(self, kind, message):
        return (self.store.serialize_ros1 if self.ros == 1 else self.store.serialize_cdr)(message, kind)

    def write1(self, path: Path, compression: str | None = None, chunk: int | None = None) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = Writer1(path)
        if compression is not None:
            writer.set_compression(Writer1.CompressionFormat[compression.upper()])
        if chunk is not None:
            writer.chunk_threshold = chunk
        with writer:
            connections = {}
            for topic, kind, ns, message in self.messages:
                if (topic, kind) not in connections:
                    connections[topic, kind] = writer.add_connection(topic, kind, typestore=self.store)
                writer.write(connections[topic, kind], ns, self.serialized(kind, message))
        return path

    def write2(self, path: Path, storage: str = "mcap", compression: str | None = None, version: int = 9) -> Path:
        """A bag directory; ``compression`` is ``file`` or ``message``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        plugin = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}[storage]
        writer = Writer2(path, version=version, storage_plugin=plugin)
        if compression is not None:
            writer.set_compression(CompressionMode[compression.upper()], CompressionFormat.ZSTD)
        with writer:
            connections = {}
            for topic, kind, ns, message in self.messages:
                if (topic, kind) not in connections:
                    connections[topic, kind] = writer.add_connection(topic, kind, typestore=self.store)
                writer.write(connections[topic, kind], ns, self.serialized(kind, message))
        return path

    def write(self, folder: Path, how: str) -> Path:
        """``bag``, ``bag bz2``, ``bag lz4``, ``mcap``, ``mcap storage``, ``sqlite3``, ``sqlite3 file`` or ``sqlite3 message``."""
        kind, _, more = how.partition(" ")
        if kind == "bag":
            return self.write1(folder.with_suffix(".bag"), more or None, chunk=60_000)
        return self.write2(folder, kind, more or None)


def camera_info(bag, topic, ns, width):
    members = {"d": np.array([0.1, 0.2]), "k": np.arange(9.0), "r": np.eye(3).ravel(), "p": np.arange(12.0)}
    if bag.ros == 1:
        members = {name.upper(): value for name, value in members.items()}
    box = bag.make("sensor_msgs/msg/RegionOfInterest", x_offset=0, y_offset=0, height=0, width=0, do_rectify=False)
    bag.add(topic, "sensor_msgs/msg/CameraInfo", ns, header=bag.header(ns, "optical"), height=90, width=width,
            distortion_model="plumb_bob", binning_x=0, binning_y=0, roi=box, **members)  # fmt: skip


CONTAINERS = (
    "bag",
    "bag bz2",
    "bag lz4",
    "mcap",
    "mcap storage",
    "mcap file",
    "sqlite3",
    "sqlite3 file",
    "sqlite3 message",
)


def bag_of(how: str, **keys) -> Bag:
    """An empty recording for one of the containers."""
    return Bag(ros=1 if how.startswith("bag") else 2, **keys)


def encoded(picture, how="jpeg") -> bytes:
    return jpeg(picture) if how == "jpeg" else png(picture)


def png16(values) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(values, np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()
