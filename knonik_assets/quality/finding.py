"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Finding", "some"]

_MOST_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """The answer of one check."""

    passed: bool
    message: str
    table: list[dict[str, Any]] = field(default_factory=list)
    """Rows to show beside the message."""


def some(items: list[str]) -> str:
    """The first few of a list, and how many more there are; empty for an empty list."""
    more = len(items) - _MOST_NAMED
    return "; ".join(items[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
