"""Video files read by exact presentation time: an index of what is in them, then ranges of frames or packets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import av
import av.error
import numpy as np
import numpy.typing as npt
from av.stream import Disposition

from knonik_loader.errors import EpisodeError

__all__ = ["VideoIndex", "copy_packets", "decode_range", "index_video"]

T = TypeVar("T")
_FAULTS = (av.error.FFmpegError, OSError, ValueError)
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class VideoIndex:
    """What one file holds, without a picture decoded. Arrays are in order of presentation."""

    path: Path
    height: int
    width: int
    codec: str
    declared: int
    """Frames that the container's header claims; 0 where it doesn't say."""
    time_base: Fraction
    pts: npt.NDArray[np.int64]
    is_key: npt.NDArray[np.bool_]
    decode_order: npt.NDArray[np.int64]
    """Place of every frame in the order in which packets are stored."""
    digests: npt.NDArray[np.uint8]
    """(N, 16) digests of the packets."""
    setup: bytes
    """Digest of the codec's own header."""

    def __len__(self) -> int:
        return len(self.pts)

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """(N,) presentation times."""
        return np.asarray(self.pts * float(self.time_base), np.float64)

    @property
    def period(self) -> float:
        """Usual time from one frame to the next, seconds; 0 for fewer than two frames."""
        return float(np.median(np.diff(self.pts)) * self.time_base) if len(self.pts) > 1 else 0.0

    def digest(self, start: int, stop: int) -> bytes:
        """Digest of the packets of frames ``[start, stop)`` and their times relative to the first."""
        digest = hashlib.sha256(f"{self.codec} {self.width}x{self.height}".encode() + self.setup)
        digest.update(self.digests[start:stop].tobytes())
        base = int(self.pts[start]) if stop > start else 0
        scale = self.time_base * 1_000_000_000
        relative = [round((int(pts) - base) * scale) for pts in self.pts[start:stop]]
        digest.update(np.array(relative, np.int64).tobytes())
        return digest.digest()


def index_video(path: Path) -> VideoIndex:
    """Index a file, or return the index of the unchanged file from this process's small cache.

    Raises:
        EpisodeError: missing, damaged, or without video.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise EpisodeError(f"{path}: the video is missing ({error.strerror}).") from error
    return _index(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=16)
def _index(path: Path, _size: int, _changed: int) -> VideoIndex:
    with _opened(path) as (container, stream):
        frames: list[tuple[int, bool, bytes]] = []
        try:
            for packet in container.demux(stream):
                if packet.size == 0 or packet.is_discard or packet.is_corrupt:
                    continue
                if packet.pts is None:
                    raise EpisodeError(f"{path}: a frame has no presentation time.")
                digest = hashlib.blake2b(memoryview(packet), digest_size=_DIGEST_BYTES).digest()
                frames.append((packet.pts, packet.is_keyframe, digest))
        except _FAULTS as error:
            raise EpisodeError(f"{path}: damaged video after {len(frames)} frames: {error}.") from error
        pts = np.array([frame[0] for frame in frames], np.int64)
        order = np.argsort(pts, kind="stable")
        if (np.diff(pts[order]) == 0).any():
            raise EpisodeError(f"{path}: two frames have the same presentation time.")
        context: av.VideoCodecContext | None = stream.codec_context  # None where the codec is unknown
        if context is None:
            raise EpisodeError(f"{path}: nobody knows the codec of its video; the file is damaged.")
        if stream.time_base is None:
            raise EpisodeError(f"{path}: the video has no time base.")
        return VideoIndex(
            path=path,
            height=context.height,
            width=context.width,
            codec=context.codec.canonical_name,  # a context's own name is that of the decoder at hand
            declared=stream.frames,
            time_base=stream.time_base,
            pts=pts[order],
            is_key=np.array([frame[1] for frame in frames], bool)[order],
            decode_order=order,
            digests=np.frombuffer(b"".join(frame[2] for frame in frames), np.uint8).reshape(-1, _DIGEST_BYTES)[order],
            setup=hashlib.sha256(context.extradata or b"").digest(),
        )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[av.container.InputContainer, av.VideoStream]]:
    try:
        container = av.open(f"file:{path}")
    except _FAULTS as error:
        raise EpisodeError(f"{path}: unreadable video: {error}.") from error
    with container:
        yield container, _track(container, path)


def _track(container: av.container.InputContainer, path: Path) -> av.VideoStream:
    """The only track of pictures; a cover picture beside it is none.

    Raises:
        EpisodeError: there is none, or several.
    """
    tracks = [one for one in container.streams.video if not one.disposition & Disposition.attached_pic]
    if len(tracks) != 1:
        what = f"{len(tracks)} video tracks are in it; wanted one" if tracks else "there is no video in it"
        raise EpisodeError(f"{path}: {what}.")
    return tracks[0]


def decode_range(index: VideoIndex, start: int, stop: int, emit: Callable[[av.VideoFrame], T]) -> Iterator[T]:
    """Exactly the frames of ranks ``[start, stop)``, each by its own presentation time.

    Decodes from the keyframe before the range; from earlier ones where the container seeks too far.

    Args:
        index: of the file.
        start: rank of the first frame in order of presentation.
        stop: rank behind the last one.
        emit: makes the yielded value of a decoded frame, before the next one is decoded.

    Raises:
        EpisodeError: a frame cannot be decoded or has another size than the video's first.
    """
    if stop <= start:
        return
    keys = np.flatnonzero(index.is_key[: start + 1])
    for back in (1, 2, 4, None):
        key = int(keys[-back]) if back is not None and back <= len(keys) else None
        with _opened(index.path) as (container, stream):
            try:
                stream.thread_type = "AUTO"
                stream.codec_context.thread_count = 2
                if key is not None and key > 0:
                    container.seek(int(index.pts[key]), stream=stream, backward=True)
                frames = _decoded(container, stream, {int(pts) for pts in index.pts[start:stop]})
                first = next(frames, None)
                if key is not None and (first is None or first.pts is None or first.pts > index.pts[start]):
                    continue  # sought past the wanted frame
                yield from _wanted(index, start, stop, first, frames, emit)
            except EpisodeError:  # a ValueError too
                raise
            except _FAULTS as error:
                raise EpisodeError(f"{index.path}: frames {start} to {stop} cannot be decoded: {error}.") from error
        return


def _decoded(
    container: av.container.InputContainer, stream: av.VideoStream, wanted: set[int]
) -> Iterator[av.VideoFrame]:
    """Frames from the container's position on, until those of the wanted times are all decoded.

    What is stored behind them is not given to the decoder: it may be damaged, or of another codec.
    """
    for packet in container.demux(stream):
        if packet.pts is not None:
            wanted.discard(packet.pts)
        yield from packet.decode()
        if not wanted:
            yield from stream.decode(None)
            return


def _wanted(
    index: VideoIndex,
    start: int,
    stop: int,
    first: av.VideoFrame | None,
    rest: Iterator[av.VideoFrame],
    emit: Callable[[av.VideoFrame], T],
) -> Iterator[T]:
    rank = start
    frame = first
    while frame is not None:
        pts = frame.pts
        if pts is not None and pts >= index.pts[rank]:
            if pts != index.pts[rank] or frame.is_corrupt:
                break
            if (frame.height, frame.width) != (index.height, index.width):
                raise EpisodeError(
                    f"{index.path}: frame {rank} has {frame.height} x {frame.width} pixels, "
                    f"the video {index.height} x {index.width}."
                )
            yield emit(frame)
            rank += 1
            if rank == stop:
                return
        frame = next(rest, None)
    raise EpisodeError(f"{index.path}: frame {rank} (at {float(index.pts[rank] * index.time_base):.4f} s) is damaged.")


def copy_packets(
    index: VideoIndex, start: int, stop: int
) -> tuple[av.container.InputContainer, av.VideoStream, Iterator[av.Packet[av.VideoStream]]] | None:
    """The packets of ranks ``[start, stop)`` and nothing else, or None where they can't stand alone.

    They can when the first is a keyframe and the packets stored behind it are just those of the range. The caller
    closes the container.

    Raises:
        EpisodeError: the file cannot be opened.
    """
    if stop <= start or not index.is_key[start]:
        return None
    stored = np.sort(index.decode_order[start:stop])
    if stored[0] != index.decode_order[start] or stored[-1] - stored[0] != stop - start - 1:
        return None
    try:
        container = av.open(f"file:{index.path}")
    except _FAULTS as error:
        raise EpisodeError(f"{index.path}: unreadable video: {error}.") from error
    stream = _track(container, index.path)
    return container, stream, _packets(index, start, stop, container, stream)


def _packets(
    index: VideoIndex, start: int, stop: int, container: av.container.InputContainer, stream: av.VideoStream
) -> Iterator[av.Packet[av.VideoStream]]:
    wanted = {int(pts) for pts in index.pts[start:stop]}
    try:
        if start > 0:
            container.seek(int(index.pts[start]), stream=stream, backward=True)
        for packet in container.demux(stream):
            if packet.pts in wanted and not packet.is_discard and not packet.is_corrupt:
                wanted.discard(packet.pts)
                yield packet
                if not wanted:
                    return
    except _FAULTS as error:
        raise EpisodeError(f"{index.path}: frames {start} to {stop} cannot be read: {error}.") from error
    raise EpisodeError(f"{index.path}: {len(wanted)} of the frames {start} to {stop} are not where they were.")
