import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knonik_loader.plan.reads import coalesce

RANGES = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 120)), max_size=60)


def plan(ranges, **limits):
    offsets, sizes = (np.array([pair[at] for pair in ranges], np.int64) for at in (0, 1))
    return coalesce(offsets, sizes, **limits)


@settings(max_examples=300, deadline=None)
@given(RANGES, st.integers(0, 100), st.integers(1, 500))
def test_every_range_lies_in_one_read_and_limits_hold(ranges, gap, size):
    reads = plan(ranges, max_gap=gap, max_size=size)
    assert sorted(np.concatenate([np.empty(0, np.int64), *(read.members for read in reads)]).tolist()) == list(
        range(len(ranges))
    )
    assert [read.offset for read in reads] == sorted(read.offset for read in reads)
    for read in reads:
        mine = sorted(ranges[at] for at in read.members.tolist())
        assert read.offset == min(offset for offset, _ in mine)
        assert read.end == max(offset + length for offset, length in mine)
        assert read.length <= max(size, max(length for _, length in mine))
        reach = read.offset
        for offset, length in mine:
            assert offset - reach <= gap
            reach = max(reach, offset + length)


@settings(max_examples=200, deadline=None)
@given(RANGES, st.integers(0, 100))
def test_without_a_limit_of_size_only_gaps_part_reads(ranges, gap):
    reads = plan(ranges, max_gap=gap, max_size=10**9)
    for before, after in itertools.pairwise(reads):
        assert after.offset - before.end > gap


def test_neighbours_are_joined_and_far_ones_are_not():
    reads = plan([(100, 10), (0, 10), (20, 10), (10, 10)], max_gap=0, max_size=1000)
    assert [(read.offset, read.length, read.members.tolist()) for read in reads] == [(0, 30, [1, 3, 2]), (100, 10, [0])]
    assert [read.length for read in plan([(0, 10), (50, 10)], max_gap=40, max_size=1000)] == [60]


def test_a_read_stops_before_it_is_too_large():
    reads = plan([(at * 10, 10) for at in range(10)], max_gap=0, max_size=45)
    assert [read.length for read in reads] == [40, 40, 20]
    assert [read.length for read in plan([(0, 100), (100, 10)], max_gap=0, max_size=45)] == [100, 10]


def test_limits_without_meaning_are_refused():
    with pytest.raises(ValueError, match="max_gap"):
        plan([(0, 1)], max_gap=-1, max_size=10)


def test_a_gap_between_runs_is_not_read():
    ranges = [(0, 10), (15, 10), (30, 10), (40, 10), (55, 10)]
    reads = plan(ranges, max_gap=100, max_size=1000, runs=np.array([0, 0, 1, 2, 2]))
    assert [(read.offset, read.length) for read in reads] == [(0, 25), (30, 35)]
