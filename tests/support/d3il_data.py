"""D3IL recordings of stamped episodes: pickles of states as its recorder writes them, pictures by number."""

import pickle
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.stamps import episode_arrays


def states(number: int, rows: int) -> dict:
    t = np.arange(rows, dtype=np.float64)
    of = np.column_stack([t, t**2, np.full(rows, number)])
    quat = np.column_stack([np.ones(rows), np.zeros((rows, 3))])
    robot = {
        "c_pos": of + 0.25,
        "c_quat": quat,
        "des_c_pos": of,
        "j_pos": np.column_stack([t] * 7),
        "des_j_pos": np.column_stack([t * (joint + 1) for joint in range(7)]),
        "gripper_width": t / 100,
        "time_stamp": t / 10,
    }
    return {"robot": robot, "push-box": {"pos": of - 1, "quat": quat}}


def record(task: Path, number: int, rows: int, pictures=None, state="all_data/state", protocol=4) -> None:
    """One episode; ``pictures`` of each camera (default: one less than states)."""
    folder = task / state
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"env_{number}.pkl").write_bytes(pickle.dumps(states(number, rows), protocol=protocol))
    found = episode_arrays(number, rows)
    for camera, values in (("bp-cam", found["cam_0"]), ("inhand-cam", found["cam_1"])):
        images = (folder.parent if folder.name == "state" else folder) / "images" / camera / f"env_{number}"
        images.mkdir(parents=True, exist_ok=True)
        for place, picture in enumerate(values[: rows - 1 if pictures is None else pictures]):
            Image.fromarray(picture).save(images / f"{place}.png")
