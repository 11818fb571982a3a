"""Rates of LeRobotDataset and of `KhlpDataset` on the same frames, in one process that has both installed.

Run by `benchmarks.torch_data`; prints JSON. Windows of all cameras, through a DataLoader with two workers, in two ways:
as each dataset gives them by itself (ours uint8 for the GPU to scale, LeRobot's float32), and both in LeRobot's shape.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.common import alternate
from knonik_loader import ShardedDataLoader
from knonik_loader.torch import KhlpDataset

BATCH, WINDOW, WORKERS = 16, 4, 2


def write_lerobot(packed: KhlpDataset, root: Path, most: int) -> Any:
    """The first ``most`` frames of every episode, with the encoder settings that LeRobot has by default."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    cameras = packed.meta.camera_keys
    features = {
        key: {"dtype": "video", "shape": packed.meta.features[key]["shape"], "names": ["height", "width", "channels"]}
        for key in cameras
    }
    features |= {key: packed.meta.features[key] for key in ("observation.state", "action")}
    features = {key: {**value, "shape": tuple(value["shape"])} for key, value in features.items()}
    dataset = LeRobotDataset.create("peer", int(packed.meta.fps), features, root=root, use_videos=True)
    for row in range(packed.num_episodes):
        for number, sample in enumerate(
            KhlpDataset(packed.opened.key, keys="lerobot", image_dtype="uint8", episodes=[row])
        ):
            if number >= most:
                break
            frame = {key: sample[key].permute(1, 2, 0).numpy() for key in cameras}
            frame |= {key: sample[key].numpy() for key in ("observation.state", "action")}
            dataset.add_frame({**frame, "task": sample["task"] or "none"})
        dataset.save_episode()
    dataset.finalize()
    return LeRobotDataset


def rate(dataset: Any, seconds: float) -> float:
    """Frames of all cameras a second, after each worker's first batch; ``dataset`` may be a loader of ours."""
    if isinstance(dataset, ShardedDataLoader):
        batches = forever(dataset)
    else:
        batches = forever(
            DataLoader(
                dataset, batch_size=BATCH, shuffle=True, num_workers=WORKERS, drop_last=True, persistent_workers=True
            )
        )
    for _ in range(WORKERS * 2):
        next(batches)
    start, frames = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        batch = next(batches)
        frames += sum(
            value.shape[0] * value.shape[1]
            for value in batch.values()
            if isinstance(value, torch.Tensor) and value.ndim == 5
        )
    return frames / (time.perf_counter() - start)


def sharded(manifest: Path) -> ShardedDataLoader:
    """Our own loader with the same windows and batches, as many decode threads as the others have workers."""
    return ShardedDataLoader(
        {
            "decode_mode": "random_access",
            "hlp_manifest": str(manifest),
            "chunk_len": WINDOW,
            "batch_size": BATCH,
            "num_decoders": WORKERS,
            "drop_last": True,
            "framework": "torch",
            "rank": 0,
            "world_size": 1,
        }
    )


def forever(loader: Any) -> Any:
    while True:
        yield from loader


def main() -> None:
    from lerobot.datasets import video_utils

    folder, most, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    torch.manual_seed(0)
    manifests = {path.name: path / "hlp_manifest.json" for path in sorted(folder.iterdir()) if path.is_dir()}
    first = KhlpDataset(next(iter(manifests.values())), keys="lerobot")
    root = folder / "lerobot.peer"
    kind = write_lerobot(first, root, most)
    fps, cameras = first.meta.fps, first.meta.camera_keys
    deltas = {key: [step / fps for step in range(WINDOW)] for key in cameras}
    results: dict[str, Any] = {}
    backends: dict[str, Callable[[], Any]] = {
        backend: lambda backend=backend: kind("peer", root=root, delta_timestamps=deltas, video_backend=backend)
        for backend in ("torchcodec", "pyav")
    }
    for backend, make in backends.items():
        peer = make()
        try:
            peer[0]
        except (RuntimeError, ImportError, OSError, AttributeError) as error:
            results[backend] = str(error)[:100]
            continue
        if backend == "torchcodec":  # what it opened here would be shared with forked workers, which then read garbage
            video_utils._default_decoder_cache.clear()
        mine = {name: KhlpDataset(path, chunk_len=WINDOW) for name, path in manifests.items()}
        shaped = {
            f"{name}, LeRobot's keys": KhlpDataset(path, keys="lerobot", delta_timestamps=deltas)
            for name, path in manifests.items()
        }
        loaders = {f"{name}, ShardedDataLoader": sharded(path) for name, path in manifests.items()}
        datasets = {"lerobot": peer, **mine, **shaped, **loaders}
        rates = alternate(2, *(lambda dataset=dataset: rate(dataset, seconds) for dataset in datasets.values()))
        for loader in loaders.values():
            loader.shutdown()
        results[backend] = dict(zip(datasets, rates, strict=True))
        break
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
