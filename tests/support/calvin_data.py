"""CALVIN's tree of stamped episodes: a compressed archive a step, as its recorder saves them."""

from pathlib import Path

import numpy as np

from tests.support.stamps import episode_arrays


def step_arrays(number: int, rows: int) -> dict[str, np.ndarray]:
    """Everything one step holds, for all steps of an episode, (T, ...)."""
    found = episode_arrays(number, rows)
    t = np.arange(rows, dtype=np.float64)
    depth = np.repeat(np.repeat((t[:, None, None] + 700 + np.arange(16.0).reshape(4, 4)) / 1000, 4, 1), 4, 2)
    return {
        "rgb_static": found["cam_0"],
        "rgb_gripper": found["cam_1"],
        "rgb_tactile": np.concatenate([found["cam_0"], found["cam_1"]], -1),
        "depth_static": depth.astype(np.float32),
        "depth_tactile": np.stack([depth, 2 * depth], -1).astype(np.float32),
        "actions": np.column_stack([t, t + 1, np.full(rows, number), np.full((rows, 4), -1)]),
        "rel_actions": np.column_stack([t, np.full((rows, 6), number)]) / 50,
        "robot_obs": np.column_stack([t, np.full((rows, 14), number)]),
        "scene_obs": np.column_stack([np.full((rows, 24), t[:, None])]),
    }


def calvin(folder: Path, spans, language=(), width=7) -> Path:
    """Episodes of steps ``(first, last)``, both included, with a stray step behind each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (first, last) in enumerate(spans):
        found = step_arrays(number, last - first + 2)
        for place in range(last - first + 2):
            step = {name: values[place] for name, values in found.items()}
            np.savez_compressed(folder / f"episode_{first + place:0{width}d}.npz", **step)
    np.save(folder / "ep_start_end_ids.npy", np.array(spans, np.int64))
    if language:
        write_language(folder / "lang_annotations" / "auto_lang_ann.npy", language)
    return folder


def write_language(path: Path, language) -> None:
    """``(first, last, text)`` windows in the pickled dict that CALVIN's own script writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(
        path,
        {
            "language": {
                "ann": [text for _, _, text in language],
                "task": ["do_it"] * len(language),
                "emb": np.zeros((len(language), 1, 4), np.float32),
            },
            "info": {"episodes": [], "indx": [(first, last) for first, last, _ in language]},
        },
    )
