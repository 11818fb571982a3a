"""SHDR: one short video a shard, one packet a frame, for the smallest files.

Groups of pictures are closed and hold no B-frames, so that frames come out in the order in which they went in and a
frame is reached from its keyframe. Parameter sets travel inside the packets: a key record decodes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import av
import numpy.typing as npt

from knonik_loader.errors import ConfigError, DecodeError
from knonik_loader.khlp.codecs.common import choice, expect_kind, number, payload
from knonik_loader.khlp.codecs.shdr_encode import VIDEO, ShdrEncoder
from knonik_loader.khlp.colour import Converter
from knonik_loader.khlp.types import Dependency, FrameInput, Record, StreamInfo

__all__ = ["ShdrCodec"]

if TYPE_CHECKING:
    VideoPacket = av.Packet[av.VideoStream]

MAX_PACKET_SLACK = 256 * 256
"""Pixels by which a decoder's padded picture may exceed the stream's frame."""


class ShdrCodec:
    """Frames of one shard as one video segment.

    Parameters: ``codec`` (h264, vp9 or av1; default h264), ``quality`` (the encoder's constant rate factor, where less
    is better; default 22, 24, 30), ``ceiling`` (h264 only: dB of luma PSNR that no shard needs; those that reach more
    are encoded coarser by up to 4; default none), ``gop`` (frames from keyframe to keyframe, default 10), ``chroma``
    (420, or 444 except with av1).
    """

    name: ClassVar[str] = "shdr"
    dependency: ClassVar[Dependency] = "chain"

    def __init__(self, info: StreamInfo) -> None:
        expect_kind(info, "rgb", 3)
        self._info = info
        self.video = VIDEO[choice(info, "codec", "h264", VIDEO)]
        self.quality = number(info, "quality", self.video.quality, 0, self.video.worst)
        self.ceiling = number(info, "ceiling", 0, 20, 100) or None
        if self.ceiling and self.video.decoder != "h264":
            raise ConfigError(f"stream {info.key!r}: ceiling is for codec h264, not {self.video.encoder}")
        self.gop = int(number(info, "gop", 10, 1, 65_535))
        self.pixel_format = f"yuv{choice(info, 'chroma', '420', self.video.chromas)}p"
        self._converter = Converter()
        self._decoder: av.VideoCodecContext | None = None
        # even sides: what the encoder was given
        self.coded = (info.shape[0] + info.shape[0] % 2, info.shape[1] + info.shape[1] % 2)

    def encode(self, frames: Iterable[FrameInput]) -> list[Record]:
        """One record a frame; frames are uint8 (H, W, 3) RGB, or JPEG bytes, which are decoded."""
        return ShdrEncoder(self._info, self).encode(frames)

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
            if frame.is_corrupt or (frame.height, frame.width) != self.coded:
                raise DecodeError(
                    f"{self._where(row)}: the picture is damaged, or {frame.height}x{frame.width} instead of "
                    f"{self.coded[0]}x{self.coded[1]}"
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

    def _make_decoder(self) -> av.VideoCodecContext:
        context = cast("av.VideoCodecContext", av.CodecContext.create(self.video.decoder, "r"))
        context.thread_count = 1
        pixels = self.coded[0] * self.coded[1] + MAX_PACKET_SLACK + 256 * sum(self.coded)
        # damage is an error, never something to paint over; and no header may ask for endless memory
        context.options = {"err_detect": "explode", "max_pixels": str(pixels)}
        return context

    def _where(self, row: int) -> str:
        return f"stream {self._info.key!r}, row {row}"
