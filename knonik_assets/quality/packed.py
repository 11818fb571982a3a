"""Holds a packed dataset against the episodes it was made from."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.episodes.view import EpisodesView, view_of
from knonik_assets.packing.stored import PackedFile, open_packed
from knonik_assets.quality.finding import Finding, size_text, some
from knonik_assets.storage import ObjectFolder, Place, Scratch, files
from knonik_assets.storage.files import Location
from knonik_loader.errors import FormatError, KnonikError, StorageError
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.manifest import HlpEntry, Manifest, load_manifest
from knonik_loader.khlp.reader import HlpIndex, check_payload, open_index
from knonik_loader.khlp.types import StorageProfile, StreamInfo, StreamKind, batch_key

__all__ = [
    "PSNR_FLOORS",
    "PackedDataset",
    "check_conserved",
    "check_intact",
    "check_loadable",
    "check_psnr",
    "check_size",
]

PSNR_FLOORS: Mapping[StorageProfile, float] = {"training_fast": 40, "training_compressed": 37, "compact_video": 35}
"""dB of luma that each profile keeps of the episodes' pictures."""


class PackedDataset:
    """A manifest and what it leads to, at a path or URL, opened when asked for.

    Raises:
        FormatError: the manifest is damaged.
        StorageError: it cannot be read.
    """

    def __init__(self, manifest: str | Location) -> None:
        self.place = Place.of(manifest, "manifest")
        self.folder = self.place.parent
        text = files.read_bytes(self.place)
        self._size = len(text)
        self.manifest: Manifest = load_manifest(text, str(self.place))

    @cached_property
    def index(self) -> DatasetIndex:
        """The tables of episodes and shards."""
        place = self.folder / self.manifest.index.uri
        return DatasetIndex.from_bytes(files.read_bytes(place), str(place))

    @cached_property
    def bytes(self) -> int:
        """Of the current generation: KHLP files, index and manifest."""
        return sum(entry.bytes for entry in self.manifest.hlps) + self.manifest.index.bytes + self._size

    def files(self) -> Iterator[tuple[HlpEntry, Place]]:
        """The KHLP files in the manifest's order."""
        for entry in self.manifest.hlps:
            yield entry, self.folder / entry.uri

    def opened(self) -> Iterator[PackedFile]:
        """Each KHLP file, open until the next one is asked for."""
        for entry, place in self.files():
            with open_packed(place, entry.metadata_offset) as packed:
                yield packed

    def streams(self) -> list[StreamInfo]:
        """The streams in the manifest's order."""
        return [entry.info() for entry in self.manifest.streams]


@contextmanager
def _mapped(place: Place) -> Iterator[memoryview]:
    """A file's bytes without reading them all at once; those of a URL are staged in scratch space meanwhile."""
    if place.is_remote:
        folder = ObjectFolder(place.parent)
        info = folder.head(place.name)
        with Scratch().room(info.size if info else 0, str(place)) as room:
            folder.download(place.name, room.folder / place.name, info)
            with _mapped(Place(str(room.folder / place.name))) as view:
                yield view
        return
    path = place.path
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
            view = memoryview(mapping)
            try:
                yield view
            finally:
                view.release()
    except (OSError, ValueError) as error:
        if isinstance(error, KnonikError):
            raise
        raise StorageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _parse(entry: HlpEntry, path: Place, view: memoryview) -> HlpIndex:
    return open_index(
        lambda offset, length: bytes(view[offset : offset + length]), len(view), entry.metadata_offset, str(path)
    )


def check_conserved(
    dataset: PackedDataset,
    episodes: Path | Place,
    left_out: Collection[str],
    only_streams: Collection[str] | None = None,
) -> Finding:
    """Every frame of every stream of every episode that should be packed is packed, and nothing else.

    Args:
        dataset: the packed dataset.
        episodes: where the episodes are that it was made from.
        left_out: names of episodes that were excluded on purpose.
        only_streams: names of the streams that were asked for; None: all of them.
    """
    with view_of(episodes) as view:
        readers = [EpisodeReader(view.folder / name) for name in view.names if name not in left_out]
    wanted = {reader.path.name: reader.length for reader in readers}
    table = dataset.index.episodes
    packed = dict(zip(table.episode_id, (int(length) for length in table.length), strict=True))
    wrong = [f"{name} is missing" for name in wanted if name not in packed]
    wrong += [f"{name} should not be there" for name in packed if name not in wanted]
    wrong += [
        f"{name} has {packed[name]} frames instead of {length}"
        for name, length in wanted.items()
        if packed.get(name, length) != length
    ]
    counted = _frames_by_stream(dataset)
    if only_streams is None:
        there = {key: None for reader in readers for key in _stream_keys(reader)}
        wrong += [f"no frame of {key} is packed" for key in there if key not in counted]
    for key, frames in counted.items():
        wrong += [
            f"{key} of {name} has {frames.get(name, 0)} frames instead of {length}"
            for name, length in packed.items()
            if frames.get(name, 0) != length
        ]
    rows = [{"stream": key, "episodes": len(frames), "frames": sum(frames.values())} for key, frames in counted.items()]
    total = sum(wanted.values())
    good = f"{len(wanted)} episodes, {total} frames in each of {len(counted)} streams"
    return Finding(not wrong, some(wrong) or good, rows)


def _stream_keys(reader: EpisodeReader) -> list[str]:
    meta = reader.metadata
    by_kind: dict[StreamKind, list[str]] = {
        "rgb": meta.rgb_streams,
        "depth": meta.depth_streams,
        "numeric": meta.numeric_streams,
    }
    return [batch_key(kind, name) for kind, names in by_kind.items() for name in names]


def _frames_by_stream(dataset: PackedDataset) -> dict[str, dict[str, int]]:
    """Stream → episode → frames, counted in the KHLP files themselves."""
    counted: dict[str, dict[str, int]] = {stream.key: {} for stream in dataset.streams()}
    for index in (packed.index for packed in dataset.opened()):
        for shard in range(index.num_shards):
            facts = index.shard(shard)
            for stream in index.streams:
                records = index.records(shard, stream.stream_id)
                frames = len(records)
                if stream.kind == "numeric":  # one block of float32 rows a shard
                    frames = int(records.sizes.sum()) // (4 * stream.shape[0])
                of_stream = counted.setdefault(stream.key, {})
                of_stream[facts.episode_id] = of_stream.get(facts.episode_id, 0) + frames
    return counted


def check_intact(dataset: PackedDataset) -> Finding:
    """Every file has the size and checksum that the manifest says, and every payload that which its index says."""
    wrong: list[str] = []
    payloads = 0
    index = dataset.folder / dataset.manifest.index.uri
    there = files.get(index)
    if there is None or crc32c(there[0]) != dataset.manifest.index.crc32c:
        wrong.append(f"{index.name} is missing or differs from its checksum")
    for entry, path in dataset.files():
        try:
            with _mapped(path) as view:
                if len(view) != entry.bytes or crc32c(view) != entry.crc32c:
                    wrong.append(f"{entry.uri} differs from its checksum")
                payloads += _check_payloads(_parse(entry, path, view), view)
        except (FormatError, StorageError) as error:
            wrong.append(str(error))
    return Finding(not wrong, some(wrong) or f"{payloads} payloads in {dataset.manifest.num_hlps} files are whole")


def _check_payloads(index: HlpIndex, view: memoryview) -> int:
    count = 0
    for shard in range(index.num_shards):
        for stream in index.streams:
            table = index.records(shard, stream.stream_id)
            where = f"{index.where}, shard {shard}, {stream.key}"
            for offset, size, crc in zip(table.offsets, table.sizes, table.crcs, strict=True):
                data = view[int(offset) : int(offset) + int(size)]
                try:
                    check_payload(data, int(size), int(crc), where)
                finally:
                    data.release()
                count += 1
    return count


def check_psnr(dataset: PackedDataset, floors: Mapping[StorageProfile, float]) -> Finding:
    """The pictures that packing sampled are as close to the episodes' as the profile promises."""
    profile = dataset.manifest.storage_profile
    floor = floors.get(profile, PSNR_FLOORS[profile])
    measured = {entry.info().key: entry.psnr_y for entry in dataset.manifest.streams if entry.kind == "rgb"}
    low = [f"{key} has {value:.1f} dB" for key, value in measured.items() if value is not None and value < floor]
    rows = [{"stream": key, "psnr_y_db": value, "floor_db": floor} for key, value in measured.items()]
    known = [value for value in measured.values() if value is not None]
    good = f"at least {min(known):.1f} dB, the floor is {floor:g} dB" if known else "every picture is stored unchanged"
    return Finding(not low, f"{some(low)}; the floor is {floor:g} dB" if low else good, rows)


def check_loadable(dataset: PackedDataset, episodes: Path | Place) -> Finding:
    """A loader reads a random batch whose numeric rows are those of the episodes."""
    from knonik_loader import ShardedDataLoader

    size = min(8, dataset.manifest.num_frames)
    settings = {
        "decode_mode": "random_access",
        "hlp_manifest": str(dataset.place),
        "fs_type": dataset.place.fs_type,
        "chunk_len": 1,
        "batch_size": size,
        "num_decoders": 1,
        "precollate_batches": 0,
    }
    try:
        with ShardedDataLoader(settings) as loader:
            batch: dict[str, Any] = next(iter(loader))
    except KnonikError as error:
        return Finding(False, f"the loader fails: {error}")
    wrong = [f"the batch lacks {stream.key}" for stream in dataset.streams() if stream.key not in batch]
    with view_of(episodes) as view:
        for stream in dataset.streams():
            if stream.kind == "numeric" and stream.key in batch:
                wrong += _row_differences(batch, stream, view)
    rows = [
        {"key": key, "shape": " x ".join(map(str, value.shape)), "dtype": str(value.dtype)}
        for key, value in batch.items()
        if isinstance(value, np.ndarray) and not key.startswith("_")
    ]
    return Finding(not wrong, some(wrong) or f"a random batch of {size} frames holds {len(rows)} streams", rows)


def _row_differences(batch: Mapping[str, Any], stream: StreamInfo, view: EpisodesView) -> list[str]:
    wrong = []
    for name in dict.fromkeys(batch["_episode_ids"]):
        with view.episode(name).local(f"{stream.name}/") as path:
            rows = EpisodeReader(path).numeric(stream.name)  # (T, D)
        for sample, (owner, frame) in enumerate(zip(batch["_episode_ids"], batch["_frame_indices"], strict=True)):
            if owner == name and not np.array_equal(batch[stream.key][sample, 0], rows[frame], equal_nan=True):
                wrong.append(f"{stream.key} of {name}, frame {frame}, differs from the episode")
    return wrong


def check_size(dataset: PackedDataset, max_gb: float | None) -> Finding:
    """The dataset is no larger than the card allows."""
    frames = max(dataset.manifest.num_frames, 1)
    said = f"{size_text(dataset.bytes)}, {size_text(dataset.bytes / frames)} a frame of all streams"
    if max_gb is not None and dataset.bytes > max_gb * 1e9:
        return Finding(False, f"{said}; the card allows {max_gb:g} GB")
    return Finding(True, said)
