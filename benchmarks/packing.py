"""Packing rate: JPEGs that pass against copying the same files, encoding against the bare codec, two cores against one.

The disk's copy speed is `shutil.copyfile` of the episodes' picture files with an fsync each: the same bytes, read from
where the pack reads them and as durable at the end. It is measured twice, with the episodes in the page cache, where
encoding and ingest leave them, and read from the disk. The pack is a whole call of ``pack()``, checksums, statistics,
comparison of sampled frames and fsyncs included. A copy without fsync is no bound: it only says what memory does.
Rates a core count the core's own time, so that a busy machine tells the same.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from benchmarks.common import Ratio, alternate, clips_folder

PROFILE: Literal["training_compressed"] = "training_compressed"
RATE = 100
"""Frames/s a core that packing `PROFILE` is to reach at 480x640."""


def prepare(root: Path) -> Path:
    """Episodes whose pictures are JPEGs of quality 95."""
    from knonik.ingest import run

    config = {
        "dir_type": "episodic",
        "data_type": "hdf5",
        "fps": 50,
        "preset": {"rgb": {"codec": "jpeg", "quality": 95}},
        "metadata": {"dataset": "bench"},
    }
    run(config, input=clips_folder(), output=root / "episodes")
    return root / "episodes"


def forget(episodes: Path) -> None:
    """Drop the episodes from the page cache, so that the next one who reads them waits for the disk."""
    for path in episodes.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_of_copy(episodes: Path, out: Path, *, cold: bool = False) -> float:
    """Copy every picture file, and wait until it is on the disk."""
    if cold:
        forget(episodes)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    began = time.perf_counter()
    for path in sorted(episodes.glob("*/rgb_*")):
        target = out / f"{path.parent.name}_{path.name}"
        shutil.copyfile(path, target)
        with target.open("rb+") as file:
            os.fsync(file.fileno())
    return time.perf_counter() - began


def seconds_of_pack(
    source: Path, out: Path, clock: Callable[[], float] = time.perf_counter, *, cold: bool = False, **options: object
) -> float:
    """A whole call of ``pack()`` into an empty directory, by a clock: the wall's or this process's."""
    from knonik.ingest import pack

    if cold:
        forget(source)
    shutil.rmtree(out, ignore_errors=True)
    began = clock()
    pack(source, out, "bench", **options)  # type: ignore[arg-type]
    return clock() - began


def seconds_of_codec(episode: Path) -> float:
    """A core's seconds to decode an episode and encode it with the profile's codec, shard by shard: nothing else."""
    from knonik_assets.configs.pack import PackOptions
    from knonik_assets.episodes.reader import EpisodeReader
    from knonik_assets.packing.facts import read_facts
    from knonik_assets.packing.plan import make_plan
    from knonik_loader.khlp.codecs import make_codec

    plan = make_plan([read_facts(episode)], PackOptions(dataset_name="bench", storage_profile=PROFILE))
    reader = EpisodeReader(episode)
    began = time.process_time()
    for stream in plan.streams:
        if stream.kind == "rgb":
            codec = make_codec(stream)
            frames = reader.rgb(stream.name)
            for first in range(0, reader.length, plan.shard_size):
                codec.encode(islice(frames, min(plan.shard_size, reader.length - first)))
    return time.process_time() - began


def run() -> list[Ratio]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("KNONIK_BENCH_TMP")) as folder:
        root = Path(folder)
        episodes = prepare(root)
        return [_copying(root, episodes), _copying(root, episodes, cold=True), *_encoding(root, episodes)]


def _copying(root: Path, episodes: Path, *, cold: bool = False) -> Ratio:
    size = sum(path.stat().st_size for path in episodes.glob("*/rgb_*"))
    copy, packed = alternate(
        5,
        lambda: seconds_of_copy(episodes, root / "copy", cold=cold),
        lambda: seconds_of_pack(episodes, root / "fast", cold=cold, storage_profile="training_fast"),
    )
    stages = json.loads((root / "fast" / "pack_report.json").read_text())["seconds"]
    detail = f"{size / packed / 1e6:.0f} against {size / copy / 1e6:.0f} MB/s; {stages}"
    shutil.rmtree(root / "copy")
    source = "from the disk" if cold else "from the page cache"
    return Ratio(f"pack training_fast, JPEGs pass, {source}", "copy and fsync", copy / packed, ">= 0.5", detail)


def _encoding(root: Path, episodes: Path) -> list[Ratio]:
    from knonik_assets.episodes.reader import EpisodeReader

    episode = episodes / "episode_000000"
    reader = EpisodeReader(episode)
    frames = reader.length * len(reader.metadata.rgb_streams)
    options = {"storage_profile": PROFILE, "episodes": episode.name}
    bare, busy, one, everyone = alternate(
        2,
        partial(seconds_of_codec, episode),
        partial(seconds_of_pack, episodes, root / "one", time.process_time, engine="inline", **options),
        partial(seconds_of_pack, episodes, root / "one", engine="inline", **options),
        partial(seconds_of_pack, episodes, root / "all", **options),
    )
    rate = f"{frames / busy:.0f} frames/s of a core's time"
    what, cores = f"pack {PROFILE}", os.cpu_count() or 1
    several = f"{frames / everyone:.0f} against {frames / one:.0f} frames/s, workers' start included"
    return [
        Ratio(f"{what}, one core", "decode and codec alone", bare / busy, ">= 0.9", rate),
        Ratio(f"{what}, one core", f"{RATE} frames/s", frames / busy / RATE, ">= 1", rate),
        Ratio(f"{what}, one file, {cores} cores", "one core", one / everyone, "> 1", several),
    ]
