"""Statistics in one pass equal those of all rows at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from knonik_loader.stats import RunningStats


def run(blocks, dim):
    stats = RunningStats(dim, sum(map(len, blocks)))
    for block in blocks:
        stats.add(block)
    return stats.result()


@pytest.mark.parametrize("rows", [1, 2, 99, 100, 101, 5000])
def test_they_equal_numpys(rows):
    rng = np.random.default_rng(rows)
    values = (rng.normal(size=(rows, 3)) * (1, 1e-3, 1e6) + (0, 1e4, -5)).astype(np.float32)
    blocks = np.array_split(values, min(rows, 7))
    found = run(blocks, 3)
    exact = values.astype(np.float64)
    assert found.count == rows
    assert found.non_finite == [0, 0, 0]
    assert found.min == exact.min(0).tolist()
    assert found.max == exact.max(0).tolist()
    np.testing.assert_allclose(found.mean, exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, exact.std(0), rtol=1e-9)
    np.testing.assert_allclose(found.q01, np.quantile(exact, 0.01, 0), rtol=1e-12)
    np.testing.assert_allclose(found.q99, np.quantile(exact, 0.99, 0), rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(arrays(np.float32, st.tuples(st.integers(0, 400), st.just(2)), elements=st.floats(width=32)), min_size=1)
)
def test_values_that_are_not_finite_are_left_out(blocks):
    values = np.concatenate(blocks).astype(np.float64)
    found = run(blocks, 2)
    assert found.count == len(values)
    for channel in range(2):
        column = values[:, channel]
        finite = column[np.isfinite(column)]
        assert found.non_finite[channel] == len(column) - len(finite)
        if not len(finite):
            assert found.min[channel] == found.max[channel] == found.mean[channel] == found.q99[channel] == 0
            continue
        assert (found.min[channel], found.max[channel]) == (finite.min(), finite.max())
        scale = np.abs(finite).max() + 1e-300
        assert abs(found.mean[channel] - finite.mean()) <= 1e-9 * scale
        assert abs(found.std[channel] - finite.std()) <= 1e-9 * scale
        assert abs(found.q01[channel] - np.quantile(finite, 0.01)) <= 1e-9 * scale
        assert abs(found.q99[channel] - np.quantile(finite, 0.99)) <= 1e-9 * scale


def test_memory_stays_a_fraction_of_the_rows():
    stats = RunningStats(1, 1_000_000)
    for block in range(100):
        stats.add(np.random.default_rng(block).normal(size=(10_000, 1)).astype(np.float32))
    held = sum(len(part) for extremes in (*stats._low, *stats._high) for part in extremes._blocks)
    assert held <= 2 * (4 * 10_002 + 4096 + 10_002)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_that_are_merged_equal_the_whole(parts):
    rng = np.random.default_rng(parts)
    values = np.concatenate([rng.normal(0, 1, (3000, 2)), rng.normal(100, 1, (500, 2))]).astype(np.float32)
    values[7, 1] = np.nan
    whole, merged = RunningStats(2, len(values)), RunningStats(2, len(values))
    whole.add(values)
    for part in np.array_split(values, parts):
        one = RunningStats(2, len(values))
        one.add(part)
        merged.merge(one)
    one, other = whole.result(), merged.result()
    assert (one.count, one.non_finite, one.min, one.max) == (other.count, other.non_finite, other.min, other.max)
    assert (one.q01, one.q99) == (other.q01, other.q99)
    np.testing.assert_allclose(other.mean, one.mean, rtol=1e-12)
    np.testing.assert_allclose(other.std, one.std, rtol=1e-12)


def test_parts_of_different_wholes_are_refused():
    with pytest.raises(ValueError, match="rows of the whole"):
        RunningStats(2, 100).merge(RunningStats(2, 200))
