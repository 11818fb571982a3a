"""Memory that a worker shares with the process it works for: never used again while anybody looks at it."""

import copy
import gc
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import threading
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from knonik_loader.torch import KhlpDataset, KhlpIterableDataset  # noqa: E402
from knonik_loader.torch.shared_memory import SharedBatch, SharedPool  # noqa: E402

SHAPE = (3, 200, 200)  # more than what travels in a message


def made(pool, value, **more):
    """A batch of one picture stream of a pool, and its dictionary's other values."""
    array = pool.take(0, "rgb_a", SHAPE, np.uint8)
    array[:] = value
    return SharedBatch({"rgb_a": torch.from_numpy(array), **more}, pool)


def sent(batch):
    """What another process, here this one, gets."""
    return ForkingPickler.loads(ForkingPickler.dumps(batch))


def test_memory_comes_back_when_both_sides_have_let_go():
    pool = SharedPool()
    batch = made(pool, 7)
    arrived = sent(batch)
    arrived["rgb_a"][0, 0, 0] = 9
    assert batch["rgb_a"][0, 0, 0] == 9  # one memory
    del batch
    made(pool, 1)
    assert pool.counts()["fresh"] == 2  # the receiver has the first piece
    assert (arrived["rgb_a"][1:] == 7).all()
    part = arrived["rgb_a"][2]
    del arrived
    made(pool, 2)
    made(pool, 3)
    assert pool.counts() == {"fresh": 2, "reused": 2, "bytes": 2 * 122_880}
    assert (part == 7).all()
    del part
    first, second = made(pool, 4), made(pool, 5)
    assert pool.counts()["fresh"] == 2
    assert (first["rgb_a"] == 4).all()
    assert (second["rgb_a"] == 5).all()


def test_the_sender_keeps_it_too():
    pool = SharedPool()
    batch = made(pool, 7)
    sent(batch)  # and dropped at once
    made(pool, 1)
    assert (batch["rgb_a"] == 7).all()


def test_a_second_receiver_gets_a_copy():
    pool = SharedPool()
    batch = made(pool, 7)
    one, two = sent(batch), sent(batch)
    one["rgb_a"][:] = 1
    assert (two["rgb_a"] == 7).all()


def test_values_of_all_kinds_arrive():
    pool = SharedPool()
    wide = torch.from_numpy(pool.take(0, "depth_a", (4, 5, 60, 100), np.float32))
    wide[:] = torch.arange(wide.numel()).reshape(wide.shape)
    values = {
        "view": wide[:, 0],
        "turned": wide.permute(0, 1, 3, 2),
        "bool": torch.tensor([True, False]),
        "number": torch.tensor(3),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "empty": torch.empty(0, 3),
        "elsewhere": torch.arange(100_000),
        "grad": torch.ones(2, requires_grad=True),
        "names": ["a", "b"],
        "text": "x",
        "none": None,
        "array": np.arange(3),
    }
    arrived = sent(SharedBatch(values, pool))
    assert type(arrived) is dict
    assert list(arrived) == list(values)
    for key, value in values.items():
        if isinstance(value, torch.Tensor):
            assert (arrived[key].dtype, arrived[key].requires_grad) == (value.dtype, value.requires_grad)
            assert torch.equal(arrived[key], value)
    assert (arrived["names"], arrived["text"], arrived["none"]) == (["a", "b"], "x", None)
    assert arrived["array"].tolist() == [0, 1, 2]


def test_elsewhere_it_is_a_dictionary():
    batch = made(SharedPool(), 7)
    assert type(pickle.loads(pickle.dumps(batch))) is dict
    assert type(copy.deepcopy(batch)) is dict
    assert type(copy.copy(batch)) is SharedBatch


def test_more_in_use_than_is_remembered():
    pool = SharedPool()
    kept = [sent(made(pool, number)) for number in range(12)]
    assert [int(batch["rgb_a"].max()) for batch in kept] == list(range(12))
    assert pool.counts()["bytes"] == 8 * 122_880
    del kept
    gc.collect()
    made(pool, 0)
    assert pool.counts()["reused"] == 1


def test_what_is_no_longer_needed_is_given_back():
    pool = SharedPool()
    several = [made(pool, number) for number in range(4)]
    del several
    for _ in range(20):
        made(pool, 0)
    assert pool.counts()["bytes"] == 122_880
    pool.take(0, "rgb_a", (4, *SHAPE), np.uint8)
    assert pool.counts()["bytes"] == 118 * 4096  # what is too small for the batches of now goes first


def test_descriptors_are_closed():
    def open_now():
        return len(list(Path("/proc/self/fd").iterdir()))

    sent(made(SharedPool(), 1))
    gc.collect()
    before = open_now()
    pool = SharedPool()
    kept = [sent(made(pool, number)) for number in range(5)]
    assert open_now() > before
    del kept, pool
    gc.collect()
    assert open_now() == before


def let_go(batch):
    batch.clear()
    gc.collect()
    os._exit(0)


def test_a_fork_of_the_receiver_gives_nothing_back():
    pool = SharedPool()
    arrived = sent(made(pool, 7))
    child = multiprocessing.get_context("fork").Process(target=let_go, args=(arrived,))
    child.start()
    child.join()
    assert child.exitcode == 0
    made(pool, 1)
    assert (arrived["rgb_a"] == 7).all()


def test_what_a_fork_still_looks_at_is_not_used_again():
    pool = SharedPool()
    arrived = sent(made(pool, 7))
    go, answer = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(go[0], 1)
        os.write(answer[1], arrived["rgb_a"].numpy()[0, 0, :1].tobytes())
        os._exit(0)
    del arrived
    made(pool, 9)
    os.write(go[1], b"x")
    assert os.read(answer[0], 1) == bytes([7])
    os.waitpid(child, 0)
    for end in (*go, *answer):
        os.close(end)


def test_a_batch_is_sent_while_the_next_one_needs_memory():
    pool, failed, done = SharedPool(), [], threading.Event()

    def send():
        try:
            while not done.is_set():
                pool.piece_of(0)
        except RuntimeError as error:
            failed.append(error)

    sender = threading.Thread(target=send)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        sender.start()
        held = [pool.take(0, f"rgb_{number}", SHAPE, np.uint8) for number in range(300)]
    finally:
        done.set()
        sender.join()
        sys.setswitchinterval(interval)
    assert (failed, len(held)) == ([], 300)


@pytest.mark.parametrize("streams", [1, 20])
def test_memory_is_remembered_by_batches_however_many_streams_they_have(streams):
    pool = SharedPool()
    for _ in range(8):
        several = [[pool.take(0, f"rgb_{at}", SHAPE, np.uint8) for at in range(streams)] for _ in range(4)]
        del several
    assert pool.counts()["fresh"] == 4 * streams


@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("fork", {}),
        ("spawn", {}),
        ("fork", {"keys": "lerobot"}),
        ("fork", {"keys": "lerobot", "image_dtype": "uint8"}),
    ],
)
def test_batches_stay_as_they_were(long, how, options):
    """Whoever keeps batches finds them whole; whoever drops them lets their memory be used again."""
    window = {"chunk_len": 4} if not options else {}
    dataset = KhlpDataset(long.manifest, **options, **window)
    count = 10
    indices = np.random.default_rng(0).permutation(len(dataset))[: 8 * count].reshape(count, 8).tolist()
    loader = DataLoader(dataset, batch_sampler=indices, num_workers=1, multiprocessing_context=how)
    kept = {}
    for number, batch in enumerate(loader):
        if number < 2 or number % 3 == 0:
            kept[number] = batch
        check(batch, dataset, indices[number])
    for number, batch in kept.items():
        check(batch, dataset, indices[number])


def check(batch, dataset, indices):
    wanted = DataLoader(dataset, batch_sampler=[indices])
    for key, value in next(iter(wanted)).items():
        same = torch.equal(batch[key], value) if isinstance(value, torch.Tensor) else batch[key] == value
        assert same, key


def test_whole_batches_of_the_iterable_dataset(long):
    """They are sent as they are, too; memory of the ones that were dropped is used again."""
    options = {"batch_size": 8, "chunk_len": 4, "episodes": [2]}
    loader = DataLoader(KhlpIterableDataset(long.manifest, **options), batch_size=None, num_workers=1)
    kept = []
    for batch, wanted in zip(loader, KhlpIterableDataset(long.manifest, **options), strict=True):
        kept = [*kept[-3:], (batch, wanted)]
        for got, expected in kept:
            assert got.keys() == expected.keys()
            assert all(torch.equal(got[key], expected[key]) for key in got if key.startswith(("rgb_", "depth_")))


MANY = """
import resource, sys
import torch
from torch.utils.data import DataLoader
from knonik_loader.torch import KhlpDataset

torch.multiprocessing.set_sharing_strategy(sys.argv[2])
dataset = KhlpDataset(sys.argv[1], chunk_len=4, episodes=[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
kept = list(DataLoader(dataset, batch_size=2, num_workers=1))
assert len(kept) == 34
for batch, wanted in zip(kept, DataLoader(dataset, batch_size=2)):
    assert all(torch.equal(batch[key], wanted[key]) for key in wanted if key.startswith("rgb_"))
print("all kept")
"""


@pytest.mark.parametrize(
    ("strategy", "said"),
    [("file_descriptor", "Too many open files.*set_sharing_strategy"), ("file_system", "all kept")],
)
def test_what_pytorch_advises_against_too_many_descriptors_helps(long, strategy, said):
    """A batch that is kept holds descriptors, as PyTorch's own way does; the other strategy has none."""
    command = [sys.executable, "-c", MANY, str(long.manifest), strategy]
    done = subprocess.run(command, text=True, capture_output=True, timeout=120, check=False)
    assert re.search(said, done.stdout + done.stderr, re.S), done.stderr
    assert (done.returncode == 0) == (strategy == "file_system")
