"""Encoding of SHDR: settings by which frames come out in order, decode fast and cost no more than they show."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol, cast

import av
import numpy as np
import numpy.typing as npt

from knonik_loader.errors import ConfigError, PackError
from knonik_loader.khlp.codecs.common import check_array
from knonik_loader.khlp.codecs.kimg import jpeg_pixels
from knonik_loader.khlp.colour import Converter, tag_context
from knonik_loader.khlp.types import FrameInput, Record, StreamInfo

__all__ = ["VIDEO", "ShdrEncoder", "Video", "without_sei"]

if TYPE_CHECKING:
    VideoPacket = av.Packet[av.VideoStream]

PROBE = 10
"""Frames at a shard's begin from which is told how coarsely it may be encoded."""

STEP_DB, MOST_STEPS = 0.75, 4
"""What a step of H.264's quantiser costs in dB of luma, rounded up, and how many may be taken."""


@dataclass(frozen=True, slots=True)
class Video:
    """How one video codec is asked for frames that come out in order and decode fast."""

    encoder: str
    decoder: str
    quality: int
    worst: int
    chromas: tuple[str, ...]
    options: Mapping[str, str]


VIDEO = {
    "h264": Video(
        "libx264",
        "h264",
        22,
        51,
        ("420", "444"),
        # fastdecode drops what makes windows slow to decode; annexb and repeat-headers make key packets self-contained.
        # psy=0, aq-mode=0, qcomp=1: one quantiser for all blocks and frames. What x264 does for the eye spends a fifth
        # of the bytes on noise and loses luma PSNR; and it gives the most bits to pictures that need the fewest.
        # ipratio=1.6: what stands still is skipped from the keyframe on, which pays for a better one.
        # mbtree=0: x264's macroblock tree reads memory that nobody wrote, so that one encode in a hundred gave other
        # bytes at the picture's lower right corner; without it 2,400 of 2,400 segments came out the same.
        {
            "preset": "medium",
            "tune": "fastdecode",
            "x264-params": (
                "annexb=1:repeat-headers=1:scenecut=0:bframes=0:mbtree=0:psy=0:aq-mode=0:qcomp=1:ipratio=1.6"
            ),
        },
    ),
    "vp9": Video(
        "libvpx-vp9",
        "vp9",
        24,
        63,
        ("420", "444"),
        # without lag and alternate references every packet is one shown frame
        {"b": "0", "deadline": "good", "cpu-used": "4", "auto-alt-ref": "0", "lag-in-frames": "0", "row-mt": "0"},
    ),
    "av1": Video(
        "libsvtav1",
        "libdav1d",
        30,
        63,
        ("420",),
        # low delay, one level of parallelism: frames in order, and the same bytes on every machine
        {"preset": "8", "svtav1-params": "pred-struct=1:lp=1"},
    ),
}


class _Settings(Protocol):
    video: Video
    quality: float
    ceiling: float | None
    gop: int
    pixel_format: str
    coded: tuple[int, int]


class ShdrEncoder:
    """Encodes the frames of one shard."""

    def __init__(self, info: StreamInfo, settings: _Settings) -> None:
        self._info = info
        self._set = settings
        self._converter = Converter()

    def encode(self, frames: Iterable[FrameInput]) -> list[Record]:
        """One record a frame."""
        pictures = self._pictures(frames)
        quality = self._set.quality
        if self._set.ceiling is not None:
            first = list(islice(pictures, PROBE))
            quality = self._fitting(first, self._set.ceiling)
            pictures = chain(first, pictures)
        packets = self._packets(pictures, quality)
        records, key = [], 0
        for row, packet in enumerate(packets):
            key = row if packet.is_keyframe else key
            data = bytes(packet)
            data = without_sei(data) if self._set.video.decoder == "h264" else data
            records.append(Record(data, key_back=row - key))
        return records

    def _pictures(self, frames: Iterable[FrameInput]) -> Iterator[av.VideoFrame]:
        for row, frame in enumerate(frames):
            yield self._converter.to_yuv(self._pixels(frame, row), self._set.pixel_format)

    def _pixels(self, frame: FrameInput, row: int) -> npt.NDArray[np.uint8]:
        if isinstance(frame, bytes):
            return jpeg_pixels(self._info, frame, row)
        return check_array(self._info, frame, self._info.shape, "uint8")

    def _fitting(self, pictures: list[av.VideoFrame], ceiling: float) -> float:
        """The quality at which a shard that begins so is not much better than it needs to be.

        Rendered scenes without noise come out 10 dB better than filmed ones at the same quantiser, for bytes that no
        training sees.
        """
        if not pictures:
            return self._set.quality
        decoder = cast("av.VideoCodecContext", av.CodecContext.create(self._set.video.decoder, "r"))
        decoder.thread_count = 1
        decoded = [
            frame
            for packet in [*self._packets(iter(pictures), self._set.quality), None]
            for frame in decoder.decode(packet)
        ]
        error = float(np.mean([_luma_error(*pair) for pair in zip(pictures, decoded, strict=True)]))
        over = (10 * math.log10(255**2 / error) if error else math.inf) - ceiling
        steps = min(MOST_STEPS, max(0.0, over) // STEP_DB)
        return min(self._set.quality + steps, self._set.video.worst)

    def _packets(self, pictures: Iterable[av.VideoFrame], quality: float) -> list[VideoPacket]:
        context = self._make_encoder(quality)
        packets: list[VideoPacket] = []
        count = 0
        for row, picture in enumerate(pictures):
            picture.pts, picture.time_base = row, context.time_base
            packets += context.encode(picture)
            count += 1
        if not count:
            return []
        packets += context.encode(None)
        if [packet.pts for packet in packets] != list(range(count)) or not packets[0].is_keyframe:
            raise PackError(
                f"stream {self._info.key!r}: encoder {self._set.video.encoder} made {len(packets)} packets for {count} "
                f"frames, or reordered them"
            )
        return packets

    def _make_encoder(self, quality: float) -> av.VideoCodecContext:
        video = self._set.video
        if video.encoder == "libsvtav1":
            # the encoder greets on standard error and can be told not to only like this
            os.environ.setdefault("SVT_LOG", "1")
        try:
            context = cast("av.VideoCodecContext", av.CodecContext.create(video.encoder, "w"))
        except ValueError as error:
            raise ConfigError(
                f"stream {self._info.key!r}: this installation of PyAV has no encoder {video.encoder}"
            ) from error
        context.height, context.width = self._set.coded
        context.pix_fmt = self._set.pixel_format
        rate = Fraction(self._info.fps).limit_denominator(1001)
        context.framerate, context.time_base = rate, 1 / rate
        context.gop_size, context.max_b_frames = self._set.gop, 0
        # one thread: the bytes of some encoders depend on how many there are
        context.thread_count = 1
        tag_context(context)
        context.options = {**video.options, "crf": f"{quality:g}", "keyint_min": str(self._set.gop)}
        return context


def _luma_error(one: av.VideoFrame, other: av.VideoFrame) -> float:
    """Mean squared difference of two pictures' luma, in levels of full range."""
    planes = [
        np.frombuffer(memoryview(frame.planes[0]), np.uint8)
        .reshape(frame.height, -1)[:, : frame.width]
        .astype(np.float32)
        for frame in (one, other)
    ]
    # limited range has 219 steps from black to white
    return float(np.square(planes[0] - planes[1]).mean()) * (255 / 219) ** 2


def without_sei(data: bytes) -> bytes:
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
