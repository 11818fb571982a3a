"""One episode being captured: frames in, an episode directory out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes.metadata import EpisodeMetadata
from knonik_assets.episodes.writer import EpisodeWriter
from knonik_assets.ingesting.numbering import episode_name
from knonik_assets.live.declared import Declarations, Declared, Kind
from knonik_assets.live.lanes import Lane, Waiting
from knonik_assets.live.streams import LiveStream
from knonik_assets.sources.clocks import even_rate, usual_rate
from knonik_assets.sources.images import depth_to_m
from knonik_loader.errors import EpisodeError

__all__ = ["LiveEpisode"]

_DEFAULT_FPS = 30.0
_UNEVEN = 0.01


class LiveEpisode:
    """An open episode. Streams may be registered until the first frame; frames may come from several threads.

    Args:
        number: what its directory is called by.
        declarations: what is registered for all episodes.
        writer: makes the writer, given the nominal rate.
        encoders: cameras encoded at once; None: all of them.
    """

    def __init__(
        self,
        number: int,
        declarations: Declarations,
        writer: Callable[[float], EpisodeWriter],
        encoders: int | None,
    ) -> None:
        self.number = number
        self.episode_id = episode_id = episode_name(number)
        self.waiting = Waiting()
        self.warnings: list[str] = []
        self._declared = Declarations(episode_id, declarations)
        self._make_writer = writer
        self._turns = threading.Semaphore(encoders) if encoders is not None else None
        self._writer: EpisodeWriter | None = None
        self._streams: dict[str, LiveStream] = {}
        self._begun = False
        self._over = False
        self._lock = threading.RLock()

    def register(self, one: Declared) -> None:
        """Add a stream to this episode.

        Raises:
            EpisodeError: it collides with another, or frames were pushed already.
        """
        with self._lock:
            if self._begun and one not in list(self._declared):
                raise EpisodeError(
                    f"stream {one.key!r} cannot be registered any more: {self.episode_id} has frames already, and a "
                    "stream that begins later would not fit them"
                )
            self._declared.add(one)

    def check(self, kind: Kind, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Check shape and type of a frame before it is read.

        Raises:
            EpisodeError: no such stream, or the frame doesn't fit it.
        """
        self._stream(kind, name).check(shape, dtype)

    def push(self, kind: Kind, name: str, value: Any, timestamp: Any = None) -> None:  # noqa: ANN401 - what was given
        """Take the next frame or row; one that is refused leaves the episode as it was.

        Raises:
            EpisodeError: no such stream, or the frame or its time doesn't fit it.
            StorageError: an earlier frame could not be written: the episode is lost.
        """
        stream = self._stream(kind, name)
        with stream.lock:
            frame = _array(value, stream.where)
            stream.check(frame.shape, frame.dtype)
            seconds = stream.check_time(timestamp)
            if stream.rows is not None:
                self._begin()
                stream.rows.append(frame.reshape(-1))
            else:
                own = stream.own(frame)
                self._lane(stream).put(own)
            stream.took(frame.shape, seconds)

    @property
    def is_empty(self) -> bool:
        """Whether it has no streams, or some without a frame: nothing can be written then."""
        return not self._declared or bool(self._silent())

    def finish(self, before_commit: Callable[[], None]) -> EpisodeMetadata:
        """Wait for the encoders, cut all streams to the shortest, and put the episode in place.

        Args:
            before_commit: called when all is ready but the last step.

        Raises:
            EpisodeError: a stream got no frame, or a frame could not be encoded. Nothing is left of the episode then.
            StorageError: the disk refuses. Nothing is left of the episode then.
        """
        try:
            with self._lock:
                self._over = True
            for stream in list(self._streams.values()):
                with stream.lock:  # a call in another thread that was let in ends first
                    pass
            streams = self._all()
            length = min(stream.count for stream in streams)
            times = self._clock(streams, length)
            writer = self._opened(streams, times)
            for stream in streams:
                if stream.lane is not None:
                    stream.lane.drain()
            trimmed = self._rows(writer, streams, length)
            trimmed |= writer.cut(length)
            if times is not None:
                writer.clock(times, "source")
            if trimmed:
                cut = ", ".join(f"{key} by {count}" for key, count in trimmed.items())
                self.warnings.append(f"trimmed to the {length} frames of the shortest stream: {cut}")
            before_commit()
            return writer.commit(trimmed=trimmed)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Drop everything; idempotent."""
        with self._lock:
            self._over = True
        for stream in list(self._streams.values()):
            if stream.lane is not None:
                stream.lane.stop()
        if self._writer is not None:
            self._writer.abort()

    def _stream(self, kind: Kind, name: str) -> LiveStream:
        declared = self._declared.find(kind, name)
        with self._lock:
            if self._over:
                raise EpisodeError(f"{self.episode_id} is over and takes no more frames")
            if declared.key not in self._streams:
                self._streams[declared.key] = LiveStream(declared, self.episode_id)
            return self._streams[declared.key]

    def _begin(self) -> None:
        with self._lock:
            if self._over:
                raise EpisodeError(f"{self.episode_id} is over and takes no more frames")
            self._begun = True

    def _lane(self, stream: LiveStream) -> Lane:
        """The queue to a stream's encoder; the first frame of an episode makes its folder, too."""
        self._begin()
        if stream.lane is None:
            with self._lock:
                writer = self._open_writer(self._nominal())
            name = stream.declared.name
            if stream.declared.kind == "rgb":
                stream.lane = Lane(f"rgb_{name}", lambda frame: writer.rgb(name, frame), self._turns, self.waiting)
            else:
                where = f"{self.episode_id}, stream 'depth_{name}'"
                stream.lane = Lane(
                    f"depth_{name}",
                    lambda frame: writer.depth(name, depth_to_m(frame, None, where)),
                    self._turns,
                    self.waiting,
                )
        return stream.lane

    def _nominal(self) -> float:
        """The rate of the first camera."""
        return next((one.fps for one in self._declared if one.fps is not None), _DEFAULT_FPS)

    def _open_writer(self, fps: float) -> EpisodeWriter:
        if self._writer is None:
            self._writer = writer = self._make_writer(fps)
            for one in self._declared:
                if one.kind == "rgb":
                    writer.add_rgb(one.name, fps=one.fps)
                elif one.kind == "depth":
                    writer.add_depth(one.name, fps=one.fps)
                else:
                    writer.add_numeric(one.name, one.dim, role=one.role, channel_names=one.channel_names)
        return self._writer

    def _opened(self, streams: list[LiveStream], times: npt.NDArray[np.float64] | None) -> EpisodeWriter:
        """The writer; of numbers alone it is made only now, when their rate is known. Warns of rates that disagree."""
        measured = even_rate(times)
        rates = {stream.declared.key: stream.declared.fps for stream in streams if stream.declared.fps is not None}
        if not rates:
            assumed = measured or usual_rate(times) or _DEFAULT_FPS
            if measured is None:
                self.warnings.append(f"numbers alone, and no even clock: {assumed:g} frames a second is assumed")
            return self._open_writer(assumed)
        fps = self._nominal()
        if measured is not None and abs(measured / fps - 1) > _UNEVEN:
            self.warnings.append(f"fps is {fps:g}, but the timestamps show {measured:g} frames a second")
        if len(set(rates.values())) > 1:
            listed = ", ".join(f"{key} {rate:g}" for key, rate in rates.items())
            self.warnings.append(
                f"cameras are registered with different fps ({listed}), but frames are paired by their number: push "
                "every stream once a step"
            )
        return self._open_writer(fps)

    def _silent(self) -> list[str]:
        """Keys of the streams that got no frame."""
        counts = {key: stream.count for key, stream in self._streams.items()}
        return [one.key for one in self._declared if not counts.get(one.key)]

    def _all(self) -> list[LiveStream]:
        """All streams, in the order of declaration.

        Raises:
            EpisodeError: there is none, or one got no frame.
        """
        if not len(self._declared):
            raise EpisodeError(f"{self.episode_id} has no streams: register them before or at its beginning")
        silent = self._silent()
        if len(silent) == len(self._declared):
            raise EpisodeError(f"{self.episode_id} has no frames: nothing was pushed")
        if silent:
            raise EpisodeError(
                f"{self.episode_id} has no frames: {', '.join(silent)} got none, and an episode is as long as its "
                "shortest stream; register only what is pushed"
            )
        return [self._streams[one.key] for one in self._declared]

    def _clock(self, streams: list[LiveStream], length: int) -> npt.NDArray[np.float64] | None:
        """(T,) seconds of the first camera that has times, else of the first numbers; None where nothing has."""
        order: list[Literal["rgb", "depth", "numeric"]] = ["rgb", "depth", "numeric"]
        timed = sorted((one for one in streams if one.times), key=lambda one: order.index(one.declared.kind))
        if not timed:
            return None
        times = {one.declared.key: np.array(one.times, np.float64)[:length] for one in timed}
        first = timed[0].declared.key
        clock = times[first]
        half = 0.5 / self._nominal() if any(one.declared.fps for one in streams) else np.inf
        for key, others in times.items():
            apart = np.abs(others - clock)
            if apart.max() > half:
                frame = int(apart.argmax())
                self.warnings.append(
                    f"{key} and {first} are up to {apart.max():.3f} s apart (frame {frame}), more than half a frame; "
                    "frames are paired by their number"
                )
        for one in timed:
            if one.repeated:
                self.warnings.append(f"{one.declared.key}: {one.repeated} frames have the time of the frame before")
        return clock

    def _rows(self, writer: EpisodeWriter, streams: list[LiveStream], length: int) -> dict[str, int]:
        """Give the numbers to the writer; returns what was cut."""
        trimmed = {}
        for one in streams:
            if one.rows is None:
                continue
            if one.rows.infinite:
                self.warnings.append(f"{one.declared.key}: {one.rows.infinite} numbers beyond float32 became infinite")
            if one.rows.unset:
                self.warnings.append(
                    f"{one.declared.key}: {one.rows.unset} of {one.count} rows hold NaN or infinity, which "
                    "checks refuse"
                )
            times = np.array(one.times, np.float64)[:length] if one.times else None
            writer.numeric(one.declared.name, one.rows.first(length), times)
            if one.count > length:
                trimmed[one.declared.key] = one.count - length
        return trimmed


def _array(value: Any, where: str) -> npt.NDArray[Any]:  # noqa: ANN401 - whatever the caller pushed
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists, tensors on a GPU
        raise EpisodeError(f"{where}: a {type(value).__name__} that is no array: {error}") from error
