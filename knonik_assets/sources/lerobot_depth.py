"""Depth in videos of LeRobot datasets: metres out of codes of 12 bits."""

from __future__ import annotations

import re

import av
import numpy as np
import numpy.typing as npt

from knonik_assets.sources.lerobot_meta import DepthCode
from knonik_loader.errors import EpisodeError

__all__ = ["check_colour", "dequantised"]

_TOP_CODE = 4095
_DEEP_GREY = re.compile(r"gray(9|1\d|f)")


def check_colour(frame: av.VideoFrame, where: str) -> None:
    """Refuse deep grey pictures as colour: they are depth, of which eight bits would be left.

    Raises:
        EpisodeError: it is one.
    """
    if _DEEP_GREY.match(frame.format.name):
        raise EpisodeError(
            f"{where}: a {frame.format.name} video is no colour picture. If it is depth, info.json must say so "
            "(is_depth_map); otherwise leave it out of layout.images."
        )


def dequantised(frame: av.VideoFrame, code: DepthCode, where: str) -> npt.NDArray[np.float32]:
    """(H, W) metres of a frame of 12-bit codes.

    The first and the last code are no reading: recorders clip pixels without one to the first, and whatever is farther
    away than the range to the last, which then looks like a wall at the end of the range.
    """
    name = frame.format.name
    if "12le" not in name and "16le" not in name:
        raise EpisodeError(f"{where}: depth as {name} video; only 12-bit codes (gray12le) can be turned into metres.")
    plane = frame.planes[0]
    codes = np.frombuffer(memoryview(plane), np.uint16).reshape(frame.height, plane.line_size // 2)[:, : frame.width]
    if codes.max(initial=0) > _TOP_CODE:
        raise EpisodeError(
            f"{where}: depth of up to {codes.max()} in a {name} video; codes of 12 bits end at {_TOP_CODE}, and what "
            "others mean isn't told."
        )
    low, high, shift = code.low_m, code.high_m, code.shift_m
    if not (low < high and np.isfinite(shift) and (not code.log or low + shift > 0)):
        raise EpisodeError(
            f"{where}: depth_min {low:g}, depth_max {high:g} and shift {shift:g} of info.json make no sense together, "
            "so codes can't be turned into metres."
        )
    share = codes.astype(np.float64) / _TOP_CODE
    if code.log:
        low, high = np.log(code.low_m + code.shift_m), np.log(code.high_m + code.shift_m)
        metres = np.exp(low + share * (high - low)) - code.shift_m
    else:
        metres = code.low_m + share * (code.high_m - code.low_m)
    return np.where((codes > 0) & (codes < _TOP_CODE), np.clip(metres, code.low_m, code.high_m), 0).astype(np.float32)
