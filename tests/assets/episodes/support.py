"""Small episodes for these tests."""

from pathlib import Path

import numpy as np

from knonik_assets.configs.presets import Preset
from knonik_assets.episodes.writer import EpisodeWriter
from tests.support.stamps import episode_arrays

FACTS = {
    "source_format": "test",
    "source_id": "recording_7",
    "source_fingerprint": "f" * 64,
    "config_fingerprint": "c" * 64,
    "dataset": "stamps",
    "robot_type": "none",
}


def preset(**rgb) -> Preset:
    return Preset.model_validate({"rgb": rgb})


def open_writer(out: Path, episode_id: str = "episode_000000", *, rgb: dict | None = None, fps=30.0, **more):
    chosen = more.pop("preset", None) or preset(**(rgb or {}))
    return EpisodeWriter(out, episode_id, preset=chosen, fps=fps, **(FACTS | more))


def write_stamped(
    out: Path,
    episode: int = 1,
    frames: int = 12,
    cameras: int = 1,
    size=(96, 112),
    *,
    episode_id="episode_000000",
    **more,
) -> dict[str, np.ndarray]:
    """Write a stamped episode with all its streams; returns what went in."""
    arrays = episode_arrays(episode, frames, cameras, *size)
    with open_writer(out, episode_id, **more) as writer:
        for camera in range(cameras):
            writer.add_rgb(f"cam_{camera}")
        writer.add_numeric("state", 4, role="state")
        writer.add_numeric("action", 4, role="action", channel_names=["a", "b", "c", "d"])
        for camera in range(cameras):
            for image in arrays[f"cam_{camera}"]:
                writer.rgb(f"cam_{camera}", image)
        writer.numeric("state", arrays["state"])
        writer.numeric("action", arrays["action"])
        writer.clock(arrays["timestamps"], "source")
        writer.commit()
    return arrays
