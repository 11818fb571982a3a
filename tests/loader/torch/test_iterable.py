"""The iterable dataset: dealt to ranks and workers without loss, and resumed exactly."""

import json
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

from knonik_loader import ConfigError, PlanError, ResumeMismatchError, ShardedDataLoader
from knonik_loader.torch import KhlpIterableDataset
from tests.support.torching import samples

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata looks through torch's names
]


def load(dataset, workers, **more):
    return DataLoader(dataset, batch_size=None, num_workers=workers, **more)


def every(many):
    return sorted((f"episode_{row:06d}", frame) for row, length in enumerate(many.lengths) for frame in range(length))


@pytest.mark.parametrize("shard_by", ["sample", "episode"])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_ranks_and_workers_share_an_epoch(many, world, workers, shard_by):
    """164 samples: a remainder for 3 and 8 ranks, ten episodes for eight ranks."""
    seen, steps, dropped = [], set(), set()
    for rank in range(world):
        dataset = KhlpIterableDataset(many.manifest, batch_size=3, rank=rank, world_size=world, shard_by=shard_by)
        batches = list(load(dataset, workers))
        assert len(batches) == len(dataset)
        steps.add(len(batches))
        dropped.add(dataset.dropped)
        seen += samples(batches)
    assert len(steps) == 1
    assert len(dropped) == 1
    assert len(set(seen)) == len(seen)
    lost = dropped.pop()
    assert len(seen) == sum(many.lengths) - lost
    assert set(seen) <= set(every(many))
    # Two samples are too few for three ranks, so that a batch of them would be missing on one.
    assert lost == (2 if world == 3 else 0) or shard_by == "episode"


@pytest.mark.parametrize("world", [1, 2, 8])
def test_the_order_is_the_loaders_whatever_the_workers(many, world):
    for rank in range(world):
        keys = {"batch_size": 3, "rank": rank, "world_size": world, "seed": 9}
        with ShardedDataLoader(many.config(chunk_len=1, **keys)) as loader:
            epochs = [list(samples(loader)) for _ in range(2)]
        for workers in (0, 1, 3) if world == 1 else (0, 2):
            dataset = KhlpIterableDataset(many.manifest, **keys)
            passes = load(dataset, workers)
            assert [list(samples(passes)) for _ in range(2)] == epochs


@pytest.mark.parametrize("stays", [False, True])
def test_every_pass_is_the_next_epoch(many, stays):
    epochs = []
    for epoch in range(4):
        dataset = KhlpIterableDataset(many.manifest, batch_size=7, rank=0, world_size=1, epoch=epoch)
        epochs.append(list(samples(dataset)))
    assert len({tuple(order) for order in epochs}) == 4
    dataset = KhlpIterableDataset(many.manifest, batch_size=7, rank=0, world_size=1)
    loader = load(dataset, 2, persistent_workers=stays)
    assert list(samples(loader)) == epochs[0]
    next(iter(loader))  # an abandoned pass counts
    assert list(samples(loader)) == epochs[2]
    dataset.set_epoch(1)
    assert list(samples(loader)) == epochs[1]
    assert list(samples(loader)) == epochs[2]


def test_samples_for_a_collating_dataloader(many):
    def batches(workers, **keys):
        dataset = KhlpIterableDataset(many.manifest, rank=0, world_size=1, **keys)
        assert len(dataset) == sum(many.lengths)
        return list(DataLoader(dataset, batch_size=8, num_workers=workers))

    one = [list(samples([batch])) for batch in batches(0, batch_size=8, batched=False)]
    for workers in (1, 3):
        assert [list(samples([batch])) for batch in batches(workers, batch_size=8, batched=False)] == one
    for workers in (0, 3):  # dealt one by one
        assert sorted(samples(batches(workers))) == every(many)


def test_without_shuffling_episodes_play_in_order(many):
    dataset = KhlpIterableDataset(many.manifest, batch_size=4, rank=0, world_size=1, shuffle=False)
    for workers in (0, 3):
        assert list(samples(load(dataset, workers))) == every(many)


def test_fewer_episodes_than_ranks(many):
    keys = {"batch_size": 2, "rank": 0, "world_size": 11}
    with pytest.raises(PlanError, match=r"10 episodes can't serve world_size=11; use shard_by='sample'"):
        KhlpIterableDataset(many.manifest, shard_by="episode", **keys)
    seen = []
    for rank in range(11):
        dataset = KhlpIterableDataset(many.manifest, batch_size=2, rank=rank, world_size=11)
        batches = list(dataset)
        assert len(batches) == len(dataset) == 8 - (dataset.dropped > 0)
        seen += samples(batches)
    assert len(set(seen)) == len(seen) == sum(many.lengths) - dataset.dropped
    assert dataset.dropped < 11


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("batched", [True, False])
def test_resume_after_every_step(many, workers, batched):
    """With the step that a training loop counts; also with another number of workers than the saved run had."""
    keys = {"batch_size": 13, "batched": batched, "rank": 0, "world_size": 1, "seed": 2}
    size = None if batched else 13

    def loader(dataset, count):
        return DataLoader(dataset, batch_size=size, num_workers=count)

    whole = [list(samples([b])) for b in loader(KhlpIterableDataset(many.manifest, epoch=1, **keys), 0)]
    after = [list(samples([b])) for b in loader(KhlpIterableDataset(many.manifest, epoch=2, **keys), 0)]
    for taken in range(0, len(whole) + 1, 1 if workers == 0 else 4):
        dataset = KhlpIterableDataset(many.manifest, epoch=1, **keys)
        for _ in islice(loader(dataset, workers), taken):
            pass
        items = taken if batched else min(taken * 13, len(dataset))
        state = json.loads(json.dumps(dataset.state_dict(items if workers else None)))
        again = KhlpIterableDataset(many.manifest, **keys)
        again.load_state_dict(state)
        rest = [list(samples([b])) for b in loader(again, 3 - workers)]
        assert rest == (whole[taken:] or after), taken
        if taken == 3:
            assert [list(samples([b])) for b in loader(again, 2)] == after


def test_running_workers_resume_too(many):
    dataset = KhlpIterableDataset(many.manifest, batch_size=10, rank=0, world_size=1)
    loader = load(dataset, 2, persistent_workers=True)
    epochs = [list(loader) for _ in range(2)]
    state = dataset.state_dict(step=5)
    assert (state["epoch"], state["step"]) == (1, 5)
    dataset.load_state_dict(state)
    assert list(samples(loader)) == list(samples(epochs[1][5:]))
    dataset.set_epoch(1)
    assert list(samples(loader)) == list(samples(epochs[1]))


def test_another_world_size_goes_on_with_the_same_samples(many):
    dataset = KhlpIterableDataset(many.manifest, batch_size=8, rank=0, world_size=1)
    first = list(samples(islice(iter(dataset), 3)))
    state = dataset.state_dict(step=3)
    rest = []
    for rank in range(2):
        half = KhlpIterableDataset(many.manifest, batch_size=4, rank=rank, world_size=2)
        half.load_state_dict(state)
        rest += samples(half)
    assert sorted(first + rest) == every(many)


def test_only_the_training_loop_knows_how_far_workers_are(many):
    dataset = KhlpIterableDataset(many.manifest, batch_size=8, rank=0, world_size=1)
    assert dataset.state_dict()["step"] == 0
    next(iter(load(dataset, 2)))
    with pytest.raises(ConfigError, match="step"):
        dataset.state_dict()
    with pytest.raises(ConfigError, match="0 to 21"):
        dataset.state_dict(step=22)
    assert dataset.state_dict(step=21)["epoch"] == 1


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"batch_size": 5}, "global_batch"),
        ({"split": "train"}, "split"),
        ({"batched": False}, "batched"),
    ],
)
def test_a_state_of_another_order_is_refused_by_name(many, keys, named):
    state = KhlpIterableDataset(many.manifest, batch_size=8, rank=0, world_size=1).state_dict()
    other = KhlpIterableDataset(many.manifest, **{"batch_size": 8, "rank": 0, "world_size": 1, **keys})
    with pytest.raises(ResumeMismatchError, match=named):
        other.load_state_dict(state)


def test_states_of_nothing_are_refused(many):
    dataset = KhlpIterableDataset(many.manifest, batch_size=8, rank=0, world_size=1)
    good = dataset.state_dict()
    odd = ({"step": 10**6}, {"epoch": -1}, {"epoch": 2**31 - 1}, {"version": 9}, {"worker": 3})
    for broken in ({}, None, [good], *({**good, **change} for change in odd)):
        with pytest.raises(ResumeMismatchError):
            dataset.load_state_dict(broken)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [1, 6, 21])
def test_torchdatas_stateful_loader(many, workers, taken):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def loader():
        dataset = KhlpIterableDataset(many.manifest, batch_size=8, rank=0, world_size=1, seed=4)
        return stateful(dataset, batch_size=None, num_workers=workers)

    whole = loader()
    epochs = [list(samples([batch])) for _ in range(2) for batch in whole]
    part = loader()
    iterator = iter(part)
    got = [list(samples([batch])) for batch in islice(iterator, taken)]
    state = part.state_dict()
    again = loader()
    again.load_state_dict(state)
    rest = [list(samples([batch])) for batch in again]
    if taken == 21 and not rest:
        rest = [list(samples([batch])) for batch in again]
    assert got + rest == epochs[: len(got) + len(rest)]
    assert len(rest) == (21 - taken or 21)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"batched": True}, "batch_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 4, "rank": 2, "world_size": 2}, "rank"),
        ({"epoch": -1}, "epoch"),
        ({"batchsize": 2}, "did you mean"),
    ],
)
def test_mistakes_have_names(many, keys, named):
    with pytest.raises(ConfigError, match=named):
        KhlpIterableDataset(many.manifest, **keys)


def test_the_environment_gives_rank_and_world_size(many, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    dataset = KhlpIterableDataset(many.manifest, batch_size=4)
    assert "on rank 1 of 2" in repr(dataset)
    one = list(samples(dataset))
    other = list(samples(KhlpIterableDataset(many.manifest, batch_size=4, rank=1, world_size=2)))
    assert one == other


def noisy(sample):
    state = sample["streams"]["state"]
    generator = torch.Generator().manual_seed(sample["rng_seed"] % 2**63)
    return {**sample, "streams": {"state": state + torch.rand(state.shape, generator=generator)}}


def test_augmentations_are_the_loaders(many):
    keys = {"batch_size": 6, "rank": 0, "world_size": 1, "seed": 3, "augment_fn": noisy}
    with ShardedDataLoader(many.config(chunk_len=1, framework="torch", **keys)) as loader:
        batches = list(loader)
    for workers in (0, 2):
        for one, other in zip(load(KhlpIterableDataset(many.manifest, **keys), workers), batches, strict=True):
            assert torch.equal(one["state"], other["state"])
