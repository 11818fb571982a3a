"""One ingest at a time writes an output, whoever starts it: real processes of the command line and of Dagster."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest
import yaml

from knonik_assets.ingesting.lock import OutputLock
from tests.assets.orchestration.conftest import materialised
from tests.support.road import write_json

BIN = Path(sys.executable).parent


@pytest.fixture
def slow(workshop):
    """A card whose ingest takes a while, and the arguments with which the command line does the same."""
    workshop.card("pack: {profiles: []}\n")
    path = workshop.cards / "stamps.yaml"
    path.write_text(path.read_text().replace("codec: jpeg, quality: 95", "codec: vp9, quality: 20, speed: 1"))
    for number in range(3):
        workshop.record(number, frames=60)
    config = write_json(workshop.root / "config.json", yaml.safe_load(path.read_text())["ingest"])
    arguments = ["--config", config, "--input", workshop.raw, "--output", workshop.episodes, "--engine", "inline"]
    return workshop, [str(BIN / "knonik"), "ingest", *map(str, arguments), "--quiet"]


def start(command, **environment):
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment}
    )


def wait_until_at_work(workshop, process):
    while not list(workshop.episodes.glob(".knonik/progress/episode_*")):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.005)


def test_a_dagster_run_waits_for_the_command_line_and_does_nothing_twice(slow, instance, monkeypatch):
    workshop, command = slow
    monkeypatch.setattr("knonik_assets.orchestration.assets.RETRIES", dg.RetryPolicy(max_retries=1000, delay=0.1))
    refused = []
    ask = OutputLock._holder

    def holder(lock, file):
        said = ask(lock, file)
        refused.append(said)
        os.kill(other.pid, signal.SIGCONT)  # it has held the output for long enough
        return said

    monkeypatch.setattr(OutputLock, "_holder", holder)
    with start(command) as other:
        wait_until_at_work(workshop, other)
        os.kill(other.pid, signal.SIGSTOP)
        result = workshop.build(instance)
        assert other.wait() == 0
    assert result.success
    assert refused
    assert all(said.startswith(f"process {other.pid} on ") for said in refused)
    made = materialised(result)["ingested_episodes"].metadata
    assert (made["written"].value, made["unchanged"].value) == (0, 3)


def test_the_command_line_is_refused_while_dagster_works(slow, instance):
    workshop, command = slow
    tags = '{"dagster/partition": "stamps"}'
    module = "knonik_assets.orchestration.definitions"
    job = [str(BIN / "dagster"), "job", "execute", "-m", module, "-j", "build_dataset", "--tags", tags]
    home = {"DAGSTER_HOME": str(workshop.root / "instance"), "KNONIK_DATASETS": str(workshop.cards)}
    with start(job, **home) as other:
        wait_until_at_work(workshop, other)
        with start(command) as second:
            said, _ = second.communicate(timeout=120)
        assert second.returncode == 1
        assert "is being written by another run (process" in said
        assert "Traceback" not in said
        log, _ = other.communicate(timeout=300)
    assert other.returncode == 0, log
    assert len(list(workshop.episodes.glob("episode_*/metadata.json"))) == 3
