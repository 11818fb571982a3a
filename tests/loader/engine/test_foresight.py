"""Eviction by the known future: the cache lets go of what the coming batches need last."""

import math

import numpy as np
import pytest

from knonik_loader import ShardedDataLoader
from knonik_loader.engine.cache import FrameCache
from knonik_loader.engine.foresight import Foresight, horizon_of
from knonik_loader.engine.shared import Engine

SIZE = 100


class Known:
    """A future in which step n wants key requests[n], known ``ahead`` steps far."""

    def __init__(self, requests, ahead):
        self.requests, self.ahead, self.oldest = requests, ahead, 0

    def next_use(self, place, first, end, after):
        for step in range(max(after + 1, self.oldest), min(self.oldest + self.ahead, len(self.requests))):
            if first <= self.requests[step] < end:
                return step
        return math.inf


def hits_of(requests, capacity, ahead):
    cache, future = FrameCache(capacity * SIZE), Known(requests, ahead)
    if ahead:
        cache.foresee(future)
    for step, wanted in enumerate(requests):
        future.oldest = step
        key = (0, 0, 0, wanted)
        if cache.get(key, step) is None:
            cache.put(key, {wanted: np.zeros(SIZE, np.uint8)}, wanted + 1, step)
        assert cache.counts()["bytes"] <= capacity * SIZE
    return cache.counts()["hits"]


def best_possible(requests, capacity):
    """Belady's rule, the plain way: of what is held and what just came, the one that is needed last goes."""
    held, hits = set(), 0
    for step, wanted in enumerate(requests):
        hits += wanted in held
        held.add(wanted)
        if len(held) > capacity:
            later = requests[step + 1 :]
            held.remove(max(sorted(held), key=lambda key: later.index(key) if key in later else len(requests)))
    return hits


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("capacity", [1, 4, 9])
def test_nothing_could_hit_more_often(seed, capacity):
    requests = np.random.default_rng(seed).integers(0, 15, 300).tolist()
    known, blind = hits_of(requests, capacity, 300), hits_of(requests, capacity, 0)
    assert known == best_possible(requests, capacity)
    assert known > 1.3 * blind


def test_a_short_view_helps_too():
    requests = np.random.default_rng(0).integers(0, 40, 2000).tolist()
    blind, short, long = (hits_of(requests, 10, ahead) for ahead in (0, 20, 2000))
    assert blind < short < long


def test_what_was_expected_by_a_batch_that_is_over_does_not_stay():
    requests = [1, 2, 1, 3, 4, 5]
    cache, future = FrameCache(SIZE), Known(requests, 6)
    cache.foresee(future)
    cache.put((0, 0, 0, 1), {1: np.zeros(SIZE, np.uint8)}, 2, 0)  # due in step 2, which then did without it
    future.oldest = 4
    cache.put((0, 0, 0, 5), {5: np.zeros(SIZE, np.uint8)}, 6, 4)
    assert cache.get((0, 0, 0, 5), 5) is not None
    assert cache.get((0, 0, 0, 1), 5) is None


def test_nothing_is_kept_for_nobody():
    cache, future = FrameCache(SIZE), Known([1, 2, 1, 3, 3], 5)
    cache.foresee(future)
    assert cache.worth((0, 0, 0, 9), 10, 0)  # there is room
    cache.put((0, 0, 0, 1), {1: np.zeros(SIZE, np.uint8)}, 2, 0)
    cache.put((0, 0, 0, 2), {2: np.zeros(SIZE, np.uint8)}, 3, 1)
    assert cache.get((0, 0, 0, 1), 2) is not None
    assert not cache.worth((0, 0, 0, 2), 3, 1)
    assert cache.worth((0, 0, 0, 3), 4, 2)


@pytest.mark.parametrize("keys", [{}, {"planner_locality": "hlp_bounded", "chunk_len": 3}])
def test_batches_hit_more_often_and_are_the_same(every_profile, keys, monkeypatch):
    config = every_profile.config(
        batch_size=2, pad_missing=True, precollate_batches=0, ram_cache_bytes=30 * 80 * 80 * 3, **keys
    )
    if "training_fast" in config["hlp_manifest"]:
        pytest.skip("nothing to keep")
    with ShardedDataLoader(config) as loader:
        seen = list(loader)
        known = loader.stats()["cache"]
    monkeypatch.setattr(Engine, "foresight", lambda *args: None)
    with ShardedDataLoader(config) as loader:
        blind = list(loader)
        by_use = loader.stats()["cache"]
    for one, other in zip(seen, blind, strict=True):
        for key in one["_stream_names"]:
            np.testing.assert_array_equal(one[key], other[key])
    assert known["hits"] + known["misses"] == by_use["hits"] + by_use["misses"]
    assert known["hits"] > by_use["hits"]


def test_plans_come_in_order_each_once(packed):
    with ShardedDataLoader(packed.config(batch_size=2, ram_cache_bytes=1 << 20)) as loader:
        engine, asked = loader._engine, []

        def plan(step):
            asked.append(step)
            return engine.plan(0, step)

        stop = 9
        foresight = Foresight(plan, engine.sources, engine.streams, 1 << 20, 3, stop)
        plans = [foresight.plan(step, max(3, step - 1)) for step in range(3, stop)]
    assert [each.step for each in plans] == asked == list(range(3, stop))


def test_horizon(packed):
    with ShardedDataLoader(packed.config()) as loader:
        streams = loader._engine.streams
    assert horizon_of(0, 8, streams) == 2
    assert horizon_of(1 << 40, 8, streams) == 64
