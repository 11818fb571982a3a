"""Topics of compressed video: one message holds one picture, but pictures depend on others and may change places.

Messages are decoded in the order in which they were stored; which picture came out of which message is told by the
decoder itself (a packet's presentation time is its message's number), never by counting what comes out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import av
import av.error
import numpy as np
import numpy.typing as npt

from knonik_loader.errors import EpisodeError

__all__ = ["CODECS", "H264Look", "VideoOrder", "decoded"]

CODECS = {"h264": "h264", "avc": "h264", "h265": "hevc", "hevc": "hevc", "av1": "libdav1d", "vp9": "vp9"}
"""Format of the message → decoder."""
_FAULTS = (av.error.FFmpegError, ValueError)
_START = re.compile(rb"\x00\x00\x01")
_B_SLICES = (1, 6)


@dataclass(frozen=True, slots=True)
class VideoOrder:
    """The pictures of a topic in order of presentation."""

    messages: npt.NDArray[np.int64]
    """(N,) number of the message that holds each."""
    lost: int
    """Messages whose picture cannot be decoded: those before the first keyframe."""
    sequence: npt.NDArray[np.int64]
    """Numbers of all messages in the order in which they are decoded."""


@dataclass(slots=True)
class H264Look:
    """Tells without decoding which H.264 messages hold a picture, and whether pictures change places."""

    kinds: list[int] = field(default_factory=list)
    """Of every message: 0 no picture, 1 a picture, 2 a picture that depends on no other."""
    reordered: bool = False

    def add(self, data: bytes | memoryview) -> None:
        """Look at the next message (Annex B)."""
        raw = bytes(data)
        found = 0
        for match in _START.finditer(raw):
            at = match.end()
            kind = raw[at] & 31 if at < len(raw) else 0
            if kind in (1, 5):
                found = max(found, 2 if kind == 5 else 1)
                self.reordered |= _slice_type(raw[at + 1 : at + 16]) in _B_SLICES
        self.kinds.append(found)

    def order(self, sequence: npt.NDArray[np.int64]) -> VideoOrder | None:
        """The order of presentation where it is that of the messages; None where only decoding can tell.

        Args:
            sequence: numbers of the messages in the order in which they are to be decoded.
        """
        kinds = np.array(self.kinds)[sequence]
        keys = np.flatnonzero(kinds == 2)
        if self.reordered or not len(keys):
            return None
        start = keys[0]
        shown = sequence[start:][kinds[start:] > 0]
        return VideoOrder(shown, int((kinds[:start] > 0).sum()), sequence)


def _slice_type(head: bytes) -> int:
    """The second Exp-Golomb number of a slice header (ITU-T H.264, 7.3.3 and 9.1)."""
    bits = "".join(f"{byte:08b}" for byte in head)
    at = 0
    value = 0
    for _ in range(2):
        zeros = len(bits) - at - len(bits[at:].lstrip("0"))
        if at + 2 * zeros + 1 > len(bits):
            return 0
        value = int(bits[at + zeros : at + 2 * zeros + 1], 2) - 1
        at += 2 * zeros + 1
    return value


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
    first = [raw[match.end()] for match in _START.finditer(raw) if match.end() < len(raw)]
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
