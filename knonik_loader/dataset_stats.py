"""Statistics and splits of a packed dataset, from its path or from a dataset object made of it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from knonik_loader.config import load_loader_config, resolve_stream
from knonik_loader.engine.dataset import PackedDataset, Source, open_dataset
from knonik_loader.engine.direct import DirectReader
from knonik_loader.engine.storage import open_storage
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.manifest import Manifest, StreamStats
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.plan.types import BatchPlan, StreamWindow
from knonik_loader.selection import Episodes, EpisodeSplits, select_rows, split_rows
from knonik_loader.stats import RunningStats

__all__ = ["normalization_stats", "split_episodes"]

IntArray = npt.NDArray[np.int64]

_log = logging.getLogger(__name__)
_FORMAT = 1


@runtime_checkable
class MadeOfOne(Protocol):
    """A dataset object that knows its packed dataset and which of its episodes it takes."""

    @property
    def packed(self) -> PackedDataset:
        """The packed dataset."""
        ...

    @property
    def chosen_rows(self) -> IntArray | None:
        """Rows that were chosen by name or task; None where only a split, or nothing, was asked for."""
        ...

    @property
    def stream_names(self) -> Mapping[str, str]:
        """Batch key → what samples call it, for the streams that are loaded."""
        ...


PackedSource = str | os.PathLike[str] | MadeOfOne


def split_episodes(
    source: PackedSource,
    splits: Mapping[str, float | Episodes | None] | None = None,
    seed: int = 0,
    *,
    fs_type: str | None = None,
    fs_params: Mapping[str, Any] | None = None,
) -> EpisodeSplits:
    """Divide a dataset's episodes, whole ones, so that no frame of a split has a neighbour in another.

    Args:
        source: path or URL of a manifest, or a dataset made of it.
        splits: name → share of the episodes (the packer's rule: a hash of ``seed`` and the episode's source, so that
            nobody moves when episodes are added), or name → list of episodes, where None takes those that no list
            names. None: the splits that the dataset was packed with.
        seed: of the shares.
        fs_type: as in a ``loader_cfg``.
        fs_params: the same.

    Returns:
        A mapping of split → episode ids for ``episodes=``; printed, it reports the tasks of each.

    Raises:
        ConfigError: shares and lists mixed, an unknown episode, or one in two splits.
        PlanError: a split without an episode.
    """
    return split_rows(_open(source, fs_type, fs_params).index, splits, seed)


def normalization_stats(
    source: PackedSource,
    *,
    split: str = "train",
    episodes: Episodes | None = None,
    tasks: Sequence[str] | None = None,
    streams: Sequence[str] | None = None,
    cache: bool = True,
    fs_type: str | None = None,
    fs_params: Mapping[str, Any] | None = None,
) -> dict[str, StreamStats]:
    """Statistics of the numeric streams over the episodes to train on, and over no others.

    One pass over the numbers alone. Minimum, maximum, mean, standard deviation (ddof 0, float64) and the quantiles q01
    and q99 are exact, whatever the dataset's size; the latter are linear between two neighbours, as numpy's. What
    packing computed for the train split is taken from the manifest. The result is kept beside a local manifest, in a
    file named by a digest of manifest and episodes, so that a changed dataset never meets old numbers.

    Args:
        source: path or URL of a manifest, or a dataset made of it: then over the episodes that its ``episodes`` or
            ``tasks`` chose, if they did, and over the split to train on otherwise, whichever split the dataset has.
        split: the split to train on; where the dataset was packed without splits, ``train`` is all of it.
        episodes: only these: ids, or rows of the episode table.
        tasks: only episodes with one of these instructions.
        streams: numeric streams; None: all.
        cache: keep and use the file beside the manifest.
        fs_type: as in a ``loader_cfg``.
        fs_params: the same.

    Returns:
        Stream → statistics, by the names that the dataset's samples have.

    Raises:
        ConfigError: an episode, task or stream that the dataset doesn't have.
        PlanError: no episode is left.
        KnonikError: the numbers can't be read.
    """
    dataset = _open(source, fs_type, fs_params)
    index, made = dataset.index, source if isinstance(source, MadeOfOne) else None
    names = dict(made.stream_names) if made is not None else {stream.key: stream.key for stream in dataset.streams}
    chosen = made.chosen_rows if made is not None and episodes is None and tasks is None else None
    rows = chosen if chosen is not None else _train_rows(index, split, episodes, tasks)
    numeric = [stream for stream in dataset.streams if stream.kind == "numeric" and stream.key in names]
    if streams is not None:
        back = {name: key for key, name in names.items()}
        wanted = {resolve_stream(back.get(name, name), numeric, where="streams", kind="numeric") for name in streams}
        numeric = [stream for stream in numeric if stream.key in wanted]
    found = _known(dataset, rows, numeric) if chosen is None and episodes is None and tasks is None else None
    file = _cache_file(dataset, rows) if cache else None
    if found is None and file is not None:
        found = _load(file, numeric)
    if found is None:
        every = [stream for stream in dataset.streams if stream.kind == "numeric"] if file is not None else numeric
        found = _compute(dataset, rows, every)
        if file is not None:
            _store(file, dataset, found)
    return {names[stream.key]: found[stream.key] for stream in numeric}


def _open(source: PackedSource, fs_type: str | None, fs_params: Mapping[str, Any] | None) -> PackedDataset:
    if isinstance(source, MadeOfOne):
        return source.packed
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(f"name a manifest, or give a dataset made of it; got a {type(source).__name__}")
    given = {"decode_mode": "sequential", "chunk_len": 1, "batch_size": 1, "rank": 0, "world_size": 1}
    given |= {"hlp_manifest": os.fspath(source), "fs_type": fs_type, "fs_params": fs_params}
    config = load_loader_config(given)
    return open_dataset(open_storage(config.fs_type, config.fs_params), config.hlp_manifest)


def _train_rows(index: DatasetIndex, split: str, episodes: Episodes | None, tasks: Sequence[str] | None) -> IntArray:
    known = any(index.episodes.split)
    named = split if known or split != "train" else None
    rows = select_rows(index, split=None if episodes is not None else named, episodes=episodes, tasks=tasks)
    return np.arange(len(index.episodes), dtype=np.int64) if rows is None else rows


def _known(dataset: PackedDataset, rows: IntArray, numeric: Sequence[StreamInfo]) -> Mapping[str, StreamStats] | None:
    """What packing computed, where it did over these episodes."""
    manifest: Manifest = dataset.manifest
    frames = int(dataset.index.episodes.length[rows].sum())
    train = np.asarray([name in ("train", "") for name in dataset.index.episodes.split])
    if not np.array_equal(np.flatnonzero(train), rows):
        return None
    known = {stream.key: manifest.stats.get(stream.key) for stream in numeric}
    if any(stats is None or stats.count != frames for stats in known.values()):
        return None
    return {key: stats for key, stats in known.items() if stats is not None}


def _compute(dataset: PackedDataset, rows: IntArray, numeric: Sequence[StreamInfo]) -> dict[str, StreamStats]:
    """One pass, an episode at a time, through the reader that batches come through."""
    if not numeric:
        return {}
    lengths = dataset.index.episodes.length[rows]
    running = {stream.key: RunningStats(stream.shape[0], int(lengths.sum())) for stream in numeric}
    given = {"decode_mode": "sequential", "chunk_len": 1, "batch_size": 1, "rank": 0, "world_size": 1}
    config = load_loader_config({**given, "hlp_manifest": "any"})
    reader = DirectReader(Source("statistics", dataset, tuple(numeric)), config, "numpy")
    zero = np.zeros(1, np.int64)
    for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
        frames = np.arange(length, dtype=np.int64)[None, :]
        window = StreamWindow(frames, np.ones_like(frames, bool))
        windows = dict.fromkeys(running, window)
        plan = BatchPlan(0, 0, zero, zero + row, zero, np.zeros(1, np.uint64), windows)
        batch = reader.batch(plan)
        for key, stats in running.items():
            stats.add(batch[key][0])
    return {key: stats.result() for key, stats in running.items()}


def _cache_file(dataset: PackedDataset, rows: IntArray) -> Path | None:
    """The file of these episodes beside a local manifest; None elsewhere."""
    if dataset.storage.remote:
        return None
    digest = hashlib.sha256(f"stats\0{_FORMAT}\0{dataset.manifest.digest()}\0".encode())
    digest.update(np.ascontiguousarray(rows, "<i8").tobytes())
    return Path(dataset.key).parent / f"normalization_stats.{digest.hexdigest()[:16]}.json"


def _load(file: Path, numeric: Sequence[StreamInfo]) -> dict[str, StreamStats] | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        found = {key: StreamStats.model_validate(value) for key, value in data["stats"].items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
        _log.warning("%s is not a readable file of statistics (%s); they are computed anew", file, error)
        return None
    return found if all(stream.key in found for stream in numeric) else None


def _store(file: Path, dataset: PackedDataset, stats: Mapping[str, StreamStats]) -> None:
    """Write the file whole or not at all, so that ranks that start together don't see halves."""
    content = {
        "format": _FORMAT,
        "manifest": dataset.manifest.digest(),
        "stats": {key: value.model_dump(mode="json") for key, value in stats.items()},
    }
    try:
        part = file.with_name(f".{file.name}.{os.getpid()}")
        part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        _log.warning("statistics are not kept in %s: %s", file, error.strerror or error)
