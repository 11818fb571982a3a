"""What is in an output directory already: the dataset that stands there, and what killed runs left."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase as fnmatch
from typing import Any

from knonik_assets.packing.plan import PackPlan
from knonik_assets.packing.stored import stored_id
from knonik_assets.storage import ObjectInfo, Place
from knonik_assets.storage.files import Location, get, listing, read_bytes, remove, stats
from knonik_loader.errors import FormatError, PackError, StorageError
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.manifest import MANIFEST_NAME, Manifest, load_manifest
from knonik_loader.khlp.writer import PARTIAL_SUFFIX

__all__ = [
    "REPORT",
    "Standing",
    "behind",
    "changes",
    "decisive",
    "folder_of",
    "kept_generations",
    "leftovers",
    "manifest_name",
    "next_generation",
    "read_manifest",
    "standing",
    "sweep",
]

REPORT = "pack_report.json"
"""What a pack did, beside its manifest."""

_GENERATION = re.compile(r"hlp_manifest\.([1-9][0-9]*)\.json")
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """The newest dataset of a directory."""

    manifest: Manifest
    damage: tuple[str, ...]
    """Files that it names and that are missing or of another size."""
    info: ObjectInfo
    """Of the manifest, as it was read."""


def manifest_name(generation: int) -> str:
    """The file name under which a generation's manifest is kept beside the current one."""
    return f"hlp_manifest.{generation}.json"


def folder_of(out: Place, generation: int) -> Place:
    """Where the files of a generation are."""
    return out if generation == 1 else out / f"gen_{generation:04d}"


def read_manifest(path: Location) -> Manifest:
    """Read a manifest.

    Raises:
        FormatError: it is none, contradicts itself, or is of another format version.
        StorageError: it cannot be read.
    """
    return load_manifest(read_bytes(path), str(path))


def standing(out: Location) -> Standing | None:
    """The dataset that ``hlp_manifest.json`` names; None where there is none.

    Raises:
        PackError: there is a manifest that cannot be understood, so that nothing can be said of what is there.
    """
    out = Place.of(out, "output_dir")
    found = get(out / MANIFEST_NAME)
    if found is None:
        return None
    text, info = found
    try:
        manifest = load_manifest(text, str(out / MANIFEST_NAME))
    except FormatError as error:
        raise PackError(
            f"{str(error).rstrip('.')}. Remove what is in {out}, or pack into another directory."
        ) from error
    files = [(out / entry.uri, entry.bytes) for entry in manifest.hlps]
    files.append((out / manifest.index.uri, manifest.index.bytes))
    there = stats(place for place, _ in files)
    missing = [_missing(place, seen, size) for (place, size), seen in zip(files, there, strict=True)]
    damage = tuple(said for said in missing if said)
    return Standing(manifest, damage, info)


def _missing(place: Place, found: ObjectInfo | None, size: int) -> str:
    if found is None:
        return f"{place} is missing"
    return "" if found.size == size else f"{place} has {found.size} bytes instead of {size}"


def kept_generations(out: Location) -> dict[int, Place]:
    """The manifests of all generations that are still there: number → place."""
    out = Place.of(out, "output_dir")
    return {int(match[1]): out / name for name in listing(out) if (match := _GENERATION.fullmatch(name))}


def next_generation(out: Place, current: Standing | None, plan: PackPlan) -> int:
    """The number of the generation to write: one that no manifest has, current or kept, so that every job goes on.

    A run that was killed just before the end may have left its generation's manifest without making it the current
    one: with the same plan it is written again under the same number.
    """
    last = current.manifest.generation if current is not None else 0
    newest = max([last, *kept_generations(out)])
    if newest == last:
        return last + 1
    try:
        unfinished = read_manifest(out / manifest_name(newest)).pack_fingerprint == plan.fingerprint
    except FormatError:
        return newest + 1
    return newest if unfinished else newest + 1


def behind(generation: int, abandoned: Iterable[Mapping[str, Any]], plan: PackPlan) -> int:
    """A generation's number, or a higher one that no abandoned run writes: its last upload may arrive after this pack.

    Args:
        generation: the lowest that it may be.
        abandoned: what runs declared in `Lease.declare`; those of this plan write the same bytes and may share it.
        plan: what is going to be written.
    """
    for work in abandoned:
        number = work.get("generation")
        if isinstance(number, int) and work.get("plan") != plan.fingerprint:
            generation = max(generation, number + 1)
    return generation


def decisive(abandoned: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of what abandoned runs declared, what `behind` needs to give any plan the number that it gives with all of it.

    That is the highest number, and the highest of another plan than that one's.
    """
    works = [dict(work) for work in abandoned if isinstance(work.get("generation"), int)]
    works.sort(key=lambda work: int(work["generation"]), reverse=True)
    return works[:1] + [work for work in works[1:] if work.get("plan") != works[0].get("plan")][:1]


def changes(current: Standing, out: Place, plan: PackPlan) -> str:
    """What differs between the dataset that stands there and the plan, in a few words."""
    old, options = current.manifest, plan.options
    pairs = [
        ("dataset-name", old.dataset, options.dataset_name),
        ("storage-profile", old.storage_profile, options.storage_profile),
        ("shard-size", old.shard_size, plan.shard_size),
        ("window-size", old.window_size, options.window_size),
        ("fps", f"{old.fps:g}", f"{plan.fps:g}"),
        ("pack-mode", old.pack_mode, options.pack_mode),
        ("seed", old.seed, options.seed),
        ("split", _json(old.splits), _json(options.split)),
    ]
    found = [f"{name} {was} -> {now}" for name, was, now in pairs if was != now]
    found += _stream_changes(old, plan)
    try:
        index = DatasetIndex.from_bytes(read_bytes(out / old.index.uri), old.index.uri)
    except (FormatError, StorageError):
        return "; ".join([*found, "its index cannot be read"])
    was = {
        name: digest.tobytes() for name, digest in zip(index.episodes.episode_id, index.episodes.digest, strict=True)
    }
    now = {episode.episode_id: episode.digest for episode in plan.episodes}
    for word, names in (
        ("new", [name for name in now if name not in was]),
        ("gone", [name for name in was if name not in now]),
        ("changed", [name for name in now if name in was and was[name] != now[name]]),
    ):
        if names:
            found.append(f"{len(names)} {word} episodes ({_some(names)})")
    return "; ".join(found) or "the packer's own version, or how JPEGs pass"


def _stream_changes(old: Manifest, plan: PackPlan) -> Iterator[str]:
    was = {entry.info().key: entry.info() for entry in old.streams}
    now = {stream.key: stream for stream in plan.streams}
    for key in sorted(was.keys() | now.keys()):
        if key not in now:
            yield f"stream {key} gone"
        elif key not in was:
            yield f"stream {key} new"
        elif was[key].shape != now[key].shape:
            yield f"{key} {was[key].shape} -> {now[key].shape}"
        elif was[key].params != now[key].params or was[key].channel_names != now[key].channel_names:
            yield f"{key} {_json(was[key].params)} -> {_json(now[key].params)}"


def leftovers(folder: Place, plan: PackPlan) -> list[Place]:
    """KHLP files in a folder without a finished dataset that are not of this plan."""
    planned = {file.name: file.hlp_id for file in plan.files}
    there = [folder / name for name in listing(folder) if fnmatch(name, "hlp_*.khlp")]
    return [place for place in there if place.name not in planned or stored_id(place) != planned[place.name]]


def sweep(folders: Iterable[Place]) -> None:
    """Remove half-written files of runs that died; the caller holds the directory's lock. Objects are never half."""
    halves = (f".hlp_*{PARTIAL_SUFFIX}", f".pack_report.*{PARTIAL_SUFFIX}")
    for folder in folders:
        if not folder.is_remote:
            remove([folder / name for name in listing(folder) if any(fnmatch(name, half) for half in halves)])


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
