"""For tests of your own configuration: a loader that resumes goes on with exactly the batches that were still to come.

    def test_my_run_resumes():
        assert_resume_equivalent(lambda: ShardedDataLoader(MY_CONFIG))

    class TestMyRun(ResumeContract):
        def make_loader(self): ...

Nothing here imports pytest.
"""

from __future__ import annotations

import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from crc32c import crc32c

from knonik_loader.base import DataLoader

__all__ = ["ResumeContract", "assert_resume_equivalent"]

MakeLoader = Callable[[], DataLoader]
Print = dict[str, list[Any]]
"""Key of a batch → a checksum or value of each sample."""

_NOT_OF_SAMPLES = frozenset({"_dataset_name", "_dataset_names", "_stream_names"})


def assert_resume_equivalent(
    make_loader: MakeLoader,
    resume_with: Callable[[], DataLoader | Sequence[DataLoader]] | None = None,
    *,
    epochs: int = 1,
    compare: int | None = None,
) -> None:
    """Run without a break, then resume from the state before every batch, and compare all that follows bit for bit.

    States go through JSON, as they would through a checkpoint file. Every loader is made anew and shut down.

    Args:
        make_loader: the loader of the run without a break.
        resume_with: the loader that goes on, where it shall be another one (other workers, another storage); or the
            loaders of all ranks of a job with another world size, whose parts must make up the batch in their order.
        epochs: passes of the run.
        compare: batches that are compared after each resume; None: all to the end of the run.

    Raises:
        AssertionError: with the step that was resumed from, the batch and the key that differ.
    """
    states, expected = _uninterrupted(make_loader, epochs)
    for taken, state in enumerate(states):
        made = (resume_with or make_loader)()
        loaders = [made] if isinstance(made, DataLoader) else list(made)
        try:
            for loader in loaders:
                loader.load_state_dict(state)
            stop = len(expected) if compare is None else min(len(expected), taken + compare)
            found = _joined(loaders)
            for number in range(taken, stop):
                _check(next(found, None), expected[number], f"resumed before batch {taken}: batch {number}")
        finally:
            for loader in loaders:
                loader.shutdown()


class ResumeContract(ABC):
    """What every kind of loader keeps; subclass it and give `make_loader`."""

    epochs = 2

    @abstractmethod
    def make_loader(self) -> DataLoader:
        """A new loader, always with the same arguments; an epoch of a few batches is enough."""

    def resume_with(self) -> DataLoader | Sequence[DataLoader]:
        """What goes on: the same loader, or that of another topology."""
        return self.make_loader()

    def test_it_resumes_from_every_step(self) -> None:
        """Every state of the run gives its rest."""
        assert_resume_equivalent(self.make_loader, self.resume_with, epochs=self.epochs)

    def test_batches_ahead_do_not_count(self) -> None:
        """The state stands behind the batch that was handed out last, whatever is ready or under way."""
        with self.make_loader() as loader:
            length = len(loader)
            for taken, _ in enumerate(loader, 1):
                state = loader.state_dict()
                if (state["epoch"] * length + state["step"]) % length != taken % length:
                    raise AssertionError(f"after {taken} batches the state is at step {state['step']}")

    def test_a_state_may_be_loaded_in_the_middle_of_a_pass(self) -> None:
        """Loading a state leaves nothing of the pass that was under way."""
        states, expected = _uninterrupted(self.make_loader, 1)
        with self.make_loader() as loader:
            for taken in reversed(range(len(expected))):
                loader.load_state_dict(states[taken])
                _check(_print_of(next(iter(loader))), expected[taken], f"moved to batch {taken}")


def _uninterrupted(make_loader: MakeLoader, epochs: int) -> tuple[list[Any], list[Print]]:
    """The state before every batch and after the last, and what the batches were."""
    states, prints = [], []
    with make_loader() as loader:
        states.append(json.loads(json.dumps(loader.state_dict())))
        for _ in range(epochs):
            for batch in loader:
                prints.append(_print_of(batch))
                states.append(json.loads(json.dumps(loader.state_dict())))
    if not prints:
        raise AssertionError("the loader has no batch to compare")
    return states, prints


def _joined(loaders: Sequence[DataLoader]) -> Iterator[Print]:
    """The batches of all ranks put together, pass after pass."""
    while True:
        for parts in zip(*loaders, strict=True):
            prints = [_print_of(part) for part in parts]
            yield {key: list(itertools.chain.from_iterable(each.get(key, ()) for each in prints)) for key in prints[0]}


def _print_of(batch: Mapping[str, Any]) -> Print:
    return {
        key: list(value) if isinstance(value, list) else [_sum_of(sample) for sample in value]
        for key, value in batch.items()
        if key not in _NOT_OF_SAMPLES
    }


def _sum_of(sample: Any) -> tuple[str, tuple[int, ...], int]:  # noqa: ANN401 - array, scalar or tensor
    kind, shape = str(sample.dtype), tuple(sample.shape)
    if not isinstance(sample, np.ndarray | np.generic):
        import torch

        sample = sample.contiguous().reshape(-1).view(torch.uint8).numpy()  # numpy doesn't have all types of tensors
    return kind, shape, crc32c(np.ascontiguousarray(sample).tobytes())


def _check(found: Print | None, expected: Print, where: str) -> None:
    if found is None:
        raise AssertionError(f"{where} is missing")
    if found.keys() != expected.keys():
        raise AssertionError(f"{where} has other keys: {', '.join(sorted(found.keys() ^ expected.keys()))}")
    for key, values in expected.items():
        if found[key] != values:
            wrong = [at for at, pair in enumerate(zip(found[key], values, strict=False)) if pair[0] != pair[1]]
            at = f"differs in samples {wrong}" if wrong else f"has {len(found[key])} samples, not {len(values)}"
            raise AssertionError(f"{where}: {key!r} {at}")
