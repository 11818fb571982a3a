"""What a topic is, by its type first and its name second, and what its stream is called."""

from __future__ import annotations

import re
import zlib
from array import array
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from knonik_assets.sources.naming import safe_stream_name
from knonik_assets.sources.ros.files import Channel
from knonik_assets.sources.ros.numbers import is_numeric
from knonik_assets.sources.ros.types import Decoder, canonical_type
from knonik_loader.errors import ConfigError

__all__ = ["Role", "Topic", "camera_name", "numeric_name", "role_of"]

Role = Literal["image", "compressed", "video", "numeric", "info", "urdf", "skip"]
_PICTURES: dict[str, Role] = {
    "sensor_msgs/msg/Image": "image",
    "foxglove/RawImage": "image",
    "sensor_msgs/msg/CompressedImage": "compressed",
    "foxglove/CompressedImage": "compressed",
    "foxglove/CompressedVideo": "video",
}
_INFO = frozenset({"sensor_msgs/msg/CameraInfo", "foxglove/CameraCalibration"})
_BOILERPLATE = frozenset({
    "image_raw", "image", "image_rect", "image_rect_color", "rgb", "color", "rect", "depth", "depth_registered",
    "compressed", "compresseddepth", "msg",
})  # fmt: skip


def role_of(topic: str, kind: str) -> Role:
    """What is to be done with the messages of a topic."""
    if kind in _PICTURES:
        return _PICTURES[kind]
    if kind in _INFO:
        return "info"
    if kind == "std_msgs/msg/String" and topic.rsplit("/", 1)[-1] == "robot_description":
        return "urdf"
    return "numeric" if is_numeric(kind) else "skip"


def camera_name(topic: str) -> str:
    """``/left_cam/rgb/image_raw`` → ``left_cam``; of a topic of nothing but such words, all of them."""
    parts = [part for part in topic.split("/") if part]
    kept = [part for part in parts if part.lower() not in _BOILERPLATE]
    return "_".join(kept or parts)


def numeric_name(topic: str) -> str:
    """``/arm_controller/command`` → ``arm_controller_command``; ``/frame_time`` (taken) → ``topic_frame_time_``."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", topic).strip("_")
    try:
        return safe_stream_name(name)
    except ConfigError:  # nothing is left of it, or it means something here; no layout could name it otherwise
        return f"topic_{name}_" if name else f"topic_{zlib.crc32(topic.encode()):08x}"


@dataclass(slots=True)
class Topic:
    """All messages of one topic and type, as they are stored, over all files and connections."""

    name: str
    kind: str
    """Canonical type."""
    role: Role
    sources: list[tuple[int, Decoder]] = field(default_factory=list)
    """File and decoder of every connection."""
    times: array[int] = field(default_factory=lambda: array("q"))
    """When messages were recorded, nanoseconds."""
    stamps: array[int] = field(default_factory=lambda: array("q"))
    """The messages' own stamps, nanoseconds; 0 where there is none."""
    source: array[int] = field(default_factory=lambda: array("i"))
    """Of every message, its place in ``sources``."""
    blocks: array[int] = field(default_factory=lambda: array("q"))
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    _known: dict[tuple[int, Channel], int] = field(default_factory=dict)

    def connect(self, file: int, channel: Channel, decoder: Decoder) -> int:
        """The place of a connection in ``sources``."""
        key = (file, channel)
        if key not in self._known:
            self._known[key] = len(self.sources)
            self.sources.append((file, decoder))
        return self._known[key]

    def __len__(self) -> int:
        return len(self.times)

    @property
    def log_ns(self) -> npt.NDArray[np.int64]:
        """(N,) of ``times``."""
        return np.frombuffer(self.times, np.int64) if self.times else np.zeros(0, np.int64)

    @property
    def stamp_ns(self) -> npt.NDArray[np.int64]:
        """(N,) of ``stamps``."""
        return np.frombuffer(self.stamps, np.int64) if self.stamps else np.zeros(0, np.int64)


def topic_key(channel: Channel) -> tuple[str, str]:
    """Connections of one topic and one type belong together."""
    return channel.topic, canonical_type(channel.type)
