"""Camera topics: what their messages hold, and the frames of a stream out of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.base import Frame, StreamSpec
from knonik_assets.sources.images import (
    Turner,
    cut_encoded,
    decode_depth,
    decode_other,
    depth_to_m,
    image_shape,
    sniff,
    turn,
)
from knonik_assets.sources.ros.gather import Gathered, read_message
from knonik_assets.sources.ros.pictures import (
    RawPicture,
    compressed_depth,
    is_grey16,
    is_unordered,
    kind_of_encoding,
    raw_depth,
    raw_rgb,
)
from knonik_assets.sources.ros.recording import Recording
from knonik_assets.sources.ros.topics import Topic, camera_name
from knonik_assets.sources.ros.types import DECODE_FAULTS, as_bytes
from knonik_assets.sources.ros.video import CODECS, DamagedVideoError, VideoOrder, decoded
from knonik_assets.sources.ros.video_topics import look_at_video, packets
from knonik_loader.errors import EpisodeError
from knonik_loader.khlp.colour import Converter

__all__ = ["Camera", "find_cameras"]

_DEPTH_FORMATS = ("16UC1", "32FC1", "mono16")


@dataclass(slots=True)
class Camera:
    """A camera topic whose first message can be decoded."""

    topic: Topic
    name: str
    kind: Literal["rgb", "depth"]
    shape: tuple[int, ...]
    """Of one picture, as it is stored."""
    encoding: Literal["raw", "jpeg", "png", "video"]
    order: VideoOrder | None = None
    """Of a video."""
    codec: str = ""

    def usable(self) -> npt.NDArray[np.int64]:
        """(N,) numbers of the messages that hold a picture, in order of recording; of a video, of presentation."""
        if self.order is not None:
            return self.order.messages
        return np.argsort(self.topic.log_ns, kind="stable").astype(np.int64)


def find_cameras(recording: Recording, found: Gathered) -> list[Camera]:
    """Every camera topic that can be decoded; the others are left out, with the reason among the warnings.

    Videos that begin well and cannot be decoded later are among `Gathered.damaged` instead.
    """
    cameras = []
    for name, topic in found.pictures.items():
        try:
            camera, warning = _look(recording, topic, found)
        except DamagedVideoError as error:
            found.damaged[name] = str(error)
            continue
        except (EpisodeError, *DECODE_FAULTS) as error:
            found.leave_out(name, len(topic), str(error)[:300].rstrip("."))
            continue
        if warning is not None:
            found.warnings.append(warning)
        cameras.append(camera)
    return cameras


def _look(recording: Recording, topic: Topic, found: Gathered) -> tuple[Camera, str | None]:
    first = read_message(recording, topic, 0)
    name = camera_name(topic.name)
    where = f"{recording.ref.name}: {topic.name}, message 0"
    if topic.role == "image":
        encoding = str(first.encoding)
        kind = kind_of_encoding(encoding)
        if kind is None:
            raise EpisodeError(f"pictures in {encoding!r} are not understood")
        warning = None
        if is_unordered(encoding):
            warning = f"{topic.name}: {encoding} doesn't say which channel is red; taken as blue, green, red (OpenCV's)"
        picture = _raw(first)
        shape = raw_rgb(picture, where).shape if kind == "rgb" else raw_depth(picture, where).shape
        return Camera(topic, name, kind, shape, "raw"), warning
    form, data = str(first.format), as_bytes(first.data)
    if topic.role == "video" or CODECS.get(form.lower()) is not None:
        return _video(recording, topic, found, form)
    if _is_depth(topic, form):
        return Camera(topic, name, "depth", _depth(topic, form, data, where).shape, "raw"), None
    content = bytes(data)
    if is_grey16(content):
        warning = f"{topic.name}: a 16-bit grey PNG is no colour picture; taken as depth, in millimetres"
        return Camera(topic, name, "depth", _depth(topic, form, data, where).shape, "raw"), warning
    if sniff(content) is None:
        return Camera(topic, name, "rgb", decode_other(content, where).shape, "raw"), None
    image = cut_encoded(content, where)
    return Camera(topic, name, "rgb", (*image_shape(image, where), 3), image.format), None


def _video(recording: Recording, topic: Topic, found: Gathered, form: str) -> tuple[Camera, str | None]:
    codec, order, shape = look_at_video(recording, topic, found, form)
    return Camera(topic, camera_name(topic.name), "rgb", shape, "video", order, codec), None


def _raw(message: Any) -> RawPicture:  # noqa: ANN401 - messages are of types made at run time
    return RawPicture(
        height=int(message.height),
        width=int(message.width),
        encoding=str(message.encoding),
        step=int(message.step),
        big_endian=bool(getattr(message, "is_bigendian", False)),
        data=memoryview(as_bytes(message.data)).cast("B"),
    )


def _is_depth(topic: Topic, form: str) -> bool:
    compressed = "compresseddepth" in form.lower() or topic.name.rsplit("/", 1)[-1].lower() == "compresseddepth"
    return compressed or form.split(";")[0].strip() in _DEPTH_FORMATS


def _depth(topic: Topic, form: str, data: bytes | memoryview, where: str) -> npt.NDArray[Any]:
    """Values of a compressed depth image; ``16UC1; png compressed`` without header is a plain picture."""
    if re.search(r"\b(png|tiff) compressed", form) and "compresseddepth" not in form.lower():
        return decode_depth(bytes(data), where)
    return compressed_depth(form, memoryview(data).cast("B"), where)


def frames_of(
    camera: Camera,
    recording: Recording,
    spec: StreamSpec,
    chosen: npt.NDArray[np.int64],
    config: IngestConfig,
    unit_m: float | None,
) -> Iterator[Frame]:
    """The pictures of the chosen places among `Camera.usable`, which never go back; a place may come repeatedly.

    Raises:
        EpisodeError: a picture is damaged, or of another size than the first.
    """
    pictures = (
        _video_frames(camera, recording, chosen, config)
        if camera.order is not None
        else _message_frames(camera, recording, spec, chosen, config, unit_m)
    )
    last: Frame | None = None
    before = -1
    for place in chosen.tolist():
        if place != before:
            last = next(pictures)
            before = place
        assert last is not None
        yield last


def _message_frames(
    camera: Camera,
    recording: Recording,
    spec: StreamSpec,
    chosen: npt.NDArray[np.int64],
    config: IngestConfig,
    unit_m: float | None,
) -> Iterator[Frame]:
    turner, topic = Turner(config), camera.topic
    for number in camera.usable()[np.unique(chosen)].tolist():
        message = read_message(recording, topic, number)
        where = f"{recording.ref.name}: {topic.name}, message {number}"
        try:
            if camera.kind == "rgb" and topic.role == "compressed":
                content = bytes(as_bytes(message.data))
                if sniff(content) is not None:
                    yield turner.encoded(cut_encoded(content, where), spec, where)
                    continue
                out = decode_other(content, where)
            elif topic.role == "image":
                picture = _raw(message)
                out = raw_rgb(picture, where) if camera.kind == "rgb" else raw_depth(picture, where)
            else:
                out = _depth(topic, str(message.format), as_bytes(message.data), where)
        except DECODE_FAULTS as error:
            if isinstance(error, EpisodeError):
                raise
            raise EpisodeError(f"{where}: cannot be decoded: {str(error)[:200]}.") from error
        if out.shape[:2] != camera.shape[:2]:
            raise EpisodeError(f"{where}: {out.shape[:2]} pixels, the first picture has {camera.shape[:2]}.")
        if topic.role == "compressed" and camera.kind == "rgb":
            yield turner.decoded(out)
        else:
            yield turn(out if camera.kind == "rgb" else depth_to_m(out, unit_m, where), config.orientation)


def _video_frames(
    camera: Camera, recording: Recording, chosen: npt.NDArray[np.int64], config: IngestConfig
) -> Iterator[Frame]:
    wanted = camera.usable()[np.unique(chosen)].tolist()
    assert camera.order is not None
    converter, topic, sequence = Converter(), camera.topic, camera.order.sequence
    place = 0
    for at, frame in decoded(camera.codec, packets(recording, topic, camera.codec, sequence), topic.name):
        number = int(sequence[at])
        if place == len(wanted):
            return
        if number != wanted[place]:
            continue
        if frame.is_corrupt or (frame.height, frame.width) != camera.shape[:2]:
            what = "is damaged" if frame.is_corrupt else f"has {frame.height} x {frame.width} pixels"
            raise EpisodeError(f"{recording.ref.name}: {topic.name}, message {number}: the picture {what}.")
        yield turn(converter.to_rgb(frame), config.orientation)
        place += 1
    if place < len(wanted):
        raise EpisodeError(
            f"{recording.ref.name}: {topic.name}: the picture of message {wanted[place]} never comes out of the "
            "decoder; a message before it is missing or damaged."
        )
