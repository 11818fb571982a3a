"""Colour streams as video files: what writer and reader of them have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
import numpy.typing as npt

from knonik_assets.configs.presets import Preset, RgbPreset
from knonik_assets.episodes.storing import storage_errors
from knonik_loader.errors import ConfigError, EpisodeError

__all__ = [
    "FALLBACK_CODEC",
    "TIME_BASE",
    "PacketTable",
    "array_of",
    "check_preset",
    "encoder_name",
    "encoder_options",
    "frame_pts",
    "media_errors",
    "scan",
    "suffix",
]

TIME_BASE = Fraction(1, 1000)
"""WebM and Matroska count milliseconds."""

FALLBACK_CODEC = "vp9"
"""What a ``copy`` stream is encoded with where its source's packets cannot be copied."""

_ENCODERS = {"vp9": "libvpx-vp9", "av1": "libsvtav1", "h264": "libx264"}
_X264_PRESETS = (
    "placebo", "veryslow", "slower", "slow", "medium", "fast", "faster", "veryfast", "superfast", "ultrafast",
)  # fmt: skip
_WEBM_CODECS = frozenset({"vp8", "vp9", "av1"})


def check_preset(preset: Preset) -> None:
    """Check what the model alone cannot: that the encoder is here and can do what is asked.

    Raises:
        ConfigError: names the knob and what it may be.
    """
    rgb = preset.rgb
    if rgb.codec == "jpeg":
        return
    codec = FALLBACK_CODEC if rgb.codec == "copy" else rgb.codec
    if codec == "av1" and rgb.chroma == "444":
        raise ConfigError("rgb.chroma '444' is not possible with codec 'av1': take '420', or codec 'vp9' or 'h264'")
    if encoder_name(codec) not in av.codecs_available:
        raise ConfigError(f"rgb.codec {codec!r} needs FFmpeg's {encoder_name(codec)}, which this PyAV lacks")


def encoder_name(codec: str) -> str:
    """FFmpeg's name of the encoder that serves one of our video codecs."""
    return _ENCODERS[codec]


def encoder_options(codec: str, rgb: RgbPreset) -> dict[str, str]:
    """Private options of the encoder: constant quality, no look-ahead, no B-frames, no keyframes but those we force.

    One thread each, because the bytes that x264 and row-threaded VP9 give depend on the number of threads; cores are
    filled by streams and episodes.
    """
    common = {"crf": str(rgb.quality), "keyint_min": str(rgb.gop)}
    if codec == "vp9":
        # libvpx's realtime mode is four times faster than its best mode at the same quality, at 10 % more bytes.
        pace = (
            {"deadline": "realtime", "cpu-used": str(rgb.speed - 1)}
            if rgb.speed >= 5
            else {"deadline": "good", "cpu-used": str(rgb.speed)}
        )
        return common | pace | {"b": "0", "row-mt": "0", "lag-in-frames": "0", "auto-alt-ref": "0"}
    if codec == "h264":
        return common | {
            "preset": _X264_PRESETS[rgb.speed],
            # mbtree=0: the macroblock tree reads memory that nobody wrote, and a few encodes in a hundred differ by it
            "x264-params": "open-gop=0:scenecut=0:bframes=0:threads=1:mbtree=0",
        }
    return common | {"preset": str(rgb.speed), "svtav1-params": "pred-struct=1:lp=1:scd=0"}


def suffix(codec: str) -> str:
    """File name ending for a codec: WebM where the container allows it, else Matroska."""
    return ".webm" if codec in _WEBM_CODECS else ".mkv"


@contextmanager
def media_errors(doing: str, path: Path, context: str) -> Iterator[None]:
    """Tell the disk's errors (StorageError) from the data's and the codec's (EpisodeError)."""
    with storage_errors(doing, path):
        try:
            yield
        except av.error.FFmpegError as error:
            if isinstance(error, OSError):
                raise
            raise EpisodeError(f"cannot {doing} {path}: {context}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class PacketTable:
    """Every frame of a video file, found without decoding; its rank is its place in order of presentation."""

    pts: npt.NDArray[np.int64]
    """(n,) strictly increasing, in units of the stream's time base."""
    is_key: npt.NDArray[np.bool_]
    """(n,) whether decoding can begin at this frame."""

    def key_before(self, rank: int) -> int:
        """Rank of the last keyframe at or before ``rank``."""
        return int(np.flatnonzero(self.is_key[: rank + 1])[-1])


def scan(path: Path) -> PacketTable:
    """Read a video file's packets.

    Raises:
        EpisodeError: damaged, without a stream or keyframe at its start, or two packets claim one time.
        StorageError: the file cannot be read.
    """
    times: list[int] = []
    keys: list[bool] = []
    with media_errors("read", path, "damaged video"), av.open(str(path)) as container:
        if len(container.streams.video) != 1:
            raise EpisodeError(f"{path} holds {len(container.streams.video)} video streams instead of one")
        for packet in container.demux(container.streams.video[0]):
            if packet.size == 0:
                continue  # the end of the file is told by an empty packet
            if packet.pts is None:
                raise EpisodeError(f"{path}: packet {len(times)} has no presentation time")
            times.append(packet.pts)
            keys.append(packet.is_keyframe)
    pts = np.array(times, np.int64)
    order = np.argsort(pts, kind="stable")
    pts, is_key = pts[order], np.array(keys, bool)[order]
    if np.any(np.diff(pts) <= 0):
        rank = int(np.flatnonzero(np.diff(pts) <= 0)[0])
        raise EpisodeError(f"{path}: frames {rank} and {rank + 1} have the same presentation time")
    if len(pts) and not is_key[0]:
        raise EpisodeError(f"{path} does not begin with a keyframe")
    return PacketTable(pts, is_key)


def frame_pts(previous: int | None, index: int, fps: float) -> int:
    """Milliseconds of frame ``index``; always later than ``previous``, so that ranks stay distinct above 1000 fps."""
    wanted = round(1000 * index / fps)
    return wanted if previous is None else max(wanted, previous + 1)


def array_of(value: Any, where: str) -> npt.NDArray[Any]:  # noqa: ANN401 - whatever the caller pushed
    """The value itself, if it is an array; lists are not converted, because their numbers have no dtype to check.

    Raises:
        EpisodeError: it is none.
    """
    if not isinstance(value, np.ndarray):
        raise EpisodeError(f"{where}: wanted an array, got a {type(value).__name__}")
    return value
