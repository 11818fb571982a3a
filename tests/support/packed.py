"""Tiny packed datasets of stamped frames, written directly with the format's own writers: no ingest, no packer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from crc32c import crc32c

from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.index import INDEX_NAME, DatasetIndex, EpisodeTable, ShardTable, regular_clock
from knonik_loader.khlp.manifest import HlpEntry, IndexEntry, Manifest, StreamEntry, StreamStats, content_digest
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.khlp.writer import ShardInput, write_hlp
from tests.support.stamps import episode_arrays, read_stamp

CODEC = {"training_fast": "kimg", "training_compressed": "kdlt", "compact_video": "shdr"}
PROFILES = tuple(CODEC)


@dataclass(frozen=True)
class Packed:
    """What was packed, for comparison."""

    manifest: Path
    lengths: list[int]
    times: list[np.ndarray]
    """(T,) seconds of each episode."""
    fps: float
    tag: int = 0
    """Added to the episode number in every stamp, so that datasets can be told apart."""

    @property
    def folder(self) -> Path:
        return self.manifest.parent

    def config(self, **keys: object) -> dict:
        """A ``loader_cfg`` over the dataset; rank 0 of 1 whatever the environment says."""
        given = {"decode_mode": "random_access", "hlp_manifest": str(self.manifest), "chunk_len": 4, "batch_size": 4}
        return given | {"rank": 0, "world_size": 1} | keys


def depth_of(episode: int, frame: int, shape: tuple[int, int] = (12, 16)) -> np.ndarray:
    """(H, W) uint16 millimetres that name episode and frame; a corner without reading."""
    image = np.full(shape, 1000 * (episode + 1) + frame, np.uint16)
    image[:2, :2] = 0
    return image


def write_packed(
    folder: Path,
    lengths: Sequence[int] = (61, 40, 9),
    profile: str = "training_fast",
    *,
    cameras: int = 2,
    size: tuple[int, int] = (80, 80),
    depth: bool = True,
    fps: float = 30.0,
    shard_size: int = 16,
    shards_per_hlp: int = 2,
    clocks: Mapping[int, np.ndarray] | None = None,
    start: float = 12.5,
    splits: Sequence[str] | None = None,
    language: Sequence[str] | None = None,
    seed: int = 0,
    tag: int = 0,
    state_dim: int = 4,
    camera_names: Sequence[str] | None = None,
) -> Packed:
    """Write a dataset whose shards are dealt to files in a shuffled order.

    ``camera_names``: in place of ``cam_0``, ``cam_1`` and so on. ``clocks`` gives the times (seconds) of some episodes; the others run at ``fps`` from ``start`` on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = camera_names or [f"cam_{number}" for number in range(cameras)]
    streams = _streams(profile, names, size, depth, fps, state_dim)
    codecs = {stream.stream_id: make_codec(stream) for stream in streams}
    arrays = [episode_arrays(episode + tag, frames, cameras, *size, fps=fps) for episode, frames in enumerate(lengths)]
    for one in arrays:
        one["state"] = one["state"][:, :state_dim].copy()
        one |= {name: one.pop(f"cam_{number}") for number, name in enumerate(names)}
    times = [start + np.arange(frames) / fps for frames in lengths]
    for episode, clock in (clocks or {}).items():
        times[episode] = np.asarray(clock, np.float64)
    shards: list[tuple[int, ShardInput]] = []
    for episode, frames in enumerate(lengths):
        for first in range(0, frames, shard_size):
            part = slice(first, min(first + shard_size, frames))
            shards.append((episode, _shard(episode, part, arrays[episode], times[episode], streams, codecs, tag)))
    place = np.random.default_rng(seed).permutation(len(shards))
    entries = []
    for hlp in range(-(-len(shards) // shards_per_hlp)):
        mine = [shards[row][1] for row in np.argsort(place)[hlp * shards_per_hlp : (hlp + 1) * shards_per_hlp]]
        name = f"hlp_{hlp:06d}.khlp"
        made = write_hlp(folder / name, profile=profile, streams=streams, hlp_id=bytes([hlp]) * 16, shards=mine)
        entries.append(
            HlpEntry(
                uri=name,
                hlp_id=(bytes([hlp]) * 16).hex(),
                bytes=made.bytes,
                crc32c=made.crc32c,
                num_shards=made.num_shards,
                metadata_offset=made.metadata_offset,
            )
        )
    index = _index(lengths, times, fps, shards, place, shards_per_hlp, splits, language)
    data = index.to_bytes()
    (folder / INDEX_NAME).write_bytes(data)
    manifest = Manifest(
        dataset="stamped",
        storage_profile=profile,
        pack_mode="shard_batch",
        shard_size=shard_size,
        window_size=shards_per_hlp,
        fps=fps,
        seed=seed,
        num_hlps=len(entries),
        num_episodes=len(lengths),
        num_shards=len(shards),
        num_frames=sum(lengths),
        streams=[
            StreamEntry(**{name: getattr(stream, name) for name in StreamEntry.model_fields if name != "psnr_y"})
            for stream in streams
        ],
        splits=dict.fromkeys(sorted({*(splits or ())} - {""}), 1.0),
        stats={
            name: _stats(np.concatenate([one[name] for one in arrays]).astype(np.float64))
            for name in ("state", "action")
        },
        source_config_fingerprint="0" * 64,
        pack_fingerprint="0" * 64,
        index=IndexEntry(uri=INDEX_NAME, bytes=len(data), crc32c=crc32c(data)),
        hlps=entries,
    )
    path = folder / "hlp_manifest.json"
    path.write_text(manifest.to_json())
    return Packed(path, list(lengths), times, fps, tag)


def edit_manifest(path: Path, change: Callable[[dict], object]) -> Path:
    """Change a manifest as somebody does who also computes its digest anew."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps({**data, "sha256": content_digest(data)}))
    return path


def _streams(
    profile: str, cameras: Sequence[str], size: tuple[int, int], depth: bool, fps: float, state_dim: int
) -> list[StreamInfo]:
    params = {"gop": 5} if profile == "compact_video" else {}
    found = [("rgb", name, CODEC[profile], (*size, 3), "uint8", params) for name in cameras]
    if depth:
        found.append(("depth", "cam_0", "depth", (12, 16), "float32", {"quantization_mm": 1.0}))
    found += [
        ("numeric", name, "numeric", (dim,), "float32", {}) for name, dim in (("state", state_dim), ("action", 4))
    ]
    return [
        StreamInfo(number, kind, name, codec, shape, dtype, fps, None, params)
        for number, (kind, name, codec, shape, dtype, params) in enumerate(found)
    ]


def _stats(rows: np.ndarray) -> StreamStats:
    low, high = np.quantile(rows, [0.01, 0.99], axis=0)
    columns = {
        "min": rows.min(0),
        "max": rows.max(0),
        "mean": rows.mean(0),
        "std": rows.std(0),
        "q01": low,
        "q99": high,
    }
    return StreamStats(count=len(rows), **{name: column.tolist() for name, column in columns.items()})


def _shard(
    episode: int, part: slice, arrays: dict, times: np.ndarray, streams: list, codecs: dict, tag: int
) -> ShardInput:
    frames = {
        stream.stream_id: [depth_of(episode + tag, t) for t in range(part.start, part.stop)]
        if stream.kind == "depth"
        else list(arrays[stream.name][part])
        for stream in streams
    }
    return ShardInput(
        episode_id=f"episode_{episode:06d}",
        source_id=f"source_{episode}",
        episode_digest=hashlib.sha256(str(episode).encode()).digest(),
        first_frame=part.start,
        times=times[part],
        records={number: codecs[number].encode(values) for number, values in frames.items()},
    )


def _index(
    lengths: Sequence[int],
    times: list[np.ndarray],
    fps: float,
    shards: list[tuple[int, ShardInput]],
    place: np.ndarray,
    shards_per_hlp: int,
    splits: Sequence[str] | None,
    language: Sequence[str] | None,
) -> DatasetIndex:
    regular = np.array([regular_clock(clock, fps) for clock in times])
    episodes = EpisodeTable(
        episode_id=[f"episode_{episode:06d}" for episode in range(len(lengths))],
        source_id=[f"source_{episode}" for episode in range(len(lengths))],
        length=np.array(lengths, np.int64),
        split=list(splits or [""] * len(lengths)),
        regular=regular,
        t0=np.array([clock[0] for clock in times]),
        fps=np.full(len(lengths), float(fps)),
        language=list(language or [""] * len(lengths)),
        digest=np.stack(
            [np.frombuffer(hashlib.sha256(str(e).encode()).digest(), np.uint8) for e in range(len(lengths))]
        ),
    )
    columns = (
        place // shards_per_hlp,
        place % shards_per_hlp,
        np.array([episode for episode, _ in shards]),
        np.array([shard.first_frame for _, shard in shards]),
        np.array([len(shard.times) for _, shard in shards]),
    )
    clocks = {int(row): times[row] for row in np.flatnonzero(~regular)}
    return DatasetIndex(episodes, clocks, ShardTable(*(column.astype(np.uint32) for column in columns)))


def check_frames(packed: Packed, batch: Mapping, wanted: Mapping[str, np.ndarray]) -> None:
    """Every frame, row and mask of a batch is the right one, and its metadata is true.

    ``wanted``: batch key → (B, T) frames asked for, before clamping.
    """
    for sample, name in enumerate(batch["_episode_ids"]):
        episode = int(name.removeprefix("episode_"))
        anchor = int(batch["_frame_indices"][sample])
        assert float(batch["_timestamps"][sample]) == packed.times[episode][anchor]
        for key, asked in wanted.items():
            inside = (asked[sample] >= 0) & (asked[sample] < packed.lengths[episode])
            if f"{key}_valid_mask" in batch:
                np.testing.assert_array_equal(np.asarray(batch[f"{key}_valid_mask"][sample]), inside, err_msg=key)
            else:
                assert inside.all(), (key, name, anchor)
            values = np.asarray(batch[key][sample])
            assert len(values) == len(inside)
            for value, frame in zip(
                values, np.clip(asked[sample], 0, packed.lengths[episode] - 1).tolist(), strict=True
            ):
                check_frame(key, value, episode + packed.tag, frame)


def check_frame(key: str, value: np.ndarray, episode: int, frame: int) -> None:
    """One decoded frame is the one of this episode and number."""
    if key.startswith("rgb_"):
        assert read_stamp(value) == (int(key[-1]), episode, frame), (key, episode, frame)
    elif key.startswith("depth_"):
        np.testing.assert_array_equal(value, depth_of(episode, frame).astype(np.float32) * np.float32(0.001))
    elif key == "state":
        np.testing.assert_array_equal(value[:2], (episode, frame))
    else:
        np.testing.assert_array_equal(value, (frame, frame + 1, episode, -1))
