"""Measures one ingested episode: its clock, its numbers, what its cameras show, whether its files are whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.quality.cameras import look_at_cameras
from knonik_loader.errors import EpisodeError, StorageError

__all__ = ["EpisodeRow", "examine"]

Numbers = dict[str, npt.NDArray[np.float32]]
Bound = dict[str, tuple[str, npt.NDArray[np.float64]]]

_MOTION = 0.05
"""Share of a channel's range over the episode that counts as the robot moving."""


@dataclass(frozen=True)
class EpisodeRow:
    """What is known about one episode; a row of the episode table. None: could not be measured."""

    episode: str
    source_id: str = ""
    frames: int = 0
    cut: int = 0
    """Frames that ingest cut from the end of the longest stream."""
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
    saturated: float | None = None
    """Over the cameras, the largest median share of pixels that are white."""
    sharpness: dict[str, float] = field(default_factory=dict)
    """RGB camera → how sharp it is; compared with the other episodes' cameras of the same name."""
    blur: float | None = None
    """Over the cameras, the least sharpness as a share of what the other episodes have."""
    pictures: dict[str, list[list[float]]] = field(default_factory=dict)
    """Camera → of every sampled picture: its frame; the luma that 1 % of its pixels exceed, or the camera's median
    where that is more; the share of the episode for which it stands while the robot moves, else 0; the share of its
    white pixels, or the camera's median where that is less. So some picture is beyond a limit exactly where
    ``dimmest``, ``frozen`` or ``saturated`` is."""
    constant_channels: int | None = None
    """Channels of the action or state that never change."""
    offset: float | None = None
    """Over the channels, the largest mean distance of action and state, as a share of the state's range."""
    content: str = ""
    """Digest of the episode's files: equal for equal recordings."""
    duplicate_of: str | None = None
    """An earlier episode with the same content."""
    damaged_files: int = 0
    notes: dict[str, str] = field(default_factory=dict)
    """Column → what exactly was seen, for people."""


def examine(path: Path, roles: Mapping[str, str] | None = None) -> EpisodeRow:
    """Measure the episode in a directory. Damage is part of the answer, never an exception.

    Args:
        path: of the episode.
        roles: ``action`` and ``state`` → numeric stream, over what the episode itself binds.
    """
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
        cut=max(meta.trimmed.values(), default=0),
        content=_content(reader),
        damaged_files=len(damage),
        notes=_told(damage, meta.trimmed),
    )
    if damage:
        return known
    try:
        return _measured(reader, known, {**reader.metadata.stream_roles, **(roles or {})})
    except (EpisodeError, StorageError) as error:
        return EpisodeRow(**{**vars(known), "damaged_files": 1, "notes": {"damaged_files": str(error)}})


def _told(damage: list[str], trimmed: Mapping[str, int]) -> dict[str, str]:
    notes = {"damaged_files": "; ".join(damage[:5])} if damage else {}
    if trimmed:
        notes["cut"] = "cut to the shortest stream: " + ", ".join(f"{key} by {n}" for key, n in trimmed.items())
    return notes


def _measured(reader: EpisodeReader, known: EpisodeRow, roles: Mapping[str, str]) -> EpisodeRow:
    notes = dict(known.notes)
    numbers = {name: reader.numeric(name) for name in reader.metadata.numeric_streams}
    bound = _bound(numbers, roles)
    times = reader.frame_time()
    backward, gap, jitter = _clock(times, reader.metadata.fps, notes)
    cameras = look_at_cameras(reader, lambda start, stop: _moves(numbers, start, stop))
    notes.update(cameras.notes)
    return EpisodeRow(
        **{
            **vars(known),
            "seconds": float(times[-1] - times[0]) if len(times) else 0.0,
            "streams": _shapes(reader, numbers),
            "backward_steps": backward,
            "max_gap": gap,
            "jitter": jitter,
            "non_finite": _non_finite(numbers, notes),
            "dimmest": cameras.dimmest,
            "frozen": cameras.frozen,
            "saturated": cameras.saturated,
            "sharpness": cameras.sharpness,
            "pictures": cameras.pictures,
            "constant_channels": _constant(bound, notes),
            "offset": _offset(bound, notes),
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


def _content(reader: EpisodeReader) -> str:
    """What was recorded: names and checksums of the streams' files, without what a config said about them."""
    files = reader.metadata.files
    streams = sorted(f"{name} {entry.sha256}" for name, entry in files.items() if not name.startswith("annotations/"))
    return hashlib.sha256("\n".join(streams).encode()).hexdigest()


def _bound(numbers: Numbers, roles: Mapping[str, str]) -> Bound:
    """Role → (stream, finite rows), of action and state where they are bound to a stream that is there."""
    return {
        role: (roles[role], np.where(np.isfinite(numbers[roles[role]]), numbers[roles[role]], 0).astype(np.float64))
        for role in ("action", "state")
        if roles.get(role) in numbers and len(numbers[roles[role]])
    }


def _constant(bound: Bound, notes: dict[str, str]) -> int:
    """Channels that never change; one that never does may be a cable that came off."""
    still = {name: np.flatnonzero(np.ptp(rows, axis=0) == 0) for name, rows in bound.values()}
    words = [f"{name}: channels {', '.join(map(str, rows))} never change" for name, rows in still.items() if len(rows)]
    if words:
        notes["constant_channels"] = "; ".join(words)
    return sum(map(len, still.values()))


def _offset(bound: Bound, notes: dict[str, str]) -> float | None:
    """How far commanded and measured positions lie apart on average: a leader and follower that disagree show here.

    Of channels alone in which both cover about the same range: a velocity or a small step is no position.
    """
    if len(bound) < 2 or bound["action"][1].shape != bound["state"][1].shape:
        return None
    action, state = bound["action"][1], bound["state"][1]
    span = np.ptp(state, axis=0)
    moving = (span > 1e-6) & (np.abs(np.ptp(action, axis=0) - span) < span / 2)
    if not moving.any():
        return None
    apart = np.where(moving, np.abs((action - state).mean(axis=0)) / np.where(moving, span, 1), 0)
    worst = int(apart.argmax())
    distance = float((action - state).mean(axis=0)[worst])
    notes["offset"] = f"action and state differ by {distance:.3g} on average in channel {worst}"
    return float(apart[worst])


def _moves(numbers: dict[str, npt.NDArray[np.float32]], start: int, stop: int) -> bool:
    """Whether any channel moves within these frames; without numeric streams nobody knows, and it counts as moving."""
    for rows in numbers.values():
        finite = np.where(np.isfinite(rows), rows, 0)
        whole = np.ptp(finite, axis=0)
        if (np.ptp(finite[start:stop], axis=0) > np.maximum(_MOTION * whole, 1e-6)).any():
            return True
    return not numbers
