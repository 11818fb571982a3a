"""Measures one ingested episode: its clock, its numbers, what its cameras show, whether its files are whole."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes.reader import EpisodeReader
from knonik_loader.errors import EpisodeError, StorageError

__all__ = ["EpisodeRow", "examine"]

SAMPLES = 12
"""Pictures a camera that are decoded: enough to see a camera that is dark or stands still for half an episode."""
_BLOCK = 16
_CHANGE = 3.0
"""Luma by which the mean of some 16x16 block differs between two pictures of a live camera; codecs stay below."""
_MOTION = 0.05
"""Share of a channel's range over the episode that counts as the robot moving."""


@dataclass(frozen=True)
class EpisodeRow:
    """What is known about one episode; a row of the episode table. None: could not be measured."""

    episode: str
    source_id: str = ""
    frames: int = 0
    seconds: float | None = None
    fps: float | None = None
    bytes: int = 0
    streams: str = ""
    """Streams with their shapes, in a fixed order: equal text, equal dimensions."""
    backward_steps: int | None = None
    """Steps of the clock that are zero, negative or no number."""
    max_gap: float | None = None
    """Longest step of the clock, in frame periods."""
    jitter: float | None = None
    """Standard deviation of the clock's steps, in frame periods."""
    non_finite: int | None = None
    """NaN and infinite values over all numeric streams."""
    dimmest: float | None = None
    """Over the cameras, the least median of the luma that 1 % of a picture's pixels exceed; 0 to 255."""
    frozen: float | None = None
    """Over the cameras, the longest share of the episode for which one picture stands while the robot moves."""
    damaged_files: int = 0
    notes: dict[str, str] = field(default_factory=dict)
    """Column → what exactly was seen, for people."""


def examine(path: Path) -> EpisodeRow:
    """Measure the episode in a directory. Damage is part of the answer, never an exception."""
    try:
        reader = EpisodeReader(path)
        damage = reader.verify()
    except (EpisodeError, StorageError) as error:
        return EpisodeRow(path.name, damaged_files=1, notes={"damaged_files": str(error)})
    meta = reader.metadata
    known = EpisodeRow(
        path.name,
        source_id=meta.source_id,
        frames=reader.length,
        fps=meta.fps,
        bytes=sum(entry.bytes for entry in meta.files.values()),
        damaged_files=len(damage),
        notes={"damaged_files": "; ".join(damage[:5])} if damage else {},
    )
    if damage:
        return known
    try:
        return _measured(reader, known)
    except (EpisodeError, StorageError) as error:
        return EpisodeRow(**{**vars(known), "damaged_files": 1, "notes": {"damaged_files": str(error)}})


def _measured(reader: EpisodeReader, known: EpisodeRow) -> EpisodeRow:
    notes: dict[str, str] = {}
    numbers = {name: reader.numeric(name) for name in reader.metadata.numeric_streams}
    times = reader.frame_time()
    backward, gap, jitter = _clock(times, reader.metadata.fps, notes)
    dimmest, frozen = _cameras(reader, numbers, notes)
    return EpisodeRow(
        **{
            **vars(known),
            "seconds": float(times[-1] - times[0]) if len(times) else 0.0,
            "streams": _shapes(reader, numbers),
            "backward_steps": backward,
            "max_gap": gap,
            "jitter": jitter,
            "non_finite": _non_finite(numbers, notes),
            "dimmest": dimmest,
            "frozen": frozen,
            "notes": notes,
        }
    )


def _shapes(reader: EpisodeReader, numbers: dict[str, npt.NDArray[np.float32]]) -> str:
    meta = reader.metadata
    colour = {name: reader.rgb_info(name) for name in meta.rgb_streams}
    parts = [f"rgb_{name} {info.height}x{info.width}" for name, info in sorted(colour.items())]
    depth = {name: reader.depth_shape(name) for name in meta.depth_streams}
    parts += [f"depth_{name} {height}x{width}" for name, (height, width) in sorted(depth.items())]
    parts += [f"{name} {rows.shape[1]}" for name, rows in sorted(numbers.items())]
    return ", ".join(parts)


def _clock(times: npt.NDArray[np.float64], fps: float, notes: dict[str, str]) -> tuple[int, float, float]:
    if len(times) < 2:
        return 0, 1.0, 0.0
    steps = np.diff(times) * fps  # (T-1,) frame periods
    wrong = np.flatnonzero(~(steps > 0))
    if len(wrong):
        notes["backward_steps"] = f"the clock does not advance at frame {wrong[0] + 1}"
    widest = int(np.nanargmax(steps)) if np.isfinite(steps).any() else 0
    notes["max_gap"] = f"{steps[widest]:.2f} frame periods before frame {widest + 1}"
    notes["jitter"] = f"steps vary by {np.nanstd(steps):.3f} frame periods"
    return len(wrong), float(steps[widest]), float(np.nanstd(steps))


def _non_finite(numbers: dict[str, npt.NDArray[np.float32]], notes: dict[str, str]) -> int:
    total, words = 0, []
    for name, rows in numbers.items():
        bad = ~np.isfinite(rows)
        if bad.any():
            total += int(bad.sum())
            row, channel = np.argwhere(bad)[0]
            words.append(f"{name}: {bad.sum()} values that are no number, the first in row {row}, channel {channel}")
    if words:
        notes["non_finite"] = "; ".join(words)
    return total


def _cameras(
    reader: EpisodeReader, numbers: dict[str, npt.NDArray[np.float32]], notes: dict[str, str]
) -> tuple[float | None, float | None]:
    dim: dict[str, float] = {}
    frozen: dict[str, float] = {}
    words = []
    ranks = np.unique(np.linspace(0, reader.length - 1, min(SAMPLES, reader.length)).astype(int))
    for name in reader.metadata.rgb_streams:
        luma = [_luma(next(reader.rgb(name, int(rank), int(rank) + 1))) for rank in ranks]
        dim[name] = float(np.median([np.percentile(picture, 99) for picture in luma]))
        start, stop = _standstill(reader, name, ranks, luma)
        if stop - start > 2 and _moves(numbers, start, stop):
            frozen[name] = (stop - start) / reader.length
            words.append(f"camera {name} shows one picture from frame {start} to {stop - 1} while the robot moves")
    for name in reader.metadata.depth_streams:
        if not any(next(reader.depth(name, int(rank), int(rank) + 1)).any() for rank in ranks):
            dim[f"depth_{name}"] = 0.0
    if words:
        notes["frozen"] = "; ".join(words)
    if dim:
        darkest = min(dim, key=lambda name: dim[name])
        notes["dimmest"] = f"camera {darkest}: the brightest pixels have luma {dim[darkest]:.0f} of 255"
    return (min(dim.values()) if dim else None), (max(frozen.values(), default=0.0) if dim else None)


def _standstill(
    reader: EpisodeReader, name: str, ranks: npt.NDArray[np.int_], luma: Sequence[npt.NDArray[np.float32]]
) -> tuple[int, int]:
    """[start, stop) of the longest run of frames that show the same picture."""
    jpegs = reader.rgb_jpegs(name)
    if jpegs is not None:  # stored frame by frame: equal pictures are equal bytes, and none needs a decode
        digests = [hashlib.sha256(data).digest() for data in jpegs]
        first, last = _longest_run([left == right for left, right in pairwise(digests)])
        return first, last + 1
    same = [_block_difference(left, right) < _CHANGE for left, right in pairwise(luma)]
    first, last = _longest_run(same)
    return int(ranks[first]), int(ranks[last]) + 1


def _longest_run(same: Sequence[bool]) -> tuple[int, int]:
    """First and last index of the longest run of equal neighbours; ``same[i]`` says that i equals i + 1."""
    best = start = 0, 0
    for index, equal in enumerate(same):
        start = (start[0], index + 1) if equal else (index + 1, index + 1)
        best = max(best, start, key=lambda run: run[1] - run[0])
    return best


def _luma(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """(H, W) float32 of (H, W, 3) uint8."""
    return np.asarray(picture @ np.array([0.299, 0.587, 0.114], np.float32), np.float32)


def _block_difference(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> float:
    """Largest difference between the means of two pictures' 16x16 blocks."""
    height, width = (side // _BLOCK * _BLOCK for side in left.shape)
    difference = (left - right)[:height, :width]
    if not difference.size:
        return float(np.abs(left - right).max())
    blocks = difference.reshape(height // _BLOCK, _BLOCK, width // _BLOCK, _BLOCK)
    return float(np.abs(blocks.mean((1, 3))).max())


def _moves(numbers: dict[str, npt.NDArray[np.float32]], start: int, stop: int) -> bool:
    """Whether any channel moves within these frames; without numeric streams nobody knows, and it counts as moving."""
    for rows in numbers.values():
        finite = np.where(np.isfinite(rows), rows, 0)
        whole = np.ptp(finite, axis=0)
        if (np.ptp(finite[start:stop], axis=0) > np.maximum(_MOTION * whole, 1e-6)).any():
            return True
    return not numbers
