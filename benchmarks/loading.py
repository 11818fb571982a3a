"""Loading rate of each profile against this machine's decode limit.

The limit is as many threads of bare simplejpeg as the loader decodes with, into reused memory as large as the batches
in flight: of the stored payloads for ``training_fast``, else of JPEGs of quality 90, 4:2:0, of the same frames. Windows
of 4, batches of 64, every camera or the still one alone, global shuffle, checksums on. What counts are the frames that
batches hold. Frames that several samples of a batch share are decoded once and copied, so ``training_fast`` is counted
by the frames it decodes as well, as if reading, checksums and those copies were no part of the work.

``KNONIK_BENCH_PACKED`` names a folder to keep what is packed in, ``KNONIK_BENCH_BATCHES`` the batches of a turn (4) and
``KNONIK_BENCH_TURNS`` their number (5).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from benchmarks.common import Ratio, clips_folder
from benchmarks.rates import Limit, Loading, ratio

PROFILES = ("training_fast", "training_compressed", "compact_video")
BATCH, WINDOW = 16, 4
LARGE = 64
"""Samples of a batch here; `BATCH` is that of benchmarks that need less memory."""
AHEAD = 1
"""``precollate_batches``: with the batch that is handed out, memory for three under ``zerocopy``."""
SAMPLED = (1000, 120)
"""Payloads of each camera in the limit: more than the processor's caches hold, as the loader meets them, and few enough
to stay there."""
RECORDINGS = {"dir_type": "episodic", "data_type": "hdf5", "fps": 50, "metadata": {"dataset": "bench"}}
"""How the clips are read."""
Counts = tuple[str, ...]
"""``delivered``, ``decoded`` or both: which frames of the loader count."""
TURNS = int(os.environ.get("KNONIK_BENCH_TURNS", "5"))
BATCHES = int(os.environ.get("KNONIK_BENCH_BATCHES", "4"))


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """``KNONIK_BENCH_PACKED``, or a folder that is removed afterwards."""
    kept = os.environ.get("KNONIK_BENCH_PACKED")
    if kept:
        yield Path(kept)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def prepare(root: Path) -> tuple[dict[str, Path], list[bytes], tuple[int, int, int]]:
    """Manifests by profile, JPEGs of quality 90 of sampled frames of all cameras, and the shape of one."""
    from knonik.ingest import pack, run
    from knonik_assets.episodes.reader import EpisodeReader, list_episodes

    # Frames that were JPEGs before say little of their own noise; a video of high quality still has it.
    presets = {
        "episodes": {"codec": "jpeg", "quality": 95},
        "episodes_video": {"codec": "h264", "quality": 8, "gop": 10},
    }
    source = dict(zip(PROFILES, ("episodes", "episodes_video", "episodes_video"), strict=True))
    manifests = {profile: root / profile / "hlp_manifest.json" for profile in PROFILES}
    if not all(path.exists() for path in manifests.values()):
        for name, rgb in presets.items():
            run({**RECORDINGS, "preset": {"rgb": rgb}}, input=clips_folder(), output=root / name)
        for profile in PROFILES:
            pack(root / source[profile], root / profile, "bench", storage_profile=profile)
    jpegs: list[bytes] = []
    shape = (0, 0, 0)
    for path in list_episodes(root / "episodes")[:4]:
        reader = EpisodeReader(path)
        for camera in reader.metadata.rgb_streams:
            for frame in list(reader.rgb(camera, 0, 60))[::4]:
                jpegs.append(simplejpeg.encode_jpeg(frame, 90, "RGB", "420"))
                shape = frame.shape
    return manifests, jpegs, shape


def pack_from_jpegs(root: Path) -> Path:
    """Manifest of ``training_compressed`` made from the episodes whose frames are JPEGs."""
    from knonik.ingest import pack

    folder = root / "training_compressed_from_jpegs"
    if not (folder / "hlp_manifest.json").exists():
        pack(root / "episodes", folder, "bench", storage_profile="training_compressed")
    return folder / "hlp_manifest.json"


def payloads(
    manifest: Path, cameras: list[str], quality: int | None, sampled: int = SAMPLED[0]
) -> tuple[list[bytes], tuple[int, int, int]]:
    """JPEGs of frames from all over a ``training_fast`` dataset, camera after camera, and the shape of one.

    ``quality``: encoded anew; None: as stored.
    """
    from knonik_loader.engine.dataset import open_dataset
    from knonik_loader.engine.storage import open_storage
    from knonik_loader.throughput.limit import stored_jpegs

    with contextlib.closing(open_dataset(open_storage("local", {}), str(manifest))) as dataset:
        stored = stored_jpegs(dataset, cameras, sampled)
    shapes = {shape for _, shape in stored}
    if len(shapes) != 1:
        raise RuntimeError(f"the limit needs pictures of one size, not {shapes}")
    data = [jpeg for jpeg, _ in stored]
    if quality is not None:
        data = [simplejpeg.encode_jpeg(simplejpeg.decode_jpeg(jpeg), quality, "RGB", "420") for jpeg in data]
    return data, shapes.pop()


def config_of(manifest: Path, batch: int, **keys: Any) -> dict[str, Any]:
    return {
        "decode_mode": "random_access",
        "hlp_manifest": str(manifest),
        "chunk_len": WINDOW,
        "batch_size": batch,
        "shuffle_mode": "global_triplet_fast",
        "precollate_batches": AHEAD,
        "verify_checksums": True,
        "rank": 0,
        "world_size": 1,
        **keys,
    }


def against_limit(
    what: str, jpegs: list[bytes], shape: tuple[int, int, int], config: dict[str, Any], counts: Counts, wanted: str
) -> list[Ratio]:
    """A loader and the limit in turns: ratios by the processor's time and by the clock, of each of ``counts``."""
    threads = len(os.sched_getaffinity(0))
    loader = Loading(config)
    try:
        memory = (AHEAD + 1) * loader.frames * int(np.prod(shape))
        limit = Limit(jpegs, shape, memory, threads)
        limit.turn(loader.frames)
        mine, bare = [], []
        for _ in range(TURNS):
            mine.append(loader.turn(BATCHES))
            bare.append(limit.turn(BATCHES * loader.frames))
    finally:
        loader.close()
    shared = statistics.median(turn.decoded / turn.delivered for turn in mine)
    idle = statistics.median(turn.idle for turn in mine)
    cost = statistics.median(turn.cpu / turn.delivered for turn in mine) * 1e3
    consumer = statistics.median(turn.consumer / (turn.cpu / threads) for turn in mine)
    detail = (
        f"{cost:.3f} ms of the processor a frame delivered; {shared:.2f} decoded for each; "
        f"decoders idle {idle:.0%}, consumer {consumer:.1%} of a core"
    )
    rows = []
    for count in counts:
        by_cpu, by_wall = ratio(mine, bare, count)
        rows += [
            Ratio(f"{what}, {count}: processor", f"bare JPEG, {threads} threads", by_cpu, wanted, detail),
            Ratio(f"{what}, {count}: clock", f"bare JPEG, {threads} threads", by_wall, wanted, "noisy when in use"),
        ]
    return rows


def run() -> list[Ratio]:
    rows: list[Ratio] = []
    with workspace() as folder:
        manifests, _, _ = prepare(folder)
        fast, compressed, video = (manifests[profile] for profile in PROFILES)
        names, still = cameras_of(fast, compressed)
        again, shape = payloads(fast, names, 90)
        still_again, _ = payloads(fast, [still], 90)
        slots = {"zerocopy": True, "zerocopy_frame_shapes": {name: list(shape) for name in names}}
        bounded = {"planner_locality": "hlp_bounded", "ram_cache_bytes": 256 << 20}
        one = {"image_key": still}

        def add(
            what: str, jpegs: list[bytes], config: dict[str, Any], wanted: str, counts: Counts = ("delivered",)
        ) -> None:
            rows.extend(against_limit(what, jpegs, shape, config, counts, wanted))

        both = ("delivered", "decoded")

        for sampled in SAMPLED:
            own, _ = payloads(fast, names, None, sampled)
            of = f"limit of {len(own)} payloads"
            add(f"training_fast, zerocopy, {of}", own, config_of(fast, LARGE, **slots), ">= 0.97", both)
            add(f"training_fast, {of}", own, config_of(fast, LARGE), ">= 0.90", both)
        for origin, packed in (("of video", compressed), ("of JPEGs", pack_from_jpegs(folder))):
            what = f"training_compressed {origin}, still"
            add(what, still_again, config_of(packed, LARGE, **one), ">= 1.3")
            add(f"{what}, hlp_bounded", still_again, config_of(packed, LARGE, **one, **bounded), ">= 2.2")
        add(
            "training_compressed of video, still, batches of 8",
            still_again,
            config_of(compressed, 8, **one),
            "fewer shared keys",
        )
        add("training_compressed", again, config_of(compressed, LARGE), "reported")
        add("compact_video", again, config_of(video, BATCH), "reported")
    return rows


def cameras_of(fast: Path, compressed: Path) -> tuple[list[str], str]:
    """All RGB streams, and the camera that stands still: that of which changed blocks leave the smallest part."""
    from knonik_loader.engine.dataset import open_dataset
    from knonik_loader.engine.storage import open_storage

    stored: list[dict[str, int]] = []
    for manifest in (fast, compressed):
        with contextlib.closing(open_dataset(open_storage("local", {}), str(manifest))) as dataset:
            index = dataset.hlp_index(0)
            cameras = [stream for stream in dataset.streams if stream.kind == "rgb"]
            sums = {
                s.key: sum(int(index.records(n, s.stream_id).sizes.sum()) for n in range(min(8, index.num_shards)))
                for s in cameras
            }
            stored.append(sums)
    return list(stored[0]), min(stored[0], key=lambda name: stored[1][name] / stored[0][name])
