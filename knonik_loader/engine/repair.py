"""``on_error="skip"``: samples that can't be read are exchanged for planned substitutes, in the batch's own memory."""

from __future__ import annotations

import logging

import numpy as np

from knonik_loader.engine.shared import Engine
from knonik_loader.engine.work import BatchWork, Failure, FileJob, divide, place_anchors
from knonik_loader.errors import DecodeError, FormatError, KnonikError, StorageError, reworded

__all__ = ["ATTEMPTS", "repair"]

ATTEMPTS = 8
"""Substitutes of one sample that are tried; a dataset of which that many in a row are bad is not worth a run."""

_logger = logging.getLogger("knonik_loader")


def repair(work: BatchWork, engine: Engine) -> list[FileJob]:
    """Exchange the samples that failed.

    Returns:
        What is to be read for the batch to be whole; nothing where its failures stand: substitutes were not asked for,
        the failures are none of the data's, or too many substitutes failed as well.
    """
    if engine.substitute is None or not all(_of_the_data(failure.error) for failure in work.failures):
        return []
    if work.attempts == ATTEMPTS:
        work.failures = [_exhausted(failure) for failure in work.failures]
        return []
    work.attempts += 1
    bad = np.array(sorted(set().union(*(failure.samples for failure in work.failures))), np.int64)
    plan = engine.substitute(work.plan, bad, work.attempts)
    for at in bad.tolist():
        _report(work, at, engine)
    engine.stats.skipped(len(bad))
    work.plan, work.only, work.failures = plan, bad, []
    work.places = place_anchors(plan, engine.sources)
    return divide([work], engine.sources, engine.streams, engine.options.job_shards)


def _of_the_data(error: BaseException) -> bool:
    """Whether an object is damaged or missing; an unreachable store or a mistake of the user's is no bad sample."""
    return isinstance(error, FormatError | DecodeError) or (isinstance(error, StorageError) and not error.outage)


def _exhausted(failure: Failure) -> Failure:
    error = failure.error
    if not isinstance(error, KnonikError):
        return failure
    message = f"{error} (on_error='skip': {ATTEMPTS} substitutes in a row are unreadable too, this is the last one)"
    return Failure(failure.samples, failure.stream, reworded(error, message))


def _report(work: BatchWork, at: int, engine: Engine) -> None:
    plan = work.plan
    failure = min((failure for failure in work.failures if at in failure.samples), key=lambda each: each.order)
    source = engine.sources[int(plan.dataset[at])]
    _logger.warning(
        "on_error='skip': epoch %d, batch %d, sample %d (dataset %r, episode %r, frame %d) is replaced: %s",
        plan.epoch,
        plan.step,
        at,
        source.name,
        source.dataset.index.episodes.episode_id[int(plan.episodes[at])],
        int(plan.anchors[at]),
        failure.error,
    )
