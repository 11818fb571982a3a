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
from pathlib import Path

from knonik_assets.episodes.storing import storage_errors
from knonik_assets.ingesting.lock import OutputLock
from knonik_assets.packing.existing import folder_of, kept_generations, standing
from knonik_assets.packing.stored import stored_id
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


def collect_generations(out: Path, keep_days: float = KEEP_DAYS, now: float | None = None) -> list[Collected]:
    """Remove the generations that were superseded at least ``keep_days`` days ago.

    Args:
        out: the directory of a packed dataset, with its ``hlp_manifest.json``. Without one nothing is removed.
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
    now = time.time() if now is None else now
    if math.isinf(keep_days) or not list(_collectable(out, keep_days, now)):
        return []
    with OutputLock(out):
        # another run may have been here while nobody held the lock
        return [_remove(out, generation, days) for generation, days in list(_collectable(out, keep_days, now))]


def _collectable(out: Path, keep_days: float, now: float) -> Iterator[tuple[int, float]]:
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
    folders = {int(match[1]) for path in out.glob("gen_*") if (match := _FOLDER.fullmatch(path.name))}
    for generation in sorted({1, *folders, *kept} - {current.manifest.generation}):
        if generation in kept:
            since = _superseded_at(out, generation, current.manifest.generation)
        else:
            files = _files(out, generation) or _empty_folder(out, generation)
            if not files:
                continue
            with storage_errors("read", out):
                since = max(path.stat().st_mtime for path in files)
        days = (now - since) / _DAY
        if days >= keep_days:
            yield generation, days


def _superseded_at(out: Path, generation: int, current: int) -> float:
    """Seconds since the epoch at which a generation stopped being the one that new jobs get."""
    kept = kept_generations(out)
    # where somebody went back to an older generation, that was when the current manifest was written
    after = min((number for number in kept if generation < number <= current), default=None)
    successor = out / MANIFEST_NAME if after is None else kept[after]
    with storage_errors("read", out):
        return max(successor.stat().st_mtime, kept[generation].stat().st_mtime)


def _files(out: Path, generation: int) -> list[Path]:
    """Files of a generation: what the packer writes there, and nothing that is only named alike."""
    folder = folder_of(out, generation)
    if not folder.is_dir():
        return []
    ours = [path for path in folder.iterdir() if _FILE.fullmatch(path.name) and stored_id(path) is not None]
    ours += [path for path in (folder / INDEX_NAME,) if path.is_file()]
    ours += folder.glob(f".hlp_*{PARTIAL_SUFFIX}")
    return sorted(ours)


def _empty_folder(out: Path, generation: int) -> list[Path]:
    folder = folder_of(out, generation)
    return [folder] if folder != out and folder.is_dir() and not any(folder.iterdir()) else []


def _remove(out: Path, generation: int, days: float) -> Collected:
    manifest = kept_generations(out).get(generation)
    files = _files(out, generation)
    folder = folder_of(out, generation)
    with storage_errors("remove generations from", out):
        size = sum(path.stat().st_size for path in files)
        if manifest is not None:
            manifest.unlink()
            sync_directory(out)
        for path in files:
            path.unlink()
        if folder != out:
            with suppress(OSError):  # somebody's own files are in it
                folder.rmdir()
        sync_directory(out)
    return Collected(generation, manifest is not None, len(files) + (manifest is not None), size, days)
