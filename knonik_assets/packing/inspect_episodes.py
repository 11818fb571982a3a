"""What is inside ingested episodes and raw data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.episodes.view import EpisodesView, LocalView, RemoteView, view_of
from knonik_assets.packing.album import EpisodesAlbum
from knonik_assets.packing.facts import annotated
from knonik_assets.packing.reports import Report, measured, report
from knonik_assets.packing.reports import stream as stream_values
from knonik_assets.packing.sampling import take
from knonik_assets.storage import ObjectFolder, Place
from knonik_loader.errors import ConfigError, EpisodeError, SourceError
from knonik_loader.khlp.manifest import MANIFEST_NAME
from knonik_loader.khlp.types import StreamKind, batch_key

__all__ = ["look_at_episode", "look_at_episodes", "look_at_raw", "look_at_remote"]


def look_at_episode(path: Path, verify: bool) -> Report:
    """One ingested episode."""
    reader = EpisodeReader(path)
    metadata = reader.metadata
    language = reader.language()
    facts = {
        "dataset": metadata.dataset,
        "robot type": metadata.robot_type,
        "source": f"{metadata.source_id} ({metadata.source_format})",
        "frames": reader.length,
        "fps": metadata.fps,
        "seconds": round(metadata.end_time - metadata.start_time, 3),
        "bytes": sum(entry.bytes for entry in metadata.files.values()),
        "instruction": language.instruction if language else "",
        "trimmed": dict(metadata.trimmed),
    }
    streams, damage = _episode_streams(reader), _episode_damage(reader, verify=verify)
    return report(path, "episode", facts, streams, damage, _sampled([path], streams, damage))


def _sampled(folders: Sequence[Path], streams: Sequence[dict[str, Any]], damage: list[str]) -> dict[str, Any]:
    """Look at some frames; what is damaged in them is told where nothing else is known to be."""
    samples = take(EpisodesAlbum(folders))
    damage += [] if damage else samples.damage
    return measured(streams, samples, None)


def look_at_remote(place: Place, verify: bool) -> Report:
    """An ingested episode at a URL, a folder of them, or raw data."""
    if ObjectFolder(place).head(METADATA) is not None:
        with view_of(place.parent) as view, view.episode(place.name).local() as path:
            seen: Report = _retold(look_at_episode(path, verify), str(path), str(place))
            return seen
    with RemoteView(place) as view:
        if view.listed.episodes:
            return look_at_episodes(view, verify)
        if not (
            view.listed.halves or view.listed.others or (place.name and ObjectFolder(place.parent).head(place.name))
        ):
            raise ConfigError(f"There is no object {place} and none below it; check the URL.")
    return look_at_raw(str(place), verify)


def _retold(value: Any, path: str, url: str) -> Any:  # noqa: ANN401 - any part of a report
    """The same with the URL for the path in scratch."""
    if isinstance(value, str):
        return value.replace(path, url)
    if isinstance(value, dict):
        return {key: _retold(each, path, url) for key, each in value.items()}
    return [_retold(each, path, url) for each in value] if isinstance(value, list) else value


def look_at_episodes(view: EpisodesView, verify: bool) -> Report:
    """A folder of ingested episodes, its streams summed up. Of remote ones three are looked into, or all to verify."""
    frames = size = 0
    damage: list[str] = []
    rates: Counter[float] = Counter()
    datasets: set[str] = set()
    unreadable: set[str] = set()
    sums: dict[tuple[str, str, str], dict[str, Any]] = {}
    names = view.names
    for name in names:
        try:
            reader = EpisodeReader(view.folder / name)
        except EpisodeError as error:
            damage.append(str(error))
            unreadable.add(name)
            continue
        metadata = reader.metadata
        frames += reader.length
        rates[metadata.fps] += 1
        datasets.add(metadata.dataset)
        size += sum(entry.bytes for entry in metadata.files.values())
        damage += _damage_at(view, name, reader, verify=verify)
        for stream in _episode_streams(reader):
            # episodes that differ get lines of their own: they cannot be packed together as they are
            key = (stream["key"], stream["codec"], str(stream["shape"]))
            total = sums.setdefault(key, {**stream, "bytes": 0, "frames": 0, "raw": 0.0, "episodes": 0})
            total["bytes"] += stream["bytes"]
            total["frames"] += stream["frames"]
            total["raw"] += stream["bytes"] / stream["of_raw"] if stream["of_raw"] else 0
            total["episodes"] += 1
    for total in sums.values():
        raw = total.pop("raw")
        total["of_raw"] = round(total["bytes"] / raw, 5) if raw else None
    facts = {
        "dataset": ", ".join(sorted(datasets)),
        "episodes": len(names),
        "frames": frames,
        "fps": rates.most_common(1)[0][0] if len(rates) == 1 else {f"{rate:g}": rates[rate] for rate in sorted(rates)},
        "bytes": size,
    }
    streams = list(sums.values())
    readable = [name for name in names if name not in unreadable]
    if isinstance(view, RemoteView):
        readable = [readable[place] for place in sorted({0, len(readable) // 2, len(readable) - 1})] if readable else []
    with ExitStack() as stack:
        folders = {name: stack.enter_context(view.episode(name).local()) for name in readable}
        samples = _sampled(list(folders.values()), streams, damage) if readable else {}
    for name, folder in folders.items():
        damage = _retold(damage, str(folder), f"{view.where}/{name}")
    damage = _retold(damage, str(view.folder), view.where)
    return report(Place.of(view.where, "path"), "episodes", facts, streams, damage, samples)


def _damage_at(view: EpisodesView, name: str, reader: EpisodeReader, *, verify: bool) -> list[str]:
    if not verify:
        return _wrong_sizes(reader, view.sizes(name))
    with view.episode(name).local() as path:
        found: list[str] = _retold(_episode_damage(EpisodeReader(path), verify=True), str(path), f"{view.where}/{name}")
        return found


def _episode_damage(reader: EpisodeReader, *, verify: bool) -> list[str]:
    """Annotations may be edited after ingest, so that only their absence is damage."""
    found = [] if verify else _wrong_sizes(reader, LocalView(reader.path.parent).sizes(reader.path.name))
    for problem in reader.verify() if verify else ():
        name, _, _ = problem.partition(" ")
        if not annotated(name) or problem.endswith("is missing"):
            found.append(f"{reader.path / name}{problem.removeprefix(name)}")
    return found


def _wrong_sizes(reader: EpisodeReader, sizes: Mapping[str, int]) -> list[str]:
    found = []
    for name, entry in reader.metadata.files.items():
        file = reader.path / name
        if name not in sizes:
            found.append(f"{file} is missing")
        elif sizes[name] != entry.bytes and not annotated(name):
            found.append(f"{file} has {sizes[name]} bytes instead of {entry.bytes}")
    return found


def _episode_streams(reader: EpisodeReader) -> list[dict[str, Any]]:
    metadata = reader.metadata
    streams: list[tuple[StreamKind, str, str]] = [
        *(("rgb", name, f"rgb_{name}") for name in metadata.rgb_streams),
        *(("depth", name, f"depth_{name}") for name in metadata.depth_streams),
        *(("numeric", name, name) for name in metadata.numeric_streams),
    ]
    found = []
    for kind, name, stem in streams:
        params = metadata.stream_params.get(batch_key(kind, name), {})
        shape = [params[side] for side in ("height", "width", "dim") if side in params] + [3] * (kind == "rgb")
        size = sum(entry.bytes for file, entry in metadata.files.items() if file.startswith((f"{stem}.", f"{stem}/")))
        found.append(stream_values(kind, name, params.get("codec", ""), shape, reader.length, size, params))
    return found


def look_at_raw(path: str | Path, verify: bool) -> Report:
    """A raw dataset, as `knonik_assets.sources.detect` sees it."""
    from knonik_assets.sources.detect import detect

    try:
        found = detect(path)
    except SourceError as error:
        raise SourceError(
            f"{error} Neither is it a .khlp or .khli file, a folder with {MANIFEST_NAME}, nor one with episodes "
            f"({METADATA})."
        ) from error
    if verify:
        raise ConfigError(f"{path} is raw data, which has no checksums to verify; ingest it, or leave --verify out.")
    return {"path": str(path), "kind": "raw", "detection": found.to_dict(), "damage": []}
