"""Topics of compressed video: one message holds one picture, but pictures depend on others and may change places.

Which picture came out of which message is told by the decoder itself (a packet's presentation time is its message's
number), never by counting what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import av
import av.error
import numpy as np
import numpy.typing as npt

from knonik_assets.sources.ros.h264 import START_CODE
from knonik_loader.errors import EpisodeError

__all__ = ["CODECS", "DamagedVideoError", "VideoOrder", "decoded", "find_order"]

CODECS = {"h264": "h264", "avc": "h264", "h265": "hevc", "hevc": "hevc", "av1": "libdav1d", "vp9": "vp9"}
"""Format of the message → decoder."""
_FAULTS = (av.error.FFmpegError, ValueError)


class DamagedVideoError(EpisodeError):
    """A video that begins well holds something that cannot be decoded."""


@dataclass(frozen=True, slots=True)
class VideoOrder:
    """The pictures of a topic in order of presentation."""

    messages: npt.NDArray[np.int64]
    """(N,) number of the message that holds each."""
    early: int
    """Messages before the first keyframe: their pictures cannot be decoded."""
    sequence: npt.NDArray[np.int64]
    """Numbers of all messages in the order in which they are decoded."""
    late: int = 0
    """Messages behind the first keyframe whose pictures cannot be decoded."""


def decoded(codec: str, messages: Iterator[bytes | memoryview], where: str) -> Iterator[tuple[int, av.VideoFrame]]:
    """(number of the message, picture) in order of presentation, to the very last one.

    Raises:
        DamagedVideoError: a message cannot be decoded, or holds several pictures, of which only one has its time.
        EpisodeError: a picture cannot be told from others.
    """
    context = av.CodecContext.create(codec, "r")
    if not isinstance(context, av.VideoCodecContext):
        raise EpisodeError(f"{where}: {codec} is no codec of video.")
    context.thread_count = 2
    try:
        yield from _pictures_of(context, codec, messages, where)
    finally:
        # libdav1d waits for ever when it is closed with pictures in hand that depend on ones that never came.
        context.flush_buffers()


def _pictures_of(
    context: av.VideoCodecContext, codec: str, messages: Iterator[bytes | memoryview], where: str
) -> Iterator[tuple[int, av.VideoFrame]]:
    count = last = -1
    begun = False
    crowded: set[int] = set()
    for count, data in enumerate(messages):
        if _pictures(codec, data) > 1:
            crowded.add(count)
        packet = av.Packet(bytes(data))
        packet.pts = packet.dts = count
        try:
            frames = context.decode(packet) if packet.size else []
        except _FAULTS as error:
            # Before the first keyframe nothing can be decoded, and parameter sets alone are no picture.
            if begun and _has_picture(codec, data):
                raise DamagedVideoError(
                    f"{where}: message {count} of the video cannot be decoded: it is damaged, or one before "
                    "it is missing."
                ) from error
            continue
        begun |= bool(frames)
        for number, frame in _out(frames, last, crowded, where):
            last = number
            yield number, frame
    try:
        yield from _out(context.decode(None), last, crowded, where)
    except _FAULTS as error:
        raise DamagedVideoError(f"{where}: the end of the video cannot be decoded: {error}.") from error


def _units(codec: str, data: bytes | memoryview) -> Iterator[tuple[int, bytes]]:
    """Type and first bytes of the units of a message in H.264 or H.265, those that describe the base picture."""
    raw = bytes(data)
    for match in START_CODE.finditer(raw):
        head = raw[match.end() : match.end() + 3]
        if len(head) < 3:
            continue
        if codec == "h264":
            yield head[0] & 31, head[1:]
        elif not (head[0] & 1 or head[1] >> 3):  # of the base layer
            yield head[0] >> 1 & 63, head[2:]


def _is_slice(codec: str, kind: int) -> bool:
    return kind in (1, 5) if codec == "h264" else kind < 32


def _has_picture(codec: str, data: bytes | memoryview) -> bool:
    """Whether a message holds part of a picture, not only what describes the pictures to come."""
    if codec not in ("h264", "hevc"):
        return True
    return any(_is_slice(codec, kind) for kind, _ in _units(codec, data))


def _pictures(codec: str, data: bytes | memoryview) -> int:
    """How many pictures, or fields of one, begin in a message, where its headers say it: with their first slice."""
    if codec not in ("h264", "hevc"):
        return 1
    return sum(_is_slice(codec, kind) and rest[0] >> 7 for kind, rest in _units(codec, data))


def _out(frames: list[av.VideoFrame], last: int, crowded: set[int], where: str) -> Iterator[tuple[int, av.VideoFrame]]:
    for frame in frames:
        if frame.pts is None:
            raise EpisodeError(f"{where}: a picture came out of the decoder that belongs to no message.")
        if frame.pts == last or (frame.pts in crowded and not frame.interlaced_frame):
            raise DamagedVideoError(
                f"{where}: message {frame.pts} of the video holds more than one picture; write each into a message "
                "of its own, as only messages have a time."
            )
        last = frame.pts
        yield frame.pts, frame


def find_order(
    codec: str, messages: Callable[[], Iterator[bytes | memoryview]], sequence: npt.NDArray[np.int64], where: str
) -> VideoOrder:
    """Decode all of a topic once to learn the order of presentation.

    Args:
        codec: one of the values of `CODECS`.
        messages: gives the messages in the order of ``sequence``.
        sequence: their numbers in the order in which they are to be decoded.
        where: the topic, for messages.

    Raises:
        DamagedVideoError: it begins well and cannot be decoded later.
        EpisodeError: nothing can be decoded.
    """
    pictured: list[bool] = []
    begun = False

    def looked_at() -> Iterator[bytes | memoryview]:
        nonlocal begun
        for data in messages():
            pictured.append(not len(data) or _has_picture(codec, data))
            begun |= bytes(data[:4]) == b"\0\0\0\1"  # so long before the first unit of a picture
            yield data

    shown = [place for place, _ in decoded(codec, looked_at(), where)]
    if not shown:
        why = "it has no keyframe"
        if codec in ("h264", "hevc"):
            why = (
                "it has no keyframe with parameter sets before it"
                if begun
                else "its messages have no start codes (Annex B)"
            )
        raise EpisodeError(f"{where}: no picture of the {codec} video can be decoded; {why}.")
    without = np.setdiff1d(np.flatnonzero(pictured), shown)
    early = int((without < min(shown)).sum())
    return VideoOrder(sequence[shown], early, sequence, len(without) - early)
