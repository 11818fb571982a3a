"""Raw stamped recordings, and the road from them to packed datasets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np

from tests.support.stamps import episode_arrays, read_stamp

PROFILES = ("compact_video", "training_fast", "training_compressed")


def write_raw(folder: Path, lengths: list[int], cameras: int = 2, fps: float = 30.0, size: tuple[int, int] = (96, 112)):
    """Stamped ``episode_<n>.hdf5`` in ALOHA's layout, not zero-padded as there."""
    folder.mkdir(parents=True, exist_ok=True)
    for episode, frames in enumerate(lengths):
        arrays = episode_arrays(episode, frames, cameras, *size, fps=fps)
        with h5py.File(folder / f"episode_{episode}.hdf5", "w") as file:
            for camera in range(cameras):
                video = arrays[f"cam_{camera}"]
                file.create_dataset(f"observations/images/cam_{camera}", data=video, chunks=(1, *video.shape[1:]))
            file["observations/qpos"] = arrays["state"]
            file["action"] = arrays["action"]
            file["timestamps"] = arrays["timestamps"]
    return folder


def ingest_config(cameras: int = 2, fps: float = 30.0, **changes) -> dict:
    return {
        "dir_type": "episodic",
        "data_type": "hdf5",
        "fps": fps,
        "metadata": {"dataset": "stamped", "robot_type": "none"},
        "preset": {"rgb": {"codec": "jpeg", "quality": 92}},
        "layout": {
            "images": {f"cam_{c}": {"key": f"observations.images.cam_{c}"} for c in range(cameras)},
            "numeric": {"state": "observations.qpos", "action": "action"},
            "timestamps": "timestamps",
        },
        **changes,
    }


def knonik(*arguments: object, module: str | None = None, check: bool | None = None, **environment: str):
    """Run the command line as a user does; ``check`` asserts the exit status."""
    command = [sys.executable, "-m", module] if module else [str(Path(sys.executable).with_name("knonik"))]
    run = subprocess.run(
        [*command, *map(str, arguments)],
        text=True,
        capture_output=True,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        timeout=600,
        check=False,
    )
    if check is True:
        assert run.returncode == 0, run.stdout + run.stderr
    return run


def tree(folder: Path, ignore: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Relative path → bytes of every file but reports and hidden bookkeeping."""
    skip = {"ingest_report.json", "pack_report.json", *ignore}
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in skip and not path.relative_to(folder).parts[0].startswith(".knonik")
    }


def loader_config(manifest: Path, **keys) -> dict:
    return {
        "decode_mode": "random_access",
        "hlp_manifest": str(manifest),
        "chunk_len": 4,
        "batch_size": 8,
        "framework": "numpy",
        "fs_type": "local",
        "fs_params": {"root": "/"},
        **keys,
    }


def check_batch(batch: dict, lengths: list[int], wanted: dict[str, np.ndarray], fps: float, padded: bool) -> None:
    """Every frame, row, mask and time of a batch is what its metadata promises.

    ``wanted``: batch key → frame offsets from the anchor, one a step of that stream's window.
    """
    for sample in range(len(batch["_frame_indices"])):
        name = batch["_episode_ids"][sample]
        episode = int(name.removeprefix("episode_"))
        anchor = int(batch["_frame_indices"][sample])
        assert abs(float(batch["_timestamps"][sample]) - anchor / fps) < 1e-6
        for key, offsets in wanted.items():
            asked = anchor + np.asarray(offsets)
            inside = (asked >= 0) & (asked < lengths[episode])
            frames = np.clip(asked, 0, lengths[episode] - 1)
            if padded:
                np.testing.assert_array_equal(np.asarray(batch[f"{key}_valid_mask"][sample]), inside, err_msg=key)
            else:
                assert inside.all(), (key, name, anchor)
            values = np.asarray(batch[key][sample])
            assert len(values) == len(frames)
            for step, frame in enumerate(frames):
                if key.startswith("rgb_cam_"):
                    assert read_stamp(values[step]) == (int(key[-1]), episode, frame), (key, name, anchor, step)
                elif key == "state":
                    np.testing.assert_array_equal(values[step][:2], (episode, frame))
                elif key == "action":
                    np.testing.assert_array_equal(values[step], (frame, frame + 1, episode, -1))


def write_json(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path
