"""What travels to another process is small, however many episodes there are, and works where it arrives."""

import multiprocessing
import pickle

import pytest

from knonik_loader import MultiShardedDataLoader, ShardedDataLoader
from tests.support.huge import write_huge
from tests.support.packed import write_packed

KINDS = ["ShardedDataLoader", "MultiShardedDataLoader", "KhlpDataset", "KhlpIterableDataset"]


def make(kind, manifest, batch_size=8):
    keys = {"decode_mode": "random_access", "chunk_len": 1, "batch_size": batch_size, "rank": 0, "world_size": 1}
    if kind == "ShardedDataLoader":
        return ShardedDataLoader(keys | {"hlp_manifest": str(manifest)}, {"state": {}})
    if kind == "MultiShardedDataLoader":
        part = {"loader": {"hlp_manifest": str(manifest)}, "streams": {"state": {}}}
        return MultiShardedDataLoader(
            datasets=[("one", part), ("two", part)],
            weights=[0.7, 0.3],
            loader_cfg=keys | {"planner_locality": "low_mem"},
        )
    pytest.importorskip("torch")
    from knonik_loader.torch import KhlpDataset, KhlpIterableDataset

    if kind == "KhlpDataset":
        return KhlpDataset(manifest, streams=["state"])
    return KhlpIterableDataset(manifest, streams=["state"], batch_size=batch_size, rank=0, world_size=1)


def places(batches):
    return [str((batch["_episode_ids"], batch["_frame_indices"])) for batch in batches]


@pytest.fixture(scope="module")
def huge(tmp_path_factory):
    return write_huge(tmp_path_factory.mktemp("huge"), 100_000)


@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_thousand_episodes_are_less_than_a_megabyte(huge, kind):
    made = make(kind, huge)
    data = pickle.dumps(made)
    assert len(data) < 1_000_000
    copy = pickle.loads(data)
    assert len(copy) == len(made) >= 100_000 // 8
    one, other = (getattr(each, "_sampler", None) or each.opened.sampler for each in (made, copy))
    for step in (0, 5000):
        plans = [sampler.batch(0, step) for sampler in (one, other)]
        assert plans[0].episodes.tolist() == plans[1].episodes.tolist()
    assert len(pickle.dumps(copy)) < 1_000_000  # also once it has planned


def child(made, queue):
    queue.put(places(made))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_works_in_a_child_after_use_in_the_parent(tmp_path, kind, method):
    packed = write_packed(tmp_path, (9, 7), cameras=0, depth=False)
    made = make(kind, packed.manifest, 4)
    whole = places(made)
    if hasattr(made, "set_epoch"):
        made.set_epoch(0)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=child, args=(made, queue))
    process.start()
    assert queue.get(timeout=60) == whole
    process.join(30)
    assert process.exitcode == 0
    assert len(whole) >= 4
