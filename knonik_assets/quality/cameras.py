"""What an episode's cameras show: light, life, sharpness."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes.reader import EpisodeReader

__all__ = ["CameraFacts", "look_at_cameras"]

SAMPLES = 12
"""Pictures a camera that are decoded: enough to see a camera that is dark or stands still for half an episode."""
_BLOCK = 16
_CHANGE = 3.0
"""Luma by which the mean of some 16x16 block differs between two pictures of a live camera; codecs stay below."""
_WHITE = 250.0
"""Luma from which a pixel counts as saturated."""


@dataclass
class CameraFacts:
    """Over all cameras of an episode."""

    dimmest: float | None = None
    frozen: float | None = None
    saturated: float | None = None
    sharpness: dict[str, float] = field(default_factory=dict)
    """RGB camera → median over pictures of the variance of the luma's Laplacian."""
    notes: dict[str, str] = field(default_factory=dict)
    pictures: dict[str, list[list[float]]] = field(default_factory=dict)
    """Stream → of every sampled picture: frame, luma, still, white; see `EpisodeRow.pictures`."""


def look_at_cameras(reader: EpisodeReader, moves: Callable[[int, int], bool]) -> CameraFacts:
    """Sample every camera.

    Args:
        reader: of the episode.
        moves: whether the robot moves within [start, stop).

    Raises:
        EpisodeError: a picture can't be read.
    """
    dim: dict[str, float] = {}
    white: dict[str, float] = {}
    frozen: dict[str, float] = {}
    facts = CameraFacts()
    words = []
    ranks = np.unique(np.linspace(0, reader.length - 1, min(SAMPLES, reader.length)).astype(int))
    for name in reader.metadata.rgb_streams:
        luma = [_luma(next(reader.rgb(name, int(rank), int(rank) + 1))) for rank in ranks]
        brightest = [float(np.percentile(picture, 99)) for picture in luma]
        whites = [float((picture >= _WHITE).mean()) for picture in luma]
        dim[name], white[name] = float(np.median(brightest)), float(np.median(whites))
        facts.sharpness[name] = float(np.median([_laplacian_variance(picture) for picture in luma]))
        start, stop = _standstill(reader, name, ranks, luma)
        if stop - start > 2 and moves(start, stop):
            frozen[name] = (stop - start) / reader.length
            words.append(f"camera {name} shows one picture from frame {start} to {stop - 1} while the robot moves")
        facts.pictures[f"rgb_{name}"] = [
            [rank, max(light, dim[name]), frozen.get(name, 0.0) * (start <= rank < stop), min(bright, white[name])]
            for rank, light, bright in zip(ranks.tolist(), brightest, whites, strict=True)
        ]
    for name in reader.metadata.depth_streams:
        if not any(next(reader.depth(name, int(rank), int(rank) + 1)).any() for rank in ranks):
            dim[f"depth_{name}"] = 0.0
            facts.pictures[f"depth_{name}"] = [[rank, 0.0, 0.0, 0.0] for rank in ranks.tolist()]
    if words:
        facts.notes["frozen"] = "; ".join(words)
    if dim:
        darkest = min(dim, key=lambda name: dim[name])
        facts.notes["dimmest"] = f"camera {darkest}: the brightest pixels have luma {dim[darkest]:.0f} of 255"
        facts.dimmest, facts.frozen = dim[darkest], max(frozen.values(), default=0.0)
    if white:
        lightest = max(white, key=lambda name: white[name])
        facts.notes["saturated"] = f"camera {lightest}: {white[lightest]:.0%} of its pixels are white"
        facts.saturated = white[lightest]
    return facts


def _laplacian_variance(luma: npt.NDArray[np.float32]) -> float:
    """The usual measure of focus: variance of the 4-neighbour Laplacian."""
    inner = luma[1:-1, 1:-1]
    laplacian = luma[:-2, 1:-1] + luma[2:, 1:-1] + luma[1:-1, :-2] + luma[1:-1, 2:] - 4 * inner
    return float(laplacian.var()) if laplacian.size else 0.0


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
