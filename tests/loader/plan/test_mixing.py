from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knonik_loader.errors import ConfigError
from knonik_loader.plan.mixing import Mixture, exact_weights


def test_decimal_weights_are_exact():
    assert exact_weights([0.7, 0.3]) == [Fraction(7, 10), Fraction(3, 10)]
    assert exact_weights([2, 1]) == [Fraction(2, 3), Fraction(1, 3)]


@pytest.mark.parametrize("weights", [[], [0.5, 0], [1, -1], [1, float("nan")], [1, "much"], [float("inf"), 1]])
def test_weights_without_meaning_are_refused(weights):
    with pytest.raises(ConfigError, match="weight"):
        exact_weights(weights)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(1, 40))
def test_batches_and_prefixes_hold_the_weights(weights, batch):
    mixture = Mixture(weights, batch)
    ideal = [weight * batch for weight in mixture.weights]
    total = np.zeros(len(weights), np.int64)
    for step in range(90):
        counts = mixture.counts(step)
        assert counts.sum() == batch
        assert all(int(share) <= count <= -(-share // 1) for count, share in zip(counts.tolist(), ideal, strict=True))
        total += counts
        errors = [abs(int(have) - share * (step + 1)) for have, share in zip(total, ideal, strict=True)]
        assert max(errors) < 1


def test_any_batch_can_be_asked_for_alone():
    weights, steps = [0.55, 0.25, 0.12, 0.05, 0.03], range(0, 1500, 61)
    onward = Mixture(weights, 7)
    expected = [onward.counts(step).tolist() for step in range(1500)]
    for step in steps:
        assert Mixture(weights, 7).counts(step).tolist() == expected[step]
    assert Mixture(weights, 7).before(1500).tolist() == np.sum(expected, 0).tolist()


class Overtaken(Mixture):
    """Another thread asks for a later batch while the first state is worked out, and is done before it."""

    def __init__(self, *args):
        super().__init__(*args)
        self.left = 1

    def _advance(self, *args):
        self.left -= 1
        if self.left == 0:
            self.counts(90)
        return super()._advance(*args)


def test_threads_may_share_it():
    weights, batch = [0.55, 0.25, 0.12, 0.05, 0.03], 7
    alone, shared = Mixture(weights, batch), Overtaken(weights, batch)
    assert alone.period == 100
    for step in (20, *range(100)):
        assert shared.counts(step).tolist() == alone.counts(step).tolist()


def test_counts_begin_again_with_the_period():
    mixture = Mixture([0.7, 0.3], 8)
    assert mixture.period == 5
    assert [mixture.counts(step).tolist() for step in range(5)] == [
        mixture.counts(step + 5).tolist() for step in range(5)
    ]
    assert mixture.before(5).tolist() == [28, 12]
