"""Small KHLP files of every profile, built in memory, for the tests of this folder."""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from knonik_loader.khlp.codecs import dependency_of, make_codec
from knonik_loader.khlp.manifest import HlpEntry, IndexEntry, Manifest, StreamEntry
from knonik_loader.khlp.planning import closure
from knonik_loader.khlp.reader import HlpIndex, check_payload
from knonik_loader.khlp.types import PAYLOAD_OF_PROFILE, StorageProfile, StreamInfo
from knonik_loader.khlp.writer import HlpSummary, HlpWriter, ShardInput
from tests.support.stamps import stamp

PROFILES: tuple[StorageProfile, ...] = ("compact_video", "training_fast", "training_compressed")
CODEC = {profile: {"kdelta": "kdlt"}.get(payload, payload) for profile, payload in PAYLOAD_OF_PROFILE.items()}
HLP_ID = bytes(range(16))
FRAMES = {"episode_0": 7, "episode_1": 3}
STUTTER = np.array([0, 0.04, 0.2])
"""Seconds after its first frame: the clock of ``episode_1``, which is not regular."""
SHARDS = (("episode_1", 0, 3), ("episode_0", 4, 7), ("episode_0", 0, 4))
"""Episode, first frame, end; shuffled, as a packer does."""


@dataclass(frozen=True)
class Sample:
    """A file, what it was made from, and how to read it back."""

    data: bytes
    summary: HlpSummary
    streams: tuple[StreamInfo, ...]
    shards: tuple[ShardInput, ...]

    def index(self) -> HlpIndex:
        return HlpIndex.from_tail(
            self.data[self.summary.metadata_offset :], self.summary.metadata_offset, len(self.data), "sample"
        )


def manifest() -> Manifest:
    """Of a dataset of one file, which need not be there."""
    return Manifest(
        dataset="demo",
        storage_profile="training_fast",
        pack_mode="episode",
        shard_size=45,
        window_size=64,
        fps=30.0,
        seed=0,
        num_hlps=1,
        num_episodes=1,
        num_shards=2,
        num_frames=60,
        streams=[
            StreamEntry(stream_id=0, kind="rgb", name="top", codec="kimg", shape=(8, 8, 3), dtype="uint8", fps=30)
        ],
        splits={"train": 0.9, "val": 0.1},
        stats={},
        source_config_fingerprint="a",
        pack_fingerprint="b",
        index=IndexEntry(uri="hlp_index.khli", bytes=1, crc32c=2),
        hlps=[HlpEntry(uri="hlp_000000.khlp", hlp_id="00" * 16, bytes=1, crc32c=2, num_shards=2, metadata_offset=64)],
    )


def streams(profile: StorageProfile) -> tuple[StreamInfo, ...]:
    quality = {"shdr": 28, "kimg": 80, "kdlt": 80}[CODEC[profile]]
    params: Mapping[str, object] = {"quality": quality, **({} if CODEC[profile] == "kimg" else {"gop": 3})}
    return (
        StreamInfo(0, "rgb", "top", CODEC[profile], (80, 80, 3), "uint8", 30.0, params=params),
        StreamInfo(1, "depth", "top", "depth", (6, 9), "float32", 30.0, params={"quantization_mm": 0.5}),
        StreamInfo(2, "numeric", "state", "numeric", (3,), "float32", 30.0, ("x", "y", "grip")),
    )


def episode(name: str) -> dict[str, np.ndarray]:
    """Arrays of one episode: stamped frames, depth with holes, and a state that counts."""
    number, count = int(name[-1]), FRAMES[name]
    rgb = np.full((count, 80, 80, 3), 120, np.uint8)
    rgb += (np.arange(80, dtype=np.uint8) // 4)[:, None]
    for t in range(count):
        stamp(rgb[t], 3, number, t)
        if t % 3 == 2:  # the light flickers
            rgb[t] = np.clip(rgb[t] * 1.04, 0, 255).astype(np.uint8)
    depth = (np.arange(count * 54).reshape(count, 6, 9) * 7 + number).astype(np.uint16)
    depth[:, 0] = 0
    state = np.stack([np.arange(count), np.full(count, number), np.linspace(-1, 1, count)], 1).astype(np.float32)
    return {"rgb": rgb, "depth": depth, "state": state, "times": 100.5 + STUTTER if number else np.arange(count) / 30}


def shards(profile: StorageProfile) -> tuple[ShardInput, ...]:
    codecs = [make_codec(info) for info in streams(profile)]
    out = []
    for name, first, end in SHARDS:
        arrays = episode(name)
        parts = [list(arrays[key][first:end]) for key in ("rgb", "depth", "state")]
        records = {i: codec.encode(part) for i, (codec, part) in enumerate(zip(codecs, parts, strict=True))}
        digest = bytes([int(name[-1])]) * 32
        out.append(ShardInput(name, f"raw/{name}.hdf5", digest, first, arrays["times"][first:end], records))
    return tuple(out)


def add(writer: HlpWriter, shard: ShardInput) -> None:
    writer.add_shard(
        episode_id=shard.episode_id,
        source_id=shard.source_id,
        episode_digest=shard.episode_digest,
        first_frame=shard.first_frame,
        times=shard.times,
        records=shard.records,
    )


def build(profile: StorageProfile) -> Sample:
    sink, inputs = io.BytesIO(), shards(profile)
    writer = HlpWriter(sink, profile=profile, streams=streams(profile), hlp_id=HLP_ID)
    for shard in inputs:
        add(writer, shard)
    summary = writer.finish()
    return Sample(sink.getvalue(), summary, streams(profile), inputs)


def reader(data: bytes, log: list[tuple[int, int]] | None = None) -> Callable[[int, int], bytes]:
    """A ``read`` function over bytes in memory, which may note what it was asked for."""

    def read(offset: int, length: int) -> bytes:
        if log is not None:
            log.append((offset, length))
        return data[offset : offset + length]

    return read


def decode_all(index: HlpIndex, data: bytes) -> dict[tuple[str, str], np.ndarray]:
    """(episode, batch key) → all its frames in order, decoded as the engine does, every payload checked."""
    found: dict[tuple[str, str], dict[int, np.ndarray]] = {}
    for number in range(index.num_shards):
        entry = index.shard(number)
        for info in index.streams:
            codec, table = make_codec(info), index.records(number, info.stream_id)
            payloads = []
            for offset, size, crc in zip(table.offsets, table.sizes, table.crcs, strict=True):
                payload = memoryview(data)[int(offset) : int(offset) + int(size)]
                check_payload(payload, int(size), int(crc), "sample")
                payloads.append(payload)
            out = {row: np.empty(info.shape, info.dtype) for row in range(entry.frames)}
            if info.kind == "numeric":
                codec.decode({0: payloads[0]}, list(out), out)
            else:
                for group in closure(table, dependency_of(info.codec), list(out)):
                    rows = group.wanted.tolist()
                    codec.decode({r: payloads[r] for r in group.rows.tolist()}, rows, {r: out[r] for r in rows})
            frames = found.setdefault((entry.episode_id, info.key), {})
            frames.update({entry.first_frame + row: frame for row, frame in out.items()})
    return {key: np.stack([frames[t] for t in sorted(frames)]) for key, frames in found.items()}
