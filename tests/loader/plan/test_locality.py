import itertools
import pickle
import tracemalloc
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knonik_loader.plan.locality import Arranged, Bounded, StoredAnchors
from tests.support.plans import make_index, make_sampler, order_of

LOCALITIES = ["hlp_bounded", "low_mem", "ultra_low_mem"]


def flat(order):
    return list(itertools.chain(*order))


def shards_of(index, samples):
    episodes, frames = np.array(samples, np.int64).T
    shards, _ = make_sampler(index).locate(episodes, frames)
    return shards


def most_in_use(units):
    """The largest number of different units whose first and last use enclose one position."""
    first, last = {}, {}
    for at, unit in enumerate(np.asarray(units).tolist()):
        first.setdefault(unit, at)
        last[unit] = at
    change = Counter(first.values())
    change.subtract(at + 1 for at in last.values())
    return max(itertools.accumulate(change[at] for at in range(len(units) + 1)))


def all_samples(lengths, stride=1):
    return [(row, at) for row, length in enumerate(lengths) for at in range(0, length, stride)]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=15),
    st.sampled_from(LOCALITIES),
    st.integers(1, 12),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from(["auto", "on", "off"]),
    st.integers(0, 5),
    st.integers(1, 4),
)
def test_an_epoch_is_every_sample_once(lengths, locality, shard_size, per_file, stride, blocks, recent, groups):
    index = make_index(lengths, shard_size=shard_size, shards_per_file=per_file)
    sampler = make_sampler(
        index,
        planner_locality=locality,
        planner_recent_batches=recent,
        delta_cache_block_planning=blocks,
        delta_cache_block_max_shards=groups,
        stride=stride,
    )
    assert sorted(flat(order_of(sampler))) == all_samples(lengths, stride)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=10), st.integers(1, 60), st.integers(0, 50))
def test_a_bounded_shuffle_moves_nothing_further_than_its_reach(lengths, reach, seed):
    index = make_index(lengths, shard_size=7)
    stored = StoredAnchors.of(make_sampler(index).anchors, index.shards)
    total = sum(lengths)
    reach = min(reach, total)
    episodes, frames = Bounded(stored, reach, seed).lookup(3, np.arange(total))
    got = list(zip(episodes.tolist(), frames.tolist(), strict=True))
    # As they are laid out: with a reach of one, nothing moves.
    laid = Bounded(stored, 1, seed).lookup(3, np.arange(total))
    place = {sample: at for at, sample in enumerate(zip(*(part.tolist() for part in laid), strict=True))}
    assert len(place) == total
    assert max(abs(place[sample] - at) for at, sample in enumerate(got)) < max(1, reach)


@pytest.mark.parametrize("blocks", ["auto", "off"])
@pytest.mark.parametrize(
    ("locality", "files", "shards"), [("hlp_bounded", 6, None), ("low_mem", None, 80), ("ultra_low_mem", None, 24)]
)
def test_few_files_and_shards_are_in_use_at_once(locality, files, shards, blocks):
    index = make_index([300] * 60, shards_per_file=16)  # 420 shards in 27 files
    sampler = make_sampler(index, planner_locality=locality, batch_size=16, delta_cache_block_planning=blocks)
    used = shards_of(index, flat(order_of(sampler)))
    if files is not None:
        assert most_in_use(index.shards.hlp[used]) <= files
    if shards is not None:
        assert most_in_use(used) <= shards
    assert sampler.window_frames == pytest.approx(
        {"hlp_bounded": 4 / 27, "low_mem": 64 / 420, "ultra_low_mem": 16 / 420}[locality] * 18_000, abs=2
    )
    everywhere = shards_of(index, flat(order_of(make_sampler(index, batch_size=16))))
    assert most_in_use(everywhere) > 400


def test_batches_hold_more_episodes_the_wider_the_locality():
    index = make_index([300] * 120, shards_per_file=64)
    diversity = {}
    for locality in ("ultra_low_mem", "low_mem", "hlp_bounded", "global"):
        sampler = make_sampler(index, planner_locality=locality, batch_size=32, delta_cache_block_planning="off")
        diversity[locality] = np.mean([len(np.unique(sampler.batch(0, step).episodes)) for step in range(0, 1000, 20)])
    assert list(diversity) == sorted(diversity, key=diversity.__getitem__)
    assert diversity["ultra_low_mem"] > 8


def test_recent_episodes_come_last_within_the_window():
    index = make_index([45] * 200, shards_per_file=50)
    keys = {"planner_locality": "low_mem", "delta_cache_block_planning": "off", "batch_size": 4}
    again, inside = {}, {}
    for recent in (0, 1, 4):
        sampler = make_sampler(index, planner_recent_batches=recent, **keys)
        batches = [{row for row, _ in batch} for batch in order_of(sampler)]
        # Episodes of a batch that were in one of the four before, and samples that share their batch with another one.
        again[recent] = sum(len(set().union(*batches[max(0, at - 4) : at]) & now) for at, now in enumerate(batches))
        inside[recent] = sum(4 - len(batch) for batch in batches)
    assert again[4] < 0.5 * again[0]
    assert max(inside[1], inside[4]) < 0.1 * inside[0]


@pytest.mark.parametrize("locality", ["global", "hlp_bounded"])
def test_blocks_touch_few_shards(locality):
    index = make_index([90] * 30, shards_per_file=10)  # 60 shards of 45
    counts = {}
    for blocks in ("on", "off"):
        sampler = make_sampler(
            index,
            planner_locality=locality,
            delta_cache_block_planning=blocks,
            delta_cache_block_max_shards=4,
            batch_size=16,
        )
        batches = order_of(sampler)
        counts[blocks] = np.mean([len(np.unique(shards_of(index, batch))) for batch in batches])
    assert counts["on"] < 6
    assert counts["off"] > 10


class TestPurity:
    KEYS: ClassVar = {"planner_locality": "low_mem", "seed": 4, "delta_cache_block_max_shards": 5}

    def test_any_batch_can_be_asked_for_alone(self):
        index = make_index([200] * 40)
        onward = make_sampler(index, **self.KEYS)
        expected = order_of(onward, 1)
        for step in (len(onward) - 1, 0, 777, 1234):
            plan = make_sampler(index, **self.KEYS).batch(1, step)
            assert list(zip(plan.episodes.tolist(), plan.anchors.tolist(), strict=True)) == expected[step]

    @pytest.mark.parametrize("world_size", [2, 4])
    def test_the_order_is_the_same_for_every_world_size(self, world_size):
        index = make_index([200] * 10)
        whole = order_of(make_sampler(index, batch_size=8, **self.KEYS))
        parts = [
            order_of(make_sampler(index, batch_size=8 // world_size, rank=rank, world_size=world_size, **self.KEYS))
            for rank in range(world_size)
        ]
        assert [flat(batch) for batch in zip(*parts, strict=True)] == whole

    def test_seed_epoch_and_the_planning_keys_change_it(self):
        index = make_index([200] * 40)
        samplers = [
            make_sampler(index, **self.KEYS | keys)
            for keys in (
                {},
                {"seed": 5},
                {"planner_recent_batches": 0},
                {"delta_cache_block_planning": "off"},
                {"delta_cache_block_max_shards": 6},
                {"planner_locality": "ultra_low_mem"},
                {"planner_locality": "global"},
            )
        ]
        orders = [flat(order_of(sampler)) for sampler in samplers] + [flat(order_of(samplers[0], 1))]
        assert len({tuple(order) for order in orders}) == len(orders)
        assert len({tuple(sorted(order)) for order in orders}) == 1
        assert len({sampler.digest for sampler in samplers}) == len(samplers)

    def test_working_set_keys_do_not_change_it(self):
        index = make_index([200] * 10)
        plain = make_sampler(index, **self.KEYS)
        other = make_sampler(index, hlps_in_flight=1, prefetch_shards=2, low_memory=True, **self.KEYS)
        assert order_of(other) == order_of(plain)
        assert other.digest == plain.digest

    def test_the_layout_matters_only_where_it_is_followed(self):
        layouts = [make_index([200] * 10, seed=seed) for seed in (0, 1)]
        assert len({make_sampler(index, **self.KEYS).digest for index in layouts}) == 2
        assert len({make_sampler(index).digest for index in layouts}) == 1

    def test_ranks_of_their_own_episodes_are_bounded_too(self):
        index = make_index([40] * 12, shards_per_file=2)
        keys = {"shard_by": "episode", "planner_locality": "hlp_bounded", "world_size": 3, "batch_size": 5}
        got = flat(flat(order_of(make_sampler(index, rank=rank, **keys))) for rank in range(3))
        assert sorted(got) == all_samples([40] * 12)

    def test_gaps_in_clocks_and_offsets(self):
        times = np.delete(np.arange(103), [40, 41, 42]) / 30
        index = make_index([100, 100], clocks={1: times})
        keys = {"delta_timestamps": {"state": [-0.1, 0.1]}}
        bounded = flat(order_of(make_sampler(index, planner_locality="ultra_low_mem", **keys)))
        assert sorted(bounded) == sorted(flat(order_of(make_sampler(index, **keys))))

    def test_a_sampler_can_be_sent_to_another_process(self):
        sampler = make_sampler(make_index([200] * 10), delta_timestamps={"state": [0.1]}, **self.KEYS)
        expected = sampler.batch(0, 5)
        again = pickle.loads(pickle.dumps(sampler)).batch(0, 5)
        assert np.array_equal(again.episodes, expected.episodes)
        assert np.array_equal(again.anchors, expected.anchors)


def test_a_window_of_a_large_dataset_is_planned_alone():
    index = make_index([10_000] * 2000, shard_size=1000, shards_per_file=64)  # 20 million anchors, 20,000 shards
    make_sampler(index)
    tracemalloc.start()
    sampler = make_sampler(index, planner_locality="hlp_bounded", batch_size=64)
    sampler.batch(0, len(sampler) // 2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80_000_000


def test_arranged_windows_end_with_the_epoch():
    class Counting:
        def lookup(self, epoch, positions):
            assert positions.max() < 10
            return positions, positions

    order = Arranged(Counting(), 10, 4, lambda e, f: (e, f), max_shards=2, apart=0)
    assert order.lookup(0, np.arange(10))[0].tolist() == list(range(10))
