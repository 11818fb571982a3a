"""One pass over the episodes' numbers: clocks for the index, statistics for the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.packing.facts import EpisodeFacts, check_files, packed_files
from knonik_assets.packing.plan import PackPlan
from knonik_assets.packing.staging import Desk, Staging
from knonik_loader.errors import EpisodeError
from knonik_loader.khlp.index import DatasetIndex, EpisodeTable, ShardTable, regular_clock
from knonik_loader.khlp.manifest import StreamStats
from knonik_loader.khlp.types import StreamInfo
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


def survey(staging: Staging, plan: PackPlan, *, pictures: bool = True) -> Survey:
    """Check every episode's files, and read its clock and the numeric streams that count for the statistics.

    Of episodes at a URL the other streams are fetched, and checked, when they are packed; without ``pictures``, others
    are left to `knonik_assets.packing.checksums.PictureCheck`.

    Raises:
        EpisodeError: an episode's clock runs backwards or is not finite, its rows are not what was planned, or a
            file of it differs from its checksum.
    """
    numeric = [stream for stream in plan.streams if stream.kind == "numeric"]
    rows = sum(plan.episodes[row].length for row in plan.train_rows)
    found = _Reading(plan, {stream.name: RunningStats(stream.shape[0], rows) for stream in numeric})

    for row, episode in enumerate(plan.episodes):

        def read(desk: Desk, row: int = row, episode: EpisodeFacts = episode) -> None:
            with desk.episode(episode.episode_id, episode.digest, numeric) as reader:
                if not staging.source.is_remote:
                    check_files(reader, packed_files(plan.streams if pictures else numeric))
                found.add(row, reader, numeric)

        staging.work(episode.episode_id, read)
    stats = {name: running.result() for name, running in found.running.items()}
    return Survey(found.t0, found.clocks, stats, tuple(_non_finite(found.running, plan)))


class _Reading:
    """What was read so far."""

    def __init__(self, plan: PackPlan, running: Mapping[str, RunningStats]) -> None:
        self.plan, self.running = plan, running
        self.t0 = np.empty(len(plan.episodes))
        self.clocks: dict[int, npt.NDArray[np.float64]] = {}
        self._train = set(plan.train_rows)

    def add(self, row: int, reader: EpisodeReader, numeric: Sequence[StreamInfo]) -> None:
        """One episode."""
        length = self.plan.episodes[row].length
        times = reader.frame_time()
        _check_clock(times, reader.path)
        self.t0[row] = times[0]
        if not regular_clock(times, self.plan.fps):
            self.clocks[row] = times
        for stream in numeric if row in self._train else ():
            values = reader.numeric(stream.name)
            if values.shape != (length, *stream.shape):
                raise EpisodeError(
                    f"{reader.path}: stream {stream.name!r} is {values.shape}, not {(length, *stream.shape)}; "
                    f"ingest it again, or leave it out with --exclude {reader.path.name}."
                )
            self.running[stream.name].add(values)


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
