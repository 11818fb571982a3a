"""Batches made in the thread that asks for them: for datasets whose prefetching somebody else does."""

from __future__ import annotations

from typing import Any

from knonik_loader.config_models import LoaderConfig
from knonik_loader.config_streams import LoadedStream, masked_streams
from knonik_loader.engine.augment import augment_sample
from knonik_loader.engine.batch import Assembler, Framework
from knonik_loader.engine.dataset import Source
from knonik_loader.engine.decode import Decoder
from knonik_loader.engine.fetch import ReadPolicy, fetch
from knonik_loader.engine.memory import RecyclingPool
from knonik_loader.engine.options import frame_cache
from knonik_loader.engine.work import BatchWork, divide, start_batch
from knonik_loader.plan.absent import absent_windows, with_absent
from knonik_loader.plan.types import BatchPlan

__all__ = ["DirectReader"]

_KEPT = 4
"""Buffers of a stream and size that are used again once nobody holds them: a batch, and those on their way out."""


class DirectReader:
    """The stages of the engine one after the other, without threads; one thread at a time may use it.

    Args:
        source: the opened dataset with the streams to load.
        config: how to read it, and what to do with each sample.
        framework: of the arrays.
        augment: whether the configuration's ``augment_fn`` runs.
    """

    def __init__(self, source: Source, config: LoaderConfig, framework: Framework, augment: bool = True) -> None:
        self._source = source
        self._augment = config.augment_fn if augment else None
        self._policy = ReadPolicy.of(source.dataset.storage.remote, None)
        self._streams = source.batch_streams
        bound = source.bound or [LoadedStream(stream, stream) for stream in source.streams]
        lacking = [stream.key for stream in bound if stream.stored is None]
        self._absent = absent_windows(lacking, config)
        self._cache = frame_cache(config, [stream.stored for stream in bound if stream.stored is not None])
        self._decoder = Decoder([source], config.verify_checksums, self._cache)
        self._memory = RecyclingPool(_KEPT)
        self._assembler = Assembler(
            [source], self._streams, framework, masked_streams(bound, config.pad_missing), source.name
        )
        self.bytes_read = 0
        """Bytes of payloads read so far."""

    def batch(self, plan: BatchPlan) -> dict[str, Any]:
        """A whole batch, augmented.

        Raises:
            KnonikError: the first failure in the order of samples and streams.
        """
        work = self._read(with_absent(plan, self._absent) if self._absent else plan)
        if self._augment is None:
            return self._assembler.batch(work)
        samples = [
            augment_sample(self._augment, sample, plan.step, at)
            for at, sample in enumerate(self._assembler.samples(work))
        ]
        return self._assembler.collate(work, samples)

    def _read(self, plan: BatchPlan) -> BatchWork:
        sources, streams = [self._source], self._streams
        work = start_batch(plan, sources, streams, self._memory, 0)
        for job in divide([work], sources, streams, max(1, len(self._source.dataset.index.shards))):
            found = fetch(job, self._source, self._policy, self._cache)
            self.bytes_read += found.bytes
            for group, error in found.failed:
                group.fail(job.works, error)
            for task in found.tasks:
                self._decoder.run(task)
        if work.error is not None:
            raise work.error
        return work
