"""ROS recordings: reading rate against rosbags, memory over length, and changed files by the hundred.

python -m benchmarks.recordings read PATH        prints peak memory (bytes), frames and seconds
python -m benchmarks.recordings mutate PATH SEED FIRST COUNT
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.common import ROOT, Ratio, alternate

__all__ = ["run"]

FRAMES = (1500, 6000)
MUTATIONS = 500
MEMORY = 1 << 30
HANG_S = 10
CONTAINERS = ("bag", "bag lz4", "mcap", "mcap storage", "sqlite3")


def run() -> list[Ratio]:
    """Rates, memory and mutations of every container."""
    with TemporaryDirectory() as folder:
        rows = [_rate(Path(folder), how) for how in ("bag", "mcap", "mcap storage", "sqlite3")]
        rows += [_memory(Path(folder), how) for how in CONTAINERS]
        rows += [_mutated(Path(folder), how) for how in CONTAINERS]
    return rows


def _write(path: Path, how: str, frames: int, *, raw: bool, size: tuple[int, int] = (480, 640)) -> Path:
    """A camera at 30 Hz and joints at 120 Hz; a few pictures over and over."""
    from tests.assets.sources.bags import at, bag_of
    from tests.assets.sources.support import jpeg
    from tests.support.stamps import episode_arrays

    bag = bag_of(how)
    pictures = episode_arrays(1, 8, 1, *size)["cam_0"]
    encoded = [jpeg(picture, quality=90) for picture in pictures]
    for t in range(frames):
        if raw:
            bag.rgb("/cam/image_raw", at(t), pictures[t % 8])
        else:
            bag.compressed("/cam/image_raw/compressed", at(t), encoded[t % 8], "jpeg")
        for part in range(4):
            bag.joints("/joint_states", at(t + part / 4), np.arange(14.0) + t, [f"joint_{i}" for i in range(14)])
    return bag.write(path, how)


def _read(path: Path) -> int:
    """Every frame and row of a recording; returns the frames."""
    from knonik_assets.configs.load import load_ingest_config
    from knonik_assets.sources.registry import open_source

    source = open_source(load_ingest_config({"dir_type": "rosbag"}), path)
    frames = 0
    for ref in source.episodes():
        with source.open(ref) as episode:
            for spec in episode.streams:
                if spec.kind == "numeric":
                    episode.numeric(spec)
                else:
                    frames += sum(1 for _ in episode.frames(spec))
    return frames


def _by_rosbags(path: Path) -> int:
    """The same with rosbags alone: pictures as arrays, joints as arrays."""
    from rosbags.highlevel import AnyReader

    frames = 0
    rows: list[Any] = []
    with AnyReader([path]) as reader:
        for connection, _, raw in reader.messages():
            message: Any = reader.deserialize(raw, connection.msgtype)
            if connection.msgtype.endswith("Image"):
                message.data.reshape(message.height, message.width, 3).copy()
                frames += 1
            else:
                rows.append(message.position)
    return frames


def _rate(folder: Path, how: str) -> Ratio:
    frames = 400
    path = _write(folder / f"rate_{how.replace(' ', '_')}", how, frames, raw=True)

    used: dict[Any, list[float]] = {_read: [], _by_rosbags: []}

    def seconds(read: Any) -> float:
        began, processor = time.perf_counter(), time.process_time()
        assert read(path) == frames
        used[read].append(time.process_time() - processor)
        return time.perf_counter() - began

    ours, theirs = alternate(9, lambda: seconds(_read), lambda: seconds(_by_rosbags))
    detail = f"{frames / ours:.0f} and {frames / theirs:.0f} raw frames of 480 x 640 a second"
    detail += f"; by processor time {statistics.median(used[_by_rosbags]) / statistics.median(used[_read]):.2f}"
    return Ratio(f"reading rate, {how}", "rosbags", theirs / ours, ">= 0.90", detail)


def _memory(folder: Path, how: str) -> Ratio:
    peaks = []
    for frames in FRAMES:
        path = _write(folder / f"memory_{frames}_{how.replace(' ', '_')}", how, frames, raw=False)
        command = [sys.executable, "-m", "benchmarks.recordings", "read", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[0]))
    detail = f"{peaks[1] / 1e6:.0f} MB at {FRAMES[1]} frames"
    return Ratio(f"peak memory, {how}", f"{FRAMES[0]} frames", peaks[1] / peaks[0], "< 1.10", detail)


def _mutated(folder: Path, how: str) -> Ratio:
    from tests.assets.sources.test_ros_damage import recorded, the_file

    path = the_file(recorded(how, packed=True).write(folder / f"mutated_{how.replace(' ', '_')}", how))
    good, findings, first = 0, [], 0
    while first < MUTATIONS:
        command = [sys.executable, "-m", "benchmarks.recordings", "mutate", str(path), "0", str(first), str(MUTATIONS)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        good += sum("outcome" in line for line in lines)
        findings += [f"input {line['input']}: {line['finding']}" for line in lines if "finding" in line]
        first = lines[-1]["input"] + 1 if lines else first
        if done.returncode:
            findings.append(f"input {first}: ended the process: {done.stderr[-600:]}")
            first += 1
    for finding in findings:
        sys.stderr.write(f"{how}: {finding}\n")
    return Ratio(f"refused or read, {how}", f"{MUTATIONS} changed files", good / MUTATIONS, "= 1.00", "")


def _mutate(path: Path, seed: int, first: int, stop: int) -> None:
    from knonik_loader.errors import KnonikError
    from tests.assets.sources.test_ros_damage import mutations

    raw = path.read_bytes()
    target = path.with_name(f"changed{path.suffix}")
    _read(path)  # what is loaded once does not count
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, resource.RLIM_INFINITY))
    for number in range(first, stop):
        target.write_bytes(mutations(raw, np.random.default_rng([seed, number])))
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        line: dict[str, object] = {"input": number}
        try:
            _read(target)
            line["outcome"] = "read"
        except KnonikError:
            line["outcome"] = "refused"
        except Exception:
            line["finding"] = traceback.format_exc(limit=-4)
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()


def main() -> None:
    path = Path(sys.argv[2])
    if sys.argv[1] == "mutate":
        _mutate(path, *map(int, sys.argv[3:6]))
        return
    os.environ.pop("KNONIK_ROSBAG_MAX_FRAMES", None)
    began = time.perf_counter()
    frames = _read(path)
    # Not ru_maxrss, which begins with what the parent held.
    peak = 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    sys.stdout.write(f"{peak} {frames} {time.perf_counter() - began:.2f}\n")


if __name__ == "__main__":
    main()
