"""Loading rate of each profile, against bare JPEG decodes of the same pictures on as many threads.

The limit is simplejpeg decoding quality 90, 4:2:0 encodings of the same frames into reused memory as large as the
batches in flight. Windows of 4, every camera, global shuffle, checksums on.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import simplejpeg

from benchmarks.common import Ratio, alternate, clips_folder
from knonik_loader.throughput.limit import BareDecode

PROFILES = ("training_fast", "training_compressed", "compact_video")
BATCH, WINDOW = 16, 4


def prepare(root: Path) -> tuple[dict[str, Path], list[bytes], tuple[int, int, int]]:
    """Manifests by profile, JPEGs of sampled frames of all cameras, and the shape of one."""
    from knonik.ingest import pack, run
    from knonik_assets.episodes.reader import EpisodeReader, list_episodes

    config = {
        "dir_type": "episodic",
        "data_type": "hdf5",
        "fps": 50,
        "preset": {"rgb": {"codec": "jpeg", "quality": 95}},
        "metadata": {"dataset": "bench"},
    }
    run(config, input=clips_folder(), output=root / "episodes")
    manifests = {
        profile: pack(root / "episodes", root / profile, "bench", storage_profile=profile)[0] for profile in PROFILES
    }
    jpegs: list[bytes] = []
    shape = (0, 0, 0)
    for path in list_episodes(root / "episodes")[:4]:
        reader = EpisodeReader(path)
        for camera in reader.metadata.rgb_streams:
            for frame in list(reader.rgb(camera, 0, 60))[::4]:
                jpegs.append(simplejpeg.encode_jpeg(frame, 90, "RGB", "420"))
                shape = frame.shape
    return manifests, jpegs, shape


def loading_rate(manifest: Path, seconds: float, **keys: object) -> float:
    """Frames/s of all cameras that a loader hands out, after its first batches."""
    from knonik_loader import ShardedDataLoader

    config = {
        "decode_mode": "random_access",
        "hlp_manifest": str(manifest),
        "chunk_len": WINDOW,
        "batch_size": BATCH,
        "shuffle_mode": "global_triplet_fast",
        "max_steps": 1_000_000,
        **keys,
    }
    with ShardedDataLoader(config) as loader:
        batches = iter(loader)
        cameras = [key for key in next(batches) if key.startswith("rgb_")]
        for _ in range(3):
            next(batches)
        start, frames = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            next(batches)
            frames += BATCH * WINDOW * len(cameras)
        return frames / (time.perf_counter() - start)


def run(seconds: float = 3.0, repeats: int = 3) -> list[Ratio]:
    threads = os.cpu_count() or 1
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        manifests, jpegs, shape = prepare(Path(folder))
        memory = 4 * BATCH * WINDOW * 2 * int(shape[0] * shape[1] * 3)
        bare = BareDecode(jpegs, [shape] * len(jpegs), memory)
        for profile, wanted in zip(PROFILES, (">= 0.90", ">= 1.3 on still cameras", "reported"), strict=True):
            limit, rate = alternate(
                repeats,
                lambda: bare.rate(threads, seconds),
                lambda profile=profile: loading_rate(manifests[profile], seconds),
            )
            detail = f"{rate:.0f} against {limit:.0f} frames/s"
            rows.append(Ratio(profile, "bare JPEG decode, q90", rate / limit, wanted, detail))
    return rows
