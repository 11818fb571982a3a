"""What one core does in a second: ingest by preset, packing by profile, checksums. The rates of docs/scale.md.

Frames (480x640) a second of processor time of the working process, all its threads, so that a busy machine tells nearly
the same; seconds by the clock beside them. ``KNONIK_CORES_FRAMES`` (60): frames of each of two cameras.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py

from benchmarks.common import Ratio, clips_folder

PRESETS = ("ultra_low", "low", "medium", "high", "jpeg")
PROFILES = ("compact_video", "training_fast", "training_compressed")


def run() -> list[Ratio]:
    import knonik.ingest  # noqa: F401 - not to be counted with the first row

    frames = int(os.environ.get("KNONIK_CORES_FRAMES", "60"))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        pictures = _cut(root / "raw", frames)
        rows = [_row(f"ingest, {name}", pictures, lambda name=name: _ingest(root, name)) for name in PRESETS]
        for source in ("medium", "jpeg"):
            for profile in PROFILES:
                work = lambda source=source, profile=profile: _pack(root, source, profile)  # noqa: E731
                rows.append(_row(f"pack {profile} from {source}", pictures, work))
        return [*rows, _checksums()]


def _cut(raw: Path, frames: int) -> int:
    """A recording of the first frames of a clip; returns its pictures, all cameras together."""
    raw.mkdir()
    (clip, *_) = sorted(clips_folder().glob("episode_*.hdf5"))
    with h5py.File(clip) as source, h5py.File(raw / "episode_0.hdf5", "w") as target:
        cameras = source["observations/images"]
        for name, video in cameras.items():
            target[f"observations/images/{name}"] = video[:frames]
        target["observations/qpos"] = source["observations/qpos"][:frames]
        target["action"] = source["action"][:frames]
        return len(cameras) * frames


def _row(what: str, pictures: int, work: Callable[[], int]) -> Ratio:
    wall, cpu = time.perf_counter(), time.process_time()
    size = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    detail = f"{1000 * cpu / pictures:.1f} ms of processor, {1000 * wall / pictures:.1f} ms by the clock"
    return Ratio(
        what, "a second of one core", pictures / cpu, "-", f"{detail}, {size / pictures / 1000:.1f} KB a frame"
    )


def _ingest(root: Path, preset: str) -> int:
    from knonik.ingest import run

    chosen: object = {"rgb": {"codec": "jpeg", "quality": 95}} if preset == "jpeg" else preset
    config = {"dir_type": "episodic", "data_type": "hdf5", "fps": 50, "preset": chosen}
    run(config, input=root / "raw", output=root / preset, engine="inline")
    return sum(path.stat().st_size for path in (root / preset).rglob("rgb_*"))


def _pack(root: Path, source: str, profile: str) -> int:
    from knonik.ingest import pack

    out = root / f"{source}_{profile}"
    pack(root / source, out, "d", storage_profile=profile, engine="inline")
    return sum(path.stat().st_size for path in out.rglob("*.khlp"))


def _checksums() -> Ratio:
    """sha256, which every byte of raw data and episodes passes at least once."""
    data = bytes(64_000_000)
    began = time.process_time()
    hashlib.sha256(data).digest()
    return Ratio("sha256", "MB/s of one core", 64 / (time.process_time() - began), "-")
