"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Finding", "size_text", "some"]

_MOST_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """The answer of one check."""

    passed: bool
    message: str
    table: list[dict[str, Any]] = field(default_factory=list)
    """Rows to show beside the message."""
    numbers: dict[str, int | float | str] = field(default_factory=dict)
    """Facts beside it; numbers become curves over the runs."""


def some(items: list[str]) -> str:
    """The first few of a list, and how many more there are; empty for an empty list."""
    more = len(items) - _MOST_NAMED
    return "; ".join(items[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def size_text(count: float) -> str:
    """Bytes in the unit that people would say them in."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
