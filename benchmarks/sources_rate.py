"""Reading rate of a whole episode against the family's own library reading the same bytes.

In turns, the best of each, as others use the machine. Pictures that a family stores encoded are decoded by both, video
is decoded and converted to RGB by both, numbers are read by both; opening the dataset and whatever is checked before
counts. ``KNONIK_SOURCES`` names some of the families.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.common import Ratio
from benchmarks.sources_peers import FAMILIES, Bare, video

__all__ = ["run"]

REPEATS = 9


def run() -> list[Ratio]:
    """Measure every family, or those named."""
    named = [name for name in os.environ.get("KNONIK_SOURCES", "").split(";") if name]
    pictures = video()
    rows = []
    for name in named or FAMILIES:
        with TemporaryDirectory(dir=os.environ.get("KNONIK_BENCH_FOLDER")) as folder:
            config, bare = FAMILIES[name](Path(folder), pictures)
            rows.append(_compared(name, folder, config, bare))
            sys.stderr.write(f"{name}: {rows[-1].ratio:.2f}, {rows[-1].detail}\n")
    return rows


def _compared(name: str, folder: str, config: dict[str, Any], bare: Bare) -> Ratio:
    from knonik_assets.configs.load import load_ingest_config
    from knonik_assets.sources import video_files
    from knonik_assets.sources.registry import open_source

    source = open_source(load_ingest_config(config), folder)

    def ours() -> Iterator[np.ndarray]:
        video_files._index.cache_clear()
        with source.open(source.episodes()[0]) as episode:
            for spec in episode.streams:
                if spec.kind == "numeric":
                    episode.numeric(spec)
                else:
                    yield from map(_decoded, episode.frames(spec))

    pairs = [(_timed(ours), _timed(bare)) for _ in range(REPEATS)]
    (frames,) = {one[0] for pair in pairs for one in pair}
    mine, theirs = (min(one[1] for one in side) for side in zip(*pairs, strict=True))
    mine_used, theirs_used = (min(one[2] for one in side) for side in zip(*pairs, strict=True))
    detail = f"{frames / mine:.0f} frames/s; by processor time {theirs_used / mine_used:.2f}"
    return Ratio(name, "its own library", theirs / mine, ">= 0.90", detail)


def _decoded(frame: Any) -> np.ndarray:
    from knonik_assets.sources.base import EncodedImage
    from knonik_assets.sources.images import decode_image

    return decode_image(frame) if isinstance(frame, EncodedImage) else frame


def _timed(read: Bare) -> tuple[int, float, float]:
    """Frames, seconds, and seconds of processor time."""
    began, used = time.perf_counter(), time.process_time()
    frames = 0
    for frame in read():
        frames += 1
        assert int(frame[0, 0].sum()) >= 0  # looked at
    return frames, time.perf_counter() - began, time.process_time() - used
