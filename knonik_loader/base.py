"""What the loaders share: passes, positions, states, statistics, and an end to all of it."""

from __future__ import annotations

import functools
import operator
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from knonik_loader.config import LoaderConfig
from knonik_loader.config_streams import masked_streams
from knonik_loader.engine.batch import Assembler
from knonik_loader.engine.engine import Engine, Run
from knonik_loader.engine.fetch import ReadPolicy
from knonik_loader.engine.metrics import MetricsFile
from knonik_loader.engine.options import batch_memory, engine_options, frame_cache, worker_pool
from knonik_loader.engine.stats import Statistics
from knonik_loader.errors import ConfigError, LoaderClosedError, ResumeMismatchError
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.opening import Part
from knonik_loader.plan.absent import absent_windows, with_absent
from knonik_loader.plan.substitutes import SubstituteSource, with_substitutes
from knonik_loader.plan.types import BatchPlan
from knonik_loader.plan.windows import Window
from knonik_loader.state import STATE_VERSION, check_state, described, whole_number

__all__ = ["DataLoader", "Plan"]

MOST_EPOCHS = 2**31
_SHUTDOWN_S = 4.0
_BETWEEN_READS_S = 0.1

Batch = dict[str, Any]
Loader = TypeVar("Loader", bound="DataLoader")


@dataclass(slots=True)
class _Position:
    """Where the next batch to be handed out is."""

    epoch: int
    step: int


class Plan(Protocol):
    """What a loader needs of its sampler."""

    @property
    def num_batches(self) -> int:
        """Batches of one pass on this rank, the same on every rank."""
        ...

    @property
    def epoch_batches(self) -> int:
        """Batches of a whole epoch on this rank."""
        ...

    @property
    def epochs_per_pass(self) -> int:
        """Epochs that one pass enters."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that the order depends on but the epoch, as JSON values."""
        ...

    @property
    def digest(self) -> str:
        """Of `identity`."""
        ...

    @property
    def sources(self) -> Sequence[SubstituteSource]:
        """What the ``dataset`` column of plans counts."""
        ...

    def batch(self, epoch: int, step: int) -> BatchPlan:
        """This rank's batch ``step`` of the pass that starts with ``epoch``."""
        ...


class DataLoader:
    """One pass after another over a plan; a subclass opens the datasets, and says what it was made of.

    Args:
        name: what batches call the loader's data.
        config: of the whole loader.
        parts: its datasets.
        streams: of the batch.
        sampler: the plan.
        arguments: of the subclass's constructor, by which a copy in another process is made.
    """

    def __init__(
        self,
        name: str,
        config: LoaderConfig,
        parts: Sequence[Part],
        streams: Sequence[StreamInfo],
        sampler: Plan,
        arguments: tuple[Any, ...],
    ) -> None:
        self._name, self._config, self._streams = name, config, tuple(streams)
        self._parts = tuple(parts)
        self._sampler = sampler
        self._arguments = arguments
        self._position = _Position(config.epoch, 0)
        self._upcoming: _Position | None = self._position
        self._pass: weakref.ref[_Pass] | None = None
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._closed = False
        self._pid = os.getpid()
        self._engine = self._make_engine()

    def __repr__(self) -> str:
        shapes = ", ".join(f"{stream.key} {stream.shape}" for stream in self._streams)
        return f"{type(self).__name__}({self._name!r}, {len(self)} batches of {self._config.batch_size}, {shapes})"

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
        if not 0 <= number < MOST_EPOCHS:
            raise ConfigError(f"set_epoch: an epoch is a whole number from 0 to {MOST_EPOCHS - 1}, got {epoch!r}.")
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
            "epoch_batches": self._sampler.epoch_batches,
            **{field: digest for field, (_, digest) in self._manifests().items()},
            "digest": self._sampler.digest,
            "order": dict(self._sampler.identity),
            "streams": self._values(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on where ``state`` was taken.

        A loader whose ``stream_cfg`` makes other values of the same frames goes on all the same, with a warning.

        Raises:
            ResumeMismatchError: the state belongs to another dataset or order; the message names what differs.
        """
        self._check_open()
        digests = {**{field: key for field, (key, _) in self._manifests().items()}, "digest": self._name}
        place = check_state(state, self.state_dict(), digests, epochs=MOST_EPOCHS - 1, steps=len(self) - 1)
        # A last batch of fewer samples than ranks is there for few ranks and not for many: behind it, steps of a pass
        # that goes on into further epochs mean other batches.
        theirs, mine = whole_number(state.get("epoch_batches")), self._sampler.epoch_batches
        if theirs is None or (theirs != mine and place[1] > min(theirs, mine)):
            raise ResumeMismatchError(
                f"the state is {place[1]} batches into a pass whose epochs have epoch_batches={theirs}, here they "
                f"have {mine}; go on with the world size of the saved run, or start anew."
            )
        self._upcoming = _Position(*place)
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
        joined = False
        while not joined:
            for source in self._engine.sources:
                source.dataset.close()  # also gives up what is being read from a stalled network
            late = time.monotonic() >= deadline
            # A thread that was between two reads has begun another one, which is given up as well.
            joined = all(run.join(time.monotonic() + _BETWEEN_READS_S) for run in runs) or late
        for source in self._engine.sources:
            source.dataset.close()

    def __enter__(self) -> Self:
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
        sources = tuple(part.source() for part in self._parts)
        remote = any(source.dataset.storage.remote for source in sources)
        options = engine_options(config, remote)
        # Of the other profiles there is nothing to bundle, and the key is told to be inactive.
        bundles = "kdelta_direct_bundle_target_frames" not in config.inactive
        return Engine(
            sources=sources,
            streams=self._streams,
            plan=self._plan(),
            assembler=Assembler(sources, self._streams, config.framework, self._masked(), self._name),
            memory=batch_memory(config, options),
            stats=Statistics(config.inactive),
            metrics=MetricsFile(config.metrics_path, config.topology[0]) if config.metrics_path else None,
            options=options,
            policy=ReadPolicy.of(remote, config.kdelta_direct_bundle_target_frames if bundles else None),
            cache=frame_cache(config, [stream for part in self._parts for stream in part.stored]),
            processes=worker_pool(config),
            substitute=functools.partial(with_substitutes, sources=self._sampler.sources)
            if config.on_error == "skip"
            else None,
        )

    def _plan(self) -> Callable[[int, int], BatchPlan]:
        """Batches, with windows for the streams that no dataset has."""
        present = {stream.key for part in self._parts for stream in part.present}
        absent = absent_windows([s.key for s in self._streams if s.key not in present], self._config)
        return functools.partial(_planned, self._sampler.batch, absent) if absent else self._sampler.batch

    def _masked(self) -> set[str]:
        """Streams whose masks are in the batch: all under ``pad_missing``, always those that a dataset may lack."""
        return masked_streams([stream for part in self._parts for stream in part.bound], self._config.pad_missing)

    def _manifests(self) -> dict[str, tuple[str, str]]:
        """Field of a state → (key of a manifest, its digest)."""
        found = [(part.name, part.dataset) for part in self._parts]
        fields = ["manifest"] if len(found) == 1 else [f"manifest.{name}" for name, _ in found]
        return {f: (dataset.key, dataset.manifest.digest()) for f, (_, dataset) in zip(fields, found, strict=True)}

    def _values(self) -> dict[str, str]:
        """Stream → what its values are made of; of a mix, for each dataset."""
        if len(self._parts) == 1:
            return described(self._parts[0].bound)
        return {f"{part.name}.{key}": value for part in self._parts for key, value in described(part.bound).items()}

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


def _planned(batch: Callable[[int, int], BatchPlan], absent: Mapping[str, Window], epoch: int, step: int) -> BatchPlan:
    return with_absent(batch(epoch, step), absent)


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


def _restore(kind: type[Loader], arguments: tuple[Any, ...], epoch: int, step: int) -> Loader:
    loader = kind(*arguments)
    loader._upcoming = _Position(epoch, step)
    return loader
