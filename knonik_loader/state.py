"""Saved places in a run: what is held against what before a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knonik_loader.errors import ResumeMismatchError

__all__ = ["STATE_VERSION", "check_state", "whole_number"]

STATE_VERSION = 1


def whole_number(value: Any, limit: int = 2**62) -> int | None:  # noqa: ANN401 - whatever a state or user gave
    """The value if it is a whole number from 0 to ``limit``, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit else None


def check_state(state: Mapping[str, Any], mine: Mapping[str, Any], key: str, steps: int) -> tuple[int, int]:
    """Hold a saved state against that of this run.

    Args:
        state: as saved.
        mine: a state of this run: ``version``, ``order`` (name → what the order depends on), ``manifest``, ``digest``
            and further fields that must be equal.
        key: of the manifest, for messages.
        steps: the highest step that the run has.

    Returns:
        Epoch and step of the saved state.

    Raises:
        ResumeMismatchError: it belongs to another dataset or order; the message names what differs.
    """
    version = state.get("version") if hasattr(state, "get") else f"a {type(state).__name__}"
    if version != mine["version"]:
        raise ResumeMismatchError(
            f"the state's version is {version!r}, this loader reads {mine['version']}; pass what state_dict() gave."
        )
    theirs = state.get("order")
    order = theirs if isinstance(theirs, Mapping) else {}
    fields = [(name, order.get(name), value) for name, value in mine["order"].items()]
    free = {"version", "epoch", "step", "worker", "workers", "order", "manifest", "digest"}
    fields += [(name, state.get(name), value) for name, value in mine.items() if name not in free]
    for name, other, value in fields:
        if other != value:
            raise ResumeMismatchError(
                f"the state was saved with {name}={other!r}, this one has {value!r}; configure it as the saved run "
                "was, or start anew."
            )
    for name in ("manifest", "digest"):
        if state.get(name) != mine[name]:
            raise ResumeMismatchError(
                f"the state's {name} is {str(state.get(name))[:12]}…, that of {key} is {mine[name][:12]}…: the dataset "
                "was packed anew; name the manifest of the saved run's generation, or start anew."
            )
    numbers = []
    for name, limit in (("epoch", 2**31 - 2), ("step", steps)):
        number = whole_number(state.get(name), limit)
        if number is None:
            raise ResumeMismatchError(f"the state's {name} is {state.get(name)!r}, which no run of this one reaches.")
        numbers.append(number)
    return numbers[0], numbers[1]
