"""Random lines for the live protocol: sound commands, broken ones, and noise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

NAMES = ["cam", "near", "state", "cam", "rgb_cam", "frame_time", "../x", "", "é", "a" * 300, "\ud800", 5, None, [], {}]
NUMBERS = [30, 30.0, 1, 3, 0, -1, 1e300, 2**70, 1e-9, True, "30", None, [], 0.5]
SOUND = [
    {"cmd": "register_rgb", "name": "cam", "fps": 30},
    {"cmd": "register_depth", "name": "near", "fps": 30},
    {"cmd": "register_numeric", "name": "state", "dim": 3, "role": "state"},
]


def write_frames(folder: Path) -> list[str]:
    """Frames that fit and others that don't; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    arrays = {
        "rgb": rng.integers(0, 255, (32, 40, 3)).astype(np.uint8),
        "other": np.zeros((16, 40, 3), np.uint8),
        "float": np.zeros((32, 40, 3)),
        "depth": rng.uniform(0.2, 2, (32, 40)).astype(np.float32),
        "row": np.arange(3, dtype=np.float32),
        "fortran": np.asfortranarray(np.zeros((32, 40, 3), np.uint8)),
        "text": np.array(["a", "b"]),
        "record": np.zeros(3, [("a", "f4"), ("b", "i2")]),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.float64(3),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "pickle.npy", np.array([{"a": 1}], object), allow_pickle=True)
    whole = (folder / "rgb.npy").read_bytes()
    (folder / "cut.npy").write_bytes(whole[:-7])
    (folder / "head.npy").write_bytes(whole[:20])
    (folder / "nothing.npy").write_bytes(b"")
    huge = whole.replace(b"(32, 40, 3), } ", b"(99999999, 9)} ")
    assert huge != whole
    (folder / "huge.npy").write_bytes(huge)
    (folder / "folder.npy").mkdir(exist_ok=True)
    return [str(path) for path in sorted(folder.iterdir())] + ["/dev/zero", "no.npy", "a\0b.npy", "~nobody/x.npy", ""]


def lines(seed: int, count: int, paths: list[str]) -> Iterator[bytes]:
    """``count`` lines, the same for the same seed: about half of them a sound producer's, the others in between."""
    rng = np.random.default_rng(seed)
    script: list[dict] = []

    def one(values):
        return values[rng.integers(len(values))]

    def push(kind: str) -> dict:
        name, file = {"rgb": ("cam", "rgb"), "depth": ("near", "depth"), "numeric": ("state", "row")}[kind]
        return {"cmd": kind, "name": name, "path": next(path for path in paths if path.endswith(f"/{file}.npy"))}

    def sound() -> dict:
        if not script:
            pushes = [push(kind) for _ in range(rng.integers(1, 6)) for kind in ("rgb", "depth", "numeric")]
            last = "end" if rng.random() < 0.2 else "abort"
            script.extend([{"cmd": "start", "metadata": {"task": "x"}}, *SOUND, *pushes, {"cmd": last}])
        return script.pop(0)

    def other() -> dict:
        kind = one(["push", "push", "push", "register", "start", "end"])
        if kind == "start":
            return {"cmd": "start", "metadata": one([{}, {"dataset": 3}, {"files": 1}, {"a": [[[1]]]}])}
        if kind == "end":
            return {"cmd": one(["end", "abort"])} if rng.random() < 0.1 else {"cmd": "start", "metadata": 3}
        return dict(one(SOUND)) if kind == "register" else push(one(["rgb", "depth", "numeric"]))

    def broken(command: dict) -> dict:
        key = one(["cmd", "name", "path", "fps", "dim", "timestamp", "metadata", "role", "extra"])
        value = {
            "cmd": one(["rgb", "depht", "exit ", 3, None, "register_numeric", "register_rgb"]),
            "name": one(NAMES),
            "path": one(paths),
        }.get(key, one(NUMBERS))
        return {**command, key: value}

    for _ in range(count):
        draw = rng.random()
        command = sound() if draw < 0.45 else other()
        if draw > 0.5:
            command = broken(command)
        if draw > 0.75:
            command = broken(command)
        line = json.dumps(command).encode()
        if draw > 0.9:
            noise = bytearray(line)
            for _ in range(rng.integers(1, 4)):
                noise[rng.integers(len(noise))] = rng.integers(256)
            line = bytes(noise)
        if draw > 0.97:
            line = one(
                [b"", b"[" * 5000, b"{" * 5000, b'"x"', b"NaN", b"\xff\xfe", line[:7], b'{"cmd": "start"' + b" " * 999]
            )
        yield line.replace(b"\n", b" ")
