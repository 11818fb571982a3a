"""Batches made in the thread that asks for them: for datasets whose prefetching somebody else does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from knonik_loader.config_models import LoaderConfig
from knonik_loader.config_streams import LoadedStream, masked_streams
from knonik_loader.engine.augment import augment_sample
from knonik_loader.engine.batch import Assembler, Framework
from knonik_loader.engine.dataset import Source
from knonik_loader.engine.decode import Decoder
from knonik_loader.engine.fetch import DecodeTask, ReadPolicy, fetch
from knonik_loader.engine.memory import BatchMemory, RecyclingPool
from knonik_loader.engine.options import frame_cache
from knonik_loader.engine.work import BatchWork, divide, start_batch
from knonik_loader.plan.absent import absent_windows, with_absent
from knonik_loader.plan.types import BatchPlan

__all__ = ["DirectReader"]

_KEPT = 4
"""Buffers of a stream and size that are used again once nobody holds them: a batch, and those on their way out."""


class DirectReader:
    """The stages of the engine one after the other; one thread at a time may use it.

    Args:
        source: the opened dataset with the streams to load.
        config: how to read it, and what to do with each sample.
        framework: of the arrays.
        augment: whether the configuration's ``augment_fn`` runs.
        memory: of the batches; None: memory of this process, used again once nobody holds it.
    """

    def __init__(
        self,
        source: Source,
        config: LoaderConfig,
        framework: Framework,
        augment: bool = True,
        memory: BatchMemory | None = None,
    ) -> None:
        self._source = source
        self._augment = config.augment_fn if augment else None
        self._policy = ReadPolicy.of(source.dataset.storage.remote, None)
        self._streams = source.batch_streams
        bound = source.bound or [LoadedStream(stream, stream) for stream in source.streams]
        lacking = [stream.key for stream in bound if stream.stored is None]
        self._absent = absent_windows(lacking, config)
        self._cache = frame_cache(config, [stream.stored for stream in bound if stream.stored is not None])
        self._verify = config.verify_checksums
        self._decoders: list[Decoder] = []
        self._memory = RecyclingPool(_KEPT) if memory is None else memory
        self._assembler = Assembler(
            [source], self._streams, framework, masked_streams(bound, config.pad_missing), source.name
        )
        self.bytes_read = 0
        """Bytes of payloads read so far."""

    def batch(self, plan: BatchPlan, threads: int = 1) -> dict[str, Any]:
        """A whole batch, augmented.

        Args:
            plan: which frames.
            threads: that decode it; they end with the batch, so that a process may fork between two.

        Raises:
            KnonikError: the first failure in the order of samples and streams.
        """
        work = self._read(with_absent(plan, self._absent) if self._absent else plan, threads)
        if self._augment is None:
            return self._assembler.batch(work)
        samples = [
            augment_sample(self._augment, sample, plan.step, at)
            for at, sample in enumerate(self._assembler.samples(work))
        ]
        return self._assembler.collate(work, samples)

    def _read(self, plan: BatchPlan, threads: int) -> BatchWork:
        sources, streams = [self._source], self._streams
        work = start_batch(plan, sources, streams, self._memory, 0)
        for job in divide([work], sources, streams, max(1, len(self._source.dataset.index.shards))):
            found = fetch(job, self._source, self._policy, self._cache)
            self.bytes_read += found.bytes
            for group, error in found.failed:
                group.fail(job.works, error)
            self._decode(found.tasks, threads)
        if work.error is not None:
            raise work.error
        return work

    def _decode(self, tasks: Sequence[DecodeTask], threads: int) -> None:
        """Share tasks out to threads; a frame that fails is noted in the batch."""
        count = max(1, min(threads, len(tasks)))
        while len(self._decoders) < count:
            self._decoders.append(Decoder([self._source], self._verify, self._cache))
        if count == 1:
            for task in tasks:
                self._decoders[0].run(task)
            return
        left = iter(tasks)
        lock = threading.Lock()

        def work(decoder: Decoder) -> None:
            while True:
                with lock:
                    task = next(left, None)
                if task is None:
                    return
                decoder.run(task)

        with ThreadPoolExecutor(count) as pool:
            list(pool.map(work, self._decoders[:count]))
