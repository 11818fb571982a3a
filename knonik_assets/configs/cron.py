"""Checks a cron expression, so that a typing mistake in one card is named instead of breaking a scheduler."""

from __future__ import annotations

import re

__all__ = ["cron_mistake"]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_NICKNAMES = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_PART = re.compile(r"(\*|[0-9a-z]+)(?:-([0-9a-z]+))?(?:/([0-9]+))?")


def cron_mistake(expression: str) -> str | None:
    """What is wrong with an expression of five fields (or ``@daily`` and its like); None: nothing."""
    text = expression.strip().lower()
    if text.startswith("@"):
        return None if text in _NICKNAMES else f"known short forms are {', '.join(_NICKNAMES)}"
    parts = text.split()
    if len(parts) != len(_FIELDS):
        return f"it has {len(parts)} fields where five belong (minute, hour, day, month, weekday)"
    for part, (what, low, high, names) in zip(parts, _FIELDS, strict=True):
        for item in part.split(","):
            if not _fits(item, low, high, names):
                return f"{item!r} is no {what} ({low} to {high})"
    days, months = (_values(part, field) for part, field in zip(parts[2:4], _FIELDS[2:4], strict=True))
    if not any(min(days) <= _LONGEST[month - 1] for month in months):
        return f"it never comes: month {parts[3]} has no day {parts[2]}"
    return None


def _values(part: str, field: tuple[str, int, int, tuple[str, ...]]) -> set[int]:
    """Everything that a checked field stands for."""
    _, low, high, names = field
    found: set[int] = set()
    for item in part.split(","):
        match = _PART.fullmatch(item)
        assert match is not None
        first = low if match[1] == "*" else _number(match[1], low, names)
        last = high if match[1] == "*" else first if match[2] is None else _number(match[2], low, names)
        assert first is not None
        assert last is not None
        found |= set(range(first, last + 1, int(match[3] or 1)))
    return found


def _fits(item: str, low: int, high: int, names: tuple[str, ...]) -> bool:
    match = _PART.fullmatch(item)
    if match is None or (match[3] is not None and int(match[3]) < 1):
        return False
    if match[1] == "*":
        return match[2] is None
    ends = [_number(end, low, names) for end in (match[1], match[2]) if end is not None]
    if match[3] is not None and match[2] is None:
        return False  # "5/10" means different things to different cron readers
    return all(end is not None and low <= end <= high for end in ends) and ends == sorted(
        ends, key=lambda end: end or 0
    )


def _number(text: str, low: int, names: tuple[str, ...]) -> int | None:
    if text in names:
        return names.index(text) + low
    return int(text) if text.isdigit() else None
