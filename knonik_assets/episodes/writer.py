"""Writing one episode: every stream of one length, every file counted and digested, in place whole or not at all."""

from __future__ import annotations

import hashlib
import math
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import av
import numpy as np
import numpy.typing as npt

from knonik_assets.configs.presets import Preset
from knonik_assets.episodes.depth import DepthStream
from knonik_assets.episodes.language import write_language
from knonik_assets.episodes.metadata import EpisodeMetadata, FileEntry, check_extra, write_metadata
from knonik_assets.episodes.numeric import NumericStream, write_array
from knonik_assets.episodes.storing import check_name, new_workspace, publish, settle, storage_errors
from knonik_assets.episodes.stream_names import CLOCK, check_free, check_numeric
from knonik_assets.episodes.video import check_preset
from knonik_assets.episodes.video_write import RgbStream
from knonik_assets.sources.base import Frame, Language
from knonik_loader.errors import ConfigError, EpisodeError

__all__ = ["EpisodeWriter"]

_S = TypeVar("_S", RgbStream, DepthStream, NumericStream)


class EpisodeWriter:
    """One episode being written; a context manager that discards whatever was not committed.

    Streams are registered first. Then each takes frames from one thread at a time, different ones from different
    threads; encoding happens in the calling thread, so a call may take as long as a frame takes to encode, and nothing
    is ever dropped. Memory doesn't grow with the length of colour and depth streams.

    Args:
        out: The output directory; the episode appears as ``out / episode_id``.
        episode_id: Name of the episode's directory.
        preset: How to compress.
        source_format: The reader's name.
        source_id: The source's own name of the episode.
        source_fingerprint: Digest of the episode's content in the source; None where there is no source to look at
            again, and the digest is that of the files written.
        config_fingerprint: Digest of what the config asks for.
        dataset: Free text.
        robot_type: Free text.
        fps: Nominal rate; it spaces the frames of the video files and is the clock of episodes that have none.
        extra: Further entries of ``metadata.json``.
        jpeg_channel_order: Recorded only.
        orientation: Recorded only.

    Raises:
        ConfigError: the preset asks for what its codec cannot do, fps is not positive, or ``extra`` holds an entry that
            is the writer's own or that JSON cannot hold.
        EpisodeError: the episode's name is not usable.
        StorageError: OUT cannot be written.
    """

    def __init__(
        self,
        out: Path,
        episode_id: str,
        *,
        preset: Preset,
        source_format: str,
        source_id: str,
        source_fingerprint: str | None,
        config_fingerprint: str,
        dataset: str,
        robot_type: str,
        fps: float,
        extra: Mapping[str, Any] | None = None,
        jpeg_channel_order: Literal["rgb", "bgr"] = "rgb",
        orientation: str = "as_stored",
    ) -> None:
        check_preset(preset)
        self.out = Path(out)
        self.episode_id = check_name(episode_id, "episode")
        self.fps = _checked_fps(fps, "the episode")
        self._preset = preset
        self._about: dict[str, Any] = {
            "dataset": dataset,
            "robot_type": robot_type,
            "source_format": source_format,
            "episode_id": episode_id,
            "source_id": source_id,
            "source_fingerprint": source_fingerprint,
            "config_fingerprint": config_fingerprint,
            "fps": self.fps,
            "jpeg_channel_order": jpeg_channel_order,
            "orientation": orientation,
        }
        self._extra = check_extra(extra or {})
        self._rgb: dict[str, RgbStream] = {}
        self._depth: dict[str, DepthStream] = {}
        self._numeric: dict[str, NumericStream] = {}
        self._roles: dict[str, str] = {}
        self._channel_names: dict[str, list[str]] = {}
        self._clock: tuple[npt.NDArray[np.float64], Literal["source", "frame_index"]] | None = None
        self._language: tuple[Language, str] | None = None
        self._lock = threading.Lock()
        self._done = False
        self._work = new_workspace(self.out, self.episode_id)

    def add_rgb(self, name: str, *, fps: float | None = None) -> None:
        """Register a colour stream.

        Raises:
            EpisodeError: the name is not usable or taken.
        """
        with self._lock:
            self._claim(f"rgb_{check_name(name, 'colour stream')}")
            rate = _checked_fps(fps or self.fps, f"rgb_{name}")
            self._rgb[name] = RgbStream(self._work, name, self._preset.rgb, rate)

    def add_depth(self, name: str, *, fps: float | None = None) -> None:
        """Register a depth stream.

        Raises:
            EpisodeError: the name is not usable or taken.
        """
        with self._lock:
            self._claim(f"depth_{check_name(name, 'depth stream')}")
            rate = _checked_fps(fps or self.fps, f"depth_{name}")
            self._depth[name] = DepthStream(self._work, name, self._preset.depth, rate)

    def add_numeric(
        self,
        name: str,
        dim: int,
        *,
        role: Literal["action", "state"] | None = None,
        channel_names: Sequence[str] | None = None,
        chunk_len: int | None = None,
    ) -> None:
        """Register a numeric stream of ``dim`` numbers a row, in chunks of ``chunk_len`` rows (None: the preset's).

        Raises:
            EpisodeError: the name is not usable, taken or reserved; the role is taken; the channel names don't fit.
        """
        with self._lock:
            check_name(name, "numeric stream")
            check_numeric(name, dim, role, channel_names, self._roles)
            self._claim(name)
            preset = self._preset.numeric
            if chunk_len is not None:
                preset = preset.model_copy(update={"chunk_len": chunk_len})
            self._numeric[name] = NumericStream(name, dim, preset)
            if role is not None:
                self._roles[role] = name
            if channel_names is not None:
                self._channel_names[name] = [str(channel) for channel in channel_names]

    def rgb(self, name: str, frame: Frame) -> None:
        """Write the next frame of a colour stream; a frame that is refused leaves the stream as it was.

        Args:
            name: A registered stream.
            frame: (H, W, 3) uint8 RGB, or an encoded picture. JPEG bytes are stored as they are when the codec is jpeg.

        Raises:
            EpisodeError: no such stream or picture, or not of the first frame's size.
            StorageError: the disk refuses.
        """
        self._registered(self._rgb, name, "colour").push(frame)

    def rgb_packets(self, name: str, stream: av.VideoStream, packets: Iterable[av.Packet[av.VideoStream]]) -> None:
        """Copy a source video's packets (codec ``copy``) into a colour stream, which is then complete.

        Raises:
            EpisodeError: the packets cannot be copied: they don't begin with a keyframe, hold hidden frames or
                don't decode to one frame each. The stream is still empty then and takes decoded frames by `rgb`, which
                are encoded as VP9.
            StorageError: the disk refuses.
        """
        self._registered(self._rgb, name, "colour").copy(stream, packets)

    def depth(self, name: str, frame_m: npt.NDArray[Any]) -> None:
        """Write the next frame of a depth stream; a frame that is refused leaves the stream as it was.

        Args:
            name: A registered stream.
            frame_m: Float (H, W) in metres. NaN, infinite and non-positive values are "no reading"; what is above the
                preset's maximum becomes so and is counted.

        Raises:
            EpisodeError: no such stream or array, or not of the first frame's shape.
            StorageError: the disk refuses.
        """
        self._registered(self._depth, name, "depth").push(frame_m)

    def numeric(self, name: str, rows: npt.NDArray[Any], times: npt.NDArray[np.float64] | None = None) -> None:
        """Take the next (n, D) rows of a numeric stream, with their (n,) seconds where they have their own.

        Raises:
            EpisodeError: no such stream, another shape, or times for some rows only.
        """
        self._registered(self._numeric, name, "numeric").push(rows, times)

    def clock(self, times: npt.NDArray[np.float64], origin: Literal["source", "frame_index"]) -> None:
        """Set the (T,) seconds of the episode's frames. Without a clock a frame's time is its index / fps.

        Raises:
            EpisodeError: the times are not one finite number a frame.
        """
        times = np.array(times, np.float64)
        if times.ndim != 1 or not np.isfinite(times).all():
            raise EpisodeError(f"the clock of {self.episode_id} wants finite seconds of shape (T,), got {times.shape}")
        self._clock = (times, origin)

    def language(self, language: Language, origin: Literal["config", "source", "metadata"] = "source") -> None:
        """Set what the robot was told, and which of the three places said so."""
        self._language = (language, origin)

    def cut(self, length: int) -> dict[str, int]:
        """Shorten every stream to its first ``length`` frames; longer ones are complete afterwards.

        Videos are cut by their packets: no frame that stays is encoded again.

        Returns:
            Stream → frames cut from its end, of those that were longer; what `commit` takes as ``trimmed``.

        Raises:
            EpisodeError: ``length`` is not positive, a stream was copied as packets, or a file is damaged.
            StorageError: the disk refuses.
        """
        if length < 1:
            raise EpisodeError(f"{self.episode_id} cannot be cut to {length} frames")
        streams: list[RgbStream | DepthStream | NumericStream] = [*self._media(), *self._numeric.values()]
        trimmed = {}
        for key, stream in zip(self._batch_keys(), streams, strict=True):
            if stream.count > length:
                trimmed[key] = stream.count - length
                stream.cut(length)
        return trimmed

    def commit(self, *, trimmed: Mapping[str, int] | None = None) -> EpisodeMetadata:
        """Finish every file, read the results back, and put the episode in place, replacing an older one.

        Args:
            trimmed: Stream → frames that the caller cut from its end.

        Raises:
            EpisodeError: the streams differ in length or are empty, or a file doesn't hold what was pushed. Nothing
                appears in OUT then.
            StorageError: the disk refuses; OUT is as it was.
        """
        if self._done:
            raise EpisodeError(f"{self.episode_id} was already committed or aborted")
        try:
            length = self._check_lengths()
            for media in self._media():
                media.finish()
                media.verify()
            clock, origin = self._clock or (np.arange(length) / self.fps, "frame_index")
            write_array(self._work / CLOCK, clock, self._preset.numeric)
            for numeric in self._numeric.values():
                numeric.write(self._work, clock)
            if self._language is not None:
                write_language(self._work, *self._language)
            metadata = self._metadata(clock, origin, dict(trimmed or {}))
            write_metadata(self._work, metadata)
            publish(self._work, self.out, self.episode_id)
        except BaseException:
            self.abort()
            raise
        self._done = True
        return metadata

    def abort(self) -> None:
        """Discard everything; harmless after a commit and when called again."""
        if self._done:
            return
        self._done = True
        for media in self._media():
            media.abort()
        shutil.rmtree(self._work, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _registered(self, streams: Mapping[str, _S], name: str, kind: str) -> _S:
        if self._done:
            raise EpisodeError(f"{self.episode_id} was already committed or aborted and takes no more data")
        stream = streams.get(name)
        if stream is None:
            known = ", ".join(sorted(streams)) or "none"
            raise EpisodeError(f"no {kind} stream {name!r} is registered in {self.episode_id}; registered: {known}")
        return stream

    def _media(self) -> list[RgbStream | DepthStream]:
        return [*self._rgb.values(), *self._depth.values()]

    def _batch_keys(self) -> list[str]:
        return [*(f"rgb_{name}" for name in self._rgb), *(f"depth_{name}" for name in self._depth), *self._numeric]

    def _claim(self, key: str) -> None:
        """Refuse a stream whose key in batches, or whose files, another stream has already."""
        if self._done:
            raise EpisodeError(f"{self.episode_id} was already committed or aborted and takes no more streams")
        check_free(key, self._batch_keys(), self.episode_id)

    def _check_lengths(self) -> int:
        """The one length of all streams and the clock."""
        lengths = dict(
            zip(
                self._batch_keys(),
                [stream.count for kind in (self._rgb, self._depth, self._numeric) for stream in kind.values()],
                strict=True,
            )
        )
        if not lengths:
            raise EpisodeError(f"{self.episode_id} has no streams")
        if self._clock is not None:
            lengths[CLOCK] = len(self._clock[0])
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise EpisodeError(f"the streams of {self.episode_id} differ in length ({listed})")
        length = next(iter(lengths.values()))
        if length == 0:
            raise EpisodeError(f"{self.episode_id} has no frames")
        return length

    def _stream_params(self) -> dict[str, dict[str, Any]]:
        streams: list[RgbStream | DepthStream | NumericStream] = [*self._media(), *self._numeric.values()]
        out = {key: stream.params() for key, stream in zip(self._batch_keys(), streams, strict=True)}
        knobs = set(self._preset.inactive())
        for name in self._rgb:
            params = out[f"rgb_{name}"]
            # A copy that fell back to encoding uses the encoder's knobs after all.
            inactive = set(params.get("inactive", ())) | (knobs if params.get("copied", True) else set())
            if inactive:
                params["inactive"] = sorted(inactive)
        return out

    def _metadata(
        self,
        clock: npt.NDArray[np.float64],
        origin: Literal["source", "frame_index"],
        trimmed: dict[str, int],
    ) -> EpisodeMetadata:
        """Everything known, with size and digest of every file, all of them synced to the disk."""
        files: dict[str, FileEntry] = {}
        with storage_errors("read back", self._work):
            paths = sorted(path for path in self._work.rglob("*") if path.is_file())
            for path, (size, digest) in zip(paths, settle(paths), strict=True):
                files[path.relative_to(self._work).as_posix()] = FileEntry(bytes=size, sha256=digest)
        about = self._about
        if about["source_fingerprint"] is None:
            listed = "".join(f"{name} {entry.sha256}\n" for name, entry in files.items())
            about = about | {"source_fingerprint": hashlib.sha256(listed.encode()).hexdigest()}
        return EpisodeMetadata(
            **self._extra,
            **about,
            rgb_streams=list(self._rgb),
            depth_streams=list(self._depth),
            numeric_streams=list(self._numeric),
            start_time=float(clock[0]),
            end_time=float(clock[-1]),
            episode_length=len(clock),
            timestamps_origin=origin,
            trimmed=trimmed,
            stream_params=self._stream_params(),
            stream_roles=dict(self._roles),
            channel_names=dict(self._channel_names),
            files=files,
        )


def _checked_fps(fps: float, what: str) -> float:
    if not (math.isfinite(fps) and fps > 0):
        raise ConfigError(f"fps of {what} is {fps}; it must be a positive number")
    return float(fps)
