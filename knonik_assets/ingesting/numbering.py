"""Which episode directory belongs to which episode of the source, for ever."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from knonik_assets.configs.documents import write_json
from knonik_assets.episodes.metadata import read_metadata
from knonik_assets.episodes.reader import list_episodes
from knonik_assets.episodes.storing import storage_errors
from knonik_loader.errors import EpisodeError, StorageError

__all__ = ["NUMBERS", "assign_numbers", "episode_name", "read_numbers"]

NUMBERS = ".knonik/numbers.json"
_PREFIX = "episode_"


def episode_name(number: int) -> str:
    """``episode_000007`` for 7."""
    return f"{_PREFIX}{number:06d}"


def read_numbers(out: Path) -> dict[str, int]:
    """``source_id`` → number of every episode that was ever ingested here, from the record or the episodes themselves.

    Raises:
        StorageError: the record is there and damaged, or says of one number that it belongs to two.
    """
    path = _record(out)
    if not path.exists():
        return _from_episodes(out)
    with storage_errors("read", path):
        text = path.read_bytes()
    try:
        numbers = json.loads(text)
        sound = isinstance(numbers, dict) and all(type(n) is int and n >= 0 for n in numbers.values())
    except ValueError:
        sound = False
    if not sound or len(set(numbers.values())) != len(numbers):
        raise StorageError(f"{path} is damaged; remove it, and numbers are taken from the episodes that are there.")
    return dict(numbers)


def _from_episodes(out: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in list_episodes(out) if out.is_dir() else ():
        digits = path.name.removeprefix(_PREFIX)
        if digits == path.name or not digits.isdecimal():
            continue
        try:
            found[read_metadata(path).source_id] = int(digits)
        except EpisodeError:
            continue  # damaged: its number is given anew, and the directory replaced
    return found


def assign_numbers(out: Path, source_ids: Iterable[str], known: Mapping[str, int]) -> dict[str, int]:
    """Number the episodes that have no number yet, in their order behind the highest, and record it before any work.

    Raises:
        StorageError: the record cannot be written.
    """
    numbers = dict(known)
    following = max(numbers.values(), default=-1) + 1
    for source_id in source_ids:
        if source_id not in numbers:
            numbers[source_id] = following
            following += 1
    if numbers != known or not _record(out).exists():
        write_json(_record(out), numbers)
    return numbers


def _record(out: Path) -> Path:
    return out / NUMBERS
