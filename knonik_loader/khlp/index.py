"""The sidecar ``hlp_index.khli``: which episodes a dataset has, on which clock, and in which shards they lie.

It has the container of a KHLP file without data (see `FORMAT.md`), and with the manifest is all that planning needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import FormatError
from knonik_loader.khlp.layout import (
    HEADER_SIZE,
    KHLI,
    Section,
    build_header,
    build_tail,
    check_known,
    parse_tail,
)
from knonik_loader.khlp.sections import decode_strings, encode_columns, encode_strings, split_columns

__all__ = ["INDEX_NAME", "DatasetIndex", "EpisodeTable", "ShardTable", "regular_clock"]

INDEX_NAME = "hlp_index.khli"

EPSD, STRS, CLKS, SHTB = b"EPSD", b"STRS", b"CLKS", b"SHTB"
EPISODE_COLUMNS = (
    ("length", "<i8"),
    ("t0", "<f8"),
    ("fps", "<f8"),
    ("split", "<u4"),
    ("language", "<u4"),
    ("regular", "<u4"),
)
SHARD_COLUMNS = (("hlp", "<u4"), ("shard", "<u4"), ("episode", "<u4"), ("first_frame", "<u4"), ("frames", "<u4"))

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
U32 = npt.NDArray[np.uint32]


def regular_clock(times: Floats, fps: float) -> bool:
    """Whether a clock is the nominal one: every time within 1 µs of the first plus i / fps, in whole microseconds.

    Args:
        times: (T,) seconds.
        fps: nominal rate in frames a second.
    """
    ticks = np.rint((times - times[0]) * 1e6)
    return bool((np.abs(ticks - np.rint(np.arange(len(times)) * (1e6 / fps))) <= 1).all())


@dataclass(frozen=True, slots=True)
class EpisodeTable:
    """One row an episode, sorted by episode id as people count (``episode_2`` before ``episode_10``)."""

    episode_id: list[str]
    source_id: list[str]
    length: Ints
    """(E,) frames."""
    split: list[str]
    """Name of the episode's split; empty where the dataset is not split."""
    regular: npt.NDArray[np.bool_]
    """(E,) whether frame i is at t0 + i / fps; otherwise `DatasetIndex.clocks` has the times."""
    t0: Floats
    """(E,) seconds of the first frame."""
    fps: Floats
    """(E,) nominal rate."""
    language: list[str]
    """Instruction; empty where there is none."""
    digest: npt.NDArray[np.uint8]
    """(E, 32) of the episode as ingested."""

    def __len__(self) -> int:
        """Episodes."""
        return len(self.episode_id)


@dataclass(frozen=True, slots=True)
class ShardTable:
    """One row a shard, sorted by episode and first frame; an episode's shards cover it without gap or overlap."""

    hlp: U32
    """(S,) number of the KHLP file in the manifest."""
    shard: U32
    """(S,) number inside that file."""
    episode: U32
    """(S,) row in the episode table."""
    first_frame: U32
    """(S,) inside the episode."""
    frames: U32
    """(S,) frames in the shard."""

    def __len__(self) -> int:
        """Shards."""
        return len(self.hlp)


@dataclass(frozen=True, slots=True)
class DatasetIndex:
    """The tables of a packed dataset.

    Raises:
        FormatError: the tables contradict each other.
    """

    episodes: EpisodeTable
    clocks: Mapping[int, Floats]
    """Episode row → (T,) seconds, for exactly the episodes whose clock is not regular."""
    shards: ShardTable
    where: str = field(default="dataset index", compare=False)

    def __post_init__(self) -> None:
        _check_episodes(self.episodes, self.where)
        _check_clocks(self.episodes, self.clocks, self.where)
        _check_shards(self.episodes, self.shards, self.where)

    def __repr__(self) -> str:
        """Sizes at a glance."""
        return f"DatasetIndex(episodes={len(self.episodes)}, shards={len(self.shards)}, frames={self.num_frames})"

    @property
    def num_frames(self) -> int:
        """Frames of one stream over all episodes."""
        return int(self.episodes.length.sum())

    def frame_times(self, episode: int) -> Floats:
        """(T,) seconds of one episode's frames."""
        if episode in self.clocks:
            return self.clocks[episode]
        table = self.episodes
        return np.asarray(table.t0[episode] + np.arange(table.length[episode]) / table.fps[episode], np.float64)

    def to_bytes(self) -> bytes:
        """The sidecar's bytes: the same tables give the same bytes."""
        table = self.episodes
        names = sorted({*table.split, *table.language})
        code = {name: number for number, name in enumerate(names)}
        columns = {
            "length": table.length,
            "t0": table.t0,
            "fps": table.fps,
            "split": [code[name] for name in table.split],
            "language": [code[name] for name in table.language],
            "regular": table.regular,
        }
        digest = np.ascontiguousarray(table.digest, np.uint8).tobytes()
        texts = [*table.episode_id, *table.source_id, *names]
        # clocks of irregular episodes follow each other in the episodes' order
        clocks = [self.clocks[row] for row in sorted(self.clocks)]
        times = np.concatenate(clocks) if clocks else np.empty(0)
        shards = {name: getattr(self.shards, name) for name, _ in SHARD_COLUMNS}
        sections = [
            Section(EPSD, encode_columns(EPISODE_COLUMNS, columns) + digest, len(table)),
            Section(STRS, encode_strings(texts), len(texts)),
            Section(CLKS, encode_columns((("time", "<f8"),), {"time": times}), len(times)),
            Section(SHTB, encode_columns(SHARD_COLUMNS, shards), len(self.shards)),
        ]
        # the id names the content; it is computed over the tail with an id of zeros
        file_id = hashlib.sha256(build_tail(KHLI, sections, HEADER_SIZE, bytes(16))).digest()[:16]
        return build_header(KHLI, file_id) + build_tail(KHLI, sections, HEADER_SIZE, file_id)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, where: str = "dataset index") -> DatasetIndex:
        """Read a sidecar.

        Raises:
            FormatError: of the fitting kind, naming ``where`` and the place.
        """
        tail = parse_tail(KHLI, memoryview(data), 0, len(data), where)
        check_known(tail, {EPSD, STRS, CLKS, SHTB}, where)
        if tail.footer.metadata_offset != HEADER_SIZE:
            raise FormatError(f"{where}: bytes {HEADER_SIZE} to {tail.footer.metadata_offset} belong to no section")
        episodes = _decode_episodes(tail.take(EPSD, where), tail.take(STRS, where), where)
        times = split_columns(tail.take(CLKS, where), (("time", "<f8"),), where)["time"]
        shards = ShardTable(**split_columns(tail.take(SHTB, where), SHARD_COLUMNS, where))
        return cls(episodes, _decode_clocks(episodes, times, where), shards, where)


def _decode_episodes(section: Section, strings: Section, where: str) -> EpisodeTable:
    rows = section.rows
    if len(section.data) < 32 * rows:
        raise FormatError(f"{where}: section EPSD has {len(section.data)} bytes for {rows} rows")
    split_at = len(section.data) - 32 * rows
    data = memoryview(section.data)
    columns = split_columns(Section(EPSD, data[:split_at], rows), EPISODE_COLUMNS, where)
    texts = decode_strings(memoryview(strings.data), strings.rows, f"{where}: section STRS")
    names = texts[2 * rows :]
    codes = np.concatenate([columns["split"], columns["language"]])
    if len(texts) < 2 * rows or (codes >= len(names)).any() or (columns["regular"] > 1).any():
        raise FormatError(f"{where}: section EPSD refers to strings that section STRS does not have")
    return EpisodeTable(
        episode_id=texts[:rows],
        source_id=texts[rows : 2 * rows],
        length=columns["length"],
        split=[names[code] for code in columns["split"]],
        regular=columns["regular"].astype(bool),
        t0=columns["t0"],
        fps=columns["fps"],
        language=[names[code] for code in columns["language"]],
        digest=np.frombuffer(data, np.uint8, 32 * rows, split_at).reshape(rows, 32),
    )


def _decode_clocks(episodes: EpisodeTable, times: Floats, where: str) -> dict[int, Floats]:
    rows = np.flatnonzero(~episodes.regular)
    lengths = episodes.length[rows]
    if (lengths < 1).any() or (lengths > len(times)).any() or lengths.sum() != len(times):
        raise FormatError(f"{where}: section CLKS has {len(times)} times, which are not those of {len(rows)} episodes")
    ends = np.cumsum(lengths)
    return {int(row): times[end - n : end] for row, end, n in zip(rows, ends, lengths, strict=True)}


def _check_episodes(table: EpisodeTable, where: str) -> None:
    count = len(table)
    columns: Sequence[Any] = (table.source_id, table.length, table.split, table.regular, table.t0, table.fps)
    if any(len(column) != count for column in (*columns, table.language, table.digest)):
        raise FormatError(f"{where}: the episode table's columns differ in length")
    if len(set(table.episode_id)) != count:
        raise FormatError(f"{where}: the episode table lists an episode twice")
    sane = (table.length >= 1) & (table.length < 2**32) & np.isfinite(table.t0) & (table.fps > 0) & (table.fps < 1e6)
    if not sane.all():
        row = int(np.argmin(sane))
        raise FormatError(f"{where}: episode {table.episode_id[row]!r} has a length, start or rate that makes no sense")
    if table.digest.shape != (count, 32):
        raise FormatError(f"{where}: episode digests are {table.digest.shape}, not ({count}, 32)")


def _check_clocks(table: EpisodeTable, clocks: Mapping[int, Floats], where: str) -> None:
    if set(clocks) != set(np.flatnonzero(~table.regular).tolist()):
        raise FormatError(f"{where}: clocks must be there for exactly the episodes that are not regular")
    for row, times in clocks.items():
        if len(times) != table.length[row] or not np.isfinite(times).all() or (np.diff(times) < 0).any():
            raise FormatError(
                f"{where}: the clock of episode {table.episode_id[row]!r} must have {table.length[row]} finite times "
                f"that never run backwards"
            )


def _check_shards(episodes: EpisodeTable, table: ShardTable, where: str) -> None:
    """The shards of each episode cover it, in order, without gap or overlap."""
    count = len(table)
    if any(len(column) != count for column in (table.shard, table.episode, table.first_frame, table.frames)):
        raise FormatError(f"{where}: the shard table's columns differ in length")
    episode, first = table.episode.astype(np.int64), table.first_frame.astype(np.int64)
    frames = table.frames.astype(np.int64)
    starts = np.diff(episode, prepend=-1)
    ends = np.diff(episode, append=len(episodes))
    # every episode appears, in order: each step to another episode is a step to the next one
    in_order = ((starts == 0) | (starts == 1)).all() and (not count or episode[-1] == len(episodes) - 1)
    if not in_order or count < len(episodes) or (frames < 1).any():
        raise FormatError(f"{where}: the shard table is not sorted by episode, or leaves one out")
    expected = np.where(starts == 1, 0, np.concatenate([[0], (first + frames)[:-1]])) if count else first
    if (first != expected).any() or ((first + frames)[ends == 1] != episodes.length).any():
        raise FormatError(f"{where}: the shards of an episode leave a gap, overlap, or do not end where it ends")
    places = table.hlp.astype(np.uint64) << np.uint64(32) | table.shard
    if len(np.unique(places)) != count:
        raise FormatError(f"{where}: two rows of the shard table name the same shard of the same file")
