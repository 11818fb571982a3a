"""Where colour frames end up: an encoder, a file of JPEGs, or a file of copied packets."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import av.error
import numpy as np
import numpy.typing as npt
import simplejpeg
from av.codec.context import Flags
from av.video.frame import PictureType

from knonik_assets.configs.presets import RgbPreset
from knonik_assets.episodes.video import (
    TIME_BASE,
    PacketTable,
    encoder_name,
    encoder_options,
    frame_pts,
    media_errors,
)
from knonik_assets.episodes.video_read import frames
from knonik_assets.sources.base import EncodedImage, Frame
from knonik_assets.sources.images import image_shape
from knonik_loader.errors import EpisodeError
from knonik_loader.khlp.colour import Converter, tag_context

__all__ = ["CheckedJpeg", "EncoderSink", "JpegSink", "PacketSink", "checked_jpeg", "jpeg_size", "keep_packets"]

_LONG_BEFORE = 1 << 31


@dataclass(frozen=True, slots=True)
class CheckedJpeg(EncodedImage):
    """A JPEG that `jpeg_size` has looked at already."""

    size: tuple[int, int]
    """(height, width)."""


def checked_jpeg(image: EncodedImage, where: str) -> CheckedJpeg:
    """The same JPEG, which `jpeg_size` need not check again; any thread may do it, and leaves others to work.

    Raises:
        EpisodeError: as `jpeg_size`.
    """
    return CheckedJpeg(image.data, "jpeg", jpeg_size(image, where))


def jpeg_size(image: EncodedImage, where: str) -> tuple[int, int]:
    """(height, width) of a JPEG that is to be stored as it is, checked by decoding it.

    Decoding to an eighth of the size reads every byte and costs a third of a full decode.

    Raises:
        EpisodeError: not a JPEG that the loader can decode to RGB, damaged, or its end is missing.
    """
    if isinstance(image, CheckedJpeg):
        return image.size
    size = image_shape(image, where)
    if not image.data.endswith(b"\xff\xd9"):
        raise EpisodeError(f"{where}: the JPEG does not end with its end marker: it is truncated, or padded")
    try:
        simplejpeg.decode_jpeg(image.data, "RGB", True, True, 1, 1, 8, strict=True)
    except ValueError as error:
        raise EpisodeError(f"{where}: damaged JPEG: {error}") from error
    return size


class _Sink:
    """A Matroska or WebM file with one video stream."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._closed = False
        with media_errors("write", path, "cannot open"):
            # Without this flag the file would hold a random id and the library's version.
            self._container = av.open(
                str(path),
                "w",
                format="webm" if path.suffix == ".webm" else "matroska",
                container_options={"fflags": "+bitexact", "avoid_negative_ts": "disabled"},
            )

    def close(self, where: str) -> None:
        """Write what is still held back, and the index."""
        if not self._closed:
            with media_errors("write", self.path, where):
                self._flush()
                self._closed = True
                self._container.close()

    def abort(self) -> None:
        """Close without caring for the content."""
        if not self._closed:
            self._closed = True
            with suppress(av.error.FFmpegError):
                self._container.close()

    def _flush(self) -> None:
        pass

    def _check_count(self, table: PacketTable, count: int, where: str) -> None:
        if len(table.pts) != count:
            raise EpisodeError(f"{where}: {count} frames went in, but {self.path.name} holds {len(table.pts)}")


class _TimedSink(_Sink):
    """A sink that gives the times itself."""

    def __init__(self, path: Path, fps: float) -> None:
        super().__init__(path)
        self._fps = fps
        self._times: list[int] = []

    def _next_pts(self) -> int:
        return frame_pts(self._times[-1] if self._times else None, len(self._times), self._fps)

    def forget(self, length: int) -> None:
        """The closed file was cut to its first ``length`` frames."""
        del self._times[length:]

    def _check_table(self, table: PacketTable, count: int, gop: int, where: str) -> None:
        self._check_count(table, count, where)
        wrong = (table.pts != self._times) | (table.is_key != (np.arange(count) % gop == 0))
        if wrong.any():
            raise EpisodeError(
                f"{where}: frame {int(wrong.argmax())} of {self.path.name} came back from the file with another "
                "time or keyframe flag than it was written with"
            )


class EncoderSink(_TimedSink):
    """Encodes with VP9, AV1 or H.264: closed groups of exactly ``gop`` frames, no B-frames, tagged colours."""

    def __init__(self, path: Path, size: tuple[int, int], codec: str, rgb: RgbPreset, fps: float) -> None:
        super().__init__(path, fps)
        self._codec, self._rgb = codec, rgb
        self._pixel_format = f"yuv{rgb.chroma}p"
        self._converter = Converter()
        # The declared rate only steers rate control; SVT-AV1 refuses rates outside 1 to 240.
        rate = Fraction(min(max(fps, 1.0), 240.0)).limit_denominator(1001)
        os.environ.setdefault("SVT_LOG", "1")  # else SVT-AV1 writes its settings to stderr for every file
        self._stream = cast("av.VideoStream", self._container.add_stream(encoder_name(codec), rate=rate))
        context = self._stream.codec_context
        context.height, context.width = size[0] + size[0] % 2, size[1] + size[1] % 2
        context.pix_fmt = self._pixel_format
        context.time_base = TIME_BASE
        context.gop_size = rgb.gop
        context.max_b_frames = 0
        context.thread_count = 1
        context.flags |= Flags.closed_gop
        context.options = encoder_options(codec, rgb)
        tag_context(context)
        try:
            context.open(strict=False)
        except av.error.FFmpegError as error:
            self.abort()
            raise EpisodeError(
                f"{path.name}: {encoder_name(codec)} cannot encode {size[1]}x{size[0]} pictures as "
                f"{self._pixel_format}; choose another rgb.codec"
            ) from error

    def push(self, frame: Frame, where: str) -> None:
        """Encode one (H, W, 3) uint8 picture."""
        assert isinstance(frame, np.ndarray)
        picture = self._converter.to_yuv(frame, self._pixel_format)
        picture.pts, picture.time_base = self._next_pts(), TIME_BASE
        picture.pict_type = PictureType.I if len(self._times) % self._rgb.gop == 0 else PictureType.NONE
        with media_errors("write", self.path, where):
            self._container.mux(self._stream.encode(picture))
        self._times.append(picture.pts)

    def verify(self, table: PacketTable, count: int, where: str) -> None:
        """Check the file's packets against what was pushed."""
        self._check_table(table, count, self._rgb.gop, where)

    def params(self) -> dict[str, Any]:
        """Settings of the encoder."""
        rgb = self._rgb
        return {
            "codec": self._codec,
            "encoder": encoder_name(self._codec),
            "quality": rgb.quality,
            "gop": rgb.gop,
            "speed": rgb.speed,
            "chroma": rgb.chroma,
            "pixel_format": self._pixel_format,
            "colour": "bt601-limited",
        }

    def _flush(self) -> None:
        self._container.mux(self._stream.encode(None))


class JpegSink(_TimedSink):
    """Stores JPEGs, one a frame: the source's own bytes, or arrays encoded here."""

    def __init__(self, path: Path, size: tuple[int, int], rgb: RgbPreset, fps: float) -> None:
        super().__init__(path, fps)
        self._rgb = rgb
        self._passed: list[bool] = []
        """Of each frame: whether it came encoded."""
        rate = Fraction(min(max(fps, 1.0), 1000.0)).limit_denominator(1001)
        self._stream = self._container.add_mux_stream("mjpeg", rate=rate, width=size[1], height=size[0])
        self._stream.time_base = TIME_BASE

    def push(self, frame: Frame, where: str) -> None:
        """Store a JPEG byte for byte, or encode one (H, W, 3) uint8 picture."""
        data = frame.data if isinstance(frame, EncodedImage) else self._encode(frame)
        packet = av.Packet(data)
        packet.stream = self._stream
        packet.pts = packet.dts = self._next_pts()
        packet.time_base = TIME_BASE
        packet.is_keyframe = True
        pts = packet.pts  # muxing rewrites the packet's own
        with media_errors("write", self.path, where):
            self._container.mux(packet)
        self._times.append(pts)
        self._passed.append(isinstance(frame, EncodedImage))

    def forget(self, length: int) -> None:
        """The closed file was cut to its first ``length`` frames."""
        super().forget(length)
        del self._passed[length:]

    def verify(self, table: PacketTable, count: int, where: str) -> None:
        """Check the file's packets against what was pushed."""
        self._check_table(table, count, 1, where)

    def params(self) -> dict[str, Any]:
        """Settings of the encoder, and how many pictures came encoded."""
        out: dict[str, Any] = {
            "codec": "jpeg",
            "quality": self._rgb.quality,
            "chroma": self._rgb.chroma,
            "passed_through": sum(self._passed),
        }
        if all(self._passed):
            # Nothing was encoded here, so these knobs had nothing to do.
            out["inactive"] = ["rgb.quality", "rgb.chroma"]
        return out

    def _encode(self, image: npt.NDArray[Any]) -> bytes:
        return bytes(
            simplejpeg.encode_jpeg(
                np.ascontiguousarray(image),
                quality=self._rgb.quality,
                colorspace="RGB",
                colorsubsampling=self._rgb.chroma,
                fastdct=False,
            )
        )


def keep_packets(path: Path, length: int, where: str) -> None:
    """Cut a file that one of these sinks wrote to its first ``length`` packets.

    Our encoders look neither ahead nor back over a frame, so packets stand in order of presentation and none needs a
    later one.

    Raises:
        EpisodeError: the file is damaged or shorter.
        StorageError: the disk refuses.
    """
    whole = path.with_name(f"whole_{path.name}")
    with media_errors("cut", path, where):
        path.rename(whole)
    with media_errors("read", whole, where), av.open(str(whole)) as source:
        stream = source.streams.video[0]
        sink = PacketSink(path, stream.codec_context.codec.canonical_name, stream, 0)
        try:
            for packet in itertools.islice((found for found in source.demux(stream) if found.size), length):
                sink.push(packet, where)
            sink.close(where)
        except BaseException:
            sink.abort()
            raise
    with media_errors("cut", path, where):
        whole.unlink()


class PacketSink(_Sink):
    """Copies a source video's own packets; times are the source's, from its first keyframe on."""

    def __init__(self, path: Path, codec: str, source: av.VideoStream, first_pts: int) -> None:
        super().__init__(path)
        context = source.codec_context
        self.size = (context.height, context.width)
        self._codec = codec
        self._pixel_format = context.pix_fmt
        self._first_pts = first_pts
        self._pushed = 0
        with media_errors("write", path, "the container does not take this codec"):
            self._stream = self._container.add_stream_from_template(source, opaque=True)

    def push(self, packet: av.Packet[av.VideoStream], where: str) -> None:
        """Write one packet in decoding order."""
        if packet.pts is None or packet.is_corrupt or packet.is_discard:
            raise EpisodeError(f"{where}: the packet is damaged, hidden by an edit list, or without presentation time")
        if packet.pts < self._first_pts:
            raise EpisodeError(f"{where}: the packet is shown before the first keyframe and needs what came before it")
        scale = packet.time_base / TIME_BASE
        pts = round((packet.pts - self._first_pts) * scale)
        packet.stream = self._stream
        # Matroska stores no decoding times; FFmpeg only wants them to rise and to lie before every time to come.
        packet.pts, packet.dts, packet.time_base = pts, self._pushed - _LONG_BEFORE, TIME_BASE
        self._pushed += 1
        with media_errors("write", self.path, where):
            self._container.mux(packet)

    def verify(self, table: PacketTable, count: int, where: str) -> None:
        """Check the count, and that the first and last group of pictures decode to all their frames."""
        self._check_count(table, count, where)
        second = int(np.flatnonzero(table.is_key)[1]) if table.is_key.sum() > 1 else count
        for start, stop in ((0, second), (table.key_before(count - 1), count)):
            for rank, frame in enumerate(frames(self.path, table, start, stop), start):
                if (frame.height, frame.width) != self.size or frame.rotation:
                    raise EpisodeError(
                        f"{where}: cannot copy packets: frame {rank} is {frame.width}x{frame.height} "
                        f"turned by {frame.rotation} degrees in a stream of {self.size[1]}x{self.size[0]}"
                    )

    def params(self) -> dict[str, Any]:
        """What the source's stream is."""
        return {"codec": self._codec, "copied": True, "pixel_format": self._pixel_format}
