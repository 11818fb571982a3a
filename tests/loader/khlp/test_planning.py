"""The closure over ``key_back``: all that is needed, nothing more, in groups of one key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knonik_loader.errors import PlanError
from knonik_loader.khlp.codec_contract import record_table
from knonik_loader.khlp.planning import closure
from knonik_loader.khlp.types import Record


def table(*key_back: int):
    return record_table([Record(b"", back) for back in key_back])


def plan(backs, dependency, wanted):
    return [
        (group.key_row, group.rows.tolist(), group.wanted.tolist())
        for group in closure(table(*backs), dependency, wanted)
    ]


def test_frames_on_their_own():
    assert plan([0, 0, 0], "none", [0, 2]) == [(0, [0], [0]), (2, [2], [2])]


def test_a_key_and_its_deltas():
    backs = [0, 1, 2, 0, 1, 2]
    assert plan(backs, "key", [1, 2, 3]) == [(0, [0, 1, 2], [1, 2]), (3, [3], [3])]
    assert plan(backs, "key", [0, 5]) == [(0, [0], [0]), (3, [3, 5], [5])]


def test_a_whole_frame_between_deltas_is_a_group_of_its_own():
    assert plan([0, 1, 0, 3], "key", [1, 2, 3]) == [(0, [0, 1, 3], [1, 3]), (2, [2], [2])]


def test_a_chain_up_to_the_last_wanted():
    assert plan([0, 1, 2, 3, 0, 1], "chain", [2, 5]) == [(0, [0, 1, 2], [2]), (4, [4, 5], [5])]
    assert plan([0, 1, 2, 3], "chain", [0]) == [(0, [0], [0])]


def test_nothing_wanted_needs_nothing():
    assert closure(table(0, 1), "key", []) == []


@pytest.mark.parametrize("wanted", [[-1], [2], [1, 0], [0, 0]])
def test_rows_that_cannot_be_planned(wanted):
    with pytest.raises(PlanError, match="ascending"):
        closure(table(0, 1), "key", wanted)


@given(
    keys=st.lists(st.booleans(), min_size=1, max_size=40),
    dependency=st.sampled_from(["none", "key", "chain"]),
    data=st.data(),
)
def test_any_shard(keys, dependency, data):
    last, backs = 0, []
    for row, is_key in enumerate([True, *keys[1:]]):
        last = row if is_key else last
        backs.append(0 if dependency == "none" else row - last)
    wanted = sorted(data.draw(st.sets(st.integers(0, len(backs) - 1))))
    groups = closure(table(*backs), dependency, wanted)
    assert sorted(row for group in groups for row in group.wanted.tolist()) == wanted
    for group in groups:
        need = {group.key_row}
        for row in group.wanted.tolist():
            assert row - backs[row] == group.key_row
            need |= {row} if dependency != "chain" else set(range(group.key_row, row + 1))
        assert group.rows.tolist() == sorted(need)
        assert (np.diff(group.wanted) > 0).all()
    keys_seen = [group.key_row for group in groups]
    assert len(set(keys_seen)) == len(keys_seen)
