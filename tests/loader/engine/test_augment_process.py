"""Augmentation in worker processes: what can be sent, what dies, and what is left behind."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from knonik_loader import ConfigError, ShardedDataLoader
from tests.support import augments
from tests.support.threads import asking


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children()}


def config(packed, function, **keys):
    return packed.config(augment_fn=function, augment_execution="process", augment_workers=2, **keys)


def test_results_may_be_larger_and_of_any_layout(packed):
    with ShardedDataLoader(packed.config()) as loader:
        plain = list(loader)
    with ShardedDataLoader(config(packed, augments.grow)) as loader:
        for batch, other in zip(loader, plain, strict=True):
            expected = np.repeat(other["rgb_cam_0"], 5, axis=1).astype(np.float64)[:, :, ::-1]
            np.testing.assert_array_equal(batch["rgb_cam_0"], expected)
            np.testing.assert_array_equal(batch["rgb_cam_1"], other["rgb_cam_1"])


def test_a_callable_object_travels(packed):
    with ShardedDataLoader(config(packed, augments.Stateful(1000))) as loader:
        assert next(iter(loader))["state"].min() >= 999


def test_masks_travel(packed):
    keys = {"pad_missing": True, "delta_timestamps": {"state": [-0.1, 0.0, 0.1]}}
    with ShardedDataLoader(packed.config(**keys)) as loader:
        plain = list(loader)
    with ShardedDataLoader(config(packed, augments.mirror, **keys)) as loader:
        for batch, other in zip(loader, plain, strict=True):
            np.testing.assert_array_equal(batch["state_valid_mask"], other["state_valid_mask"])


@pytest.mark.parametrize("workers", [1, 3])
def test_global_generators_draw_the_same_whatever_the_workers(packed, workers):
    keys = {"augment_fn": augments.draw, "augment_execution": "process", "max_steps": 4}
    drawn = []
    for count in (workers, 2):
        with ShardedDataLoader(packed.config(augment_workers=count, **keys)) as loader:
            drawn.append(np.concatenate([batch["drawn"] for batch in loader]))
    np.testing.assert_array_equal(*drawn)
    assert len(np.unique(drawn[0])) == drawn[0].size


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (augments.die_at_twenty, "ended by SIGKILL while it worked on this sample; the system may have run out of mem"),
        (augments.exit_at_twenty, "exit status 7 while it worked on this sample"),
        (augments.unsendable, "unsendable|pickle"),
    ],
)
def test_a_dead_worker_is_one_error_that_names_the_sample(packed, function, said):
    with ShardedDataLoader(config(packed, function, shuffle_mode="none")) as loader:
        iterator = iter(loader)
        if function is augments.unsendable:
            with pytest.raises(
                ConfigError, match=rf"batch 0, sample 0 \(episode 'episode_000000', frame 0\).*({said})"
            ):
                next(iterator)
            return
        for _ in range(5):
            next(iterator)
        with pytest.raises(ConfigError, match=rf"batch 5, sample 0 \(episode 'episode_000000', frame 20\).*{said}"):
            next(iterator)
        assert next(iterator)["_frame_indices"].tolist() == [24, 25, 26, 27]


@pytest.mark.parametrize("function", [lambda sample: sample, threading.Lock().acquire])
def test_what_can_not_be_sent_is_refused_at_once(packed, function):
    with pytest.raises(ConfigError, match=r"augment_fn can't be sent.*top level of a module.*'threaded'"):
        ShardedDataLoader(config(packed, function))


def test_an_error_of_the_function_carries_the_traceback_of_the_worker(packed):
    with ShardedDataLoader(config(packed, augments.fail_at_twenty, shuffle_mode="none")) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        with pytest.raises(ConfigError) as caught:
            next(iterator)
    cause = caught.value.__cause__
    assert isinstance(cause.__cause__, StopIteration)
    assert "in fail_at_twenty" in "".join(cause.__notes__)


def test_workers_are_kept_from_pass_to_pass_and_end_with_the_loader(packed):
    before = children()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    loader = ShardedDataLoader(config(packed, augments.who, stride=3))
    pids = [{int(pid) for batch in loader for pid in batch["pid"][:, 0]} for _ in range(2)]
    assert pids[0] & pids[1]
    assert pids[1] <= children() - before
    assert os.getpid() not in pids[0]
    loader.shutdown()
    assert children() == before
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors


def test_a_dropped_loader_ends_its_workers(packed):
    before = children()
    loader = ShardedDataLoader(config(packed, augments.who))
    iterator = iter(loader)
    next(iterator)
    assert children() - before
    del loader, iterator
    end = time.monotonic() + 20
    while children() - before and time.monotonic() < end:
        time.sleep(0.02)
    assert children() == before


def test_a_loader_that_is_dropped_at_work_waits_for_no_collector(packed):
    """One worker is stuck in the function, and the other idle, when the loader goes."""
    before = children()
    gc.disable()
    try:
        iterator = iter(ShardedDataLoader(config(packed, augments.sleep_at_twenty, shuffle_mode="none")))
        while len(children() - before) < 2:
            time.sleep(0.01)
        for _ in range(4):  # of four frames: the sixth batch has the twentieth
            next(iterator)
        time.sleep(0.5)  # the other worker does what it can do without the stuck one
        del iterator
        end = time.monotonic() + 20
        while children() - before and time.monotonic() < end:
            time.sleep(0.02)
        assert children() == before
    finally:
        gc.enable()


def test_shutdown_does_not_wait_for_a_function(packed):
    before = children()
    loader = ShardedDataLoader(config(packed, augments.sleep_long))
    consumer, told = asking(iter(loader))
    while not children() - before:
        time.sleep(0.01)
    began = time.monotonic()
    loader.shutdown()
    assert time.monotonic() - began < 60  # the function sleeps for ten times as long
    consumer.join(60)
    assert told == ["this pass has ended: the loader was shut down."]
    assert children() == before


SCRIPT = """
    import os, sys
    from knonik_loader import ShardedDataLoader
    def mine(sample):
        return {**sample, "streams": {"state": sample["streams"]["state"] * 0 - 5}}
    def main():
        loader = ShardedDataLoader(dict(decode_mode="random_access", hlp_manifest=sys.argv[1], chunk_len=4,
            batch_size=4, rank=0, world_size=1, augment_fn=mine, augment_execution="process", augment_workers=2))
        batches = iter(loader)
        try:
            print(next(batches)["state"].max(), flush=True)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
            sys.exit(3)
        if sys.argv[2] == "interrupt":
            os.killpg(0, 2)  # as a terminal does: to every process of the group
        if sys.argv[2] == "kill":
            print(open(f"/proc/self/task/{os.getpid()}/children").read(), flush=True)
            for task in os.listdir("/proc/self/task"):
                print(open(f"/proc/self/task/{task}/children").read(), flush=True)
            os.kill(os.getpid(), 9)
    GUARD
"""


@pytest.mark.parametrize("how", ["exit", "kill", "interrupt", "no guard"])
def test_a_function_of_the_main_module(packed, tmp_path, how):
    script = tmp_path / "train.py"
    guard = "main()" if how == "no guard" else "if __name__ == '__main__':\n        main()"
    script.write_text(textwrap.dedent(SCRIPT.replace("GUARD", guard)))
    command = [sys.executable, str(script), str(packed.manifest), how]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=env, start_new_session=True
    )
    if how == "no guard":
        assert run.returncode == 3, run.stderr
        assert "ConfigError" in run.stdout
        assert "if __name__ == '__main__':" in run.stdout
        return
    assert run.stdout.splitlines()[0] == "-5.0", run.stderr
    assert run.returncode == {"exit": 0, "kill": -9, "interrupt": -2}[how]
    assert run.stderr.count("Traceback") == (how == "interrupt")  # the program's own, none of its workers
    pids = {int(pid) for line in run.stdout.splitlines()[1:] for pid in line.split()}
    assert bool(pids) == (how == "kill")
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
