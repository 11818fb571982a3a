"""One pass over the episodes' numbers: clocks for the index, statistics for the manifest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.episodes.storing import digest_file, storage_errors
from knonik_assets.packing.plan import PackPlan
from knonik_loader.errors import EpisodeError
from knonik_loader.khlp.index import DatasetIndex, EpisodeTable, ShardTable, regular_clock
from knonik_loader.khlp.manifest import StreamStats
from knonik_loader.stats import RunningStats

__all__ = ["Survey", "build_index", "survey"]


@dataclass(frozen=True, slots=True)
class Survey:
    """What the numbers say."""

    t0: npt.NDArray[np.float64]
    """(E,) seconds of each episode's first frame."""
    clocks: Mapping[int, npt.NDArray[np.float64]]
    """Episode row → (T,) seconds, where the clock is not the nominal one."""
    stats: Mapping[str, StreamStats]
    """Numeric stream → statistics over the train split."""
    warnings: tuple[str, ...]


def survey(input_dir: Path, plan: PackPlan) -> Survey:
    """Check every episode's files, and read its clock and the numeric streams that count for the statistics.

    Raises:
        EpisodeError: an episode's clock runs backwards or is not finite, its rows are not what was planned, or a
            file of it differs from its checksum.
    """
    numeric = [stream for stream in plan.streams if stream.kind == "numeric"]
    train = set(plan.train_rows)
    rows = sum(plan.episodes[row].length for row in train)
    running = {stream.name: RunningStats(stream.shape[0], rows) for stream in numeric}
    t0 = np.empty(len(plan.episodes))
    clocks: dict[int, npt.NDArray[np.float64]] = {}
    for row, episode in enumerate(plan.episodes):
        reader = EpisodeReader(input_dir / episode.episode_id)
        _check_files(reader, plan)
        times = reader.frame_time()
        _check_clock(times, reader.path)
        t0[row] = times[0]
        if not regular_clock(times, plan.fps):
            clocks[row] = times
        for stream in numeric if row in train else ():
            values = reader.numeric(stream.name)
            if values.shape != (episode.length, *stream.shape):
                raise EpisodeError(
                    f"{reader.path}: stream {stream.name!r} is {values.shape}, not {(episode.length, *stream.shape)}; "
                    f"ingest it again, or leave it out with --exclude {episode.episode_id}."
                )
            running[stream.name].add(values)
    return Survey(
        t0, clocks, {name: stats.result() for name, stats in running.items()}, tuple(_non_finite(running, plan))
    )


def _check_files(reader: EpisodeReader, plan: PackPlan) -> None:
    """Compare what is about to be packed with its checksums.

    A damaged number is just another number, and damaged pictures need not fail either: JPEGs pass undecoded, and video
    decoders paint over what is missing.
    """
    packed = tuple(f"{stream.name}/" if stream.kind == "numeric" else f"{stream.key}." for stream in plan.streams)
    names = [name for name in reader.metadata.files if name.startswith(("frame_time/", *packed))]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # hashing lets go of the interpreter
        for name, digest in zip(names, pool.map(_digest, [reader.path / name for name in names]), strict=True):
            if digest != reader.metadata.files[name].sha256:
                raise EpisodeError(
                    f"{reader.path / name} differs from the checksum it was written with; remove the episode and "
                    f"ingest it again, or leave it out with --exclude {reader.path.name}."
                )


def _digest(path: Path) -> str:
    with storage_errors("read", path):
        return digest_file(path)[1]


def _check_clock(times: npt.NDArray[np.float64], path: Path) -> None:
    good = np.isfinite(times)
    good[1:] &= ~(np.diff(times) < 0)
    if not good.all():
        raise EpisodeError(
            f"{path}: the clock runs backwards or stops being a number at frame {int(np.argmin(good))}; "
            f"leave the episode out with --exclude {path.name}."
        )


def _non_finite(running: Mapping[str, RunningStats], plan: PackPlan) -> list[str]:
    found = []
    for stream in plan.streams:
        bad = running[stream.name].non_finite if stream.kind == "numeric" else np.zeros(1)
        if bad.any():
            labels = stream.channel_names or tuple(map(str, range(len(bad))))
            channels = ", ".join(f"{labels[channel]} ({bad[channel]})" for channel in np.flatnonzero(bad)[:5])
            found.append(
                f"{stream.name} has {int(bad.sum())} values that are not finite, left out of its statistics; "
                f"channels: {channels}."
            )
    return found


def build_index(plan: PackPlan, found: Survey) -> DatasetIndex:
    """The sidecar's tables."""
    episodes = plan.episodes
    regular = np.ones(len(episodes), bool)
    regular[list(found.clocks)] = False
    table = EpisodeTable(
        episode_id=[episode.episode_id for episode in episodes],
        source_id=[episode.source_id for episode in episodes],
        length=np.array([episode.length for episode in episodes], np.int64),
        split=list(plan.splits),
        regular=regular,
        t0=found.t0,
        fps=np.full(len(episodes), plan.fps),
        language=[episode.instruction for episode in episodes],
        digest=np.frombuffer(b"".join(episode.digest for episode in episodes), np.uint8).reshape(-1, 32),
    )
    return DatasetIndex(table, found.clocks, _shard_table(plan))


def _shard_table(plan: PackPlan) -> ShardTable:
    rows: Sequence[tuple[int, int, int, int, int]] = sorted(
        (shard.episode, shard.first_frame, shard.frames, hlp, number)
        for hlp, file in enumerate(plan.files)
        for number, shard in enumerate(file.shards)
    )
    episode, first_frame, frames, hlp, shard = np.array(rows, np.uint32).T.copy()
    return ShardTable(hlp=hlp, shard=shard, episode=episode, first_frame=first_frame, frames=frames)
