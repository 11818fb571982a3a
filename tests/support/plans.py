"""Synthetic indexes and configs for plans: no files, no pictures."""

from collections.abc import Mapping, Sequence

import numpy as np

from knonik_loader.config import load_loader_config
from knonik_loader.khlp.index import DatasetIndex, EpisodeTable, ShardTable
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.plan.sampler import Sampler

STREAMS = [
    StreamInfo(0, "rgb", "cam", "kimg", (96, 96, 3), "uint8", 30.0),
    StreamInfo(1, "rgb", "wrist", "kimg", (64, 80, 3), "uint8", 30.0),
    StreamInfo(2, "depth", "cam", "depth", (96, 96), "float32", 30.0),
    StreamInfo(3, "numeric", "state", "numeric", (7,), "float32", 30.0),
    StreamInfo(4, "numeric", "action", "numeric", (7,), "float32", 30.0),
]


def make_index(
    lengths: Sequence[int],
    *,
    fps: float | Sequence[float] = 30.0,
    shard_size: int = 45,
    shards_per_file: int = 4,
    splits: Sequence[str] | None = None,
    clocks: Mapping[int, np.ndarray] | None = None,
    seed: int = 0,
) -> DatasetIndex:
    """An index of episodes of these lengths; ``clocks`` gives measured times (seconds) of some of them.

    Shards are dealt to files in a shuffled order, as the packer does.
    """
    count = len(lengths)
    clocks = {row: np.asarray(times, np.float64) for row, times in (clocks or {}).items()}
    regular = np.ones(count, bool)
    regular[list(clocks)] = False
    episodes = EpisodeTable(
        episode_id=[f"episode_{row:06d}" for row in range(count)],
        source_id=[f"source_{row}" for row in range(count)],
        length=np.asarray(lengths, np.int64),
        split=list(splits) if splits is not None else [""] * count,
        regular=regular,
        t0=np.zeros(count),
        fps=np.broadcast_to(np.asarray(fps, np.float64), (count,)).copy(),
        language=[""] * count,
        digest=np.zeros((count, 32), np.uint8),
    )
    per_episode = -(-np.asarray(lengths, np.int64) // shard_size)
    episode = np.repeat(np.arange(count), per_episode)
    first = (np.arange(len(episode)) - np.repeat(np.cumsum(per_episode) - per_episode, per_episode)) * shard_size
    place = np.random.default_rng(seed).permutation(len(episode))
    columns = [
        place // shards_per_file,
        place % shards_per_file,
        episode,
        first,
        np.minimum(shard_size, episodes.length[episode] - first),
    ]
    return DatasetIndex(episodes, clocks, ShardTable(*(column.astype(np.uint32) for column in columns)))


def make_config(streams: Sequence[StreamInfo] = STREAMS, mix: bool = False, **keys: object):
    """A checked config: random access, one frame, four samples, rank 0 of 1, unless told otherwise."""
    given = {"decode_mode": "random_access", "hlp_manifest": "m.json", "chunk_len": 1, "batch_size": 4}
    if "rank" not in keys:
        given |= {"rank": 0, "world_size": 1}
    return load_loader_config(given | keys, profile="training_fast", streams=streams, mix=mix)


def make_sampler(index: DatasetIndex, streams: Sequence[StreamInfo] = STREAMS, **keys: object) -> Sampler:
    return Sampler(index, streams, make_config(streams, **keys))


def order_of(sampler: Sampler, epoch: int = 0) -> list[list[tuple[int, int]]]:
    """Batches of a pass as lists of (episode row, anchor frame)."""
    plans = [sampler.batch(epoch, step) for step in range(len(sampler))]
    return [list(zip(plan.episodes.tolist(), plan.anchors.tolist(), strict=True)) for plan in plans]
