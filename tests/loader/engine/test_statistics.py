"""Counts that no run of the engine shows alone."""

import pytest

from knonik_loader.engine.stats import Statistics
from tests.support.plans import make_index, make_sampler


def test_shares_of_what_was_planned_are_of_what_was_planned():
    """Batches are planned ahead: after the first one was handed out, others have been counted already."""
    stats = Statistics([])
    sampler = make_sampler(make_index([40]), shuffle_mode="none", batch_size=8)
    for step in range(3):
        stats.planned(sampler.batch(0, step))
    stats.handed_out(8, 0.0, 2)
    diversity = stats.snapshot()["diversity"]
    assert diversity["near_duplicates"] == pytest.approx(1.0)
    assert diversity["episodes_per_batch"] == pytest.approx(1.0)
