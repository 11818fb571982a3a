"""A few hundred mutated inputs of each kind; ``python -m benchmarks fuzz`` tries 100,000."""

import pytest

from tests.loader.khlp.fuzzing import TARGETS, outcome


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_inputs_are_refused_or_read(target):
    seen = {outcome(target, 0, number) for number in range(150)}
    assert seen <= {"refused", "read"}
    assert "refused" in seen or target == "numeric"
