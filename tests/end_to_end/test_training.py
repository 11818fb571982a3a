"""The example learns from a packed dataset, goes on after a kill as if nothing had been, and on two ranks as on one."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_bc.py"


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    """The sample recordings, cut and packed as the example does."""
    found = importlib.util.spec_from_file_location("train_bc", EXAMPLE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.prepare(tmp_path_factory.mktemp("sample"))


def command(out, manifests, *arguments):
    train, held_out = map(str, manifests)
    return [
        sys.executable,
        str(EXAMPLE),
        "--out",
        str(out),
        "--train",
        train,
        "--held-out",
        held_out,
        *map(str, arguments),
    ]


def run(out, manifests, *arguments, **environment):
    done = subprocess.run(
        command(out, manifests, *arguments),
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "result.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory, manifests):
    out = tmp_path_factory.mktemp("whole")
    return run(out, manifests), out


def test_it_learns(whole):
    result, out = whole
    losses = result["losses"]
    assert len(losses) == 500
    assert np.mean(losses[-50:]) < 0.2 * np.mean(losses[:5])
    assert result["held_out_error"] <= 0.2
    assert (out / "loss.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_an_error_on_frames_that_were_trained_on_is_called_so(tmp_path, manifests):
    """Nothing is held out where one manifest is given and no splits."""
    one = [manifests[0]] * 2
    for arguments, frames in ((one, "frames trained on"), (manifests, "held-out frames")):
        done = subprocess.run(
            command(tmp_path, arguments, "--steps", 1), text=True, capture_output=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"error on {frames}: " in done.stdout
        assert f"loss curve: {tmp_path / 'loss.png'}" in done.stdout


def test_without_a_checkpoint_to_go_on_from_it_says_that_it_begins(tmp_path, manifests):
    done = subprocess.run(
        command(tmp_path, manifests, "--resume", "--steps", 1),
        text=True,
        capture_output=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"no checkpoint in {tmp_path} yet" in done.stdout


def test_no_window_is_in_both_sets(manifests):
    from knonik_loader.torch import KhlpDataset

    rows = []
    for manifest in manifests:
        chunks = KhlpDataset(manifest, streams=["qpos", "action"], chunk_len=8, pad_missing=True)
        rows.append({chunk["action"][0].numpy().tobytes() + chunk["qpos"][0].numpy().tobytes() for chunk in chunks})
    assert (len(rows[0]), len(rows[1])) == (88, 32)
    assert not rows[0] & rows[1]


@pytest.mark.parametrize("loader", ["sharded", "torch"])
def test_after_a_kill_the_losses_are_the_same_to_the_last_bit(tmp_path, manifests, whole, loader):
    """Killed after a checkpoint in the middle of an epoch (of five batches); both loaders give one order."""
    # Steps enough that the run can't be over before it is killed.
    arguments = ["--loader", loader, "--checkpoint-every", 7, "--steps", 10**6]
    process = subprocess.Popen(command(tmp_path, manifests, *arguments), start_new_session=True)
    checkpoint = tmp_path / "checkpoint.pt"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    import torch

    seen = len(torch.load(checkpoint, weights_only=True)["losses"])
    more = run(tmp_path, manifests, "--loader", loader, "--resume", "--steps", seen + 24)
    assert len(more["losses"]) == seen + 24
    reference = whole[0]["losses"]
    assert more["losses"][: len(reference)] == reference[: seen + 24]


@pytest.mark.parametrize("loader", ["sharded", "torch"])
def test_two_ranks_learn_as_one(tmp_path, manifests, whole, loader):
    _, *script = command(tmp_path, manifests, "--loader", loader, "--steps", 50)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, *script], env=environment, text=True, capture_output=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = json.loads((tmp_path / "result.json").read_text())["losses"]
    np.testing.assert_allclose(losses, whole[0]["losses"][:50], atol=1e-4)


def test_a_stream_that_is_not_there_is_one_line(tmp_path, manifests):
    wrong = command(tmp_path, manifests, "--camera", "left")
    done = subprocess.run(wrong, text=True, capture_output=True, timeout=500, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error: stream_cfg: the dataset has no stream 'rgb_left' (did you mean 'rgb_top'?); it has rgb_top, action, qpos"
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--loader", "torch"], "began with --loader sharded"),
        (["--batch", "8"], "began with --batch 16"),
        (["--chunk", "4"], "began with --chunk 8"),
        (["--steps", "0"], "--steps 0 is no number of steps"),
    ],
)
def test_a_run_goes_on_as_it_began_or_not_at_all(manifests, whole, arguments, said):
    """Another batch size would count its steps from another place, without a word."""
    out = whole[1]
    before = (out / "checkpoint.pt").read_bytes()
    again = command(out, manifests, "--resume", "--steps", "510", *arguments)
    done = subprocess.run(again, text=True, capture_output=True, timeout=500, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert (out / "checkpoint.pt").read_bytes() == before
