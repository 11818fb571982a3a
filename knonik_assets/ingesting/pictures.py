"""The colour and depth streams of one episode, several at once."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, nullcontext
from itertools import islice
from typing import Any

import av

from knonik_assets.configs.ingest import Orientation
from knonik_assets.configs.presets import RgbPreset
from knonik_assets.episodes.writer import EpisodeWriter
from knonik_assets.ingesting.ahead import checked_ahead
from knonik_assets.ingesting.facts import key_of
from knonik_assets.ingesting.progress import FrameCount
from knonik_assets.sources.base import Frame, SourceEpisode, StreamSpec
from knonik_loader.errors import EpisodeError

__all__ = ["Pictures"]


class Pictures:
    """Moves frames from an open episode to its writer; little is held but the frame in hand of each stream.

    Args:
        writer: with the streams registered.
        episode: the source.
        frames: how many of each stream are wanted.
        count: is told of every frame.
        rgb: says whether a video's own packets are wanted instead of its frames, or JPEGs as they are.
        orientation: how the source turns its pictures, which packets cannot follow.
        cores: threads that check such JPEGs ahead of writing; 1 has each checked when it is written.
    """

    def __init__(
        self,
        writer: EpisodeWriter,
        episode: SourceEpisode,
        frames: int,
        count: FrameCount,
        *,
        rgb: RgbPreset,
        orientation: Orientation = "as_stored",
        cores: int = 1,
    ) -> None:
        self._writer, self._episode = writer, episode
        self._frames, self._count, self._copy = frames, count, rgb.codec == "copy"
        self._passes, self._cores, self._orientation = rgb.codec == "jpeg", cores, orientation
        self._checks: Executor | None = None
        self._stop = threading.Event()

    def run(self, streams: Sequence[StreamSpec], threads: int) -> list[str]:
        """Write all streams, up to ``threads`` of them at once; the first that fails stops the others.

        Returns:
            Warnings.

        Raises:
            EpisodeError: a stream is damaged, or ends before the length that the source declares for it.
            StorageError: the disk refuses.
        """
        ahead = self._cores > 1 and any(self._ahead(spec) for spec in streams)
        with ThreadPoolExecutor(self._cores, thread_name_prefix="checks") if ahead else nullcontext() as self._checks:
            return self._run(streams, threads)

    def _ahead(self, spec: StreamSpec) -> bool:
        return self._passes and spec.kind == "rgb" and spec.encoding == "jpeg"

    def _run(self, streams: Sequence[StreamSpec], threads: int) -> list[str]:
        if threads == 1 or len(streams) < 2:
            return [warning for spec in streams for warning in self._stream(spec)]
        with ThreadPoolExecutor(min(threads, len(streams)), thread_name_prefix="pictures") as pool:
            tasks = [pool.submit(self._stream, spec) for spec in streams]
            try:
                wait(tasks, return_when=FIRST_EXCEPTION)
            finally:
                self._stop.set()  # after success everything is done; after an error or Ctrl-C the rest ends early
                for task in tasks:
                    task.cancel()
            finished = [task for task in tasks if task.done() and not task.cancelled()]
            for task in finished:
                error = task.exception()
                if error is not None:
                    raise error
            return [warning for task in tasks for warning in task.result()]

    def _stream(self, spec: StreamSpec) -> list[str]:
        if self._copy and spec.kind == "rgb":
            reason = self._copied(spec)
            if reason is None:
                return []
            warnings = [f"{key_of(spec)}: packets cannot be copied, encoded as vp9 instead: {reason}"]
        else:
            warnings = []
        done = 0
        with ExitStack() as stack:
            frames = self._episode.frames(spec)
            if isinstance(frames, Generator):
                stack.enter_context(closing(frames))  # lets go of files when the stream is trimmed or another failed
            wanted: Iterator[Frame] = islice(frames, self._frames)
            if self._checks is not None and self._ahead(spec):
                wanted = stack.enter_context(closing(checked_ahead(wanted, key_of(spec), self._checks, self._cores)))
            for frame in wanted:
                if self._stop.is_set():
                    return warnings
                self._push(spec, frame)
                self._count.add()
                done += 1
        if done < self._frames:
            raise EpisodeError(f"{spec.source} ends after {done} of its {spec.length} frames; the source is truncated.")
        return warnings

    def _push(self, spec: StreamSpec, frame: Frame) -> None:
        if spec.kind == "rgb":
            self._writer.rgb(spec.name, frame)
        else:
            # a picture that is still encoded is refused by the writer, which says so
            self._writer.depth(spec.name, frame)  # type: ignore[arg-type]

    def _copied(self, spec: StreamSpec) -> str | None:
        """None when the stream's packets were copied, else why not."""
        if spec.length != self._frames:
            return f"{spec.length - self._frames} frames are cut from its end"
        if self._orientation != "as_stored":
            return f"orientation {self._orientation} asks for other pictures than they hold"
        found: tuple[av.VideoStream, Iterator[Any]] | None = self._episode.packets(spec)
        if found is None:
            return "the source holds no packets of it that begin with a keyframe"
        stream, packets = found
        try:
            self._writer.rgb_packets(spec.name, stream, self._counting(packets))
        except EpisodeError as error:
            return str(error)
        return None

    def _counting(self, packets: Iterator[Any]) -> Iterator[Any]:
        for packet in packets:
            yield packet
            self._count.add()
