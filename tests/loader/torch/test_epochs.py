"""Which epoch a pass is, whoever makes it: workers that begin late, several DataLoaders at once, abandoned passes."""

import contextlib
import multiprocessing
import os
import pickle
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch.utils.data import DataLoader

from knonik_loader.torch import KhlpIterableDataset
from knonik_loader.torch import epochs as module
from knonik_loader.torch.epochs import PassCounter
from tests.support.torching import samples


class Worker:
    """A worker's copy of a counter, which shares its numbers."""

    def __init__(self, monkeypatch, counter, seed, number=0):
        self.counter = ForkingPickler.loads(ForkingPickler.dumps(counter))
        self.info = SimpleNamespace(seed=seed + number, id=number)
        self.patch = monkeypatch

    def begin(self, chosen=None):
        with self.patch.context() as patch:
            patch.setattr(module, "get_worker_info", lambda: self.info)
            return self.counter.begin(chosen)


def test_workers_of_one_pass_agree_in_any_order(monkeypatch):
    counter = PassCounter(4)
    a0, a1, b0, b1 = (Worker(monkeypatch, counter, seed, number) for seed in (100, 900) for number in (0, 1))
    assert [a0.begin(), b0.begin(), b1.begin(), a1.begin()] == [4, 5, 5, 4]
    # They live on; one is a pass behind.
    assert [a0.begin(), b1.begin(), a0.begin(), a1.begin(), b0.begin(), a1.begin()] == [6, 7, 8, 6, 7, 8]
    assert counter.in_workers
    assert counter.begin() == 9
    assert not counter.in_workers


def test_threads_that_begin_at_once_get_an_epoch_each(monkeypatch):
    counter, found, read = PassCounter(0), [], os.preadv
    both = threading.Barrier(2)

    def slowly(*place):
        answer = read(*place)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.02)  # the other one reads the same now, or waits its turn
        return answer

    monkeypatch.setattr(os, "preadv", slowly)
    threads = [threading.Thread(target=lambda: found.append(counter.begin())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1]
    assert counter.coming == 2


def test_a_worker_that_goes_on_late_turns_no_epoch_back(monkeypatch):
    """Each worker of a StatefulDataLoader has a place of its own in the epoch; the first may be through with it."""
    counter = PassCounter(0)
    early, late = (Worker(monkeypatch, counter, 7, number) for number in (0, 1))
    assert early.begin(4) == 4
    assert early.begin() == 5
    assert late.begin(4) == 4
    assert [late.begin(), early.begin(), late.begin()] == [5, 6, 6]


def test_a_state_that_brings_its_seed_along_is_a_pass_of_its_own(monkeypatch):
    """As StatefulDataLoader's do, loaded where the pass was that they were taken in."""
    counter = PassCounter(0)
    workers = [Worker(monkeypatch, counter, 7, number) for number in (0, 1)]
    assert [worker.begin() for _ in range(3) for worker in workers] == [0, 0, 1, 1, 2, 2]
    for _ in range(2):
        workers = [Worker(monkeypatch, counter, 7, number) for number in (1, 0)]
        assert [worker.begin(0) for worker in workers] == [0, 0]
        assert counter.coming == 1
        assert [worker.begin() for _ in range(3) for worker in workers] == [1, 1, 2, 2, 3, 3]


def test_a_late_worker_takes_nothing_from_an_epoch_that_was_set(monkeypatch):
    counter = PassCounter(0)
    early, late = (Worker(monkeypatch, counter, 7, number) for number in (0, 1))
    assert early.begin() == 0
    counter.set(3)
    assert not counter.in_workers
    assert [late.begin(), early.begin(), late.begin()] == [0, 3, 3]


def test_workers_of_a_dataloader_that_draws_the_same_seed_again(monkeypatch):
    """As training scripts do that make generator and DataLoader anew in each epoch."""
    counter = PassCounter(0)
    for epoch in (5, 0, 1, 2):
        counter.set(epoch)
        workers = [Worker(monkeypatch, counter, 7, number) for number in (0, 1)]
        assert [worker.begin() for worker in workers] == [epoch, epoch]
    again = Worker(monkeypatch, counter, 7, 70), *(Worker(monkeypatch, counter, 7, number) for number in (1, 0))
    assert again[0].begin() == 2  # of the same pass, as far as anybody can tell
    for worker in again[1:]:
        with pytest.warns(UserWarning, match="this pass is epoch 2 once more: .* call set_epoch"):
            assert worker.begin() == 2


def begin_many(counter, number, answer):
    module.get_worker_info = lambda: info  # in this process, which ends with it
    found = []
    for step in range(40):
        info = SimpleNamespace(seed=1000 * number + step, id=0)
        found.append(counter.begin())
    answer.send(found)


def test_processes_that_begin_at_once_get_an_epoch_each():
    context = multiprocessing.get_context("fork")
    counter, found = PassCounter(0), []
    pipes = [context.Pipe() for _ in range(3)]
    children = [context.Process(target=begin_many, args=(counter, at, pipe[1])) for at, pipe in enumerate(pipes)]
    for child in children:
        child.start()
    for (ours, theirs), child in zip(pipes, children, strict=True):
        found += ours.recv()
        child.join()
        ours.close()
        theirs.close()
    assert sorted(found) == list(range(120))
    assert counter.coming == 120


def test_a_copy_counts_by_itself_and_nothing_stays_open():
    def open_now():
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_now()
    counter = PassCounter(6)
    assert counter.begin() == 6
    other = pickle.loads(pickle.dumps(counter))
    assert (other.begin(), other.begin(), counter.begin()) == (7, 8, 7)
    del counter, other
    assert open_now() == before


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_every_dataloader_has_its_epoch_whole(many, how):
    """Two at once over one dataset, and one that is begun again and again before its workers are there."""
    keys = {"batch_size": 7, "rank": 0, "world_size": 1}
    orders = [list(samples(KhlpIterableDataset(many.manifest, epoch=epoch, **keys))) for epoch in range(4)]
    dataset = KhlpIterableDataset(many.manifest, **keys)

    def loader(stays=False):
        return DataLoader(
            dataset, batch_size=None, num_workers=2, multiprocessing_context=how, persistent_workers=stays
        )

    one, other = iter(loader()), iter(loader())
    assert sorted([list(samples(one)), list(samples(other))]) == sorted(orders[:2])
    del one, other
    dataset.set_epoch(0)
    lasting = loader(stays=True)
    for _ in range(3):
        iter(lasting)
    order = list(samples(lasting))
    assert order in orders
    assert len(np.unique(order, axis=0)) == sum(many.lengths)
