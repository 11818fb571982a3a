"""What a pack will write, fully decided before anything is written: shards, files, splits and their digests.

Pure functions of the episodes' facts and the options; nothing here reads a file or depends on a library's random
numbers, so that the same plan comes out on every machine and in every version.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from knonik_assets.configs.pack import DEFAULT_SHARD_SIZE, PackOptions
from knonik_assets.packing.facts import EpisodeFacts
from knonik_assets.packing.sanity import copies, idle_options, stretched
from knonik_assets.packing.streams import choose_streams, reencodes
from knonik_loader.errors import PackError
from knonik_loader.khlp.manifest import FORMAT_VERSION
from knonik_loader.khlp.splits import split_of
from knonik_loader.khlp.types import StreamInfo

__all__ = ["PACKER_VERSION", "FilePlan", "PackPlan", "ShardPlan", "make_plan", "reencodes"]

PACKER_VERSION = 4
"""Raised when the same input and options begin to give other bytes on purpose."""

_FPS_TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Consecutive frames of one episode."""

    episode: int
    """Row in `PackPlan.episodes`."""
    first_frame: int
    frames: int


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One KHLP file."""

    name: str
    hlp_id: bytes
    """16 bytes that name all it is made from."""
    shards: tuple[ShardPlan, ...]
    """Sorted by episode and frame, so that an episode is read forwards."""


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Everything that decides the packed bytes."""

    options: PackOptions
    shard_size: int
    fps: float
    streams: tuple[StreamInfo, ...]
    episodes: tuple[EpisodeFacts, ...]
    """In natural order of their names."""
    splits: tuple[str, ...]
    """Of each episode; empty strings when the dataset is not split."""
    files: tuple[FilePlan, ...]
    fingerprint: str
    source_config_fingerprint: str
    warnings: tuple[str, ...]

    @property
    def num_frames(self) -> int:
        """Frames of one stream, over all episodes."""
        return sum(episode.length for episode in self.episodes)

    @property
    def num_shards(self) -> int:
        """Shards of all files."""
        return sum(len(file.shards) for file in self.files)

    @property
    def copied_bytes(self) -> int | None:
        """Bytes of the pictures, where all of them pass as they are; None where something is encoded."""
        if self.options.storage_profile != "training_fast" or reencodes(self.options):
            return None
        size = 0
        for stream in self.streams:
            stored = [episode.streams[stream.key] for episode in self.episodes]
            passes = stream.kind == "rgb" and all(one.codec == "jpeg" and one.shape == stream.shape for one in stored)
            if not passes and stream.kind != "numeric":
                return None
            size += sum(one.bytes for one in stored)
        return size

    @property
    def train_rows(self) -> tuple[int, ...]:
        """Episodes that statistics are computed over: the train split, or all where there is none of that name."""
        everyone = range(len(self.episodes))
        return tuple(row for row in everyone if "train" not in self.options.split or self.splits[row] == "train")


def make_plan(episodes: Sequence[EpisodeFacts], options: PackOptions) -> PackPlan:
    """Decide everything.

    Args:
        episodes: at least one, in natural order of their names.
        options: what was asked for.

    Raises:
        ConfigError: an option names a stream that is not there.
        PackError: the episodes do not agree with each other, or none of them fell into the train split.
    """
    warnings: list[str] = []
    fps = float(options.fps) if options.fps is not None else _common_fps(episodes)
    warnings += _clock_warnings(episodes, fps)
    shard_size = options.shard_size or min(
        (episode.shard_size for episode in episodes if episode.shard_size), default=DEFAULT_SHARD_SIZE
    )
    warnings += copies(episodes)
    streams = choose_streams(episodes, options, fps)
    warnings += idle_options(options, streams, shard_size)
    warnings += stretched(episodes, streams)
    splits = tuple(split_of(options.seed, episode.source_id, options.split) for episode in episodes)
    warnings += _check_splits(splits, options)
    schema = _schema(streams, options)
    groups = _groups(episodes, shard_size, options)
    files = tuple(
        FilePlan(f"hlp_{number:06d}.khlp", _hlp_id(schema, shards, episodes), shards)
        for number, shards in enumerate(groups)
    )
    configs = sorted({episode.config_fingerprint for episode in episodes})
    return PackPlan(
        options=options,
        shard_size=shard_size,
        fps=fps,
        streams=streams,
        episodes=tuple(episodes),
        splits=splits,
        files=files,
        fingerprint=_fingerprint(schema, episodes, options, shard_size),
        source_config_fingerprint=configs[0] if len(configs) == 1 else _sha256(configs).hex(),
        warnings=tuple(warnings),
    )


def _common_fps(episodes: Sequence[EpisodeFacts]) -> float:
    """The rate that most episodes state; the smaller one of two equally frequent ones."""
    counts = Counter(episode.fps for episode in episodes)
    fps = min(counts, key=lambda rate: (-counts[rate], rate))
    odd = [episode for episode in episodes if abs(episode.fps / fps - 1) > _FPS_TOLERANCE]
    if odd:
        raise PackError(
            f"{odd[0].episode_id} has {odd[0].fps:g} frames a second, but {counts[fps]} of {len(episodes)} episodes "
            f"have {fps:g} ({len(odd)} differ): say which rate to record (--fps), or leave them out (--exclude)."
        )
    return fps


def _clock_warnings(episodes: Sequence[EpisodeFacts], fps: float) -> Iterator[str]:
    """One warning where the rate is off: for all episodes together, or for one by more than its clock's jitter."""
    timed = [(episode, episode.measured_fps) for episode in episodes if episode.measured_fps is not None]
    steps = sum(episode.length - 1 for episode, _ in timed)
    seconds = sum((episode.length - 1) / rate for episode, rate in timed)
    everywhere = bool(timed) and abs(steps / seconds / fps - 1) > _FPS_TOLERANCE
    odd = [
        (episode, rate)
        for episode, rate in timed
        if abs(rate / fps - 1) > _FPS_TOLERANCE
        # half a frame at either end is jitter, which in a short episode looks like another rate
        and (everywhere or abs((episode.length - 1) * (fps / rate - 1)) > 1)
    ]
    if odd:
        episode, rate = odd[0]
        yield (
            f"fps {fps:g} is recorded, but the clock of {len(odd)} of {len(episodes)} episodes is more than 1 % off "
            f"({episode.episode_id} runs at {rate:.4g}). Packing never resamples; give the true rate with --fps."
        )


def _check_splits(splits: Sequence[str], options: PackOptions) -> Iterator[str]:
    total = sum(options.split.values())
    for name, fraction in options.split.items():
        if name not in splits:
            if name == "train":
                raise PackError(
                    f"No episode of {len(splits)} falls into the split 'train', so nothing could be learnt from it; "
                    "give it a larger fraction, or another --seed."
                )
            yield f"No episode of {len(splits)} falls into the split {name!r}: fractions hold on average only."
            continue
        wanted = fraction / total * len(splits)
        if splits.count(name) < wanted / 2:
            yield (
                f"Only {splits.count(name)} of {len(splits)} episodes fall into the split {name!r}, where "
                f"{fraction:g} asks for {wanted:.3g}: fractions hold on average only, an episode never changes its "
                "split. Another --seed deals them anew."
            )


def _groups(episodes: Sequence[EpisodeFacts], shard_size: int, options: PackOptions) -> Iterator[tuple[ShardPlan, ...]]:
    """The shards of each file, sorted by episode and frame."""
    if options.pack_mode == "episode":
        yield from _whole_episodes(episodes, shard_size, options.window_size)
        return
    shards = [shard for row, episode in enumerate(episodes) for shard in _shards(row, episode.length, shard_size)]
    order = sorted(shards, key=lambda shard: _shuffle_key(options.seed, episodes[shard.episode], shard))
    for start in range(0, len(order), options.window_size):
        group = order[start : start + options.window_size]
        yield tuple(sorted(group, key=lambda shard: (shard.episode, shard.first_frame)))


def _whole_episodes(
    episodes: Sequence[EpisodeFacts], shard_size: int, window_size: int
) -> Iterator[tuple[ShardPlan, ...]]:
    group: list[ShardPlan] = []
    for row, episode in enumerate(episodes):
        shards = _shards(row, episode.length, shard_size)
        if group and len(group) + len(shards) > window_size:
            yield tuple(group)
            group = []
        group += shards
    yield tuple(group)


def _shards(row: int, length: int, shard_size: int) -> list[ShardPlan]:
    return [ShardPlan(row, first, min(shard_size, length - first)) for first in range(0, length, shard_size)]


def _shuffle_key(seed: int, episode: EpisodeFacts, shard: ShardPlan) -> tuple[bytes, int, int]:
    """Sorting by a hash shuffles without a random generator whose stream a library could change."""
    text = f"shuffle\0{seed}\0{episode.source_id}\0{shard.first_frame}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest(), shard.episode, shard.first_frame


def _schema(streams: Iterable[StreamInfo], options: PackOptions) -> Mapping[str, Any]:
    return {
        "packer": PACKER_VERSION,
        "format": FORMAT_VERSION,
        "profile": options.storage_profile,
        "streams": [asdict(stream) for stream in streams],
        # of compact_video, the streams say themselves whether packets pass
        "reencode": options.storage_profile != "compact_video" and reencodes(options),
    }


def _hlp_id(schema: Mapping[str, Any], shards: Sequence[ShardPlan], episodes: Sequence[EpisodeFacts]) -> bytes:
    rows = [
        [episodes[shard.episode].episode_id, episodes[shard.episode].digest.hex(), shard.first_frame, shard.frames]
        for shard in shards
    ]
    return _sha256([schema, rows])[:16]


def _fingerprint(
    schema: Mapping[str, Any], episodes: Sequence[EpisodeFacts], options: PackOptions, shard_size: int
) -> str:
    content = {
        "schema": schema,
        "dataset": options.dataset_name,
        "pack_mode": options.pack_mode,
        "shard_size": shard_size,
        "window_size": options.window_size,
        "seed": options.seed,
        "split": options.split,
        "episodes": [[episode.episode_id, episode.source_id, episode.digest.hex()] for episode in episodes],
    }
    return _sha256(content).hex()


def _sha256(value: object) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).digest()
