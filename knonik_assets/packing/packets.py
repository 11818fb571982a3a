"""Video packets of an episode that become records as they are, so that nothing is lost by encoding twice.

They pass where they make a segment that decodes alone, in order, to the very frames that the episode has; and where
encoding anew could not make it smaller without losing quality that somebody asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from knonik_assets.episodes.reader import EpisodeReader, RgbInfo
from knonik_loader.errors import DecodeError
from knonik_loader.khlp.types import Codec, Record, StreamInfo

__all__ = ["may_pass", "passed_records"]

AT_ONCE = 8
"""Decoded frames held while packets are checked."""


def may_pass(stored: RgbInfo, shape: Sequence[int], params: Mapping[str, Any]) -> bool:
    """Whether an episode's stream is such that its packets could be records of a packed one.

    Args:
        stored: what the episode holds.
        shape: (H, W, 3) of the packed frames.
        params: what SHDR was told.
    """
    quality = stored.params.get("quality")
    # packets that were copied at ingest say no quality: whatever it is, encoding them again could only lose
    finer = not stored.params.get("copied") and (quality is None or quality < params["quality"])
    return (
        stored.codec == params["codec"]
        and (stored.height, stored.width) == tuple(shape[:2])
        and stored.params.get("pixel_format") == f"yuv{params['chroma']}p"
        and not finer
    )


def passed_records(
    reader: EpisodeReader, stream: StreamInfo, codec: Codec, start: int, stop: int
) -> list[Record] | None:
    """The packets of frames ``start`` to ``stop`` as records, each checked by decoding it; None where they don't fit.

    Raises:
        EpisodeError: the episode's own frames don't decode.
        StorageError: the file cannot be read.
    """
    packets = reader.rgb_packets(stream.name, start, stop)
    if packets is None:
        return None
    records, key = [], 0
    for row, (data, is_key) in enumerate(packets):
        key = row if is_key else key
        records.append(Record(data, key_back=row - key))
    try:
        frames = _decoded(stream, codec, records)
        same = all(np.array_equal(*pair) for pair in zip(frames, reader.rgb(stream.name, start, stop), strict=True))
    except DecodeError:
        return None
    return records if same else None


def _decoded(stream: StreamInfo, codec: Codec, records: Sequence[Record]) -> Iterator[np.ndarray[Any, Any]]:
    """Every frame as a loader will have it: from its keyframe on, nothing else at hand."""
    views = [memoryview(record.data) for record in records]
    keys = [row for row, record in enumerate(records) if not record.key_back]
    for key, end in zip(keys, [*keys[1:], len(records)], strict=True):
        for first in range(key, end, AT_ONCE):
            rows = range(first, min(first + AT_ONCE, end))
            out = {row: np.empty(stream.shape, np.uint8) for row in rows}
            codec.decode({row: views[row] for row in range(key, rows.stop)}, rows, out)
            yield from out.values()
