"""Map-style, iterable, resumed and `ShardedDataLoader` give the same frames, however PyTorch makes its workers."""

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler

from knonik_loader import ShardedDataLoader
from knonik_loader.torch import KhlpDataset, KhlpIterableDataset, worker_init_fn
from tests.support.packed import PROFILES, check_frames, write_packed
from tests.support.torching import OFFSETS, deltas, samples, wanted

WAYS = [(0, None, False)] + [(2, way, stays) for way in ("fork", "spawn", "forkserver") for stays in (False, True)]
STREAMS = [*OFFSETS, *(f"{key}_valid_mask" for key in OFFSETS)]


@pytest.fixture(scope="module", autouse=True)
def _quick_forkserver():
    """The server imports once what every worker needs."""
    multiprocessing.set_forkserver_preload(["knonik_loader.torch"])


def options(packed, **more):
    return {"delta_timestamps": deltas(), "pad_missing": True, "stride": 19, **more}


def equal(one, other):
    for key in STREAMS:
        np.testing.assert_array_equal(np.asarray(one[key]), np.asarray(other[key]), err_msg=key)
    for key in ("_frame_indices", "_timestamps", "_hlp_ids", "_shard_idxs", "_chunk_starts"):
        np.testing.assert_array_equal(np.asarray(one[key]), np.asarray(other[key]), err_msg=key)
        assert np.asarray(one[key]).dtype == np.asarray(other[key]).dtype
    assert list(one["_episode_ids"]) == list(other["_episode_ids"])


@pytest.fixture(scope="module")
def reference(long):
    """The loader's batches of one epoch, checked stamp by stamp."""
    keys = {**options(long), "chunk_len": 1, "batch_size": 4, "seed": 5, "framework": "torch"}
    with ShardedDataLoader(long.config(**keys)) as loader:
        batches = list(loader)
    for batch in batches:
        check_frames(long, batch, wanted(batch))
    return batches


@pytest.mark.parametrize(("workers", "way", "stays"), WAYS)
def test_map_style(long, reference, workers, way, stays):
    dataset = KhlpDataset(long.manifest, **options(long))
    check_frames(long, torch.utils.data.default_collate([dataset[3], dataset[-1]]), wanted_of(dataset, [3, -1]))
    order = {place: number for number, place in enumerate(samples([dataset_places(dataset)]))}
    ids = [order[place] for place in samples(reference)]
    loader = DataLoader(
        dataset,
        batch_size=4,
        sampler=ids,
        num_workers=workers,
        multiprocessing_context=way,
        persistent_workers=stays,
        worker_init_fn=worker_init_fn,
    )
    for _ in range(2 if stays or way != "spawn" else 1):
        batches = list(loader)
        assert len(batches) == len(loader) == len(reference)
        for one, other in zip(batches, reference, strict=True):
            equal(one, other)


def dataset_places(dataset):
    episodes, frames = dataset.anchors.lookup(np.arange(len(dataset)))
    return {"_episode_ids": [f"episode_{row:06d}" for row in episodes], "_frame_indices": frames}


def wanted_of(dataset, ids):
    frames = np.array([dataset[number]["_frame_indices"] for number in ids])
    return wanted({"_frame_indices": frames})


@pytest.mark.parametrize(
    ("workers", "way", "stays"), [way for way in WAYS if way[1:] not in {("spawn", False), ("forkserver", True)}]
)
def test_iterable(long, reference, workers, way, stays):
    dataset = KhlpIterableDataset(long.manifest, batch_size=4, rank=0, world_size=1, seed=5, **options(long))
    next(iter(dataset))  # what the parent has opened is not for its children
    dataset.set_epoch(0)
    loader = DataLoader(
        dataset, batch_size=None, num_workers=workers, multiprocessing_context=way, persistent_workers=stays
    )
    batches = list(loader)
    assert len(batches) == len(loader) == len(reference)
    for one, other in zip(batches, reference, strict=True):
        equal(one, other)
    if way != "spawn" or stays:
        second = list(samples(loader))
        assert second != list(samples(reference))
        assert sorted(second) == sorted(samples(reference))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 4, 8])
def test_resumed(long, reference, workers, taken):
    keys = {"batch_size": 4, "rank": 0, "world_size": 1, "seed": 5, **options(long)}
    dataset = KhlpIterableDataset(long.manifest, **keys)
    for _ in islice(DataLoader(dataset, batch_size=None), taken):
        pass
    state = dataset.state_dict()
    again = KhlpIterableDataset(long.manifest, **keys)
    again.load_state_dict(state)
    again.set_epoch(0)  # as training loops do, which must not lose the place
    rest = list(DataLoader(again, batch_size=None, num_workers=workers))
    assert len(rest) == len(reference) - taken
    for one, other in zip(rest, reference[taken:], strict=True):
        equal(one, other)


@pytest.mark.parametrize("profile", ["compact_video", "training_compressed"])
def test_a_parent_that_has_decoded_forks_well(tmp_path, profile):
    packed = write_packed(tmp_path, [60, 31], profile, shard_size=20)
    dataset = KhlpDataset(packed.manifest, chunk_len=3, ram_cache_bytes=1 << 20)
    assert dataset[0]["_frame_indices"] == 0
    for _ in range(2):
        for batch in DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2):
            frames = batch["_frame_indices"].numpy()[:, None] + np.arange(3)
            check_frames(packed, batch, dict.fromkeys(dataset.stream_names, frames))
        assert dataset[50]["_frame_indices"] == 50


@pytest.mark.parametrize("profile", PROFILES)
def test_threads_may_share_a_dataset(tmp_path, profile):
    packed = write_packed(tmp_path, [60, 31], profile, shard_size=20)
    dataset = KhlpDataset(packed.manifest, chunk_len=3, num_decoders=2)

    def look(seed):
        for number in np.random.default_rng(seed).integers(0, len(dataset), 12).tolist():
            batch = torch.utils.data.default_collate([dataset[number]])
            check_frames(
                packed,
                batch,
                dict.fromkeys(dataset.stream_names, batch["_frame_indices"][:, None].numpy() + np.arange(3)),
            )
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(look, range(4)))
    assert pickle.loads(pickle.dumps(dataset))[5]["_frame_indices"] == 5


def test_an_augmentation_may_ask_the_dataset_itself(long):
    """For a second picture to mix in, say."""

    def mix(sample):
        other = dataset[7]["state"] if sample["frame_index"] != 7 else sample["streams"]["state"]
        return {**sample, "streams": {**sample["streams"], "other": other}}

    dataset = KhlpDataset(long.manifest, augment_fn=mix)
    assert torch.equal(dataset[3]["other"], KhlpDataset(long.manifest)[7]["state"])


def test_getitems_is_getitem_together(long):
    dataset = KhlpDataset(long.manifest, **options(long, stride=1))
    ids = [5, 6, 6, 299, 0, -1]
    for one, number in zip(dataset.__getitems__(ids), ids, strict=True):
        other = dataset[number]
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert torch.equal(value, other[key]) if torch.is_tensor(value) else value == other[key], key


def test_the_sampler_of_pytorch_sees_everything_once(long):
    dataset = KhlpDataset(long.manifest, **options(long, streams=["state"], delta_timestamps=None, chunk_len=3))
    loader = DataLoader(dataset, batch_size=5, sampler=SubsetRandomSampler(range(len(dataset))))
    seen = sorted(samples(loader))
    assert seen == sorted(samples([dataset_places(dataset)]))
    assert len(seen) == len(dataset)
