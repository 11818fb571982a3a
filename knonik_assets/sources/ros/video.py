"""Topics of compressed video: one message holds one picture, but pictures depend on others and may change places.

Messages are decoded in the order in which they were stored; which picture came out of which message is told by the
decoder itself (a packet's presentation time is its message's number), never by counting what comes out.
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

__all__ = ["CODECS", "VideoOrder", "decoded", "find_order"]

CODECS = {"h264": "h264", "avc": "h264", "h265": "hevc", "hevc": "hevc", "av1": "libdav1d", "vp9": "vp9"}
"""Format of the message → decoder."""
_FAULTS = (av.error.FFmpegError, ValueError)


@dataclass(frozen=True, slots=True)
class VideoOrder:
    """The pictures of a topic in order of presentation."""

    messages: npt.NDArray[np.int64]
    """(N,) number of the message that holds each."""
    lost: int
    """Messages whose picture cannot be decoded: those before the first keyframe."""
    sequence: npt.NDArray[np.int64]
    """Numbers of all messages in the order in which they are decoded."""


def decoded(codec: str, messages: Iterator[bytes | memoryview], where: str) -> Iterator[tuple[int, av.VideoFrame]]:
    """(number of the message, picture) in order of presentation, to the very last one.

    Raises:
        EpisodeError: a message cannot be decoded, or a picture cannot be told from others.
    """
    context = av.CodecContext.create(codec, "r")
    if not isinstance(context, av.VideoCodecContext):
        raise EpisodeError(f"{where}: {codec} is no codec of video.")
    context.thread_count = 2
    count = -1
    begun = False
    for count, data in enumerate(messages):
        packet = av.Packet(bytes(data))
        packet.pts = packet.dts = count
        try:
            frames = context.decode(packet) if packet.size else []
        except _FAULTS as error:
            # Before the first keyframe nothing can be decoded, and parameter sets alone are no picture.
            if begun and _has_picture(codec, data):
                raise EpisodeError(f"{where}: message {count} of the video cannot be decoded: {error}.") from error
            continue
        begun |= bool(frames)
        yield from _out(frames, where)
    try:
        yield from _out(context.decode(None), where)
    except _FAULTS as error:
        raise EpisodeError(f"{where}: the end of the video cannot be decoded: {error}.") from error


def _has_picture(codec: str, data: bytes | memoryview) -> bool:
    """Whether a message holds part of a picture, not only what describes the pictures to come."""
    if codec not in ("h264", "hevc"):
        return True
    raw = bytes(data)
    first = [raw[match.end()] for match in START_CODE.finditer(raw) if match.end() < len(raw)]
    return any(byte & 31 in (1, 5) if codec == "h264" else byte >> 1 & 63 < 32 for byte in first)


def _out(frames: list[av.VideoFrame], where: str) -> Iterator[tuple[int, av.VideoFrame]]:
    for frame in frames:
        if frame.pts is None:
            raise EpisodeError(f"{where}: a picture came out of the decoder that belongs to no message.")
        yield frame.pts, frame


def find_order(codec: str, messages: Callable[[], Iterator[bytes | memoryview]], count: int, where: str) -> VideoOrder:
    """Decode all of a topic once to learn the order of presentation.

    Raises:
        EpisodeError: nothing can be decoded.
    """
    shown = [number for number, _ in decoded(codec, messages(), where)]
    if not shown:
        raise EpisodeError(f"{where}: no picture of the {codec} video can be decoded; it has no keyframe.")
    return VideoOrder(np.array(shown, np.int64), count - len(shown), np.arange(count))
