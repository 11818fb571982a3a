"""The loading half of the demo: batches, their rate, and the rate that the machine could reach at best."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.configs.card import DatasetCard
from knonik_assets.quality.packed import PackedDataset
from knonik_assets.quality.pictures import draw_strip, png
from knonik_assets.storage import Place
from knonik_loader import ShardedDataLoader
from knonik_loader.khlp.types import StorageProfile

__all__ = ["Loaded", "bare_jpeg_rate", "load", "sample_jpegs", "save_strip"]

THREADS = 2
_WINDOW = 4


@dataclass(frozen=True)
class Loaded:
    """What loading from one packed dataset gave."""

    profile: StorageProfile
    manifest: Place
    bytes: int
    pictures: int
    """Frames over all cameras in the dataset."""
    batch: dict[str, Any]
    """The first batch."""
    shapes: dict[str, tuple[str, str]]
    """Key → type, and shape or value."""
    rate: float
    """Pictures a second."""


def _manifest(card: DatasetCard, profile: StorageProfile) -> Place:
    return card.packed_folder(profile) / "hlp_manifest.json"


def load(card: DatasetCard, profile: StorageProfile, seconds: float = 2.0) -> Loaded:
    """Load random windows of four frames for so many seconds.

    Raises:
        KnonikError: of the kind that says what is wrong with the dataset.
    """
    manifest = _manifest(card, profile)
    dataset = PackedDataset(manifest)
    cameras = [stream.key for stream in dataset.streams() if stream.kind == "rgb"]
    settings = {
        "decode_mode": "random_access",
        "hlp_manifest": str(manifest),
        "chunk_len": _WINDOW,
        "batch_size": min(16, dataset.manifest.num_frames),
        "pad_missing": True,
        "num_decoders": THREADS,
    }
    with ShardedDataLoader(settings) as loader:
        passes = iter(loader)
        first = next(passes)  # files are open and threads run from here on
        count, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            for batch in passes:
                count += sum(batch[key].shape[0] * batch[key].shape[1] for key in cameras)
                if time.perf_counter() - started >= seconds:
                    break
            else:
                passes = iter(loader)
        rate = count / (time.perf_counter() - started)
    pictures = dataset.manifest.num_frames * len(cameras)
    return Loaded(profile, manifest, dataset.bytes, pictures, first, _shapes(first), rate)


def _shapes(batch: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    shown = {}
    for key, value in batch.items():
        if isinstance(value, np.ndarray):
            shown[key] = (str(value.dtype), " x ".join(map(str, value.shape)))
        elif isinstance(value, str):
            shown[key] = ("str", value)
        else:
            text = ", ".join(str(item) for item in value)
            shown[key] = (f"list of {len(value)}", text if len(text) <= 45 else f"{text[:42]}...")
    return shown


def sample_jpegs(card: DatasetCard) -> list[bytes]:
    """The JPEGs of ``training_fast`` where a card packs it; else its loaded pictures at that profile's quality."""
    import simplejpeg

    if "training_fast" in card.pack:
        return _stored_jpegs(_manifest(card, "training_fast"))
    batch = load(card, card.profiles[0], seconds=0.1).batch
    return [
        simplejpeg.encode_jpeg(np.ascontiguousarray(picture), quality=95, colorsubsampling="420")
        for value in _cameras(batch).values()
        for picture in value.reshape(-1, *value.shape[2:])
    ]


def bare_jpeg_rate(jpegs: Sequence[bytes], seconds: float = 1.0) -> float:
    """Pictures a second that two threads decode into memory that they reuse: the limit of any loader of these JPEGs."""
    import simplejpeg

    if not jpegs:
        return float("nan")
    counts = [0] * THREADS
    stop = time.perf_counter() + seconds

    def work(lane: int) -> None:
        buffers: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}
        mine = jpegs[lane::THREADS] or jpegs
        while True:
            for data in mine:
                height, width, _, _ = simplejpeg.decode_jpeg_header(data)
                buffer = buffers.setdefault((height, width), np.empty((height, width, 3), np.uint8))
                simplejpeg.decode_jpeg(data, buffer=buffer)
                counts[lane] += 1
                if time.perf_counter() >= stop:
                    return

    started = time.perf_counter()
    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - started)


def _stored_jpegs(manifest: Place, most: int = 512) -> list[bytes]:
    """The first JPEGs of a ``training_fast`` dataset."""
    found: list[bytes] = []
    for packed in PackedDataset(manifest).opened():
        index = packed.index
        for shard in range(index.num_shards):
            for stream in index.streams:
                if stream.kind == "rgb" and len(found) < most:
                    table = index.records(shard, stream.stream_id)
                    for offset, size in zip(table.offsets, table.sizes, strict=True):
                        found.append(packed.read(int(offset), int(size)))
    return found


def _cameras(batch: Mapping[str, Any]) -> dict[str, npt.NDArray[np.uint8]]:
    return {key: value for key, value in batch.items() if key.startswith("rgb_") and not key.endswith("_valid_mask")}


def save_strip(batch: Mapping[str, Any], path: Path, samples: int = 4) -> Path | None:
    """Draw the first samples of a batch, a camera a row; None for a batch without pictures."""
    cameras = _cameras(batch)
    if not cameras:
        return None
    rows = {}
    for sample in range(min(samples, len(batch["_episode_ids"]))):
        place = f"{batch['_episode_ids'][sample]}, frame {batch['_frame_indices'][sample]}"
        for key, value in cameras.items():
            rows[f"{key.removeprefix('rgb_')}  |  {place}"] = list(value[sample])
    columns = [f"anchor + {step}" if step else "anchor" for step in range(len(next(iter(rows.values()))))]
    title = f"a batch of {batch['_dataset_name']}: {len(rows) // len(cameras)} of its samples"
    path.write_bytes(png(draw_strip(rows, columns, title=title, width=200)))
    return path
