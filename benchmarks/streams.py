"""What ``stream_cfg`` costs or saves: pictures resized to 224 x 224 against whole ones, in one loader configuration.

Windows of 4, every camera, global shuffle, checksums on. The ratio is over decoding JPEGs whole into the batch; how far
a reduced decode can go is shown beside, as the ratio of bare decodes by one thread's own time.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg

from benchmarks.common import Ratio, alternate, clips_folder
from benchmarks.loading import BATCH, WINDOW

PROFILES = ("training_fast", "training_compressed")
SIZE = (224, 224)


def prepare(root: Path) -> dict[str, Path]:
    """Manifests by profile."""
    from knonik.ingest import pack, run

    config = {
        "dir_type": "episodic",
        "data_type": "hdf5",
        "fps": 50,
        "preset": {"rgb": {"codec": "jpeg", "quality": 95}},
        "metadata": {"dataset": "bench"},
        "episode_limit": 3,
    }
    run(config, input=clips_folder(), output=root / "episodes")
    return {
        profile: pack(root / "episodes", root / profile, "bench", storage_profile=profile)[0] for profile in PROFILES
    }


def rate(manifest: Path, seconds: float, options: dict[str, object]) -> float:
    """Frames/s of all cameras under ``options``."""
    from knonik_loader import ShardedDataLoader
    from knonik_loader.khlp.manifest import load_manifest

    cameras = [s.info().key for s in load_manifest(manifest.read_bytes(), "").streams if s.kind == "rgb"]
    config = {
        "decode_mode": "random_access",
        "hlp_manifest": str(manifest),
        "chunk_len": WINDOW,
        "batch_size": BATCH,
        "max_steps": 1_000_000,
    }
    with ShardedDataLoader(config, dict.fromkeys(cameras, options)) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        start, frames = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            next(batches)
            frames += BATCH * WINDOW * len(cameras)
        return frames / (time.perf_counter() - start)


def _own_time(decode: Callable[[], object], calls: int = 200) -> float:
    decode()
    start = time.thread_time()
    for _ in range(calls):
        decode()
    return (time.thread_time() - start) / calls


def _bare() -> Ratio:
    """One JPEG decoded whole against decoded to a half, by the thread's own time."""
    import h5py

    with h5py.File(sorted(clips_folder().glob("*.hdf5"))[0]) as file:
        cameras = file["observations/images"]
        image = np.ascontiguousarray(cameras[sorted(cameras)[-1]][-1])
    if image.ndim == 1:
        image = simplejpeg.decode_jpeg(image.tobytes())
    data = simplejpeg.encode_jpeg(image, 95, "RGB", "420", fastdct=False)
    height, width = image.shape[:2]
    whole, half = np.empty_like(image), np.empty((height // 2, width // 2, 3), np.uint8)
    size = {"min_height": height // 2, "min_width": width // 2, "min_factor": 2}
    slow = _own_time(lambda: simplejpeg.decode_jpeg(data, "RGB", False, False, buffer=whole))
    fast = _own_time(lambda: simplejpeg.decode_jpeg(data, "RGB", False, False, buffer=half, **size))
    return Ratio("bare decode to a half", "bare decode, whole", slow / fast, "reported", f"{fast * 1e3:.2f} ms a frame")


def run(seconds: float = 3.0, repeats: int = 3) -> list[Ratio]:
    rows = [_bare()]
    with tempfile.TemporaryDirectory() as folder:
        manifests = prepare(Path(folder))
        for profile in PROFILES:
            for options, wanted in (({"resize": list(SIZE)}, ">= 1.8"), ({"dtype": "float32"}, "reported")):
                whole, changed = alternate(
                    repeats,
                    lambda profile=profile: rate(manifests[profile], seconds, {}),
                    lambda profile=profile, options=options: rate(manifests[profile], seconds, options),
                )
                goal = wanted if profile == "training_fast" else "reported"
                detail = f"{changed:.0f} against {whole:.0f} frames/s"
                rows.append(Ratio(f"{profile} {options}", "whole pictures", changed / whole, goal, detail))
    return rows
