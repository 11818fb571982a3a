"""What is inside packed files and datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crc32c import crc32c

from knonik_assets.packing.album import PackedAlbum
from knonik_assets.packing.existing import read_manifest
from knonik_assets.packing.reports import Report, measured, report
from knonik_assets.packing.reports import stream as stream_values
from knonik_assets.packing.sampling import find_originals, take
from knonik_assets.packing.stored import crc_of_file, damage_of, open_packed, stream_bytes
from knonik_assets.storage import ObjectInfo, Place
from knonik_assets.storage.files import get, read_bytes, stats
from knonik_loader.errors import FormatError, StorageError
from knonik_loader.khlp.agreement import check_file, check_tables, shards_of_files
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.manifest import HlpEntry, Manifest
from knonik_loader.khlp.reader import HlpIndex
from knonik_loader.khlp.types import StreamInfo

__all__ = ["look_at_index", "look_at_khlp", "look_at_manifest"]


def look_at_khlp(path: Place, verify: bool, episodes: Path | None) -> Report:
    """One KHLP file."""
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
    damage = [found.message for found in damage_of(path)] if verify else []
    samples = _sampled(path, [path], streams, damage, episodes)
    return report(path, "khlp", facts, streams, damage, samples)


def _sampled(
    path: Place,
    files: Sequence[Place],
    streams: Sequence[dict[str, Any]],
    damage: list[str],
    episodes: Path | None,
    *,
    manifest: bool = False,
) -> dict[str, Any]:
    """Look at some frames; what is damaged in them is told where nothing else is known to be."""
    try:
        album = PackedAlbum(files)
    except (FormatError, StorageError) as error:
        damage += [] if damage else [str(error)]
        return {}
    originals = find_originals(path, album.digests, episodes)
    samples = take(album, originals)
    damage += [] if damage else samples.damage
    return measured(streams, samples, originals, manifest=manifest)


def _packed_stream(stream: StreamInfo, frames: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    return stream_values(
        stream.kind, stream.name, stream.codec, stream.shape, frames, sizes.get(stream.key, 0), stream.params
    )


def look_at_index(path: Place) -> Report:
    """The index of a packed dataset."""
    index = DatasetIndex.from_bytes(read_bytes(path), str(path))
    splits = Counter(split for split in index.episodes.split if split)
    facts = {
        "episodes": len(index.episodes),
        "frames": index.num_frames,
        "shards": len(index.shards),
        "irregular clocks": len(index.clocks),
        "splits": dict(sorted(splits.items())),
    }
    return report(path, "index", facts, (), ())


def look_at_manifest(path: Place, verify: bool, episodes: Path | None) -> Report:
    """A packed dataset: its manifest, its index and every file."""
    manifest = read_manifest(path)
    damage: list[str] = []
    index = _read_index(path, manifest, damage)
    rows = shards_of_files(index, manifest.num_hlps) if index is not None else []
    sizes: Counter[str] = Counter()
    files = [path.parent / entry.uri for entry in manifest.hlps]
    there = stats(files)
    for number, entry in enumerate(manifest.hlps):

        def agree(hlp: HlpIndex, number: int = number) -> None:
            if index is not None:
                check_file(manifest, number, hlp, index, rows[number], str(path))

        damage += _check_file(files[number], there[number], entry, sizes, agree, verify=verify)
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
    samples = _sampled(path, files, streams, damage, episodes, manifest=any(one["psnr_y"] for one in streams))
    return report(path, "manifest", facts, streams, damage, samples)


def _read_index(where: Place, manifest: Manifest, damage: list[str]) -> DatasetIndex | None:
    """The sidecar, if it agrees with the manifest; what is wrong with it goes to ``damage``."""
    path = where.parent / manifest.index.uri
    found = get(path)
    if found is None:
        damage.append(f"{path} is missing")
        return None
    data = found[0]
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
    path: Place,
    there: ObjectInfo | None,
    entry: HlpEntry,
    sizes: Counter[str],
    agree: Callable[[HlpIndex], None],
    *,
    verify: bool,
) -> Iterator[str]:
    """What is wrong with one file of a dataset; adds its streams' bytes to ``sizes``.

    ``agree`` raises `FormatError` where the opened file is not the one that manifest and index describe.
    """
    if there is None:
        yield f"{path} is missing"
        return
    if there.size != entry.bytes:
        yield f"{path} has {there.size} bytes instead of {entry.bytes}"
        return
    if verify:
        found = [damage.message for damage in damage_of(path, entry.metadata_offset)]
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
