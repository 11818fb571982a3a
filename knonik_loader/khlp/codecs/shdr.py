"""SHDR: one short video a shard, one packet a frame, for the smallest files.

Groups of pictures are closed and hold no B-frames, so that frames come out in the order in which they went in and a
frame is reached from its keyframe. Parameter sets travel inside the packets: a key record decodes alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, cast

import av
import numpy as np
import numpy.typing as npt

from knonik_loader.errors import ConfigError, DecodeError, PackError
from knonik_loader.khlp.codecs import jpeg
from knonik_loader.khlp.codecs.common import check_array, choice, expect_kind, number, payload
from knonik_loader.khlp.codecs.kimg import check_jpeg
from knonik_loader.khlp.colour import Converter, tag_context
from knonik_loader.khlp.types import Dependency, FrameInput, Record, StreamInfo

__all__ = ["ShdrCodec"]

if TYPE_CHECKING:
    VideoPacket = av.Packet[av.VideoStream]


@dataclass(frozen=True, slots=True)
class _Video:
    """How one video codec is asked for frames that come out in order and decode fast."""

    encoder: str
    decoder: str
    quality: int
    worst: int
    chromas: tuple[str, ...]
    options: Mapping[str, str]


VIDEO = {
    "h264": _Video(
        "libx264",
        "h264",
        18,
        51,
        ("420", "444"),
        # fastdecode drops what makes windows slow to decode; annexb and repeat-headers make key packets self-contained.
        # mbtree=0: x264's macroblock tree reads memory that nobody wrote, so that one encode in a hundred gave other
        # bytes at the picture's lower right corner; without it 2,400 of 2,400 segments came out the same.
        {
            "preset": "medium",
            "tune": "fastdecode",
            "x264-params": "annexb=1:repeat-headers=1:scenecut=0:bframes=0:mbtree=0",
        },
    ),
    "vp9": _Video(
        "libvpx-vp9",
        "vp9",
        24,
        63,
        ("420", "444"),
        # without lag and alternate references every packet is one shown frame
        {"b": "0", "deadline": "good", "cpu-used": "4", "auto-alt-ref": "0", "lag-in-frames": "0", "row-mt": "0"},
    ),
    "av1": _Video(
        "libsvtav1",
        "libdav1d",
        30,
        63,
        ("420",),
        # low delay, one level of parallelism: frames in order, and the same bytes on every machine
        {"preset": "8", "svtav1-params": "pred-struct=1:lp=1"},
    ),
}

MAX_PACKET_SLACK = 256 * 256
"""Pixels by which a decoder's padded picture may exceed the stream's frame."""


class ShdrCodec:
    """Frames of one shard as one video segment.

    Parameters: ``codec`` (h264, vp9 or av1; default h264), ``quality`` (the encoder's constant rate factor, where less
    is better; default 18, 24, 30), ``gop`` (frames from keyframe to keyframe, default 10), ``chroma`` (420, or 444
    except with av1).
    """

    name: ClassVar[str] = "shdr"
    dependency: ClassVar[Dependency] = "chain"

    def __init__(self, info: StreamInfo) -> None:
        expect_kind(info, "rgb", 3)
        self._info = info
        self._video = VIDEO[choice(info, "codec", "h264", VIDEO)]
        self._quality = number(info, "quality", self._video.quality, 0, self._video.worst)
        self._gop = int(number(info, "gop", 10, 1, 65_535))
        self._pixel_format = f"yuv{choice(info, 'chroma', '420', self._video.chromas)}p"
        self._converter = Converter()
        self._decoder: av.VideoCodecContext | None = None
        # even sides: what the encoder was given
        self._height, self._width = (side + side % 2 for side in info.shape[:2])

    def encode(self, frames: Iterable[FrameInput]) -> list[Record]:
        """One record a frame; frames are uint8 (H, W, 3) RGB, or JPEG bytes, which are decoded."""
        context = self._make_encoder()
        packets: list[VideoPacket] = []
        count = 0
        for row, frame in enumerate(frames):
            picture = self._converter.to_yuv(self._pixels(frame, row), self._pixel_format)
            picture.pts, picture.time_base = row, context.time_base
            packets += context.encode(picture)
            count += 1
        if not count:
            return []
        packets += context.encode(None)
        if [packet.pts for packet in packets] != list(range(count)) or not packets[0].is_keyframe:
            raise PackError(
                f"stream {self._info.key!r}: encoder {self._video.encoder} made {len(packets)} packets for {count} "
                f"frames, or reordered them"
            )
        records, key = [], 0
        for row, packet in enumerate(packets):
            key = row if packet.is_keyframe else key
            data = bytes(packet)
            records.append(Record(_without_sei(data) if self._video.decoder == "h264" else data, key_back=row - key))
        return records

    def decode(
        self, records: Mapping[int, memoryview], wanted: Sequence[int], out: Mapping[int, npt.NDArray[Any]]
    ) -> None:
        """Decode from the keyframe to the last wanted frame, and write the wanted ones."""
        if not wanted:
            return
        first, last = min(records, default=wanted[0]), wanted[-1]
        packets: list[VideoPacket] = []
        for row in range(first, last + 1):
            data = payload(self._info, records, row)
            if not data:  # would end the stream
                raise DecodeError(f"{self._where(row)}: the packet is empty")
            packet = cast("VideoPacket", av.Packet(cast("bytes", data)))
            packet.pts = packet.dts = row
            packets.append(packet)
        missing = set(wanted)
        for frame in self._frames(packets, first):
            if frame.pts not in missing:
                continue
            row = int(frame.pts)
            if frame.is_corrupt or (frame.height, frame.width) != (self._height, self._width):
                raise DecodeError(
                    f"{self._where(row)}: the picture is damaged, or {frame.height}x{frame.width} instead of "
                    f"{self._height}x{self._width}"
                )
            missing.discard(row)
            out[row][...] = self._converter.to_rgb(frame, *self._info.shape[:2])
        if missing:
            raise DecodeError(f"{self._where(min(missing))}: the video holds no picture for it")

    def _frames(self, packets: list[VideoPacket], first: int) -> list[av.VideoFrame]:
        """All pictures of a group; they carry their row as presentation time."""
        decoder = self._decoder = self._decoder or self._make_decoder()
        frames: list[av.VideoFrame] = []
        try:
            for packet in packets:
                frames += decoder.decode(packet)
            frames += decoder.decode(None)
            # ready for the next group, with nothing left of this one
            decoder.flush_buffers()
        except (av.FFmpegError, ValueError) as error:
            self._decoder = None
            raise DecodeError(f"{self._where(first)} and on: the video does not decode: {error}") from error
        return frames

    def _make_encoder(self) -> av.VideoCodecContext:
        if self._video.encoder == "libsvtav1":
            # the encoder greets on standard error and can be told not to only like this
            os.environ.setdefault("SVT_LOG", "1")
        try:
            context = cast("av.VideoCodecContext", av.CodecContext.create(self._video.encoder, "w"))
        except ValueError as error:
            raise ConfigError(
                f"stream {self._info.key!r}: this installation of PyAV has no encoder {self._video.encoder}"
            ) from error
        context.height, context.width = self._height, self._width
        context.pix_fmt = self._pixel_format
        rate = Fraction(self._info.fps).limit_denominator(1001)
        context.framerate, context.time_base = rate, 1 / rate
        context.gop_size, context.max_b_frames = self._gop, 0
        # one thread: the bytes of some encoders depend on how many there are
        context.thread_count = 1
        tag_context(context)
        context.options = {**self._video.options, "crf": f"{self._quality:g}", "keyint_min": str(self._gop)}
        return context

    def _make_decoder(self) -> av.VideoCodecContext:
        context = cast("av.VideoCodecContext", av.CodecContext.create(self._video.decoder, "r"))
        context.thread_count = 1
        pixels = self._height * self._width + MAX_PACKET_SLACK + 256 * (self._height + self._width)
        # damage is an error, never something to paint over; and no header may ask for endless memory
        context.options = {"err_detect": "explode", "max_pixels": str(pixels)}
        return context

    def _pixels(self, frame: FrameInput, row: int) -> npt.NDArray[np.uint8]:
        if isinstance(frame, bytes):
            check_jpeg(self._info, frame, row)
            out = np.empty(self._info.shape, np.uint8)
            return jpeg.decode_into(frame, out, f"stream {self._info.key!r}, frame {row}")
        return check_array(self._info, frame, self._info.shape, "uint8")

    def _where(self, row: int) -> str:
        return f"stream {self._info.key!r}, row {row}"


def _without_sei(data: bytes) -> bytes:
    """An Annex B packet without its supplemental messages: x264 writes 700 bytes about itself into every segment."""
    out = bytearray()
    begin = data.find(b"\0\0\1")
    while begin >= 0:
        end = data.find(b"\0\0\1", begin + 3)
        unit = data[begin + 3 : end if end >= 0 else None]
        if unit and unit[0] & 31 != 6:
            # zeros before the next start code belong to that code
            out += b"\0\0\0\1" + (unit.rstrip(b"\0") if end >= 0 else unit)
        begin = end
    return bytes(out)
