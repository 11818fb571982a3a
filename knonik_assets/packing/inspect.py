"""What is inside a KHLP file, a packed dataset, ingested episodes or a raw dataset, and whether it is whole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crc32c import crc32c

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import EpisodeReader, list_episodes
from knonik_assets.episodes.storing import storage_errors
from knonik_assets.packing.existing import read_manifest
from knonik_assets.packing.facts import annotated
from knonik_assets.packing.pictures import save_frames
from knonik_assets.packing.rendering import Report, render
from knonik_assets.packing.stored import crc_of_file, open_packed, stream_bytes
from knonik_loader.errors import ConfigError, EpisodeError, FormatError, SourceError
from knonik_loader.khlp.agreement import check_file, check_tables, shards_of_files
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.manifest import MANIFEST_NAME, HlpEntry, Manifest
from knonik_loader.khlp.reader import HlpIndex
from knonik_loader.khlp.types import StreamInfo, StreamKind, batch_key
from knonik_loader.khlp.verify import verify_file

__all__ = ["Report", "inspect_path", "render", "save_frames"]

_FRAME_BYTES: Mapping[str, int] = {"rgb": 1, "depth": 4, "numeric": 4}
"""Bytes of one value as a batch has it: what compression is measured against."""


def inspect_path(path: str | Path, verify: bool = False) -> Report:
    """Look at anything that Knonik reads or writes.

    Args:
        path: a ``.khlp`` or ``.khli`` file, a manifest or its folder, an episode, a folder of episodes, or raw data.
        verify: read everything and compare it with its checksums. Raw data has none.

    Raises:
        ConfigError: there is nothing at the path, or raw data is to be verified.
        FormatError: the file is so damaged that it cannot be opened.
        SourceError: nothing of any known kind.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise ConfigError(f"There is no file or folder {path}; check the path.")
    if path.is_file() and path.suffix == ".khlp":
        return _khlp(path, verify)
    if path.is_file() and path.suffix == ".khli":
        return _index(path)
    if path.is_file() and path.name.startswith("hlp_manifest"):
        return _manifest(path, verify)
    if (path / MANIFEST_NAME).is_file():
        return _manifest(path / MANIFEST_NAME, verify)
    if (path / METADATA).is_file():
        return _episode(path, verify)
    if path.is_dir() and (episodes := list_episodes(path)):
        return _episodes(path, episodes, verify)
    return _raw(path, verify)


def _report(path: Path, kind: str, facts: Mapping[str, Any], streams: Sequence[Any], damage: Iterable[str]) -> Report:
    return {"path": str(path), "kind": kind, "facts": dict(facts), "streams": list(streams), "damage": list(damage)}


def _stream(
    kind: StreamKind, name: str, codec: str, shape: Sequence[int], frames: int, size: int, params: Mapping[str, Any]
) -> dict[str, Any]:
    raw = frames * math.prod(shape) * _FRAME_BYTES[kind]
    return {
        "key": batch_key(kind, name),
        "kind": kind,
        "codec": codec,
        "shape": list(shape),
        "bytes": size,
        "of_raw": round(size / raw, 5) if raw else None,
        "params": dict(params),
    }


# -- packed ------------------------------------------------------------------------------------------------------------


def _khlp(path: Path, verify: bool) -> Report:
    with open_packed(path) as packed:
        index = packed.index
        facts = {
            "profile": index.profile,
            "id": index.hlp_id.hex(),
            "fps": index.streams[0].fps,
            "episodes": len(index.episodes),
            "frames": index.num_frames,
            "shards": index.num_shards,
            "bytes": index.file_length,
        }
        sizes = stream_bytes(index)
        streams = [_packed_stream(stream, index.num_frames, sizes) for stream in index.streams]
    damage = [found.message for found in verify_file(path)] if verify else []
    return _report(path, "khlp", facts, streams, damage)


def _packed_stream(stream: StreamInfo, frames: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    return _stream(
        stream.kind, stream.name, stream.codec, stream.shape, frames, sizes.get(stream.key, 0), stream.params
    )


def _index(path: Path) -> Report:
    with storage_errors("read", path):
        index = DatasetIndex.from_bytes(path.read_bytes(), str(path))
    splits = Counter(split for split in index.episodes.split if split)
    facts = {
        "episodes": len(index.episodes),
        "frames": index.num_frames,
        "shards": len(index.shards),
        "irregular clocks": len(index.clocks),
        "splits": dict(sorted(splits.items())),
    }
    return _report(path, "index", facts, (), ())


def _manifest(path: Path, verify: bool) -> Report:
    manifest = read_manifest(path)
    damage: list[str] = []
    index = _read_index(path, manifest, damage)
    rows = shards_of_files(index, manifest.num_hlps) if index is not None else []
    sizes: Counter[str] = Counter()
    for number, entry in enumerate(manifest.hlps):

        def agree(hlp: HlpIndex, number: int = number) -> None:
            if index is not None:
                check_file(manifest, number, hlp, index, rows[number], str(path))

        damage += _check_file(path.parent / entry.uri, entry, sizes, agree, verify=verify)
    splits = Counter(index.episodes.split) if index is not None and manifest.splits else {}
    facts = {
        "dataset": manifest.dataset,
        "generation": manifest.generation,
        "profile": manifest.storage_profile,
        "pack mode": manifest.pack_mode,
        "fps": manifest.fps,
        "shard size": manifest.shard_size,
        "window size": manifest.window_size,
        "seed": manifest.seed,
        "episodes": manifest.num_episodes,
        "frames": manifest.num_frames,
        "shards": manifest.num_shards,
        "files": manifest.num_hlps,
        "bytes": sum(entry.bytes for entry in manifest.hlps) + manifest.index.bytes,
        "splits": {name: splits.get(name, 0) for name in manifest.splits},
    }
    streams = [
        {**_packed_stream(entry.info(), manifest.num_frames, sizes), "psnr_y": entry.psnr_y}
        for entry in manifest.streams
    ]
    return _report(path, "manifest", facts, streams, damage)


def _read_index(where: Path, manifest: Manifest, damage: list[str]) -> DatasetIndex | None:
    """The sidecar, if it agrees with the manifest; what is wrong with it goes to ``damage``."""
    path = where.parent / manifest.index.uri
    if not path.is_file():
        damage.append(f"{path} is missing")
        return None
    with storage_errors("read", path):
        data = path.read_bytes()
    if (len(data), crc32c(data)) != (manifest.index.bytes, manifest.index.crc32c):
        damage.append(f"{path} is not the index that the manifest describes")
    try:
        index = DatasetIndex.from_bytes(data, str(path))
        check_tables(manifest, index, str(where))
    except FormatError as error:
        damage.append(str(error))
        return None
    return index


def _check_file(
    path: Path, entry: HlpEntry, sizes: Counter[str], agree: Callable[[HlpIndex], None], *, verify: bool
) -> Iterator[str]:
    """What is wrong with one file of a dataset; adds its streams' bytes to ``sizes``.

    ``agree`` raises `FormatError` where the opened file is not the one that manifest and index describe.
    """
    if not path.is_file():
        yield f"{path} is missing"
        return
    size = path.stat().st_size
    if size != entry.bytes:
        yield f"{path} has {size} bytes instead of {entry.bytes}"
        return
    if verify:
        found = [damage.message for damage in verify_file(path, entry.metadata_offset)]
        yield from found
        if not found and crc_of_file(path) != entry.crc32c:
            yield f"{path} is whole, but not the file that the manifest describes (another crc32c)"
    try:
        with open_packed(path, entry.metadata_offset) as packed:
            sizes.update(stream_bytes(packed.index))
    except FormatError as error:
        if not verify:  # else it is told already
            yield str(error)
        return
    try:
        agree(packed.index)
    except FormatError as error:
        yield str(error)


# -- episodes and raw data ---------------------------------------------------------------------------------------------


def _episode(path: Path, verify: bool) -> Report:
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
    return _report(path, "episode", facts, _episode_streams(reader), _episode_damage(reader, verify=verify))


def _episodes(path: Path, episodes: Sequence[Path], verify: bool) -> Report:
    frames = size = 0
    damage: list[str] = []
    rates: Counter[float] = Counter()
    datasets: set[str] = set()
    sums: dict[tuple[str, str, str], dict[str, Any]] = {}
    for folder in episodes:
        try:
            reader = EpisodeReader(folder)
        except EpisodeError as error:
            damage.append(str(error))
            continue
        metadata = reader.metadata
        frames += reader.length
        rates[metadata.fps] += 1
        datasets.add(metadata.dataset)
        size += sum(entry.bytes for entry in metadata.files.values())
        damage += _episode_damage(reader, verify=verify)
        for stream in _episode_streams(reader):
            # episodes that differ get lines of their own: they cannot be packed together as they are
            key = (stream["key"], stream["codec"], str(stream["shape"]))
            total = sums.setdefault(key, {**stream, "bytes": 0, "raw": 0.0, "episodes": 0})
            total["bytes"] += stream["bytes"]
            total["raw"] += stream["bytes"] / stream["of_raw"] if stream["of_raw"] else 0
            total["episodes"] += 1
    for total in sums.values():
        raw = total.pop("raw")
        total["of_raw"] = round(total["bytes"] / raw, 5) if raw else None
    facts = {
        "dataset": ", ".join(sorted(datasets)),
        "episodes": len(episodes),
        "frames": frames,
        "fps": rates.most_common(1)[0][0] if len(rates) == 1 else {f"{rate:g}": rates[rate] for rate in sorted(rates)},
        "bytes": size,
    }
    return _report(path, "episodes", facts, list(sums.values()), damage)


def _episode_damage(reader: EpisodeReader, *, verify: bool) -> list[str]:
    """Annotations may be edited after ingest, so that only their absence is damage."""
    found = [] if verify else _wrong_sizes(reader)
    for problem in reader.verify() if verify else ():
        name, _, _ = problem.partition(" ")
        if not annotated(name) or problem.endswith("is missing"):
            found.append(f"{reader.path / name}{problem.removeprefix(name)}")
    return found


def _wrong_sizes(reader: EpisodeReader) -> list[str]:
    found = []
    for name, entry in reader.metadata.files.items():
        file = reader.path / name
        if not file.is_file():
            found.append(f"{file} is missing")
        elif file.stat().st_size != entry.bytes and not annotated(name):
            found.append(f"{file} has {file.stat().st_size} bytes instead of {entry.bytes}")
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
        found.append(_stream(kind, name, params.get("codec", ""), shape, reader.length, size, params))
    return found


def _raw(path: Path, verify: bool) -> Report:
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
