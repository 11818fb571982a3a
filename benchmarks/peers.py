"""Loading rate against what others offer for the same frames, same windows and same batches.

A PyTorch ``DataLoader`` over JPEG files, decoded by simplejpeg straight into each sample's array, and grain's threads
over the same reader. Each runs in a process of its own with two workers or threads, and takes turns with the loader;
``KNONIK_PEERS_PYTHON`` names the Python that has them and the loader's few dependencies, else this one is tried.
LeRobotDataset is compared in ``torch_data``.

The others read JPEG files, 4:2:0, encoded from the recordings' frames: of quality 90, at which the bounds are stated,
and of 95, what ``training_fast`` makes of arrays by default. The loader reads what packing made of the same JPEGs:
stored as they are (``training_fast``), or compressed against keys (``training_compressed``). Batches of 64 windows of 4
of all cameras. What counts is the processor's time a frame over all processes, and beside it frames by the clock. What
two threads of bare simplejpeg would reach that decode each frame of a batch into memory used again bounds the ratio of
``training_fast``, but for the frames that samples share.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROOT, Ratio, clips_folder
from benchmarks.loading import AHEAD, LARGE, RECORDINGS, WINDOW, config_of, payloads, workspace
from benchmarks.rates import Limit, Loading
from knonik_loader.engine.dataset import open_dataset
from knonik_loader.engine.storage import open_storage
from knonik_loader.khlp.types import StorageProfile

BATCH, BATCHES, TURNS, WORKERS = LARGE, 3, 5, 2
QUALITIES = (90, 95)
FAST = "training_fast"
PROFILES: tuple[StorageProfile, ...] = (FAST, "training_compressed")
BARE = "bare decoding of each frame"
PEERS = {"torch": ("torch DataLoader, JPEG files", ">= 2"), "grain": ("grain's threads, JPEG files", ">= 1.4")}


class Frames:
    """Windows of all cameras from one JPEG file a frame: ``root/<episode>/<camera>/<frame>.jpg``."""

    def __init__(self, root: str) -> None:
        self.root = root
        episodes = sorted(path.name for path in Path(root).iterdir())
        self.cameras = sorted(path.name for path in (Path(root) / episodes[0]).iterdir())
        self.anchors = [
            (episode, start)
            for episode in episodes
            for start in range(len(list((Path(root) / episode / self.cameras[0]).iterdir())) - WINDOW + 1)
        ]

    def __len__(self) -> int:
        return len(self.anchors)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        import simplejpeg

        episode, start = self.anchors[int(index)]
        sample = {}
        for camera in self.cameras:
            frames: np.ndarray | None = None
            for step in range(WINDOW):
                with open(f"{self.root}/{episode}/{camera}/{start + step:06d}.jpg", "rb") as file:  # noqa: PTH123
                    data = file.read()
                if frames is None:
                    height, width = simplejpeg.decode_jpeg_header(data)[:2]
                    frames = np.empty((WINDOW, height, width, 3), np.uint8)
                simplejpeg.decode_jpeg(data, "RGB", buffer=frames[step])
            sample[camera] = frames
        return sample


def pack_quality(root: Path, quality: int) -> dict[str, Path]:
    """Manifests by profile, of JPEGs of a quality that were encoded from the recordings' own frames."""
    from knonik.ingest import pack, run

    episodes = root / f"episodes_q{quality}"
    manifests = {profile: root / f"{profile}_q{quality}" / "hlp_manifest.json" for profile in PROFILES}
    if not all(manifest.exists() for manifest in manifests.values()):
        preset = {"rgb": {"codec": "jpeg", "quality": quality}}
        run({**RECORDINGS, "preset": preset}, input=clips_folder(), output=episodes)
        for profile, manifest in manifests.items():
            pack(episodes, manifest.parent, "bench", storage_profile=profile)
    return manifests


def write_files(fast: Path, root: Path) -> None:
    """The stored JPEGs of a ``training_fast`` dataset as files."""
    with contextlib.closing(open_dataset(open_storage("local", {}), str(fast))) as dataset:
        shards = dataset.index.shards
        for row in range(len(shards)):
            index, key = dataset.hlp_index(int(shards.hlp[row])), dataset.hlp_key(int(shards.hlp[row]))
            for stream in dataset.streams:
                if stream.kind != "rgb":
                    continue
                folder = root / dataset.index.episodes.episode_id[int(shards.episode[row])] / stream.key
                folder.mkdir(parents=True, exist_ok=True)
                table = index.records(int(shards.shard[row]), stream.stream_id)
                for frame in range(len(table)):
                    data = dataset.storage.read(key, int(table.offsets[frame]), int(table.sizes[frame]))
                    (folder / f"{int(shards.first_frame[row]) + frame:06d}.jpg").write_bytes(data)


def batches_of(peer: str, root: str) -> Iterator[Any]:
    """Batches without end, by the peer's recommended use."""
    frames = Frames(root)
    if peer == "torch":
        from torch.utils.data import DataLoader

        loader = DataLoader(
            frames, BATCH, shuffle=True, num_workers=WORKERS, drop_last=True, persistent_workers=True, prefetch_factor=2
        )
        while True:
            yield from loader
    import grain

    options = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=2 * BATCH)
    yield from grain.MapDataset.source(frames).seed(0).shuffle().repeat().to_iter_dataset(options).batch(BATCH)


def serve() -> None:
    """Answer each line of input with JSON on how long `BATCHES` batches took; this runs under the peer's Python."""
    import time

    batches = batches_of(sys.argv[1], sys.argv[2])
    for _ in range(2 * WORKERS):
        first = next(batches)
    frames = sum(int(np.prod(value.shape[:2])) for value in first.values())
    for _ in sys.stdin:
        for _ in range(2 * WORKERS):  # made while others had their turn
            next(batches)
        wall, cpu = time.perf_counter(), processor_seconds()
        for _ in range(BATCHES):
            next(batches)
        took = {"frames": BATCHES * frames, "wall": time.perf_counter() - wall, "cpu": processor_seconds() - cpu}
        last, still = processor_seconds(), 0
        while still < 3:  # as long as more is made ahead
            time.sleep(0.3)
            now = processor_seconds()
            still, last = (still + 1 if now - last < 0.02 else 0), now
        sys.stdout.write(json.dumps(took) + "\n")
        sys.stdout.flush()


def processor_seconds() -> float:
    """Processor seconds of this process and of those it started and that still run."""
    pids = [os.getpid()]
    for task in Path("/proc/self/task").iterdir():
        pids += map(int, (task / "children").read_text().split())
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def against(peer: str, quality: int, files: Path, manifests: dict[str, Path]) -> list[Ratio]:
    """The loader with each profile, bare decoding and a peer in turns."""
    named, wanted = PEERS[peer]
    python = os.environ.get("KNONIK_PEERS_PYTHON", sys.executable)
    if subprocess.run([python, "-c", f"import {peer}, simplejpeg, numpy"], capture_output=True, check=False).returncode:
        return [Ratio(f"JPEG q{quality}", named, float("nan"), wanted, f"{peer} is not installed for {python}")]
    command = [python, "-c", "from benchmarks.peers import serve; serve()", peer, str(files)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "compat")])}
    mine: dict[str, list[dict[str, float]]] = {what: [] for what in (*PROFILES, BARE)}
    theirs: list[dict[str, float]] = []
    with contextlib.ExitStack() as stack:
        loaders = {profile: stack.enter_context(loading(manifests[profile])) for profile in PROFILES}
        frames = loaders[FAST].frames
        jpegs, shape = payloads(manifests[FAST], cameras(manifests[FAST]), None)
        limit = Limit(jpegs, shape, (AHEAD + 1) * frames * int(np.prod(shape)), WORKERS)
        other = stack.enter_context(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
            )
        )
        if other.stdin is None or other.stdout is None:
            raise RuntimeError("no pipes to the peer")
        for _ in range(TURNS):
            turns = {profile: loader.turn(BATCHES) for profile, loader in loaders.items()}
            turns[BARE] = limit.turn(BATCHES * frames)
            for what, turn in turns.items():
                mine[what].append({"frames": turn.delivered, "wall": turn.wall, "cpu": turn.cpu})
            other.stdin.write("\n")
            other.stdin.flush()
            theirs.append(json.loads(other.stdout.readline()))
        other.stdin.close()
    rows = []
    for what, turns_of in mine.items():
        for unit, note in (("cpu", "processor"), ("wall", "clock")):
            costs, other_costs = ([turn[unit] / turn["frames"] * 1e3 for turn in some] for some in (turns_of, theirs))
            value = statistics.median(b / a for a, b in zip(costs, other_costs, strict=True))
            detail = f"{statistics.median(costs):.2f} against {statistics.median(other_costs):.2f} ms a frame"
            bound = "bound" if what == BARE else wanted
            rows.append(Ratio(f"{what}, JPEG q{quality}: {note}", named, value, bound, detail))
    return rows


@contextlib.contextmanager
def loading(manifest: Path) -> Iterator[Loading]:
    """A loader that decodes into slots."""
    with contextlib.closing(open_dataset(open_storage("local", {}), str(manifest))) as dataset:
        shapes = {stream.key: list(stream.shape) for stream in dataset.streams if stream.kind == "rgb"}
    loader = Loading(config_of(manifest, BATCH, zerocopy=True, zerocopy_frame_shapes=shapes))
    try:
        yield loader
    finally:
        loader.close()


def cameras(manifest: Path) -> list[str]:
    """Batch keys of all RGB streams."""
    with contextlib.closing(open_dataset(open_storage("local", {}), str(manifest))) as dataset:
        return [stream.key for stream in dataset.streams if stream.kind == "rgb"]


def run() -> list[Ratio]:
    rows: list[Ratio] = []
    with workspace() as folder:
        for quality in QUALITIES:
            manifests = pack_quality(folder, quality)
            files = folder / f"files_q{quality}"
            if not files.exists():
                write_files(manifests[FAST], files)
            for peer in PEERS:
                rows += against(peer, quality, files, manifests)
    return rows
