"""Writing one colour stream of an episode: by encoding frames, storing JPEGs, or copying packets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import av

from knonik_assets.configs.presets import RgbPreset
from knonik_assets.episodes.video import FALLBACK_CODEC, array_of, scan, suffix
from knonik_assets.episodes.video_sinks import EncoderSink, JpegSink, PacketSink, jpeg_size, keep_packets
from knonik_assets.sources.base import EncodedImage, Frame
from knonik_assets.sources.images import decode_image
from knonik_loader.errors import EpisodeError

__all__ = ["RgbStream"]


class RgbStream:
    """One colour stream being written. One thread at a time; different streams are independent."""

    def __init__(self, folder: Path, name: str, rgb: RgbPreset, fps: float) -> None:
        self.folder = folder
        self.name = name
        self.fps = fps
        self.count = 0
        """Frames accepted so far."""
        self._rgb = rgb
        self._codec = FALLBACK_CODEC if rgb.codec == "copy" else rgb.codec
        self._size: tuple[int, int] | None = None
        self._sink: EncoderSink | JpegSink | PacketSink | None = None
        self._decoded = 0

    @property
    def path(self) -> Path | None:
        """The stream's file; None as long as nothing was pushed."""
        return self._sink.path if self._sink is not None else None

    def push(self, frame: Frame) -> None:
        """Write the next frame; a frame that is refused leaves the stream as it was.

        Args:
            frame: (H, W, 3) uint8 RGB, or an encoded picture. JPEG bytes are stored as they are when the codec is jpeg.

        Raises:
            EpisodeError: no such picture, or not of the first frame's size.
            StorageError: the disk refuses.
        """
        if isinstance(self._sink, PacketSink):
            raise EpisodeError(f"{self._where()}: the stream was copied as packets and takes no further frames")
        if isinstance(frame, EncodedImage) and not (frame.format == "jpeg" and self._codec == "jpeg"):
            frame = decode_image(frame, self._where())
            self._decoded += 1
        size = self._check(frame)
        if self._sink is None:
            path = self.folder / f"rgb_{self.name}{suffix(self._codec)}"
            if self._codec == "jpeg":
                self._sink = JpegSink(path, size, self._rgb, self.fps)
            else:
                self._sink = EncoderSink(path, size, self._codec, self._rgb, self.fps)
            self._size = size
        self._sink.push(frame, self._where())
        self.count += 1

    def copy(self, stream: av.VideoStream, packets: Iterable[av.Packet[av.VideoStream]]) -> None:
        """Copy a source video's packets unchanged into an empty stream, close its file and check it.

        Raises:
            EpisodeError: the packets cannot be copied (they don't begin with a keyframe, say). The stream is
                empty then and still takes frames by `push`.
            StorageError: the disk refuses.
        """
        if self._sink is not None:
            raise EpisodeError(f"{self._where()}: packets can only be copied into an empty stream")
        remaining = iter(packets)
        first = next((packet for packet in remaining if packet.size), None)
        if first is None or not first.is_keyframe or first.pts is None:
            why = "there are none" if first is None else "the first is no keyframe with a presentation time"
            raise EpisodeError(f"{self._where()}: cannot copy packets: {why}; encode the frames instead")
        # FFmpeg's own name of the codec: a context's name is that of a decoder, such as libdav1d.
        codec = stream.codec_context.codec.canonical_name
        sink = PacketSink(self.folder / f"rgb_{self.name}{suffix(codec)}", codec, stream, first.pts)
        count = 0
        try:
            for packet in itertools.chain((first,), remaining):
                if packet.size:
                    sink.push(packet, f"stream 'rgb_{self.name}', packet {count}")
                    count += 1
            sink.close(self._where())
            sink.verify(scan(sink.path), count, self._where())
        except BaseException:
            sink.abort()
            sink.path.unlink(missing_ok=True)
            raise
        self._sink, self.count, self._size = sink, count, sink.size

    def cut(self, length: int) -> None:
        """Close the file and keep its first ``length`` frames, their packets untouched.

        Raises:
            EpisodeError: the stream was copied as packets, or its file is damaged.
            StorageError: the disk refuses.
        """
        if isinstance(self._sink, PacketSink):
            raise EpisodeError(f"{self._where()}: the stream was copied as packets and cannot be cut")
        if self._sink is not None:
            self._sink.close(self._where())
            keep_packets(self._sink.path, length, self._where())
            self._sink.forget(length)
            self.count = length

    def finish(self) -> None:
        """Flush and close the file."""
        if self._sink is not None:
            self._sink.close(self._where())

    def abort(self) -> None:
        """Close the file whatever its state; errors no longer matter."""
        if self._sink is not None:
            self._sink.abort()

    def verify(self) -> None:
        """Read the closed file back: as many packets as frames, at the times given, keyframes where they belong.

        Raises:
            EpisodeError: the file does not hold what was pushed.
        """
        if self._sink is not None:
            self._sink.verify(scan(self._sink.path), self.count, self._where())

    def params(self) -> dict[str, Any]:
        """How the stream was written, for ``stream_params``."""
        out: dict[str, Any] = {"fps": self.fps}
        if self._rgb.shard_size is not None:
            out["shard_size"] = self._rgb.shard_size
        if self._size is not None and self._sink is not None:
            out |= {"height": self._size[0], "width": self._size[1]} | self._sink.params()
        if self._rgb.codec == "copy" and not isinstance(self._sink, PacketSink):
            out["copied"] = False
        if self._decoded:
            out["decoded_images"] = self._decoded
        return out

    def _where(self) -> str:
        return f"stream 'rgb_{self.name}', frame {self.count}"

    def _check(self, frame: Frame) -> tuple[int, int]:
        """(height, width) of a picture that fits the stream."""
        if isinstance(frame, EncodedImage):
            size = jpeg_size(frame, self._where())
        else:
            array = array_of(frame, self._where())
            if array.dtype != "uint8" or array.ndim != 3 or array.shape[2] != 3:
                raise EpisodeError(
                    f"{self._where()}: wanted a uint8 (H, W, 3) picture, got {array.dtype} {array.shape}"
                )
            size = (array.shape[0], array.shape[1])
        if 0 in size:
            raise EpisodeError(f"{self._where()}: the picture is empty: {size[1]}x{size[0]} pixels")
        if self._size is not None and size != self._size:
            raise EpisodeError(
                f"{self._where()}: the picture is {size[1]}x{size[0]}, but the stream's first one was "
                f"{self._size[1]}x{self._size[0]}; a stream keeps one size"
            )
        return size
