"""Removing generations of a packed dataset that nobody can be training on any more.

A generation is *superseded* from the moment another one becomes current, and is kept for so many days after that, so
that jobs on its manifest finish. The current one is never touched. The order of removal is the reverse of publishing:
first the generation's manifest, and only when the disk has let go of its name the files, so that no manifest is ever
there whose files are not. What a crash leaves in between has no manifest: nobody is offered it, and the next
collection goes on with it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from knonik_assets.episodes.storing import storage_errors
from knonik_assets.holding import hold
from knonik_assets.packing.existing import folder_of, kept_generations, standing
from knonik_assets.packing.stored import stored_id
from knonik_assets.storage import ObjectInfo, Place, files
from knonik_loader.errors import ConfigError, PackError
from knonik_loader.khlp.index import INDEX_NAME
from knonik_loader.khlp.manifest import MANIFEST_NAME
from knonik_loader.khlp.writer import PARTIAL_SUFFIX, sync_directory

__all__ = ["KEEP_DAYS", "Collected", "check_keep_days", "collect_generations"]

KEEP_DAYS = 14.0
"""Days for which a superseded generation is kept where nothing else is said."""

_DAY = 86_400.0
_FOLDER = re.compile(r"gen_([0-9]{4,})")
_FILE = re.compile(r"hlp_[0-9]{6,}\.khlp")


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed of one generation."""

    generation: int
    finished: bool
    """Whether it had a manifest; else it is what a killed pack or collection left."""
    files: int
    bytes: int
    days: float
    """Since it was superseded, or since its youngest file was written."""

    def __str__(self) -> str:
        """In a few words."""
        since = "superseded" if self.finished else "left over without a manifest"
        return (
            f"generation {self.generation}, {since} {self.days:.1f} days ago: {self.files} files, {self.bytes:,} bytes"
        )


def check_keep_days(keep_days: object) -> float:
    """The number of days, if it is one.

    Raises:
        ConfigError: it is no number from 0 on.
    """
    if isinstance(keep_days, bool) or not isinstance(keep_days, int | float) or not keep_days >= 0:
        raise ConfigError(f"keep_days must be a number of days from 0 on, not {keep_days!r}.")
    return float(keep_days)


def collect_generations(
    out: str | Path | Place, keep_days: float = KEEP_DAYS, now: float | None = None
) -> list[Collected]:
    """Remove the generations that were superseded at least ``keep_days`` days ago.

    Args:
        out: the directory of a packed dataset, or its URL, with its ``hlp_manifest.json``. Without one nothing is
            removed.
        keep_days: days; 0 keeps the current generation only, infinity all of them.
        now: seconds since the epoch; None: the clock's.

    Returns:
        What was removed, oldest first.

    Raises:
        ConfigError: ``keep_days`` is no number from 0 on.
        PackError: the current manifest cannot be understood, or a file of it is missing or of another size: an older
            generation may be the last good one.
        StorageError: another run is writing there, or a file cannot be removed.
    """
    keep_days = check_keep_days(keep_days)
    out = Place.of(out, "output_dir")
    now = time.time() if now is None else now
    if math.isinf(keep_days) or not list(_collectable(out, keep_days, now)):
        return []
    with hold(out):
        # another run may have been here while nobody held the lock
        return [_remove(out, generation, days) for generation, days in list(_collectable(out, keep_days, now))]


def _collectable(out: Place, keep_days: float, now: float) -> Iterator[tuple[int, float]]:
    """Generations to remove, and how many days ago they were superseded or left."""
    current = standing(out)
    if current is None:
        return
    if current.damage:
        raise PackError(
            f"{current.damage[0]}: the current dataset of {out} is not whole, so no older one is removed; pack again "
            "with --overwrite."
        )
    kept = kept_generations(out)
    numbers = {int(match[1]) for name in files.folders(out) if (match := _FOLDER.fullmatch(name))}
    for generation in sorted({1, *numbers, *kept} - {current.manifest.generation}):
        if generation in kept:
            since = _superseded_at(out, generation, current.manifest.generation)
        else:
            left = _left_at(out, generation)
            if left is None:
                continue
            since = left
        days = (now - since) / _DAY
        if days >= keep_days:
            yield generation, days


def _superseded_at(out: Place, generation: int, current: int) -> float:
    """Seconds since the epoch at which a generation stopped being the one that new jobs get."""
    kept = kept_generations(out)
    # where somebody went back to an older generation, that was when the current manifest was written
    after = min((number for number in kept if generation < number <= current), default=None)
    successor = out / MANIFEST_NAME if after is None else kept[after]
    found = files.stats([successor, kept[generation]])
    return max((info.modified for info in found if info is not None), default=time.time())


def _left_at(out: Place, generation: int) -> float | None:
    """Seconds since the epoch at which the youngest file of a generation without manifest was written."""
    youngest = max((info.modified for _, info in _files(out, generation)), default=None)
    folder = folder_of(out, generation)
    if youngest is not None or folder == out or folder.is_remote:
        return youngest
    with storage_errors("read", folder.path):
        return None if any(folder.path.iterdir()) else folder.path.stat().st_mtime


def _files(out: Place, generation: int) -> list[tuple[Place, ObjectInfo]]:
    """Files of a generation: what the packer writes there, and nothing that is only named alike."""
    folder = folder_of(out, generation)
    found = []
    for name, info in files.listing(folder).items():
        ours = _FILE.fullmatch(name) is not None and stored_id(folder / name) is not None
        if ours or name == INDEX_NAME or fnmatchcase(name, f".hlp_*{PARTIAL_SUFFIX}"):
            found.append((folder / name, info))
    return found


def _remove(out: Place, generation: int, days: float) -> Collected:
    manifest = kept_generations(out).get(generation)
    found = _files(out, generation)
    folder = folder_of(out, generation)
    if manifest is not None:
        files.remove([manifest])
        _sync(out)
    files.remove([place for place, _ in found])
    if folder != out and not folder.is_remote:
        with suppress(OSError):  # somebody's own files are in it
            folder.path.rmdir()
    _sync(out)
    size = sum(info.size for _, info in found)
    return Collected(generation, manifest is not None, len(found) + (manifest is not None), size, days)


def _sync(out: Place) -> None:
    if not out.is_remote:
        with storage_errors("remove generations from", out.path):
            sync_directory(out.path)
