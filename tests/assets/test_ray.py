"""Work on Ray: workers and drivers that are killed, clusters that exist or don't, and the same bytes as inline."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from knonik_assets.engine import map_tasks
from knonik_assets.ingest import run
from knonik_assets.pack import pack
from knonik_loader.errors import ConfigError
from tests.support.road import ingest_config, tree, write_json, write_raw

pytest.importorskip("ray")
LENGTHS = [50, 40, 60]
CONFIG = ingest_config(cameras=1, preset={"rgb": {"codec": "vp9", "quality": 20, "speed": 1}})
PROFILE = "training_compressed"
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
REPORTS = ("quality.html", "quality.json", "config.json")
DRIVER = """
import sys
from knonik_assets.ingest import run
config, raw, out = sys.argv[1:]
run(config, raw, out, engine="ray", workers=2)
"""


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return write_raw(tmp_path_factory.mktemp("ray") / "raw", LENGTHS, cameras=1)


@pytest.fixture(scope="module")
def inline(raw):
    """Files of the episodes and of a pack of them, made without any worker."""
    out = raw.parent / "inline"
    run(CONFIG, raw, out / "episodes", engine="inline")
    pack(out / "episodes", out / "packed", "d", 10, 3, storage_profile=PROFILE, engine="inline")
    return tree(out / "episodes"), tree(out / "packed")


@pytest.fixture
def cluster(monkeypatch):
    """A head and a second node on loopback, a worker each."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # the path of a socket may have 107 bytes, and pytest's are long
    before = descendants()
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()
    assert_gone(descendants() - before)


def descendants():
    return set(psutil.Process().children(recursive=True))


def assert_gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive, alive


def busy():
    """Workers of this process's clusters that are at an episode: Ray renames a worker to what it runs."""
    found = []
    for process in descendants():
        try:
            if "ray::attempt" in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_one(out: Path, killed: list[int], stop: threading.Event):
    """kill -9 of a worker at an episode, once episodes have begun."""
    while not stop.is_set():
        begun = any((out / ".knonik/progress").glob("episode_*"))
        if begun and (workers := busy()):
            os.kill(workers[0].pid, signal.SIGKILL)
            killed.append(workers[0].pid)
            return
        time.sleep(0.005)


def test_a_worker_killed_in_an_episode_costs_an_attempt_and_nothing_else(raw, inline, cluster, tmp_path):
    episodes, packed = inline
    out, killed, stop = tmp_path / "episodes", [], threading.Event()
    there = {"address": cluster.address}
    killer = threading.Thread(target=kill_one, args=(out, killed, stop))
    killer.start()
    try:
        report = run(CONFIG, raw, out, engine="ray", workers=2, ray_options=there)
    finally:
        stop.set()
        killer.join()
    assert len(killed) == 1
    assert (len(report.written), report.failed) == (len(LENGTHS), [])
    assert tree(out) == episodes
    pack(out, tmp_path / "packed", "d", 10, 3, storage_profile=PROFILE, engine="ray", ray_options=there)
    assert tree(tmp_path / "packed") == packed


def test_a_killed_driver_leaves_no_process_and_the_next_run_finishes(raw, inline, tmp_path):
    out = tmp_path / "episodes"
    program = [sys.executable, "-c", DRIVER, write_json(tmp_path / "config.json", CONFIG), raw, out]
    with subprocess.Popen(
        list(map(str, program)),
        start_new_session=True,
        env={**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as driver:
        try:
            while not list(out.glob(".knonik/progress/episode_*")):
                assert driver.poll() is None, "finished before it could be killed"
                time.sleep(0.005)
            started = psutil.Process(driver.pid).children(recursive=True)
            agents = {process for process in started if process.name() in AGENTS}
            assert any("raylet" in process.name() for process in started)
        finally:
            driver.kill()
    # two of Ray's own agents look for the dead head for a minute before they end: `benchmarks ray_drill` waits for them
    assert_gone(set(started) - agents)
    assert not (out / "ingest_report.json").exists()
    before = descendants()
    report = run(CONFIG, raw, out, engine="ray", workers=2)
    assert not report.failed
    assert tree(out) == inline[0]
    assert_gone(descendants() - before)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_cluster_that_is_not_there_is_told_of_at_once(address, tmp_path):
    with pytest.raises(ConfigError, match=r"nobody answers there .* Start a cluster with 'ray start --head'"):
        list(map_tasks(abs, [1], engine="ray", ray_options={"address": address}))


def test_options_that_ray_does_not_take_are_mistakes():
    with pytest.raises(ConfigError, match="max_retries is decided by the engine"):
        list(map_tasks(abs, [1], engine="ray", workers=1, ray_options={"task": {"max_retries": 3}}))
    with pytest.raises(ConfigError, match=r"Ray cannot be reached with .*wings"):
        list(map_tasks(abs, [1], engine="ray", workers=1, ray_options={"wings": 2}))


def test_a_card_on_ray_equals_one_that_is_worked_on_inline(raw, tmp_path, monkeypatch):
    """The whole job on a private cluster; afterwards none of its processes is left."""
    import dagster as dg

    from knonik_assets.orchestration.definitions import build_definitions

    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("KNONIK_LAKE", str(tmp_path / "lake"))
    cards = tmp_path / "cards"
    cards.mkdir()
    block = {key: value for key, value in ingest_config(cameras=1).items() if key != "metadata"}
    pack_block = {"profiles": ["training_fast"], "shard_size": 10}
    card = {"raw": str(raw), "ingest": block, "pack": pack_block, "engine": "ray"}
    write_json(cards / "ray.yaml", {**card, "ray": {"num_cpus": 2, "task": {"num_cpus": 1}}})
    run(block, raw, tmp_path / "inline/episodes", engine="inline")
    pack(tmp_path / "inline/episodes", tmp_path / "inline/packed", "ray", 10, storage_profile="training_fast")
    before = descendants()
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides={"telemetry": {"enabled": False}}) as instance:
        job = build_definitions(cards).resolve_job_def("build_dataset")
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        assert job.execute_in_process(instance=instance, partition_key="ray", run_config=quiet).success
    assert_gone(descendants() - before)
    assert tree(tmp_path / "lake/ray/episodes", REPORTS) == tree(tmp_path / "inline/episodes", REPORTS)
    assert tree(tmp_path / "lake/ray/packed/training_fast") == tree(tmp_path / "inline/packed")
