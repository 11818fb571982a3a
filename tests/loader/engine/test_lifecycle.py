"""Nothing is left behind: threads, descriptors, memory; and the loader survives forks, spawns and interrupts."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from knonik_loader import LoaderClosedError, ShardedDataLoader


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("knonik-")]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def wait_until(condition, seconds: float = 10.0) -> bool:
    event, end = threading.Event(), time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        event.wait(0.01)
    return condition()


def order(batches):
    return [list(zip(batch["_episode_ids"], batch["_frame_indices"].tolist(), strict=True)) for batch in batches]


@pytest.mark.parametrize("way", ["shutdown", "drop", "break"])
def test_thirty_loaders_leave_nothing(packed, way):
    assert wait_until(lambda: not ours())
    before = descriptors()
    for _ in range(30):
        loader = ShardedDataLoader(packed.config(num_decoders=3))
        for step, _ in enumerate(loader):
            if step == 2:
                break
        if way == "shutdown":
            loader.shutdown()
            assert not ours()
        elif way == "drop":
            loader = None
        else:
            iterator = iter(loader)
            next(iterator)
            del iterator
    loader = None
    gc.collect()
    assert wait_until(lambda: not ours()), ours()
    assert wait_until(lambda: descriptors() <= before)


def test_an_iterator_in_a_cycle_is_collected(packed):
    class Holder:
        pass

    holder = Holder()
    holder.me = holder
    holder.iterator = iter(ShardedDataLoader(packed.config()))
    next(holder.iterator)
    assert ours()
    del holder
    gc.collect()
    assert wait_until(lambda: not ours()), ours()


def test_an_exhausted_pass_has_no_threads(packed):
    loader = ShardedDataLoader(packed.config())
    iterator = iter(loader)
    for _ in iterator:
        pass
    assert wait_until(lambda: not ours()), ours()
    loader.shutdown()


def child(loader, queue):
    queue.put(order(loader))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_loader_works_in_a_child_after_use_in_the_parent(packed, method):
    context = multiprocessing.get_context(method)
    with ShardedDataLoader(packed.config(num_decoders=1)) as loader:
        whole = order(loader)
        loader.set_epoch(0)
        queue = context.Queue()
        process = context.Process(target=child, args=(loader, queue))
        process.start()
        assert queue.get(timeout=60) == whole
        process.join(30)
        assert process.exitcode == 0
        assert order(loader) == whole


def test_a_fork_in_the_middle_of_a_pass(packed):
    """The child can't have the parent's threads: its copy of the pass says so, and a new pass works."""
    with ShardedDataLoader(packed.config()) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = order(ShardedDataLoader.__reduce__(loader)[0](*ShardedDataLoader.__reduce__(loader)[1]))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                next(iterator)
            except LoaderClosedError:
                loader.load_state_dict(state)
                status = 0 if order(loader) == rest else 2
                loader.shutdown()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert order(iterator) == rest


SCRIPT = """
    import sys, threading, time
    from knonik_loader import ShardedDataLoader
    from knonik_loader.engine.storage import LocalStorage
    if sys.argv[2] == "stalled":
        real = LocalStorage.read_ranges
        def hang(self, key, ranges):
            if key.endswith(".khlp"):
                print("hanging", flush=True)
                time.sleep(3600)
            return real(self, key, ranges)
        LocalStorage.read_ranges = hang
    loader = ShardedDataLoader(dict(decode_mode="random_access", hlp_manifest=sys.argv[1], chunk_len=4, batch_size=4,
                                    rank=0, world_size=1))
    if sys.argv[2] == "exit":
        batches = iter(loader)
        next(batches)
        sys.exit(0)
    try:
        batches = iter(loader)
        while True:
            next(batches, None)
            print("step", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        if sys.argv[2] != "stalled":
            loader.shutdown()
"""


@pytest.mark.parametrize("how", ["running", "stalled"])
def test_ctrl_c_ends_the_program(packed, how):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(packed.manifest), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        run.stdout.readline()
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=30)
    assert "interrupted" in out
    assert run.returncode == 0, err
    assert not err


def test_a_program_may_end_in_the_middle_of_a_pass(packed):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(packed.manifest), "exit"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("ahead", [0, 3])
def test_threads_may_share_an_iterator(packed, ahead):
    """Each batch goes to exactly one of them, and all of them see the end."""
    with ShardedDataLoader(packed.config()) as loader:
        whole = order(loader)
    seen, lock, ended = [], threading.Lock(), []
    with ShardedDataLoader(packed.config(precollate_batches=ahead)) as loader:
        iterator = iter(loader)

        def consume():
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    ended.append(threading.get_ident())
                    return
                with lock:
                    seen.append(batch)

        threads = [threading.Thread(target=consume) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(ended) == 5
    assert sorted(order(seen)) == sorted(whole)


def test_an_older_iterator_says_what_took_its_place(packed):
    with ShardedDataLoader(packed.config()) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        with pytest.raises(LoaderClosedError, match=r"a newer iter\(\) of the same loader took its place"):
            next(first)
        next(second)
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(LoaderClosedError, match=r"load_state_dict\(\) moved the loader; call iter\(\)"):
            next(second)
        third = iter(loader)
    with pytest.raises(LoaderClosedError, match="the loader was shut down"):
        next(third)
    with ShardedDataLoader(packed.config()) as one, ShardedDataLoader(packed.config()) as other:
        for here, there in zip(one, other, strict=True):  # two loaders side by side are no matter
            assert here["_frame_indices"].tolist() == there["_frame_indices"].tolist()


@pytest.mark.parametrize("number", [1, 3])
def test_hlps_in_flight_bounds_the_files_that_are_open_and_read(packed, monkeypatch, number):
    from knonik_loader.engine.dataset import PackedDataset

    lock, reading, most = threading.Lock(), Counter(), []
    real = PackedDataset.hlp_index

    def hlp_index(self, hlp):
        with lock:
            reading[hlp] += 1
            most.append(len(+reading))
        threading.Event().wait(0.002)  # long enough for others to come
        found = real(self, hlp)
        with lock:
            reading[hlp] -= 1
        return found

    monkeypatch.setattr(PackedDataset, "hlp_index", hlp_index)
    with ShardedDataLoader(packed.config(hlps_in_flight=number, num_fetchers=6, precollate_batches=6)) as loader:
        list(loader)
        dataset = loader._engine.sources[0].dataset
        assert len(dataset._open) <= number
        assert len(dataset.storage._files) <= number
    assert max(most) <= number


def test_a_full_disk_costs_metrics_and_no_batch(packed, tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    with ShardedDataLoader(packed.config(metrics_path=str(path))) as loader:
        path.unlink()
        path.mkdir()  # nothing can be appended any more
        for _ in range(2):
            assert len(list(loader)) == len(loader)
        assert loader.stats()["metrics_lost"] == 2
        assert loader.stats()["errors"] == 0
        path.rmdir()
        list(loader)
    assert len(path.read_text().splitlines()) == 1
    assert len([record for record in caplog.records if "metrics_path" in record.getMessage()]) == 1


def test_after_shutdown_nothing_is_open_though_the_loader_lives(packed):
    before, threads = descriptors(), threading.active_count()
    loader = ShardedDataLoader(packed.config())
    assert len(list(loader)) == len(loader)
    loader.shutdown()
    assert descriptors() == before
    assert threading.active_count() == threads
    assert len(loader) > 0
