"""``kill -9`` in the middle: nothing half-written is visible, and the rerun equals an undisturbed run byte for byte."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.road import ingest_config, knonik, tree, write_json, write_raw

LENGTHS = [60, 70, 80, 90, 100, 110]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return write_raw(tmp_path_factory.mktemp("killed") / "raw", LENGTHS, cameras=1)


@pytest.fixture(scope="module")
def config(raw):
    # a slow codec, so that there is a middle to be killed in
    changes = {"preset": {"rgb": {"codec": "vp9", "quality": 20, "speed": 1}}}
    return write_json(raw.parent / "config.json", ingest_config(cameras=1, **changes))


@pytest.fixture(scope="module")
def episodes(raw, config):
    out = raw.parent / "undisturbed"
    knonik("ingest", "--config", config, "--input", raw, "--output", out, "--quiet", check=True)
    return out


def kill_when(command: list[str], ready) -> None:
    """Start a command in its own session and kill all of it as soon as ``ready()`` holds."""
    with subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    ) as process:
        try:
            while not ready():
                assert process.poll() is None, "finished before it could be killed"
                time.sleep(0.005)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def whole_episodes(out: Path) -> int:
    return len(list(out.glob("episode_*/metadata.json")))


def test_a_killed_ingest_resumes_to_the_same_bytes(raw, config, episodes, tmp_path):
    from knonik_assets.episodes.reader import EpisodeReader

    out = tmp_path / "out"
    arguments = ["ingest", "--config", config, "--input", raw, "--output", out, "--quiet", "--workers", "1"]
    command = [str(Path(sys.executable).with_name("knonik")), *map(str, arguments)]
    for wanted in (1, 3):
        kill_when(command, lambda wanted=wanted: whole_episodes(out) >= wanted)
        for path in out.glob("episode_*"):
            assert EpisodeReader(path).verify() == []
        assert not (out / "config.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("episode_*/metadata.json")}
    knonik(*arguments, check=True)
    assert tree(out) == tree(episodes)
    assert all(path.stat().st_mtime_ns == time_written for path, time_written in kept.items()), "work was done twice"


@pytest.mark.parametrize("profile", ["compact_video", "training_compressed"])
def test_a_killed_pack_resumes_to_the_same_bytes(episodes, tmp_path, profile):
    def arguments(out):
        options = {"--input-dir": episodes, "--output-dir": out, "--dataset-name": "killed", "--shard-size": 10}
        flat = [word for option in options.items() for word in option]
        return ["pack", *flat, "--window-size", 4, "--storage-profile", profile, "--workers", 1, "--quiet"]

    knonik(*arguments(tmp_path / "undisturbed"), module="knonik_ingest", check=True)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "knonik_ingest", *map(str, arguments(out))]
    kill_when(command, lambda: len(list(out.glob("*.khlp"))) >= 2)
    assert not (out / "hlp_manifest.json").exists()
    knonik(*arguments(out), module="knonik_ingest", check=True)
    assert tree(out) == tree(tmp_path / "undisturbed")


def test_a_killed_repack_leaves_the_old_dataset_whole(episodes, tmp_path):
    out = tmp_path / "out"
    base = ["pack", "--input-dir", episodes, "--output-dir", out, "--dataset-name", "killed", "--workers", 1, "--quiet"]
    knonik(*base, "--shard-size", 20, module="knonik_ingest", check=True)
    before = tree(out)
    repack = [*base, "--shard-size", 10, "--window-size", 4, "--overwrite"]
    command = [sys.executable, "-m", "knonik_ingest", *map(str, repack)]
    kill_when(command, lambda: len(list((out / "gen_0002").glob("*.khlp"))) >= 2)
    assert {name: data for name, data in tree(out).items() if not name.startswith("gen_")} == before
    knonik(*repack, module="knonik_ingest", check=True)
    after = tree(out)
    assert {name: after[name] for name in before if name != "hlp_manifest.json"} == {
        name: data for name, data in before.items() if name != "hlp_manifest.json"
    }
    assert after["hlp_manifest.json"] == after["hlp_manifest.2.json"] != before["hlp_manifest.json"]


def test_ctrl_c_says_what_to_do_and_loses_nothing(raw, config, episodes, tmp_path):
    out = tmp_path / "out"
    arguments = ["ingest", "--config", config, "--input", raw, "--output", out, "--workers", "1"]
    command = [str(Path(sys.executable).with_name("knonik")), *map(str, arguments)]
    with subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        while whole_episodes(out) < 1:
            assert run.poll() is None, "finished before it could be interrupted"
            time.sleep(0.005)
        os.kill(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    knonik(*arguments, check=True)
    assert tree(out) == tree(episodes)
