"""Exact frames out of a video file, by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import av
import av.bitstream
import av.error
import av.video.stream
import numpy as np

from knonik_assets.episodes.video import PacketTable, media_errors
from knonik_loader.errors import EpisodeError

__all__ = ["frames", "jpegs", "packets", "whole_jpegs"]


def frames(path: Path, table: PacketTable, start: int, stop: int, threads: int = 1) -> Iterator[av.VideoFrame]:
    """Decode frames ``start`` to ``stop`` (ranks), beginning at the keyframe before.

    Every frame is recognised by its presentation time in ``table``, never by counting or by a rate: what a decoder
    holds back, drops or gives twice is noticed.

    Raises:
        EpisodeError: the file is damaged, or a frame does not come out exactly once.
        StorageError: the file cannot be read.
    """
    if start >= stop:
        return
    key = table.key_before(start)
    rank = start
    with media_errors("decode", path, f"after frame {start}"), av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = threads
        stream.codec_context.thread_type = "NONE" if threads == 1 else "AUTO"
        for packet in _packets_from(container, stream, int(table.pts[key])):
            for frame in stream.codec_context.decode(packet):
                if frame.pts is not None and frame.pts < table.pts[rank]:
                    if rank > start:
                        raise EpisodeError(f"{path}: the decoder gave frame {rank - 1} twice")
                    continue
                if frame.pts != table.pts[rank] or frame.is_corrupt:
                    raise EpisodeError(f"{path}: frame {rank} is damaged or missing")
                yield frame
                rank += 1
                if rank == stop:
                    return
    raise EpisodeError(f"{path}: decoding ended at frame {rank} of {stop}")


def jpegs(path: Path, table: PacketTable, start: int, stop: int) -> Iterator[bytes]:
    """The stored bytes of frames ``start`` to ``stop`` of a file whose packets are pictures.

    Raises:
        EpisodeError: the file is damaged.
        StorageError: the file cannot be read.
    """
    if start >= stop:
        return
    rank = start
    with media_errors("read", path, f"after frame {start}"), av.open(str(path)) as container:
        for packet in _packets_from(container, container.streams.video[0], int(table.pts[start])):
            if packet.pts != table.pts[rank]:
                raise EpisodeError(f"{path}: frame {rank} is missing")
            yield bytes(packet)
            rank += 1
            if rank == stop:
                return
    raise EpisodeError(f"{path} ends at frame {rank}, wanted {stop}")


def whole_jpegs(path: Path, length: int, found: Callable[[PacketTable], None]) -> Iterator[bytes]:
    """The stored bytes of every frame of a file whose packets are pictures, which is read once only.

    Args:
        path: the file.
        length: frames it holds.
        found: is handed the table of packets before the last frame comes.

    Raises:
        EpisodeError: the file is damaged, or holds another number of frames.
        StorageError: the file cannot be read.
    """
    times: list[int] = []
    held = b""
    with media_errors("read", path, "damaged video"), av.open(str(path)) as container:
        if len(container.streams.video) != 1:
            raise EpisodeError(f"{path} holds {len(container.streams.video)} video streams instead of one")
        for packet in container.demux(container.streams.video[0]):
            if packet.size == 0:
                continue  # the end of the file is told by an empty packet
            if packet.pts is None or (times and packet.pts <= times[-1]):
                raise EpisodeError(f"{path}: packet {len(times)} has no presentation time of its own")
            if times:
                yield held
            times.append(packet.pts)
            held = bytes(packet)
    if len(times) != length:
        raise EpisodeError(f"{path} holds {len(times)} frames instead of {length}; ingest it again")
    found(PacketTable(np.array(times, np.int64), np.ones(length, bool)))
    yield held


def packets(path: Path, table: PacketTable, start: int, stop: int) -> list[tuple[bytes, bool]] | None:
    """The packets of frames ``start`` to ``stop``, each with whether it is a keyframe; None if they don't stand alone.

    They do where the first is a keyframe, all come in order of presentation, and no keyframe lets others refer past it.
    H.264 comes as Annex B with its parameter sets in front of every keyframe, as decoders take it without a file.

    Raises:
        EpisodeError: the file is damaged.
        StorageError: the file cannot be read.
    """
    if start >= stop or not table.is_key[start]:
        return None
    found: list[tuple[bytes, bool]] = []
    with media_errors("read", path, f"after frame {start}"), av.open(str(path)) as container:
        stream = container.streams.video[0]
        h264 = stream.codec_context.name == "h264"
        annexb = av.bitstream.BitStreamFilterContext("h264_mp4toannexb", stream) if h264 else None
        for packet in _packets_from(container, stream, int(table.pts[start])):
            if packet.pts != table.pts[start + len(found)]:
                return None
            is_key = packet.is_keyframe
            (whole,) = annexb.filter(packet) if annexb else (packet,)
            data = bytes(whole)
            if not data or (h264 and is_key and not _is_idr(data)):
                return None
            found.append((data, is_key))
            if start + len(found) == stop:
                return found
    raise EpisodeError(f"{path} ends at frame {start + len(found)}, wanted {stop}")


def _is_idr(data: bytes) -> bool:
    """Whether an Annex B packet holds a picture behind which none refers to one before it."""
    at = data.find(b"\0\0\1")
    while 0 <= at < len(data) - 3:
        if data[at + 3] & 31 == 5:
            return True
        at = data.find(b"\0\0\1", at + 3)
    return False


def _packets_from(
    container: av.container.InputContainer, stream: av.video.stream.VideoStream, pts: int
) -> Iterator[av.Packet[av.VideoStream]]:
    """Packets in decoding order from the keyframe at ``pts`` on, ending with the one that flushes the decoder."""
    if pts > 0:
        container.seek(pts, stream=stream, backward=True)
    found = False
    for packet in container.demux(stream):
        # An index may be coarse: seeking then lands on an earlier keyframe, never on a later one.
        found = found or packet.pts == pts
        if found:
            yield packet
