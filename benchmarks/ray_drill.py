"""Drill: drivers of a private Ray cluster killed at random moments of an ingest and of a pack.

A number below 1 is a bug: the next run finishes, its files equal those of engine ``inline`` byte for byte, and two
minutes after the kill no process of the cluster is left (Ray's agents look for a dead head for one).
``KNONIK_DRILL_KILLS`` (4) and ``KNONIK_DRILL_SEED`` (0) choose how many kills, and when.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.common import ROOT, Ratio

LEFT_S = 120
_INGEST = """
import sys
from knonik_assets.ingest import run
run(sys.argv[1], sys.argv[2], sys.argv[3], engine=sys.argv[4], workers={"ray": 2}.get(sys.argv[4]))
"""
_PACK = """
import sys
from knonik_assets.pack import pack
pack(sys.argv[2], sys.argv[3], "d", 10, 3, storage_profile="training_compressed", engine=sys.argv[4],
     workers={"ray": 2}.get(sys.argv[4]), overwrite=True)
"""


def run() -> list[Ratio]:
    from tests.support.road import ingest_config, write_json, write_raw

    kills = int(os.environ.get("KNONIK_DRILL_KILLS", "4"))
    rng = random.Random(int(os.environ.get("KNONIK_DRILL_SEED", "0")))
    with TemporaryDirectory() as folder:
        root = Path(folder)
        raw = write_raw(root / "raw", [60, 50, 70, 40], cameras=1)
        settings = ingest_config(cameras=1, preset={"rgb": {"codec": "vp9", "quality": 20, "speed": 1}})
        config = write_json(root / "config.json", settings)
        episodes = root / "inline_episodes"
        rows = []
        inline = root / "inline"
        for what, program, source, own in (("ingest", _INGEST, raw, episodes), ("pack", _PACK, episodes, inline)):
            arguments = [sys.executable, "-c", program, str(config), str(source)]
            subprocess.run([*arguments, str(own), "inline"], cwd=ROOT, check=True)
            rows += _drill(what, arguments, own, kills, rng)
        return rows


def _drill(what: str, arguments: list[str], own: Path, kills: int, rng: random.Random) -> list[Ratio]:
    from tests.support.road import tree

    wanted, equal, clean, notes = tree(own), 0, 0, []
    for number in range(kills):
        out = own.parent / f"{what}_{number}"
        command = [*arguments, str(out), "ray"]
        after = rng.uniform(0, 1.5)
        killed, left = _kill(command, after)
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        same = tree(out) == wanted
        equal, clean = equal + same, clean + (not left)
        when = f"killed {after:.2f} s after work began" if killed else "ended before it was killed"
        notes.append(f"{when}: {'equal' if same else 'DIFFERS'}, left {', '.join(left) or 'nothing'}")
        sys.stderr.write(f"driver of {what} {notes[-1]}\n")
    return [
        Ratio(f"killed driver of {what}", "rerun equals inline", equal / kills, "= 1.00", "; ".join(notes)),
        Ratio(f"killed driver of {what}", f"no process after {LEFT_S} s", clean / kills, "= 1.00"),
    ]


def _kill(command: list[str], after: float) -> tuple[bool, list[str]]:
    """Kill -9 a driver so long after work has begun; whether it lived until then, and what is left of its cluster."""
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL) as driver:
        while driver.poll() is None and not any("ray::attempt" in " ".join(each) for each in _lines(driver.pid)):
            time.sleep(0.01)
        until = time.monotonic() + after
        while driver.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        alive = driver.poll() is None
        cluster = psutil.Process(driver.pid).children(recursive=True) if alive else []
        driver.kill()
    _, left = psutil.wait_procs(cluster, timeout=LEFT_S)
    return alive, [process.name() for process in left]


def _lines(pid: int) -> list[list[str]]:
    """Command lines of all that a process started."""
    found = []
    try:
        processes = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
    for process in processes:
        try:
            found.append(process.cmdline())
        except psutil.Error:
            continue
    return found
