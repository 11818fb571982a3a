"""What both datasets share: which samples there are, and a reader that each process opens for itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from knonik_loader import access
from knonik_loader.config import (
    LoaderConfig,
    load_loader_config,
    load_stream_config,
)
from knonik_loader.config_streams import LoadedStream, bind_streams
from knonik_loader.engine.dataset import PackedDataset, Source, open_dataset
from knonik_loader.engine.direct import DirectReader
from knonik_loader.engine.memory import BatchMemory
from knonik_loader.engine.storage import open_storage
from knonik_loader.errors import ConfigError, StorageError
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.manifest import Manifest
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.opening import Opened as Candidate
from knonik_loader.opening import align, finish
from knonik_loader.plan.sampler import Sampler
from knonik_loader.plan.types import BatchPlan
from knonik_loader.selection import Episodes, select_rows
from knonik_loader.torch.lerobot import LerobotShape
from knonik_loader.torch.need import get_worker_info, torch
from knonik_loader.torch.shared_memory import PicturesApart, SharedBatch, SharedPool, worker_memory
from knonik_loader.validation import nearest

__all__ = ["DatasetOptions", "Packed"]

IntArray = npt.NDArray[np.int64]

_LOADER_KEYS = (
    "chunk_len",
    "delta_timestamps",
    "delta_rounding",
    "pad_missing",
    "stride",
    "split",
    "seed",
    "image_key",
    "action_key",
    "payload",
    "augment_fn",
    "fs_type",
    "fs_params",
    "verify_checksums",
    "hlps_in_flight",
    "ram_cache_bytes",
    "num_decoders",
)
"""Options that mean what they mean in a ``loader_cfg``."""


class DatasetOptions(TypedDict, total=False):
    """What a dataset is told besides its manifest; None means the default."""

    chunk_len: int
    """Frames in a contiguous window; 1."""
    delta_timestamps: Mapping[str, Sequence[float]] | None
    """Stream → offsets in seconds from the anchor, resolved on the episode's own clock."""
    delta_rounding: Literal["nearest", "floor", "ceil"]
    """Which frame an offset between two frames means."""
    pad_missing: bool
    """Clamp windows to the episode and add masks; otherwise such anchors are left out. Default with LeRobot's keys."""
    stride: int
    """Frames between anchors of an episode; 1."""
    seed: int
    """Of augmentations, and of an iterable dataset's order; 0."""
    streams: Mapping[str, Any] | Sequence[str] | None
    """The streams to load, as a list or as a ``stream_cfg``; nothing of the others is read. None: all."""
    image_key: str | Sequence[str] | None
    """The cameras to load; None: all."""
    action_key: str | None
    """A numeric stream that must be there."""
    payload: Literal["shdr", "kimg", "kdelta"] | None
    """How the manifest's pictures must be stored."""
    split: str | None
    """A split that the dataset was packed with."""
    episodes: Episodes | None
    """Only these: ids, or rows of the episode table."""
    tasks: Sequence[str] | None
    """Only episodes with one of these instructions."""
    keys: Literal["khlp", "lerobot"]
    """How samples name things: as batches of the loaders do, or as LeRobot does."""
    image_dtype: Literal["float32", "uint8"]
    """With ``keys="lerobot"``: pictures in [0, 1], or as they are stored."""
    state_key: str | None
    """With ``keys="lerobot"``: the stream to call ``observation.state``; None: ``state``, or else ``qpos``."""
    augment_fn: Any
    """Called with each sample, as the loaders do."""
    dataset_name: str | None
    """What samples call the dataset; None: the name in the manifest."""
    fs_type: Literal["local", "s3", "gcs", "azure"]
    """Where the files are; a URL implies it."""
    fs_params: Mapping[str, Any] | None
    """How to reach them."""
    verify_checksums: bool
    """Check every payload that is read; True."""
    hlps_in_flight: int | None
    """KHLP files whose index is kept open in each process."""
    num_decoders: int | None
    """Threads that decode a batch; None: as many as PyTorch uses, in a worker its share of the cores."""
    ram_cache_bytes: int
    """Of decoded keyframes or video kept in each process; 0."""


@dataclass(frozen=True)
class Opened:
    """A dataset as far as planning needs it: no file is open, and a fork may share it."""

    config: LoaderConfig
    key: str
    manifest: Manifest
    index: DatasetIndex
    streams: tuple[StreamInfo, ...]
    """Of samples."""
    bound: tuple[LoadedStream, ...]
    """What becomes of the stored streams in them."""
    sampler: Sampler
    name: str
    shape: LerobotShape | None


_ABANDONED: list[DirectReader] = []
"""Readers that a fork brought along: freeing their decoders could wait for threads that stayed in the parent."""


class Packed:
    """A packed dataset as PyTorch's workers need it: small to send, and opened where it is used.

    Args:
        hlp_manifest: path or URL of ``hlp_manifest.json``.
        options: `DatasetOptions`.
        plan: further keys of a ``loader_cfg`` that decide the order.
    """

    def __init__(
        self, hlp_manifest: str | os.PathLike[str], options: Mapping[str, Any], plan: Mapping[str, Any]
    ) -> None:
        access.require("multidataloader")
        for option in options:
            if option not in DatasetOptions.__annotations__:
                hint = nearest(option, [name for name in (*DatasetOptions.__annotations__, *plan) if name != option])
                if option in plan:
                    hint = "; here it is up to PyTorch's DataLoader and its sampler"
                raise ConfigError(f"{type(self).__name__}: unknown option {option!r}{hint}")
        self._options = {key: value for key, value in options.items() if value is not None}
        self._chosen = "episodes" in self._options or "tasks" in self._options
        self._plan = dict(plan)
        if not isinstance(hlp_manifest, str | os.PathLike):
            raise ConfigError(f"{type(self).__name__}: hlp_manifest is a path or URL, got {hlp_manifest!r}")
        self._manifest = os.fspath(hlp_manifest)
        self._rows: npt.NDArray[np.uint8] | None = None
        self._digest: str | None = None
        self._opened: Opened | None = self._open()
        self._reader: DirectReader | None = None
        self._memory: SharedPool | None = None
        self._pid = os.getpid()
        self._locks: dict[int, threading.RLock] = {}

    @property
    def opened(self) -> Opened:
        """The plan; read again, once, in a process that got the dataset by mail."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    @property
    def reader(self) -> DirectReader:
        """The reader of this process."""
        if self._pid != os.getpid():
            if self._reader is not None:
                _ABANDONED.append(self._reader)
            self._reader, self._pid = None, os.getpid()
        if self._reader is None:
            opened = self.opened
            self._memory = worker_memory()
            source = Source.of(opened.name, self.packed, opened.bound)
            memory: BatchMemory | None = self._memory
            if self._memory is not None and opened.shape is not None:
                memory = PicturesApart(self._memory, keep=1)
            self._reader = DirectReader(source, opened.config, "torch", memory=memory)
        return self._reader

    def made(self, plan: BatchPlan) -> dict[str, Any]:
        """A batch with the keys that were asked for; in a worker in memory that the main process sees, too."""
        # Decoders serve one thread at a time. A lock of this process: one from before a fork could be held for ever.
        with self._locks.setdefault(os.getpid(), threading.RLock()):
            batch = self.reader.batch(plan, self.opened.config.num_decoders or _threads())
        shape = self.opened.shape
        if shape is not None:
            batch = shape.convert(batch, plan.episodes, self._memory)
        return batch if self._memory is None else SharedBatch(batch, self._memory)

    @property
    def packed(self) -> PackedDataset:
        """The packed dataset, with nothing open yet."""
        opened = self.opened
        storage = open_storage(opened.config.fs_type, opened.config.fs_params)
        return PackedDataset(storage, opened.key, opened.manifest, opened.index, opened.config.hlps_in_flight)

    @property
    def chosen_rows(self) -> IntArray | None:
        """Rows of the episodes that ``episodes`` or ``tasks`` chose; None where neither was given."""
        return self._select(self.opened.index) if self._chosen else None

    @property
    def stream_names(self) -> dict[str, str]:
        """Key of a stored stream → what samples call it, for those that are loaded."""
        shape, bound = self.opened.shape, self.opened.bound
        names = {b.key: b.key if shape is None else shape.names[b.key] for b in bound}
        return {b.stored.key: names[b.key] for b in reversed(bound) if b.stored is not None}

    def __getstate__(self) -> dict[str, Any]:
        """Options and which episodes; nothing of the index, and no handle."""
        state = {**self.__dict__, "_opened": None, "_reader": None, "_memory": None, "_locks": {}}
        if "episodes" in self._options and self._rows is not None:
            state["_options"] = {key: value for key, value in self._options.items() if key != "episodes"}
        return state

    def _open(self) -> Opened:
        options, what = self._options, type(self).__name__
        shaped = options.get("keys", "khlp")
        if shaped not in ("khlp", "lerobot"):
            raise ConfigError(f"{what}: keys={shaped!r} is not 'khlp' or 'lerobot'")
        given = {key: options[key] for key in _LOADER_KEYS if key in options}
        given = {"chunk_len": 1, "decode_mode": "random_access", "framework": "torch", **given, **self._plan}
        given["hlp_manifest"] = self._manifest
        plain = {key: value for key, value in given.items() if key not in ("delta_timestamps", "image_key")}
        first = load_loader_config(plain)
        storage = open_storage(first.fs_type, first.fs_params)
        dataset = open_dataset(storage, first.hlp_manifest)
        storage.close()
        self._check_digest(dataset)
        chosen = load_stream_config(self._streams(), dataset.streams)
        bound = bind_streams(chosen, dataset.streams, dataset.manifest.stats)
        shape = None
        if shaped == "lerobot":
            named = {stream.key: stream for stream in (*dataset.streams, *(stream.batch for stream in bound))}
            shape = LerobotShape(dataset.index, list(named.values()), options, given)
            given = shape.loader_keys(given)
        elif "image_dtype" in options or "state_key" in options:
            raise ConfigError(f"{what}: image_dtype and state_key belong to keys='lerobot'; leave them out")
        (part,), streams = finish(*align([Candidate(options.get("dataset_name"), given, dataset, bound)]))
        config = part.config
        self._manifest, self._digest = dataset.key, dataset.manifest.digest()
        # From here on the topology that was found holds, also where a worker's environment says nothing of it.
        self._plan |= {"rank": config.topology[0], "world_size": config.topology[1]}
        sampler = Sampler(dataset.index, part.present, config, self._select(dataset.index))
        return Opened(
            config, dataset.key, dataset.manifest, dataset.index, tuple(streams), part.bound, sampler, part.name, shape
        )

    def _streams(self) -> Mapping[str, Any]:
        streams = self._options.get("streams") or {}
        if not isinstance(streams, Iterable):
            raise ConfigError(f"streams: a list of streams or a mapping, got {streams!r}")
        if isinstance(streams, str):
            raise ConfigError(f"streams: a list of streams or a mapping, got {streams!r}; write [{streams!r}]")
        return streams if isinstance(streams, Mapping) else {key: {} for key in streams}

    def _select(self, index: DatasetIndex) -> IntArray | None:
        """Rows of the episodes; those named are kept as one bit an episode, however many they are."""
        if self._rows is not None:
            return np.flatnonzero(np.unpackbits(self._rows, count=len(index.episodes))).astype(np.int64)
        options = self._options
        rows = select_rows(
            index, split=options.get("split"), episodes=options.get("episodes"), tasks=options.get("tasks")
        )
        if rows is not None:
            keep = np.zeros(len(index.episodes), bool)
            keep[rows] = True
            self._rows = np.packbits(keep)
        return rows

    def _check_digest(self, dataset: PackedDataset) -> None:
        if self._digest is not None and dataset.manifest.digest() != self._digest:
            raise StorageError(
                f"{dataset.key} was packed anew since this dataset was made; make the dataset again, or name the "
                "manifest of its generation, which stays beside it."
            )


def _threads() -> int:
    """PyTorch's in the main process. A worker, which PyTorch gives one, takes the cores that no other worker needs.

    ``LOCAL_WORLD_SIZE``, as torchrun sets it, says how many processes have such workers.
    """
    info = get_worker_info()
    if info is None:
        threads: int = torch.get_num_threads()
        return threads
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    others = int(info.num_workers) * (int(processes) if processes.isdecimal() and int(processes) else 1)
    return max(1, len(os.sched_getaffinity(0)) // others)
