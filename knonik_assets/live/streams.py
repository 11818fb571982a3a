"""The streams of an open episode: what is checked of every frame before it is taken."""

from __future__ import annotations

import math
import threading
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.live.declared import Declared
from knonik_assets.live.lanes import Lane
from knonik_assets.sources.images import MAX_PIXELS, picture_layout, to_rgb
from knonik_loader.errors import EpisodeError

__all__ = ["LiveStream", "Rows"]

_BLOCK = 256


class Rows:
    """The rows of a numeric stream, float32, in blocks."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._blocks: list[npt.NDArray[np.float32]] = []
        self._count = 0
        self.infinite = 0
        """Numbers that float32 cannot hold."""
        self.unset = 0
        """Rows with a NaN or an infinity among what was pushed."""

    def append(self, row: npt.NDArray[Any]) -> None:
        """Take one (D,) row."""
        at = self._count % _BLOCK
        if at == 0:
            self._blocks.append(np.empty((_BLOCK, self._dim), np.float32))
        block = self._blocks[-1]
        with np.errstate(over="ignore"):  # counted
            block[at] = row
        if row.dtype.kind == "f" and row.dtype.itemsize > 4:
            self.infinite += int(np.isinf(block[at]).sum() - np.isinf(row).sum())
        self.unset += row.dtype.kind == "f" and not np.isfinite(row).all()
        self._count += 1

    def first(self, count: int) -> npt.NDArray[np.float32]:
        """(count, D)."""
        return np.concatenate(self._blocks)[:count]


class LiveStream:
    """One stream of an open episode. Any thread may push; one at a time is served."""

    def __init__(self, declared: Declared, episode_id: str) -> None:
        self.declared = declared
        self.count = 0
        self.times: array[float] = array("d")
        """Seconds of every frame, where the producer gives them."""
        self.repeated = 0
        """Frames with the same time as the one before."""
        self.rows = Rows(declared.dim) if declared.kind == "numeric" else None
        self.lane: Lane | None = None
        self.lock = threading.Lock()
        self._episode_id = episode_id
        self._shape: tuple[int, ...] | None = None

    @property
    def where(self) -> str:
        """The next frame, for messages."""
        what = "row" if self.rows is not None else "frame"
        return f"{self._episode_id}, stream {self.declared.key!r}, {what} {self.count}"

    def check(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Check shape and type of a frame, before anything is allocated for it.

        Raises:
            EpisodeError: not of the kind that the stream holds, or of another shape than its first frame.
        """
        wanted, fits = {"rgb": _fits_rgb, "depth": _fits_depth, "numeric": self._fits_row}[self.declared.kind](shape)
        if dtype.kind not in ("fiub" if self.rows is not None else "fiu") or not fits:
            raise EpisodeError(f"{self.where}: wanted {wanted}, got {dtype} of shape {shape}")
        if self.rows is None and self._shape is not None and shape != self._shape:
            raise EpisodeError(
                f"{self.where}: the shape is {shape}, but the stream's first one was {self._shape}; a stream keeps "
                "one shape"
            )

    def check_time(self, timestamp: Any) -> float | None:  # noqa: ANN401 - whatever the caller gave
        """The frame's time in seconds, or None where the stream has none.

        Raises:
            EpisodeError: no finite number, earlier than the frame before, or given for some frames only.
        """
        if self.count and (timestamp is None) != (not self.times):
            raise EpisodeError(f"{self.where}: in one episode all frames of a stream come with a timestamp, or none")
        if timestamp is None:
            return None
        if isinstance(timestamp, bool | str | bytes) or np.ndim(timestamp) != 0:
            raise EpisodeError(f"{self.where}: the timestamp is {timestamp!r}; it must be a number of seconds")
        try:
            seconds = float(timestamp)
        except (TypeError, ValueError, OverflowError) as error:
            raise EpisodeError(
                f"{self.where}: the timestamp is {timestamp!r}; it must be a number of seconds"
            ) from error
        if not math.isfinite(seconds):
            raise EpisodeError(f"{self.where}: the timestamp is {seconds}; it must be a finite number of seconds")
        if self.times and seconds < self.times[-1]:
            raise EpisodeError(
                f"{self.where}: time goes backwards, from {self.times[-1]!r} s to {seconds!r} s; push frames in order"
            )
        return seconds

    def own(self, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A contiguous copy of a checked frame that nobody else can change: RGB for colours, as it is otherwise.

        Raises:
            EpisodeError: colours outside what their type means.
        """
        if self.declared.kind == "rgb":
            picture = to_rgb(value, self.where, scale=255.0 if value.dtype.kind == "f" else None)
            return picture.copy() if np.may_share_memory(picture, value) else picture
        return np.array(value, order="C")

    def took(self, shape: tuple[int, ...], seconds: float | None) -> None:
        """A frame was taken."""
        self._shape = shape
        self.count += 1
        if seconds is not None:
            self.repeated += bool(self.times) and seconds == self.times[-1]
            self.times.append(seconds)

    def _fits_row(self, shape: tuple[int, ...]) -> tuple[str, bool]:
        dim = self.declared.dim
        return f"{dim} numbers of shape ({dim},)", shape == (dim,) or (dim == 1 and shape == ())


def _fits_rgb(shape: tuple[int, ...]) -> tuple[str, bool]:
    layout = picture_layout(shape)
    sides = shape[1:] if layout == "chw" else shape[:2]
    return "a picture, uint8 (H, W, 3)", layout is not None and 0 < math.prod(sides) <= MAX_PIXELS


def _fits_depth(shape: tuple[int, ...]) -> tuple[str, bool]:
    sides = shape[:2] if shape[2:] == (1,) else shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
    wanted = "a depth map (H, W), floats in metres or integers in millimetres"
    return wanted, len(sides) == 2 and 0 < math.prod(sides) <= MAX_PIXELS
