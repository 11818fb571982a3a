"""However a program with worker processes ends, its processes end too, and shared memory never had a name."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import gc, json, sys
from knonik_loader import ShardedDataLoader
from tests.support import augments

def main():
    keys = {"augment_fn": augments.who, "augment_execution": "process", "augment_workers": 2, "num_decoders": 2}
    loader = ShardedDataLoader(json.loads(sys.argv[1]) | keys)
    batches = iter(loader)
    next(batches)
    print("running", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "drop":
        del batches, loader
        gc.collect()
        print("dropped", flush=True)
        sys.stdin.readline()

if __name__ == "__main__":
    main()
"""


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in map(int, (task / "children").read_text().split()):
            found |= {child} | descendants(child)
    return found


def alive(pids: set[int]) -> set[int]:
    """Of these, those that run; what has ended and waits for its parent doesn't count."""
    running = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            running.add(pid)
    return running


def gone(pids: set[int]) -> bool:
    event, end = threading.Event(), time.monotonic() + 60
    while alive(pids) and time.monotonic() < end:
        event.wait(0.02)
    return not alive(pids)


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL", "end", "drop"])
def test_nothing_is_left(packed, how):
    command = [sys.executable, "-c", SCRIPT, json.dumps(packed.config()), how]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, **pipes) as run:
        assert run.stdout.readline() == "running\n", run.stderr.read()
        started = descendants(run.pid)
        assert len(started) >= 2
        mapped = [Path(f"/proc/{pid}/maps").read_text() for pid in {run.pid, *started}]
        assert not any("/dev/shm/" in text for text in mapped)
        if how.startswith("SIG"):
            run.send_signal(getattr(signal, how))
        else:
            run.stdin.write("\n")
            run.stdin.flush()
        if how == "drop":
            assert run.stdout.readline() == "dropped\n"
            assert gone(started)
            assert run.poll() is None
        run.communicate("\n" if how == "drop" else None, timeout=60)
        assert gone(started), alive(started)
    assert (run.returncode == 0) == (how in {"end", "drop"})
