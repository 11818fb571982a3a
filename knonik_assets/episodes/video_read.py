"""Exact frames out of a video file, by rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import av
import av.error
import av.video.stream

from knonik_assets.episodes.video import PacketTable, media_errors
from knonik_loader.errors import EpisodeError

__all__ = ["frames", "jpegs"]


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
