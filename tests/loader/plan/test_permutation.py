import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knonik_loader.plan.permutation import MAX_LENGTH, Permutation


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 200_000), st.integers(0, 2**64))
def test_every_number_comes_exactly_once(length, key):
    values = Permutation(length, key)(np.arange(length))
    assert np.array_equal(np.sort(values), np.arange(length))


@pytest.mark.parametrize("length", [1, 2, 3, 65_535, 65_536, 65_537, 131_072, 131_073, 1_000_003])
def test_lengths_around_the_change_of_method(length):
    values = Permutation(length, 5)(np.arange(length))
    assert np.array_equal(np.bincount(values, minlength=length), np.ones(length, np.int64))


@pytest.mark.parametrize("length", [2**31 + 11, 10**9, MAX_LENGTH - 3, MAX_LENGTH])
def test_long_ones_are_computed_position_by_position(length):
    positions = np.random.default_rng(0).integers(0, length, 4096)
    positions = np.unique(np.concatenate([positions, [0, length - 1]]))
    permutation = Permutation(length, 1)
    values = permutation(positions)
    assert len(np.unique(values)) == len(positions)
    assert values.min() >= 0
    assert values.max() < length
    assert [int(permutation(positions[at : at + 1])[0]) for at in range(20)] == values[:20].tolist()


@pytest.mark.parametrize("length", [1000, 100_000])
def test_values_are_spread_evenly_from_the_start(length):
    # Chi-squared over 64 cells of the first tenth of the order, for many keys; 63 degrees of freedom.
    count, cells = length // 10, 64
    statistics = []
    for key in range(200):
        values = Permutation(length, key)(np.arange(count))
        seen = np.bincount(values * cells // length, minlength=cells)
        expected = count / cells
        statistics.append(((seen - expected) ** 2 / expected).sum() / (1 - count / length))
    assert 55 < np.mean(statistics) < 71


@pytest.mark.parametrize("length", [5, 70_000])
def test_positions_go_anywhere_and_neighbours_apart(length):
    first = np.array([Permutation(length, key)(np.array([0, 1])) for key in range(2000)])
    assert abs(first[:, 0].mean() / (length - 1) - 0.5) < 0.03
    assert abs(np.corrcoef(first[:, 0], first[:, 1])[0, 1]) < (0.32 if length == 5 else 0.08)


def test_keys_give_unrelated_orders():
    orders = np.array([Permutation(100_000, key)(np.arange(2000)) for key in range(6)])
    for at in range(1, 6):
        assert abs(np.corrcoef(orders[0], orders[at])[0, 1]) < 0.1


def test_positions_outside_are_refused():
    for positions in ([-1], [10], [0, 10]):
        with pytest.raises(IndexError, match=r"\[0, 10\)"):
            Permutation(10, 0)(np.array(positions))
    with pytest.raises(ValueError, match=r"2\*\*40"):
        Permutation(MAX_LENGTH + 1, 0)


def test_orders_do_not_depend_on_the_process():
    code = (
        "import numpy as np; from knonik_loader.plan.permutation import Permutation\n"
        "print([Permutation(n, 3)(np.arange(5)).tolist() for n in (50, 100_000)])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "1"}
    )
    assert out.stdout.strip() == str([Permutation(n, 3)(np.arange(5)).tolist() for n in (50, 100_000)])
    # Written down: a release that changes an order breaks everybody's resume.
    assert Permutation(50, 3)(np.arange(5)).tolist() == [6, 42, 17, 26, 22]
    assert Permutation(100_000, 3)(np.arange(5)).tolist() == [70413, 72382, 44211, 8786, 46223]
