"""What tests of the PyTorch datasets share: windows far beyond both ends of an episode, and what a batch holds."""

from collections.abc import Iterator

import numpy as np

FPS = 30.0
OFFSETS = {
    "rgb_cam_0": [-105, -1, 0, 105],
    "rgb_cam_1": [0, 7],
    "depth_cam_0": [-105, 0],
    "state": [-105, 0, 105],
    "action": [0, 1, 2, 105],
}
"""Frames from the anchor: up to 3.5 s before and after it, beyond both ends of the episodes."""


def deltas() -> dict[str, list[float]]:
    return {key: [offset / FPS for offset in offsets] for key, offsets in OFFSETS.items()}


def wanted(batch) -> dict[str, np.ndarray]:
    anchors = np.asarray(batch["_frame_indices"])[:, None]
    return {key: anchors + np.array(offsets) for key, offsets in OFFSETS.items()}


def samples(batches) -> Iterator[tuple[str, int]]:
    """(episode, frame) of every sample, in order."""
    for batch in batches:
        yield from zip(batch["_episode_ids"], np.asarray(batch["_frame_indices"]).tolist(), strict=True)
