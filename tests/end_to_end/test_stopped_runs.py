"""Ctrl-C and SIGTERM while packing: an exit code, one line, no traceback of anybody's, and nothing half-written."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from knonik_assets.pack import pack
from tests.assets.packing.support import write_episodes
from tests.support.road import tree


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("episodes"), (40, 50, 60), cameras=1)


def command(episodes, out, window):
    flat = f"--shard-size 2 --window-size {window} --storage-profile training_compressed --workers 2".split()
    return ["pack", "--input-dir", str(episodes), "--output-dir", str(out), "--dataset-name", "d", *flat]


def workers(run):
    with_words = []
    for child in psutil.Process(run.pid).children(recursive=True):
        try:
            words = " ".join(child.cmdline())
        except psutil.NoSuchProcess:
            continue
        with_words += [child] if "popen_loky" in words else []
    return with_words


@pytest.mark.parametrize(
    ("stop", "code", "moment", "window"),
    [
        ("SIGINT", 130, "starting", 64),
        ("SIGINT", 130, "working", 2),
        ("SIGTERM", 143, "starting", 2),
        ("SIGTERM", 143, "working", 64),
    ],
)
def test_a_stopped_pack_says_so_and_leaves_nothing_half_written(episodes, tmp_path, stop, code, moment, window):
    out = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-m", "knonik_ingest", *command(episodes, out, window)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        while not (workers(run) if moment == "starting" else list(out.glob(".hlp_*.partial"))):
            assert run.poll() is None, "finished before it could be stopped"
            time.sleep(0.002)
        # a terminal sends Ctrl-C to the whole group, a supervisor SIGTERM to the process that it started
        (os.killpg if stop == "SIGINT" else os.kill)(run.pid, getattr(signal, stop))
        said, _ = run.communicate(timeout=120)
    assert run.returncode == code, said
    assert said.count("interrupted: ") == 1
    for word in ("Traceback", "leaked", "Warning", "Error"):
        assert word not in said, said
    names = [path.name for path in out.rglob("*")]
    assert not [name for name in names if "partial" in name or name.startswith("hlp_manifest")]
    if moment == "working":
        for place in (out, tmp_path / "undisturbed"):
            pack(episodes, place, "d", 2, window, storage_profile="training_compressed", engine="inline")
        assert tree(out) == tree(tmp_path / "undisturbed")
