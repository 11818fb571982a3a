"""What LeRobot's training code asks a dataset's ``meta`` for."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from knonik_loader.dataset_stats import normalization_stats
from knonik_loader.engine.dataset import Source
from knonik_loader.engine.direct import DirectReader
from knonik_loader.khlp.manifest import StreamStats
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.plan.types import BatchPlan, StreamWindow
from knonik_loader.selection import select_rows

if TYPE_CHECKING:
    from knonik_loader.torch.dataset import KhlpDataset

__all__ = ["IMAGE_SAMPLES", "LerobotMeta"]

IMAGE_SAMPLES = 64
"""Frames of each camera that its statistics are made from, evenly spread over the episodes to train on."""

_STATISTICS = ("min", "max", "mean", "std", "q01", "q99")
_INDEX_FEATURES = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}


class LerobotMeta:
    """Facts and statistics by LeRobot's names.

    Args:
        dataset: made with ``keys="lerobot"``.
    """

    def __init__(self, dataset: KhlpDataset) -> None:
        shape = dataset.opened.shape
        if shape is None:
            raise TypeError("the dataset's samples do not have LeRobot's keys")
        opened = dataset.opened
        self._dataset = dataset
        self._names = shape.names
        self.repo_id = opened.name
        self.fps = round(opened.manifest.fps) if float(opened.manifest.fps).is_integer() else opened.manifest.fps
        self.robot_type: str | None = None
        """The packed dataset doesn't say."""
        self.tasks: dict[str, int] = dict(shape.tasks)
        """Instruction → ``task_index``."""
        self.total_episodes = dataset.num_episodes
        self.total_frames = dataset.num_frames
        self.features: dict[str, dict[str, Any]] = {
            self._names[stream.key]: _feature(stream) for stream in opened.streams
        } | {name: {"dtype": dtype, "shape": (1,), "names": None} for name, dtype in _INDEX_FEATURES.items()}
        """Key → type, shape of one step as recorded, and names of its axes or channels."""

    @property
    def camera_keys(self) -> list[str]:
        """Keys of the pictures."""
        return [name for name, feature in self.features.items() if feature["dtype"] == "image"]

    @property
    def image_keys(self) -> list[str]:
        """The same: they come out as pictures, however they are stored."""
        return self.camera_keys

    @property
    def video_keys(self) -> list[str]:
        """None."""
        return []

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Key → shape of one step as recorded."""
        return {name: feature["shape"] for name, feature in self.features.items()}

    @property
    def names(self) -> dict[str, Any]:
        """Key → names of its axes or channels."""
        return {name: feature["names"] for name, feature in self.features.items()}

    @cached_property
    def stats(self) -> dict[str, dict[str, npt.NDArray[np.float32]]]:
        """Key → statistic → values, over the episodes to train on.

        Numbers: exact, (D,), see `normalization_stats`. Pictures: (3, 1, 1) in [0, 1], of `IMAGE_SAMPLES` frames.
        """
        numeric = normalization_stats(self._dataset)
        return {name: _values(stats) for name, stats in numeric.items()} | self._image_stats()

    def _image_stats(self) -> dict[str, dict[str, npt.NDArray[np.float32]]]:
        opened = self._dataset.opened
        # Of the pictures as they are stored, whatever samples make of them.
        names = {
            loaded.stored.key: self._names[loaded.key]
            for loaded in reversed(opened.bound)
            if loaded.stored is not None and loaded.stored.kind == "rgb"
        }
        cameras = tuple(stream for stream in self._dataset.packed.streams if stream.key in names)
        if not cameras:
            return {}
        rows = self._dataset.chosen_rows
        if rows is None and "train" in opened.index.episodes.split:
            rows = select_rows(opened.index, split="train")
        if rows is None:
            rows = np.arange(len(opened.index.episodes), dtype=np.int64)
        ends = np.cumsum(opened.index.episodes.length[rows])
        numbers = np.unique(np.linspace(0, ends[-1] - 1, IMAGE_SAMPLES).astype(np.int64))
        at = np.searchsorted(ends, numbers, side="right")
        frames = numbers - (ends[at] - opened.index.episodes.length[rows][at])
        reader = DirectReader(
            Source("statistics", self._dataset.packed, cameras), opened.config, "numpy", augment=False
        )
        found: dict[str, list[npt.NDArray[np.float64]]] = {camera.key: [] for camera in cameras}
        zero = np.zeros(1, np.int64)
        for row, frame in zip(rows[at], frames, strict=True):
            window = StreamWindow(np.full((1, 1), frame), np.ones((1, 1), bool))
            windows = {camera.key: window for camera in cameras}
            batch = reader.batch(BatchPlan(0, 0, zero, zero + row, zero + frame, np.zeros(1, np.uint64), windows))
            for camera in cameras:
                pixels = batch[camera.key].reshape(-1, 3).astype(np.float64) / 255
                found[camera.key].append(
                    np.stack([pixels.min(0), pixels.max(0), pixels.mean(0), np.square(pixels).mean(0)])
                )
        return {names[key]: _of_pictures(np.stack(parts)) for key, parts in found.items()}


def _values(stats: StreamStats) -> dict[str, npt.NDArray[np.float32]]:
    values = {name: np.array(getattr(stats, name), np.float32) for name in _STATISTICS}
    return {**values, "count": np.array([stats.count])}


def _of_pictures(parts: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float32]]:
    """(n, 4, 3) minimum, maximum, mean and mean square of each picture, all of one size."""
    mean = parts[:, 2].mean(0)
    values = {
        "min": parts[:, 0].min(0),
        "max": parts[:, 1].max(0),
        "mean": mean,
        "std": np.sqrt(np.maximum(parts[:, 3].mean(0) - np.square(mean), 0)),
    }
    shaped = {name: value.astype(np.float32).reshape(3, 1, 1) for name, value in values.items()}
    return {**shaped, "count": np.array([len(parts)])}


def _feature(stream: StreamInfo) -> dict[str, Any]:
    if stream.kind == "rgb":
        return {"dtype": "image", "shape": tuple(stream.shape), "names": ["height", "width", "channels"]}
    if stream.kind == "depth":
        return {"dtype": stream.dtype, "shape": tuple(stream.shape), "names": ["height", "width"]}
    names = list(stream.channel_names) if stream.channel_names else None
    return {"dtype": stream.dtype, "shape": tuple(stream.shape), "names": names}
