"""Saved places in a run: what is held against what before a run goes on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from knonik_loader.config_streams import LoadedStream
from knonik_loader.errors import ResumeMismatchError

__all__ = ["STATE_VERSION", "check_state", "described", "whole_number"]

STATE_VERSION = 1


def whole_number(value: Any, limit: int = 2**62) -> int | None:  # noqa: ANN401 - whatever a state or user gave
    """The value if it is a whole number from 0 to ``limit``, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit else None


def check_state(
    state: object, mine: Mapping[str, Any], digests: Mapping[str, str], epochs: int, steps: int
) -> tuple[int, int]:
    """Hold a saved state against that of this run.

    Args:
        state: as saved, or whatever else was given.
        mine: a state of this run: ``version``, ``order`` (name → what the order depends on), the fields of ``digests``,
            and further ones that must be equal.
        digests: field → what it is the digest of, for messages.
        epochs: the highest epoch that a run has.
        steps: the highest step that this run has.

    Returns:
        Epoch and step of the saved state.

    Raises:
        ResumeMismatchError: it belongs to another dataset or order; the message names what differs.
    """
    if not isinstance(state, Mapping):
        raise ResumeMismatchError(f"a state is a mapping, got a {type(state).__name__}; pass what state_dict() gave.")
    if state.get("version") != mine["version"]:
        raise ResumeMismatchError(
            f"the state's version is {state.get('version')!r}, this loader reads {mine['version']}; pass what "
            "state_dict() gave."
        )
    theirs = state.get("order")
    order = theirs if isinstance(theirs, Mapping) else {}
    fields = [(name, order.get(name), value) for name, value in mine["order"].items()]
    free = {"version", "epoch", "step", "epoch_batches", "worker", "workers", "order", "streams", *digests}
    fields += [(name, state.get(name), value) for name, value in mine.items() if name not in free]
    for name, other, value in fields:
        if other != value:
            raise ResumeMismatchError(
                f"the state was saved with {name}={other!r}, this loader has {value!r}; configure it as the saved run "
                "was, or start anew."
            )
    for name, what in digests.items():
        if state.get(name) != mine[name]:
            raise ResumeMismatchError(
                f"the state's {name} is {str(state.get(name))[:12]}…, that of {what} is {mine[name][:12]}…: the "
                "dataset was packed anew; name the manifest of the saved run's generation, or start anew."
            )
    numbers = []
    for name, limit in (("epoch", epochs), ("step", steps)):
        number = whole_number(state.get(name), limit)
        if number is None:
            raise ResumeMismatchError(
                f"the state's {name} is {state.get(name)!r}, which no run of this loader reaches."
            )
        numbers.append(number)
    _warn_of_values(state.get("streams"), mine.get("streams"))
    return numbers[0], numbers[1]


def described(bound: Sequence[LoadedStream]) -> dict[str, str]:
    """Stream of a batch → what its values are made of, in words; equal words, equal values."""
    return {stream.key: stream.made_of for stream in bound}


def _warn_of_values(theirs: object, mine: object) -> None:
    """Say which streams have other values than in the saved run: the order goes on, so that it is no mistake."""
    if not isinstance(theirs, Mapping) or not isinstance(mine, Mapping):
        return
    told = [
        f"{key!r} was {theirs[key]}, here it is {value}"
        for key, value in mine.items()
        if key in theirs and theirs[key] != value
    ]
    if told:
        warnings.warn(
            f"the run goes on in the same order, but with other values than it was saved with: {'; '.join(told)}. Give "
            "stream_cfg as it was, if that isn't meant",
            UserWarning,
            stacklevel=4,
        )
