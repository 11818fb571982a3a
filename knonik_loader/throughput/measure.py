"""Run a loader as a training job would, only faster, and say what was seen."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.config import load_loader_config
from knonik_loader.engine.dataset import PackedDataset, open_dataset
from knonik_loader.engine.metrics import rss_bytes
from knonik_loader.engine.storage import open_storage
from knonik_loader.sharded import ShardedDataLoader
from knonik_loader.throughput.limit import BareDecode, encode_pictures, stored_jpegs

__all__ = ["Measurement", "Progress", "measure"]

Progress = Callable[[float, int, float], None]
"""Called now and then with (share of the time that is over, batches so far, pictures/s so far)."""

_SAMPLED = 24
"""Pictures of each camera that the limit is measured on."""
_BATCHES_IN_FLIGHT = 4
_PERIOD_S = 0.5
_TURNS = 5
_LIMIT_BYTES = 256 << 20
"""No CPU cache is as large."""
_REST_S = 20.0


@dataclass(frozen=True)
class Measurement:
    """What one run of a loader showed; times in seconds, memory in bytes, pictures over all cameras."""

    manifest: str
    profile: str
    batch_size: int
    cameras: list[str]
    batches: int
    seconds: float
    first_batch_s: float
    samples_per_s: float
    frames_per_s: float
    """Pictures handed out; 0 where no camera is loaded."""
    limit_frames_per_s: float
    """Bare JPEG decodes of the same pictures on as many threads; 0 where no camera is loaded."""
    limit_is: str
    cores: int
    """That this process may use."""
    threads: dict[str, int]
    """Stage → threads."""
    busy: dict[str, float]
    """Stage → share of its threads' time that it worked; 1: that stage can't go faster."""
    limiting: str
    """``decode``, ``fetch``, ``augment``, or ``waiting`` where no stage is at its limit."""
    batch_p50_s: float
    batch_p99_s: float
    rss_start: int
    """After the first fifth of the run, when buffers and indexes are there."""
    rss_end: int
    rss_peak: int
    ram: int
    """Of the machine."""
    episodes: int
    """In the dataset."""
    episodes_per_batch: float
    near_duplicates: float
    """Share of samples that have another one of the same episode within 10 frames in their batch."""
    cross_shard: float
    """Share of windows that reach into a second shard, from the sizes of shards and windows."""
    config: dict[str, Any] = field(default_factory=dict)
    """Keys that were given."""
    inactive: list[str] = field(default_factory=list)

    @property
    def of_limit(self) -> float:
        """Rate as a share of the machine's decode limit."""
        return self.frames_per_s / self.limit_frames_per_s if self.limit_frames_per_s else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {**asdict(self), "of_limit": self.of_limit}


def measure(
    loader_cfg: Mapping[str, Any],
    stream_cfg: Mapping[str, Any] | None = None,
    seconds: float = 10.0,
    progress: Progress | None = None,
) -> Measurement:
    """Take batches as fast as the loader gives them, for so long, then measure the machine's own decode limit.

    The run goes on into further epochs where one is too short, whatever ``max_steps`` says.

    Raises:
        KnonikError: as the loader does.
    """
    endless = {**loader_cfg, "max_steps": 2**31 - 1}
    config = load_loader_config(loader_cfg)
    dataset = open_dataset(open_storage(config.fs_type, config.fs_params), config.hlp_manifest)
    started = time.perf_counter()
    with contextlib.closing(dataset), ShardedDataLoader(endless, stream_cfg) as loader:
        batches = iter(loader)
        batch = next(batches)
        first_batch_s = time.perf_counter() - started
        cameras = [key for key in batch if key.startswith("rgb_") and not key.endswith("_valid_mask")]
        pictures = sum(int(np.prod(batch[key].shape[:2])) for key in cameras)
        memory = sum(int(np.asarray(batch[key]).nbytes) for key in cameras) * _BATCHES_IN_FLIGHT
        limit = _Limit(dataset, {key: _some(np.asarray(batch[key])) for key in cameras}, memory)
        samples = len(batch["_hlp_ids"])
        del batch
        stats = loader.stats()
        threads = {name: int(count) for name, count in stats["threads"].items()}
        spent = dict.fromkeys(threads, 0.0)
        rss_start = 0
        took, rss, limits = list[float](), list[int](), list[float]()
        # Loader and limit take turns, so that a machine that is busy with other things slows both alike.
        for turn in range(_TURNS):
            for _ in range(config.precollate_batches + 2):  # made while the limit was measured
                next(batches)
            before = loader.stats()["stages"]
            told = functools.partial(_tell, progress, turn, seconds, pictures, took)
            took += _take(batches, seconds / _TURNS, rss, told)
            rss_start = rss_start or rss[-1]
            after = loader.stats()["stages"]
            for stage in spent:
                spent[stage] += after[stage]["seconds"] - before[stage]["seconds"]
            _let_rest(loader)
            limits.append(limit.rate(threads["decode"], min(1.0, seconds / _TURNS / 2)))
        stats = loader.stats()
    elapsed = sum(took)
    busy = {stage: spent[stage] / (count * elapsed) for stage, count in threads.items() if count}
    limiting = max(busy, key=lambda stage: busy[stage])
    return Measurement(
        manifest=str(loader_cfg["hlp_manifest"]),
        profile=dataset.manifest.storage_profile,
        batch_size=samples,
        cameras=cameras,
        batches=len(took),
        seconds=elapsed,
        first_batch_s=first_batch_s,
        samples_per_s=len(took) * samples / elapsed,
        frames_per_s=len(took) * pictures / elapsed,
        limit_frames_per_s=float(np.median(limits)),
        limit_is=limit.what,
        cores=len(os.sched_getaffinity(0)),
        threads=threads,
        busy=busy,
        limiting=limiting if busy[limiting] >= 0.75 else "waiting",
        batch_p50_s=float(np.percentile(took, 50)),
        batch_p99_s=float(np.percentile(took, 99)),
        rss_start=rss_start - limit.nbytes,
        rss_end=rss[-1] - limit.nbytes,
        rss_peak=max(rss) - limit.nbytes,
        ram=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        episodes=len(dataset.index.episodes),
        episodes_per_batch=float(stats["diversity"]["episodes_per_batch"]),
        near_duplicates=float(stats["diversity"]["near_duplicates"]),
        cross_shard=_cross_shard(dataset, loader_cfg),
        config={key: value for key, value in loader_cfg.items() if key != "augment_fn"},
        inactive=[key for key in stats["inactive"] if key in loader_cfg],
    )


def _take(
    batches: Iterator[dict[str, Any]], seconds: float, rss: list[int], told: Callable[[list[float]], None]
) -> list[float]:
    """Time that each batch took, until so many seconds are over; memory is looked at on the way."""
    took: list[float] = []
    start = last = looked = time.perf_counter()
    while last - start < seconds or len(took) < 2:
        next(batches)
        now = time.perf_counter()
        took.append(now - last)
        last = now
        if now - looked >= _PERIOD_S:
            looked = now
            rss.append(rss_bytes())
            told(took)
    rss.append(rss_bytes())
    told(took)
    return took


def _let_rest(loader: ShardedDataLoader) -> None:
    """Wait until the queues are full again and every thread sleeps, or the limit would share its cores."""
    calls, deadline = -1, time.monotonic() + _REST_S
    while time.monotonic() < deadline:
        now = sum(stage["calls"] for stage in loader.stats()["stages"].values())
        if now == calls:
            return
        calls = now
        time.sleep(0.15)


def _tell(
    progress: Progress | None, turn: int, seconds: float, pictures: int, before: list[float], now: list[float]
) -> None:
    if progress is not None:
        batches, elapsed = len(before) + len(now), sum(before) + sum(now)
        progress(min(1.0, turn / _TURNS + sum(now) / seconds), batches, batches * pictures / elapsed)


class _Limit:
    """The machine's own rate for a loader's pictures."""

    def __init__(self, dataset: PackedDataset, sampled: Mapping[str, list[npt.NDArray[np.uint8]]], memory: int) -> None:
        stored = stored_jpegs(dataset, list(sampled), _SAMPLED)
        pictures = [picture for several in sampled.values() for picture in several if picture.dtype == np.uint8]
        jpegs: list[bytes] = []
        shapes: list[tuple[int, int, int]] = []
        self.what = "no camera to decode"
        if stored:
            self.what = "bare decode of the stored JPEGs"
            jpegs, shapes = [jpeg for jpeg, _ in stored], [shape for _, shape in stored]
        elif pictures:
            self.what = "bare decode of the same pictures as JPEG of quality 90"
            jpegs = encode_pictures(pictures)
            shapes = [(picture.shape[0], picture.shape[1], 3) for picture in pictures]
        self._decode = BareDecode(jpegs, shapes, min(memory, _LIMIT_BYTES)) if jpegs else None

    @property
    def nbytes(self) -> int:
        """Memory that is not the loader's."""
        return self._decode.nbytes if self._decode is not None else 0

    def rate(self, threads: int, seconds: float) -> float:
        """Pictures/s; 0 without a camera."""
        return self._decode.rate(threads, seconds) if self._decode is not None else 0.0


def _some(pictures: npt.NDArray[Any]) -> list[npt.NDArray[np.uint8]]:
    """(B, T, H, W, 3) → a few pictures, copied."""
    flat = pictures.reshape(-1, *pictures.shape[2:])
    return [flat[row].copy() for row in np.linspace(0, len(flat) - 1, min(_SAMPLED, len(flat))).astype(int)]


def _cross_shard(dataset: PackedDataset, loader_cfg: Mapping[str, Any]) -> float:
    """Windows of ``chunk_len`` frames that start anywhere in a shard and end in another one, as a share of all."""
    frames = np.asarray(dataset.index.shards.frames, np.int64)
    crossing = np.minimum(frames, int(loader_cfg.get("chunk_len", 1)) - 1)
    return float(crossing.sum() / frames.sum())
