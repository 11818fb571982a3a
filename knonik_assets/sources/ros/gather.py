"""One pass over a recording: where every picture lies, all rows of numbers, and what is said only once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from knonik_assets.sources.ros.compression import is_packed, unpacked
from knonik_assets.sources.ros.files import HEAD, Channel, Found
from knonik_assets.sources.ros.h264 import H264Look
from knonik_assets.sources.ros.numbers import Rows
from knonik_assets.sources.ros.recording import Recording
from knonik_assets.sources.ros.topics import Topic, role_of, topic_key
from knonik_assets.sources.ros.types import DECODE_FAULTS, Decoder, Types, as_bytes, get
from knonik_assets.sources.ros.video import CODECS
from knonik_loader.errors import EpisodeError

__all__ = ["Gathered", "gather", "read_message"]

_LONGEST_URDF = 1 << 24
_PLUMBING = frozenset({
    "std_msgs", "std_srvs", "tf", "tf2_msgs", "rosgraph_msgs", "rcl_interfaces", "diagnostic_msgs", "bond",
    "dynamic_reconfigure", "actionlib_msgs", "action_msgs", "lifecycle_msgs", "statistics_msgs", "visualization_msgs",
    "foxglove",
})  # fmt: skip
"""Packages whose messages beside pictures and numbers nobody misses in training data."""
_NAMED = 5
_LAST_NS = (1 << 62) - 1
"""Of 2116: differences of two times still fit 64 bits."""


@dataclass(slots=True)
class Gathered:
    """What a recording holds."""

    pictures: dict[str, Topic] = field(default_factory=dict)
    """By topic."""
    numeric: dict[str, Topic] = field(default_factory=dict)
    rows: dict[tuple[str, str], Rows] = field(default_factory=dict)
    """By topic and type."""
    looks: dict[tuple[str, str], H264Look] = field(default_factory=dict)
    camera_info: dict[str, dict[str, Any]] = field(default_factory=dict)
    urdf_joints: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Messages of every topic."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Messages of topics that become no stream."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Topics whose pictures begin well and end in the middle, and why."""
    warnings: list[str] = field(default_factory=list)

    def leave_out(self, topic: str, count: int, why: str | None) -> None:
        """A topic becomes no stream."""
        self.skipped[topic] = self.skipped.get(topic, 0) + count
        if why is not None:
            self.warnings.append(f"{topic}: left out: {why}")


@dataclass(slots=True)
class _Way:
    """What becomes of the messages of one channel."""

    channel: Channel
    topic: Topic
    decoder: Decoder | None
    """None for topics that nobody asks about, and for those whose type is unknown."""
    label: str
    file: int = -1
    place: int = -1
    """In `Topic.sources`."""


class _Pass:
    def __init__(self, recording: Recording, types: Types) -> None:
        self.recording, self.types = recording, types
        self.out = Gathered()
        self.topics: dict[tuple[str, str], Topic] = {}
        self.ways: dict[int, _Way] = {}
        self.faults: dict[tuple[str, str], str] = {}

    def way(self, channel: Channel) -> _Way:
        """What becomes of a channel's messages; containers hand out the same channel again and again."""
        way = self.ways.get(id(channel))
        if way is None or way.channel is not channel:
            way = self.ways[id(channel)] = self.make_way(channel)
        return way

    def make_way(self, channel: Channel) -> _Way:
        key = topic_key(channel)
        topic = self.topics.setdefault(key, Topic(*key, role_of(*key)))
        decoder = None
        if topic.role != "skip":
            try:
                decoder = self.types.decoder(channel)
            except EpisodeError as error:
                self.faults.setdefault(key, str(error))
        label = f"{self.recording.ref.name}: {channel.topic} ({channel.type}), message"
        return _Way(channel, topic, decoder, label)

    def need(self, channel: Channel) -> int | None:
        way = self.way(channel)
        if way.decoder is None:
            return 0
        if way.topic.role == "info":
            return 0 if channel.topic in self.out.camera_info else None
        if way.topic.role in ("image", "compressed"):
            return (None if way.decoder.whole else HEAD) if way.decoder.stamp is not None else 0
        return None

    def run(self) -> Gathered:
        for file, found in self.recording.scan(self.need):
            way = self.way(found.channel)
            topic, decoder = way.topic, way.decoder
            name = found.channel.topic
            self.out.counts[name] = self.out.counts.get(name, 0) + 1
            if decoder is None:
                self.out.skipped[name] = self.out.skipped.get(name, 0) + 1
                continue
            where = f"{way.label} {len(topic)}"
            data = self.whole(file, found, where)
            topic.times.append(_within(found.time, f"{where}: was recorded"))
            topic.stamps.append(_within(self.stamp(decoder, data, where), f"{where}: is stamped"))
            if way.file != file:
                way.file, way.place = file, topic.connect(file, found.channel, decoder)
            topic.source.append(way.place)
            topic.blocks.append(found.block)
            topic.offsets.append(found.offset)
            topic.lengths.append(found.length)
            self.content(topic, decoder, data, where)
        for key, fault in self.faults.items():
            self.out.warnings.append(f"{key[0]} ({key[1]}): left out: {fault}")
        self.sort()
        self.say_skipped()
        return self.out

    def say_skipped(self) -> None:
        """Data of kinds that have no reader: a topic of a lab's own type isn't lost without a word."""
        unread = [
            f"{name} ({kind}, {self.out.skipped[name]} messages)"
            for (name, kind), topic in sorted(self.topics.items())
            if topic.role == "skip" and name in self.out.skipped and kind.split("/", 1)[0] not in _PLUMBING
        ]
        if unread:
            shown = ", ".join(unread[:_NAMED])
            more = f" and {len(unread) - _NAMED} more topics" if len(unread) > _NAMED else ""
            self.out.warnings.append(
                f"{self.recording.ref.name}: left out: {shown}{more}: no pictures, and no kind of numbers that is read"
            )

    def whole(self, file: int, found: Found, where: str) -> memoryview:
        """The message's beginning; of one that its recorder compressed, all of it."""
        data = found.data
        if found.channel.encoding == "cdr" and is_packed(data):
            full = len(data) == found.length
            data = data if full else self.recording.read(file, found.block, found.offset, found.length)
            return unpacked(data, where)
        return data

    def stamp(self, decoder: Decoder, data: memoryview, where: str) -> int:
        if decoder.stamp is None or not len(data):
            return 0
        try:
            return decoder.stamp(data)
        except DECODE_FAULTS as error:
            raise EpisodeError(f"{where}: cannot be decoded: {str(error)[:200]}.") from error

    def content(self, topic: Topic, decoder: Decoder, data: memoryview, where: str) -> None:
        name = topic.name
        if topic.role in ("image", "compressed") or (topic.role == "info" and name in self.out.camera_info):
            return
        if topic.role == "urdf" and self.out.urdf_joints:
            return
        key = (name, topic.kind)
        if key in self.faults:
            return
        try:
            message = decoder.decode(data)
            if topic.role == "numeric":
                self.out.rows.setdefault(key, Rows(topic.kind)).add(message)
            elif topic.role == "video":
                if CODECS.get(str(message.format).lower()) == "h264":
                    self.out.looks.setdefault(key, H264Look()).add(as_bytes(message.data))
            elif topic.role == "info":
                self.out.camera_info[name] = _camera_info(message)
            else:
                self.out.urdf_joints = _joints(str(message.data))
        except DECODE_FAULTS as error:
            if len(topic) == 1:
                self.faults[key] = f"its first message cannot be decoded: {str(error)[:200]}"
                return
            raise EpisodeError(f"{where}: cannot be decoded: {str(error)[:200]}.") from error

    def sort(self) -> None:
        """Topics by what they are; of two types under one name, the one with more messages."""
        for key, topic in sorted(self.topics.items(), key=lambda entry: -len(entry[1])):
            if not len(topic):
                continue
            if key in self.faults:
                self.out.leave_out(key[0], len(topic), None)
                continue
            if topic.role not in ("numeric", "image", "compressed", "video"):
                continue
            if key[0] in self.out.pictures or key[0] in self.out.numeric:
                self.out.leave_out(key[0], len(topic), f"{len(topic)} messages of a second type, {key[1]}")
            elif topic.role == "numeric":
                self.out.numeric[key[0]] = topic
            else:
                self.out.pictures[key[0]] = topic
        self.out.pictures = dict(sorted(self.out.pictures.items()))
        self.out.numeric = dict(sorted(self.out.numeric.items()))


def gather(recording: Recording, types: Types) -> Gathered:
    """Go over a recording once.

    Raises:
        EpisodeError: a file is damaged, holds fewer messages than ``metadata.yaml`` counts, or a message doesn't fit
            its type.
    """
    work = _Pass(recording, types)
    out = work.run()
    out.warnings = [*recording.warnings, *out.warnings]
    for topic, declared in recording.declared.items():
        found = out.counts.get(topic, 0)
        if found < declared:
            raise EpisodeError(
                f"{recording.ref.path}: metadata.yaml counts {declared} messages of {topic}, the files hold {found}; "
                "fetch the rest, or remove metadata.yaml to take what is there."
            )
        if found > declared:
            out.warnings.append(
                f"{recording.ref.name}: metadata.yaml counts {declared} messages of {topic}, the files hold {found}; "
                "all are taken"
            )
    if types.assumed:
        out.warnings.append(
            f"{recording.ref.name}: holds no definition of {', '.join(sorted(types.assumed))}; taken as in "
            f"{types.store}. If the recorder had another version of them, give its .msg files in msg_path"
        )
    return out


def _within(ns: int, what: str) -> int:
    """A time that fits 64 bits.

    Raises:
        EpisodeError: it doesn't.
    """
    if not -_LAST_NS <= ns <= _LAST_NS:
        raise EpisodeError(f"{what} at {ns} ns, which is no time: damaged.")
    return ns


def read_message(recording: Recording, topic: Topic, number: int) -> Any:  # noqa: ANN401 - any message
    """One message of a topic, decoded.

    Raises:
        EpisodeError: it doesn't fit its type.
    """
    file, decoder = topic.sources[topic.source[number]]
    where = f"{recording.ref.name}: {topic.name} ({topic.kind}), message {number}"
    data = recording.read(file, topic.blocks[number], topic.offsets[number], topic.lengths[number])
    try:
        if decoder.cdr and is_packed(data):
            data = unpacked(data, where)
        return decoder.decode(data)
    except EpisodeError:
        raise
    except DECODE_FAULTS as error:
        raise EpisodeError(f"{where}: cannot be decoded: {str(error)[:200]}.") from error


def _camera_info(message: Any) -> dict[str, Any]:  # noqa: ANN401
    def numbers(*names: str) -> list[float]:
        return [float(value) for value in get(message, *names)]

    header = getattr(message, "header", message)
    return {
        "width": int(message.width),
        "height": int(message.height),
        "distortion_model": str(message.distortion_model),
        "D": numbers("D", "d"),
        "K": numbers("K", "k"),
        "R": numbers("R", "r"),
        "P": numbers("P", "p"),
        "frame_id": str(getattr(header, "frame_id", "")),
    }


def _joints(text: str) -> list[str]:
    """Names of the joints of a URDF that can move, in its order."""
    if len(text) > _LONGEST_URDF or re.search(r"<!(DOCTYPE|ENTITY)", text):
        raise ValueError("the robot description is too long, or declares entities")
    try:
        root = ElementTree.fromstring(text)  # entities, the only danger, are refused above
    except ElementTree.ParseError as error:
        raise ValueError(f"the robot description is no XML: {error}") from error
    return [
        str(joint.get("name")) for joint in root.findall("joint") if joint.get("name") and joint.get("type") != "fixed"
    ]
