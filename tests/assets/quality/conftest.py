"""Small episodes, healthy and ill, written by the real writer."""

from pathlib import Path

import numpy as np
import pytest

from knonik_assets.configs.presets import Preset, RgbPreset
from knonik_assets.episodes.writer import EpisodeWriter
from knonik_assets.sources.base import Language
from tests.support.stamps import episode_arrays


def write_episode(out: Path, number: int, *, codec="h264", frames=24, size=(96, 112), cameras=2, change=None):
    """One stamped episode of two cameras, state and action; ``change`` may damage its arrays first."""
    out.mkdir(parents=True, exist_ok=True)
    arrays = episode_arrays(number, frames, cameras, *size)
    if change is not None:
        change(arrays)
    writer = EpisodeWriter(
        out,
        f"episode_{number:06d}",
        preset=Preset(rgb=RgbPreset(codec=codec, quality=95 if codec == "jpeg" else 14, gop=8)),
        source_format="hdf5",
        source_id=f"episode_{number}",
        source_fingerprint=f"source {number}",
        config_fingerprint="config",
        dataset="stamps",
        robot_type="none",
        fps=30,
    )
    with writer:
        for camera in range(cameras):
            writer.add_rgb(f"cam_{camera}")
        writer.add_numeric("state", arrays["state"].shape[1], role="state")
        writer.add_numeric("action", arrays["action"].shape[1], role="action")
        for camera in range(cameras):
            for frame in arrays[f"cam_{camera}"]:
                writer.rgb(f"cam_{camera}", frame)
        writer.numeric("state", arrays["state"])
        writer.numeric("action", arrays["action"])
        writer.clock(np.asarray(arrays["timestamps"]), "source")
        writer.language(Language("put the block on the plate"))
        writer.commit()
    return out / f"episode_{number:06d}"


@pytest.fixture
def episode(tmp_path):
    """Writes an episode into ``tmp_path / "episodes"``."""

    def write(number=0, **options):
        return write_episode(tmp_path / "episodes", number, **options)

    return write
