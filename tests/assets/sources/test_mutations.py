"""A sample of damaged datasets of every family; ``python -m benchmarks mutations`` tries many more."""

import pytest

from tests.support.mutations import FAMILIES, forget, outcome

SAMPLE = 25


@pytest.mark.parametrize("family", FAMILIES)
def test_damage_is_refused_in_words_and_spoils_nothing_else(family):
    try:
        told = [outcome(family, 7, number) for number in range(SAMPLE)]
    finally:
        forget(family)
    assert "refused" in told
