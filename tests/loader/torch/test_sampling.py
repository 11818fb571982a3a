"""Ranks that share nothing and wait for nobody; random streams that nobody else has."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from knonik_loader import ConfigError, PlanError, ShardedDataLoader
from knonik_loader.torch import EpisodeDistributedSampler, KhlpDataset, worker_init_fn
from tests.support.torching import samples


@pytest.fixture(scope="module")
def dataset(many):
    return KhlpDataset(many.manifest)


@pytest.mark.parametrize("shard_by", ["episode", "sample"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_ranks_are_disjoint_and_equal(dataset, world, batch_size, shard_by):
    seen, lengths, owners = [], set(), {}
    for rank in range(world):
        sampler = EpisodeDistributedSampler(dataset, world, rank, shard_by=shard_by, batch_size=batch_size, seed=1)
        indices = list(sampler)
        assert len(indices) == len(sampler)
        lengths.add(len(sampler) if batch_size == 1 else -(-len(sampler) // batch_size))
        rows, _ = dataset.anchors.lookup(np.array(indices))
        for row in set(rows.tolist()):
            assert shard_by == "sample" or owners.setdefault(row, rank) == rank
        seen += indices
    assert len(lengths) == 1
    assert len(set(seen)) == len(seen) == len(dataset) - sampler.dropped
    if shard_by == "sample":
        assert sampler.dropped < world
        assert world != 1 or sorted(seen) == list(range(len(dataset)))


@pytest.mark.parametrize("shard_by", ["episode", "sample"])
def test_batches_are_those_of_the_loaders(many, dataset, shard_by):
    for rank in range(2):
        keys = {"batch_size": 4, "rank": rank, "world_size": 2, "seed": 6, "shard_by": shard_by}
        with ShardedDataLoader(many.config(chunk_len=1, **keys)) as loader:
            epochs = [list(samples(loader)) for _ in range(2)]
        sampler = EpisodeDistributedSampler(dataset, 2, rank, seed=6, shard_by=shard_by, batch_size=4)
        mine = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2, persistent_workers=True)
        assert [list(samples(mine)) for _ in range(2)] == epochs


def test_epochs_differ_come_back_and_go_on_inside(dataset):
    sampler = EpisodeDistributedSampler(dataset, 2, 1, seed=3, batch_size=4)
    epochs = [list(sampler) for _ in range(3)]
    assert len({tuple(order) for order in epochs}) == 3
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]
    assert list(sampler) == epochs[2]
    for start in (0, 4, 6, len(sampler)):
        sampler.set_epoch(1, start)
        assert list(sampler) == epochs[1][start:]
    assert list(EpisodeDistributedSampler(dataset, 2, 1, seed=4, batch_size=4)) != epochs[0]
    still = EpisodeDistributedSampler(dataset, 1, 0, shuffle=False)
    assert list(still) == list(still) == list(range(len(dataset)))


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"num_replicas": 11, "rank": 0}, PlanError, "10 episodes can't serve"),
        ({"num_replicas": 400, "rank": 0, "shard_by": "sample"}, PlanError, "164 samples, too few"),
        ({"num_replicas": 2, "rank": 2}, ConfigError, "rank=2"),
        ({"rank": 0}, ConfigError, "both"),
        ({"seed": "0"}, ConfigError, "seed is a whole number"),
        ({"num_replicas": 1, "rank": 0, "batch_size": 0}, ConfigError, "batch_size"),
        ({"num_replicas": 1, "rank": 0, "shard_by": "frame"}, ConfigError, "'episode' or 'sample'"),
    ],
)
def test_mistakes_have_names(dataset, arguments, error, named):
    with pytest.raises(error, match=named):
        EpisodeDistributedSampler(dataset, **arguments)


def test_it_orders_no_other_dataset():
    with pytest.raises(ConfigError, match="it orders a KhlpDataset, got a list"):
        EpisodeDistributedSampler([1, 2, 3])


def test_set_epoch_wants_a_place(dataset):
    sampler = EpisodeDistributedSampler(dataset, 1, 0)
    for epoch, start in ((-1, 0), (0, -1), (0, len(sampler) + 1), ("1", 0)):
        with pytest.raises(ConfigError):
            sampler.set_epoch(epoch, start)


class Streams(Dataset):
    """What a worker draws from each random stream, and which worker it is."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        worker = torch.utils.data.get_worker_info().id
        return worker, random.getrandbits(40), int(np.random.randint(2**40)), int(torch.randint(2**40, ()))


def draws(seed, stays=False):
    generator = torch.Generator().manual_seed(seed)
    keys = {"num_workers": 2, "worker_init_fn": worker_init_fn, "persistent_workers": stays}
    loader = DataLoader(Streams(), generator=generator, **keys)
    return [[tuple(int(value) for value in row) for row in loader] for _ in range(2)]


@pytest.mark.parametrize("stays", [False, True])
def test_streams_differ_between_workers_and_epochs_and_come_back(stays):
    epochs = draws(42, stays)
    assert epochs == draws(42, stays)
    assert epochs != draws(43, stays)
    for column in (1, 2, 3):
        drawn = [row[column] for epoch in epochs for row in epoch]
        assert len(set(drawn)) == len(drawn) == 16


def test_ranks_that_seed_alike_draw_differently(monkeypatch):
    ranks = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        ranks.append(draws(42))
    assert not {row[1:] for epoch in ranks[0] for row in epoch} & {row[1:] for epoch in ranks[1] for row in epoch}


def numbered(worker_id):
    """As training scripts write it themselves."""
    worker_seed = (torch.initial_seed() + worker_id) % (2**32)
    np.random.seed(worker_seed)
    random.seed(worker_seed)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
@pytest.mark.parametrize("init", [worker_init_fn, numbered])
def test_a_usual_dataloader_is_reproducible(dataset, init):
    def run():
        loader = DataLoader(
            dataset,
            batch_size=32,
            shuffle=True,
            num_workers=4,
            pin_memory=True,
            persistent_workers=True,
            worker_init_fn=init,
            generator=torch.Generator().manual_seed(42),
        )
        return [list(samples(loader)) for _ in range(2)]

    first, second = run()
    assert [first, second] == run()
    assert first != second
    assert sorted(first) == sorted(second)


def seeded(sample):
    return {**sample, "streams": {"seed": np.array([sample["rng_seed"] >> 1], np.int64)}}


def seeds(loader):
    return [[int(value) for batch in loader for value in batch["seed"]] for _ in range(2)]


@pytest.mark.parametrize("stays", [False, True])
def test_augmentations_of_two_runs_are_the_same(many, stays):
    """As written in most training scripts: a generator, shuffle, workers, and nobody who calls set_epoch."""

    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        dataset = KhlpDataset(many.manifest, augment_fn=seeded)
        keys = {"num_workers": 2, "persistent_workers": stays, "worker_init_fn": worker_init_fn}
        return seeds(DataLoader(dataset, batch_size=8, shuffle=True, generator=generator, **keys))

    first, second = run(7)
    assert [first, second] == run(7)
    assert not set(first) & set(second)
    assert len(set(first)) == len(first)
    assert not set(first) & set(run(8)[0])


def test_with_the_sampler_augmentations_follow_from_epoch_and_sample(many):
    def run(workers, seed=0):
        dataset = KhlpDataset(many.manifest, augment_fn=seeded, seed=seed)
        sampler = EpisodeDistributedSampler(dataset, 1, 0, seed=3)
        keys = {"num_workers": workers, "persistent_workers": workers > 0}
        return seeds(DataLoader(dataset, batch_size=8, sampler=sampler, **keys))

    first, second = run(2)
    assert [first, second] == run(0)
    assert not set(first) & set(second)
    assert not set(first) & set(run(0, seed=1)[0])
