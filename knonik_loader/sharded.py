"""The loader of one packed dataset."""

from __future__ import annotations

import operator
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader import access
from knonik_loader.config import load_loader_config, load_stream_config, select_streams
from knonik_loader.engine.batch import Assembler
from knonik_loader.engine.dataset import PackedDataset, Source, open_dataset
from knonik_loader.engine.engine import Engine, Run
from knonik_loader.engine.fetch import ReadPolicy
from knonik_loader.engine.metrics import MetricsFile
from knonik_loader.engine.options import (
    batch_memory,
    check_shard_size,
    engine_options,
    files_open,
    frame_cache,
    worker_pool,
)
from knonik_loader.engine.stats import Statistics
from knonik_loader.engine.storage import open_storage
from knonik_loader.errors import ConfigError, LoaderClosedError, ResumeMismatchError
from knonik_loader.plan.sampler import Sampler
from knonik_loader.plan.substitutes import with_substitutes
from knonik_loader.plan.types import BatchPlan

__all__ = ["ShardedDataLoader"]

STATE_VERSION = 1
_SHUTDOWN_S = 4.0

Batch = dict[str, Any]


@dataclass(slots=True)
class _Position:
    """Where the next batch to be handed out is."""

    epoch: int
    step: int


class ShardedDataLoader:
    """Training batches from one packed dataset.

    Every ``iter()`` is one pass over an epoch, and the next ``iter()`` goes on with the next epoch; after
    `load_state_dict` the first one goes on in the middle. A loader has one pass at a time: a new one ends the last.

    Args:
        loader_cfg: what to load and how; see the configuration reference.
        stream_cfg: stream → options; empty takes every stream of the manifest.
        dataset_name: what batches call the dataset; None: the name in the manifest.

    Raises:
        ConfigError: a mistake in the configuration.
        StorageError: the manifest or its index can't be read.
        FormatError: they are damaged.
        PlanError: the dataset has no sample as asked for.
        LoginRequired: an issuer is configured and there is no valid token.
    """

    def __init__(
        self,
        loader_cfg: Mapping[str, Any],
        stream_cfg: Mapping[str, Any] | None = None,
        dataset_name: str | None = None,
    ) -> None:
        access.require("multidataloader")
        self._arguments = (dict(loader_cfg), dict(stream_cfg or {}), dataset_name)
        config = load_loader_config(loader_cfg)
        storage = open_storage(config.fs_type, config.fs_params)
        dataset = open_dataset(storage, config.hlp_manifest)
        self._manifest, self._index, self._key = dataset.manifest, dataset.index, dataset.key
        chosen = load_stream_config(stream_cfg or {}, dataset.streams)
        # Under zerocopy every stream needs its shape, but only those that are loaded.
        known = [stream for stream in dataset.streams if not (config.zerocopy and chosen) or stream.key in chosen]
        self._config = load_loader_config(loader_cfg, profile=self._manifest.storage_profile, streams=known)
        self._streams = tuple(select_streams(self._config, chosen, dataset.streams))
        check_shard_size(self._config, dataset, self._streams)
        self._sampler = Sampler(self._index, self._streams, self._config)
        self._name = dataset_name if dataset_name is not None else self._manifest.dataset
        self._position = _Position(self._config.epoch, 0)
        self._upcoming: _Position | None = self._position
        self._pass: weakref.ref[_Pass] | None = None
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._closed = False
        self._pid = os.getpid()
        self._engine = self._make_engine()

    def __repr__(self) -> str:
        shapes = ", ".join(f"{stream.key} {stream.shape}" for stream in self._streams)
        return f"ShardedDataLoader({self._name!r}, {len(self)} batches of {self._config.batch_size}, {shapes})"

    def __len__(self) -> int:
        """Batches of one pass, on every rank the same."""
        return self._sampler.num_batches

    def __iter__(self) -> Iterator[Batch]:
        """Start the next pass; its batches are made ahead from now on.

        Raises:
            LoaderClosedError: after `shutdown`.
        """
        self._check_open()
        engine = self._here()
        self._end_pass("a newer iter() of the same loader took its place, and a loader has one pass at a time")
        self._position = self._upcoming or _Position(self._position.epoch + self._sampler.epochs_per_pass, 0)
        self._upcoming = None
        current = _Pass(engine, self._position, len(self))
        self._pass = weakref.ref(current)
        self._runs.add(current.run)
        return current

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be over this epoch: from its beginning, unless a loaded state stands in its middle.

        Raises:
            ConfigError: no epoch number.
        """
        try:
            number = operator.index(epoch)
        except TypeError:
            number = -1
        if number < 0:
            raise ConfigError(f"set_epoch: an epoch is a whole number from 0 on, got {epoch!r}.")
        if self._upcoming is None or self._upcoming.epoch != number:
            self._upcoming = _Position(number, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, as JSON values: a state loaded anywhere goes on with the batch after the last handed out.

        Batches that are made ahead don't count. The state holds for every rank and for another world size, as long as
        the global batch (``batch_size`` x ``world_size``) is the same.
        """
        epoch, step = self._where()
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "step": step,
            "manifest": self._manifest.digest(),
            "digest": self._sampler.digest,
            "order": dict(self._sampler.identity),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on where ``state`` was taken.

        Raises:
            ResumeMismatchError: the state belongs to another dataset or order; the message names what differs.
        """
        self._check_open()
        self._upcoming = self._checked_state(state)
        self._end_pass("load_state_dict() moved the loader; call iter() to go on from there")

    def stats(self) -> dict[str, Any]:
        """Counts, times of each stage, waits of the consumer, memory and diversity, over all passes so far."""
        engine = self._here()
        epoch, step = self._where()
        return engine.snapshot(epoch, step)

    def shutdown(self) -> None:
        """End all threads and close all files; returns within 5 s whatever is in flight, and may be called again."""
        self._closed = True
        if self._pid != os.getpid():
            return
        self._end_pass("the loader was shut down")
        deadline = time.monotonic() + _SHUTDOWN_S
        runs = list(self._runs)
        for run in runs:
            run.close()
        if self._engine.processes is not None:
            self._engine.processes.close()
        for run in runs:
            run.join(deadline)
        for source in self._engine.sources:
            source.dataset.close()

    def __enter__(self) -> ShardedDataLoader:
        """The loader itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down."""
        self.shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        """Only arguments and position travel; files are opened again where the loader arrives."""
        return (_restore, (type(self), self._arguments, *self._where()))

    def _here(self) -> Engine:
        """The engine of this process: a forked child makes its own, as locks and threads don't come along."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._pass = None
            self._engine = self._make_engine()
        return self._engine

    def _make_engine(self) -> Engine:
        config = self._config
        rank, _ = config.topology
        files = files_open(config)
        storage = open_storage(config.fs_type, config.fs_params, files)
        dataset = PackedDataset(storage, self._key, self._manifest, self._index, files)
        sources = (Source(self._name, dataset, self._streams),)
        options = engine_options(config, storage.remote)
        return Engine(
            sources=sources,
            streams=self._streams,
            plan=self._sampler.batch,
            assembler=Assembler(sources, self._streams, config.framework, config.pad_missing, self._name),
            memory=batch_memory(config, options),
            stats=Statistics(config.inactive),
            metrics=MetricsFile(config.metrics_path, rank) if config.metrics_path else None,
            options=options,
            policy=ReadPolicy.of(storage.remote, config.kdelta_direct_bundle_target_frames),
            cache=frame_cache(config, self._streams),
            processes=worker_pool(config),
            substitute=self._substitute if config.on_error == "skip" else None,
        )

    def _substitute(self, plan: BatchPlan, at: npt.NDArray[np.int64], attempt: int) -> BatchPlan:
        return with_substitutes(plan, at, attempt, [self._sampler])

    def _check_open(self) -> None:
        if self._closed:
            raise LoaderClosedError("the loader was shut down; make a new one to go on.")

    def _end_pass(self, reason: str) -> None:
        current = self._pass() if self._pass is not None else None
        if current is not None:
            current.run.close(reason)
        self._pass = None

    def _where(self) -> tuple[int, int]:
        """(epoch, step) of the batch to be handed out next; the end of a pass is the beginning of the next one."""
        current = self._pass() if self._pass is not None else None
        running = current is not None and not current.exhausted
        position = self._position if running or self._upcoming is None else self._upcoming
        if position.step >= len(self):
            return position.epoch + self._sampler.epochs_per_pass, 0
        return position.epoch, position.step

    def _checked_state(self, state: Mapping[str, Any]) -> _Position:
        version = state.get("version") if hasattr(state, "get") else f"a {type(state).__name__}"
        if version != STATE_VERSION:
            raise ResumeMismatchError(
                f"the state's version is {version!r}, this loader reads {STATE_VERSION}; pass what state_dict() gave."
            )
        mine = self.state_dict()
        theirs = state.get("order")
        order = theirs if isinstance(theirs, Mapping) else {}
        for name, value in mine["order"].items():
            if order.get(name) != value:
                raise ResumeMismatchError(
                    f"the state was saved with {name}={order.get(name)!r}, this loader has {value!r}; configure it as "
                    "the saved run was, or start anew."
                )
        for name in ("manifest", "digest"):
            if state.get(name) != mine[name]:
                raise ResumeMismatchError(
                    f"the state's {name} is {str(state.get(name))[:12]}…, that of {self._key} is {mine[name][:12]}…: "
                    "the dataset was packed anew; name the manifest of the saved run's generation, or start anew."
                )
        numbers: list[int] = []
        for name, limit in (("epoch", 2**62), ("step", len(self))):
            value = state.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < limit:
                raise ResumeMismatchError(f"the state's {name} is {value!r}, which no run of this loader reaches.")
            numbers.append(value)
        return _Position(*numbers)


class _Pass(Iterator[Batch]):
    """One pass; its threads end when it is exhausted, ended or collected."""

    def __init__(self, engine: Engine, position: _Position, stop: int) -> None:
        self._position = position
        self._pid = os.getpid()
        self.exhausted = False
        self.run = Run(engine, position.epoch, position.step, stop)
        # At the interpreter's end the engine closes all runs that are left, and waits for their threads.
        weakref.finalize(self, self.run.close).atexit = False
        self.run.start()

    def __next__(self) -> Batch:
        if self._pid != os.getpid():
            raise LoaderClosedError("this pass belongs to the process that was forked; call iter(loader) in this one.")
        batch = None if self.exhausted else self.run.next()
        self._position.step = self.run.step
        if batch is None:
            self.exhausted = True
            self.run.close()
            raise StopIteration
        return batch


def _restore(kind: type[ShardedDataLoader], arguments: tuple[Any, ...], epoch: int, step: int) -> ShardedDataLoader:
    loader = kind(*arguments)
    loader._upcoming = _Position(epoch, step)
    return loader
