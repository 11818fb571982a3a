"""What is inside a KHLP file, a packed dataset, ingested episodes or a raw dataset, and whether it is whole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from rich.text import Text

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import EpisodeReader, list_episodes
from knonik_assets.episodes.storing import storage_errors
from knonik_assets.packing.existing import read_manifest
from knonik_assets.packing.pictures import save_frames
from knonik_assets.packing.stored import PackedFile, crc_of_file, open_packed, stream_bytes
from knonik_loader.errors import ConfigError, FormatError
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.manifest import MANIFEST_NAME, HlpEntry, Manifest
from knonik_loader.khlp.types import StreamInfo

__all__ = ["Report", "inspect_path", "render", "save_frames"]

Report = dict[str, Any]
"""``path``, ``kind`` (khlp, manifest, index, episode, episodes, raw), ``facts``, ``streams``, ``damage`` (in words); of
a raw dataset ``detection`` instead of facts and streams. JSON values only."""


def inspect_path(path: str | Path, verify: bool = False) -> Report:
    """Look at anything that Knonik reads or writes.

    Args:
        path: a ``.khlp`` or ``.khli`` file, a manifest or its folder, an episode, a folder of episodes, or raw data.
        verify: read everything and compare it with its checksums. Raw data has none.

    Raises:
        ConfigError: there is nothing at the path, or raw data is to be verified.
        FormatError: the file is so damaged that it cannot be opened.
        SourceError: a raw dataset of no known kind.
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


# -- packed ------------------------------------------------------------------------------------------------------------


def _khlp(path: Path, verify: bool) -> Report:
    with open_packed(path) as packed:
        index = packed.index
        facts = {
            "profile": index.profile,
            "id": index.hlp_id.hex(),
            "bytes": index.file_length,
            "shards": index.num_shards,
            "episodes": len(index.episodes),
            "frames": index.num_frames,
        }
        sizes = stream_bytes(index)
        streams = [_stream(stream, index.num_frames, sizes[stream.key]) for stream in index.streams]
        return _report(path, "khlp", facts, streams, packed.check_payloads() if verify else ())


def _index(path: Path) -> Report:
    with storage_errors("read", path):
        index = DatasetIndex.from_bytes(path.read_bytes(), str(path))
    facts = {
        "episodes": len(index.episodes),
        "shards": len(index.shards),
        "frames": index.num_frames,
        "irregular clocks": len(index.clocks),
        "splits": dict(Counter(split for split in index.episodes.split if split)),
    }
    return _report(path, "index", facts, (), ())


def _manifest(path: Path, verify: bool) -> Report:
    manifest = read_manifest(path)
    damage: list[str] = []
    index = _read_index(path.parent / manifest.index.uri, manifest, damage)
    sizes: Counter[str] = Counter()
    for number, entry in enumerate(manifest.hlps):
        file = path.parent / entry.uri
        damage += _check_file(file, entry, verify=verify)
        if file.is_file():
            try:
                with open_packed(file, entry.metadata_offset) as packed:
                    sizes.update(stream_bytes(packed.index))
                    damage += _check_tables(packed, number, index)
            except FormatError as error:
                damage.append(str(error))
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
        {**_stream(entry.info(), manifest.num_frames, sizes[entry.info().key]), "psnr_y": entry.psnr_y}
        for entry in manifest.streams
    ]
    return _report(path, "manifest", facts, streams, damage)


def _read_index(path: Path, manifest: Manifest, damage: list[str]) -> DatasetIndex | None:
    if not path.is_file():
        damage.append(f"{path} is missing")
        return None
    with storage_errors("read", path):
        data = path.read_bytes()
    if (len(data), crc32c(data)) != (manifest.index.bytes, manifest.index.crc32c):
        damage.append(f"{path} is not the index that the manifest describes")
    try:
        return DatasetIndex.from_bytes(data, str(path))
    except FormatError as error:
        damage.append(str(error))
        return None


def _check_file(path: Path, entry: HlpEntry, *, verify: bool) -> Iterator[str]:
    if not path.is_file():
        yield f"{path} is missing"
        return
    size = path.stat().st_size
    if size != entry.bytes:
        yield f"{path} has {size} bytes instead of {entry.bytes}"
    elif verify and crc_of_file(path) != entry.crc32c:
        try:
            with open_packed(path, entry.metadata_offset) as packed:
                places = list(packed.check_payloads())
        except FormatError:
            return  # opening it again says what is wrong
        yield from places or [f"{path} differs from the manifest's checksum outside of its frames"]


def _check_tables(packed: PackedFile, number: int, index: DatasetIndex | None) -> Iterator[str]:
    """The file's shards are those that the index lists for it."""
    if index is None:
        return
    table, names = index.shards, index.episodes.episode_id
    rows = np.flatnonzero(table.hlp == number)
    listed = {
        int(table.shard[row]): (names[table.episode[row]], int(table.first_frame[row]), int(table.frames[row]))
        for row in rows
    }
    shards = (packed.index.shard(shard) for shard in range(packed.index.num_shards))
    if listed != {i: (shard.episode_id, shard.first_frame, shard.frames) for i, shard in enumerate(shards)}:
        yield f"{packed.path} does not hold the shards that the index lists for it"


def _stream(stream: StreamInfo, frames: int, size: int) -> dict[str, Any]:
    raw = frames * math.prod(stream.shape) * np.dtype(stream.dtype).itemsize
    return {
        "key": stream.key,
        "codec": stream.codec,
        "shape": list(stream.shape),
        "bytes": size,
        "of_raw": round(size / raw, 5),
        "params": dict(stream.params),
    }


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
    damage = [f"{path}: {problem}" for problem in reader.verify()] if verify else _wrong_sizes(reader)
    return _report(path, "episode", facts, _episode_streams(reader), damage)


def _episodes(path: Path, episodes: Sequence[Path], verify: bool) -> Report:
    frames = size = 0
    damage: list[str] = []
    sums: dict[str, dict[str, Any]] = {}
    for folder in episodes:
        reader = EpisodeReader(folder)
        frames += reader.length
        size += sum(entry.bytes for entry in reader.metadata.files.values())
        damage += [f"{folder}: {problem}" for problem in reader.verify()] if verify else _wrong_sizes(reader)
        for stream in _episode_streams(reader):
            total = sums.setdefault(stream["key"], {**stream, "bytes": 0, "episodes": 0})
            total["bytes"] += stream["bytes"]
            total["episodes"] += 1
    facts = {"episodes": len(episodes), "frames": frames, "bytes": size}
    return _report(path, "episodes", facts, list(sums.values()), damage)


def _wrong_sizes(reader: EpisodeReader) -> list[str]:
    found = []
    for name, entry in reader.metadata.files.items():
        file = reader.path / name
        if not file.is_file():
            found.append(f"{file} is missing")
        elif file.stat().st_size != entry.bytes:
            found.append(f"{file} has {file.stat().st_size} bytes instead of {entry.bytes}")
    return found


def _episode_streams(reader: EpisodeReader) -> list[dict[str, Any]]:
    metadata = reader.metadata
    keys = [
        *(f"rgb_{name}" for name in metadata.rgb_streams),
        *(f"depth_{name}" for name in metadata.depth_streams),
        *metadata.numeric_streams,
    ]
    found = []
    for key in keys:
        params = metadata.stream_params.get(key, {})
        shape = [params[side] for side in ("height", "width", "dim") if side in params]
        size = sum(entry.bytes for name, entry in metadata.files.items() if name.startswith((f"{key}.", f"{key}/")))
        found.append({"key": key, "codec": params.get("codec", ""), "shape": shape, "bytes": size, "params": params})
    return found


def _raw(path: Path, verify: bool) -> Report:
    from knonik_assets.sources.detect import detect

    if verify:
        raise ConfigError(f"{path} is raw data, which has no checksums to verify; ingest it, or leave --verify out.")
    return {"path": str(path), "kind": "raw", "detection": detect(path).to_dict(), "damage": []}


# -- text --------------------------------------------------------------------------------------------------------------


def render(report: Report) -> Text:
    """A report as lines to read."""
    if report["kind"] == "raw":
        from knonik_assets.sources import detect

        return detect.render(detect.Detection(**report["detection"]))
    lines = [f"{report['kind']} {report['path']}"]
    width = max(map(len, report["facts"]))
    for name, value in report["facts"].items():
        if value not in ("", {}):
            lines.append(f"  {name:<{width}}  {_value(name, value)}")
    if report["streams"]:
        lines += ["", *_table(report["streams"])]
    lines += ["", *(f"damaged: {text}" for text in report["damage"])] if report["damage"] else []
    return Text("\n".join(lines))


def _value(name: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}".replace(",", " ") if isinstance(value, int) and name != "id" else str(value)


def _table(streams: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [["stream", "codec", "shape", "bytes", "of raw", "PSNR-Y"]]
    for stream in streams:
        share, psnr = stream.get("of_raw"), stream.get("psnr_y")
        rows.append([
            stream["key"],
            stream["codec"],
            "x".join(map(str, stream["shape"])),
            _value("", stream["bytes"]),
            "" if share is None else f"{100 * share:.1f} %",
            "" if psnr is None else f"{psnr:.1f} dB",
        ])  # fmt: skip
    used = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    widths = [max(len(row[column]) for row in rows) for column in used]
    for row in rows:
        cells = (f"{row[column]:<{wide}}" for column, wide in zip(used, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
