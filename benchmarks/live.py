"""Live capture: four 480x640 cameras for a minute, a hundred thousand random lines, and twenty times ``kill -9``.

Each measurement is a process of its own, so that its peak of memory is its own. ``KNONIK_LIVE_PRESET`` names another
preset than ``medium``; ``KNONIK_BENCH_FOLDER`` says where episodes go.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.common import ROOT, Ratio

__all__ = ["run"]

CAMERAS, HEIGHT, WIDTH, RATE = 4, 480, 640, 30
SHORT, LONG = 450, 1800
LINES = 100_000
KILLS = 20


def run() -> list[Ratio]:
    """Capture as fast as the machine encodes, then at the cameras' own pace, then serve random lines."""
    preset = os.environ.get("KNONIK_LIVE_PRESET", "medium")
    short, long = (_child("capture", preset, str(steps)) for steps in (SHORT, LONG))
    paced = _child("paced", "jpeg", "300")
    killed = _child("kills", "jpeg", str(KILLS))
    few, many = (_child("lines", "jpeg", str(count)) for count in (LINES // 5, LINES))
    return [
        Ratio(
            f"{LONG * CAMERAS} frames pushed ({preset})",
            "60 s of four cameras",
            LONG / RATE / long["seconds"],
            "every frame there",
            f"{long['found']} frames found, {long['seconds']:.0f} s, the producer waited {long['blocked']:.0f} s",
        ),
        Ratio(
            f"peak memory at {LONG} steps",
            f"at {SHORT}",
            long["peak"] / short["peak"],
            "< 1.10",
            f"{short['peak'] / 2**20:.0f} and {long['peak'] / 2**20:.0f} MiB",
        ),
        Ratio(
            "longest wait for the encoders at 30 Hz (jpeg)",
            "the time of a frame",
            paced["waited"] * RATE,
            "< 1 where the machine keeps up",
            f"{300 * CAMERAS} calls, the longest took {paced['longest'] * 1000:.1f} ms by the clock",
        ),
        Ratio(
            f"{KILLS} times kill -9: whole episodes",
            "all that are there",
            killed["whole"] / killed["there"],
            "1, numbered without a gap",
            f"{killed['there']} episodes, {killed['torn']} killed while one was open",
        ),
        Ratio(
            f"{LINES} random lines: peak memory",
            f"of {LINES // 5}",
            many["peak"] / few["peak"],
            "the session lives",
            f"{many['taken']} taken, {many['written']} episodes written, all whole; "
            f"{LINES / many['seconds']:.0f} lines/s",
        ),
    ]


def _child(what: str, preset: str, count: str) -> dict[str, Any]:
    with TemporaryDirectory(dir=os.environ.get("KNONIK_BENCH_FOLDER")) as folder:
        command = [sys.executable, "-m", "benchmarks.live", what, preset, count, folder]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def _preset(name: str) -> Any:
    return {"rgb": {"codec": "jpeg"}} if name == "jpeg" else name


def _peak() -> int:
    # not ru_maxrss: it begins with what the parent held
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def _capture(preset: str, steps: int, out: Path, *, paced: bool) -> dict[str, Any]:
    from knonik_assets.episodes.reader import EpisodeReader
    from knonik_assets.live.session import live_session
    from tests.support.stamps import read_stamp, stamp

    rng = np.random.default_rng(0)
    base = rng.integers(0, 256, (HEIGHT // 16, WIDTH // 16, 3)).astype(np.uint8).repeat(16, 0).repeat(16, 1)
    longest = 0.0
    with live_session(out, _preset(preset)) as session:
        for camera in range(CAMERAS):
            session.register_rgb(f"cam_{camera}", fps=RATE)
        session.register_numeric("state", dim=14)
        started = time.perf_counter()
        with session.episode():
            for step in range(steps):
                if paced:
                    time.sleep(max(0.0, started + step / RATE - time.perf_counter()))
                moved = np.roll(base, (step, 2 * step), (0, 1))
                for camera in range(CAMERAS):
                    stamp(moved, camera, 0, step)
                    before = time.perf_counter()
                    session.rgb(f"cam_{camera}", moved, step / RATE)
                    longest = max(longest, time.perf_counter() - before)
                session.numeric("state", np.full(14, step), step / RATE)
        seconds = time.perf_counter() - started
    peak = _peak()
    reader = EpisodeReader(out / "episode_000000")
    damage = reader.verify()
    found = reader.length * CAMERAS
    for camera in range(CAMERAS):
        for step in range(0, steps, 30):
            (frame,) = reader.rgb(f"cam_{camera}", step, step + 1)
            if read_stamp(frame) != (camera, 0, step):
                damage.append(f"camera {camera} has {read_stamp(frame)} at {step}")
    if damage or found != steps * CAMERAS:
        raise AssertionError(f"{found} of {steps * CAMERAS} frames; {damage[:3]}")
    return {
        "seconds": seconds,
        "peak": peak,
        "longest": longest,
        "found": found,
        "blocked": session.report.blocked_seconds,
        "waited": session.report.episodes[0].longest_block_seconds,
    }


def _lines(count: int, out: Path) -> dict[str, Any]:
    from knonik_assets.episodes.reader import EpisodeReader
    from knonik_assets.live.protocol import Protocol
    from knonik_assets.live.session import live_session
    from tests.support.live_lines import lines, write_frames

    paths = write_frames(out / "frames")
    taken = 0
    started = time.perf_counter()
    with live_session(out / "out", _preset("jpeg")) as session:
        protocol = Protocol(session)
        for line in lines(1, count, paths):
            taken += protocol.answer(line)["ok"]
        session.abort()
    seconds = time.perf_counter() - started
    written = sorted((out / "out").glob("episode_*"))
    damage = [text for path in written for text in EpisodeReader(path).verify()]
    if damage or len(written) != len(session.report.written):
        raise AssertionError(f"{len(written)} of {len(session.report.written)} episodes; {damage[:3]}")
    return {"seconds": seconds, "peak": _peak(), "taken": taken, "written": len(written)}


def _endless(out: Path) -> None:
    """Capture short stamped episodes until killed."""
    from knonik_assets.live.session import live_session
    from tests.support.stamps import episode_arrays

    with live_session(out, _preset("jpeg")) as session:
        for camera in range(2):
            session.register_rgb(f"cam_{camera}", fps=RATE)
        while True:
            number = len(list(out.glob("episode_*")))
            arrays = episode_arrays(number, 5 + number % 7)
            with session.episode():
                for step, seconds in enumerate(arrays["timestamps"]):
                    for camera in range(2):
                        session.rgb(f"cam_{camera}", arrays[f"cam_{camera}"][step], float(seconds))
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


def _kills(count: int, out: Path) -> dict[str, Any]:
    from knonik_assets.episodes.reader import EpisodeReader, list_episodes
    from tests.support.stamps import read_stamp

    rng = np.random.default_rng(0)
    torn = 0
    for _ in range(count):
        command = [sys.executable, "-m", "benchmarks.live", "endless", "jpeg", "0", str(out)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.4))
            process.kill()
        torn += any((out / ".knonik" / "tmp").iterdir())
    there = list_episodes(out)
    whole = 0
    for number, path in enumerate(there):
        reader = EpisodeReader(path)
        wanted = [(camera, number, step) for camera in range(2) for step in range(5 + number % 7)]
        found = [read_stamp(frame) for camera in range(2) for frame in reader.rgb(f"cam_{camera}")]
        whole += path.name == f"episode_{number:06d}" and not reader.verify() and found == wanted
    return {"there": len(there), "whole": whole, "torn": torn}


if __name__ == "__main__":
    kind, chosen, number, place = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    if kind == "endless":
        _endless(place)
    if kind in ("lines", "kills"):
        result = (_lines if kind == "lines" else _kills)(number, place)
    else:
        result = _capture(chosen, number, place, paced=kind == "paced")
    sys.stdout.write(json.dumps(result))
