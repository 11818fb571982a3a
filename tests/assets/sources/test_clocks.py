"""Clocks that float32 rounded, and clocks that only look so."""

import numpy as np
import pytest

from knonik_assets.sources.clocks import unrounded


def single(times):
    return np.asarray(times, np.float32).astype(np.float64)


@pytest.mark.parametrize("first", [0, 7, 30 * 600])
@pytest.mark.parametrize("fps", [10.0, 29.97, 30.0, 50.0, 1000 / 33])
def test_whole_frames_come_back_whatever_was_missed(fps, first):
    frames = first + np.delete(np.arange(900), [1, 400, 401, 898])
    assert np.abs(single(frames / fps) - frames / fps).max() > 2e-7
    np.testing.assert_array_equal(unrounded(single(frames / fps), fps), frames / fps)


@pytest.mark.parametrize(
    "times",
    [
        single(np.arange(50) / 30 + np.random.default_rng(0).normal(0, 1e-4, 50)),
        single(0.0101 + np.arange(50) / 30),
        1.7e9 + np.arange(50) / 30 + np.random.default_rng(0).normal(0, 1e-3, 50),
        single(1.7e9 + np.arange(50) * 128),
        7 / 30 + np.arange(50) / 30 + 1e-9,
        np.full(3, 1e300),
        np.zeros(0),
    ],
    ids=["jitter", "between frames", "finer than float32", "coarser than frames", "nanoseconds", "absurd", "empty"],
)
def test_other_clocks_stay_as_they_are(times):
    assert unrounded(times, 30.0) is times or not len(times)
