"""Writes the golden files anew: only on purpose, when a format version that never was released changes.

python -m tests.loader.khlp.make_golden --yes
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
from crc32c import crc32c

from knonik_loader.khlp.index import DatasetIndex, EpisodeTable, ShardTable
from knonik_loader.khlp.manifest import HlpEntry, IndexEntry, Manifest, StreamEntry, StreamStats
from tests.loader.khlp.samples import FRAMES, HLP_ID, PROFILES, SHARDS, STUTTER, Sample, build, decode_all

GOLDEN = Path(__file__).parent / "golden"


def index_sample() -> DatasetIndex:
    """The sidecar of a file with `samples.SHARDS`; the second episode's clock stutters."""
    names = sorted(FRAMES)
    order = sorted(range(len(SHARDS)), key=lambda i: SHARDS[i][:2])
    return DatasetIndex(
        EpisodeTable(
            episode_id=names,
            source_id=[f"raw/{name}.hdf5" for name in names],
            length=np.array([FRAMES[name] for name in names], np.int64),
            split=["train", "val"],
            regular=np.array([True, False]),
            t0=np.array([0.0, 100.5]),
            fps=np.array([30.0, 30.0]),
            language=["put the grün block away", ""],
            digest=np.repeat(np.arange(2, dtype=np.uint8), 32).reshape(2, 32),
        ),
        {1: 100.5 + STUTTER},
        ShardTable(
            hlp=np.zeros(3, np.uint32),
            shard=np.array(order, np.uint32),
            episode=np.array([names.index(SHARDS[i][0]) for i in order], np.uint32),
            first_frame=np.array([SHARDS[i][1] for i in order], np.uint32),
            frames=np.array([SHARDS[i][2] - SHARDS[i][1] for i in order], np.uint32),
        ),
    )


def golden_manifest(sample: Sample, index: bytes) -> Manifest:
    """Of a dataset of one file."""
    return Manifest(
        dataset="golden",
        storage_profile="training_fast",
        pack_mode="shard_batch",
        shard_size=4,
        window_size=3,
        fps=30,
        seed=0,
        num_hlps=1,
        num_episodes=len(FRAMES),
        num_shards=len(SHARDS),
        num_frames=sum(FRAMES.values()),
        streams=[
            StreamEntry(
                **{name: getattr(info, name) for name in StreamEntry.model_fields if name != "psnr_y"},
                psnr_y=41.25 if info.kind == "rgb" else None,
            )
            for info in sample.streams
        ],
        splits={"train": 0.5, "val": 0.5},
        stats={
            "state": StreamStats(
                count=7,
                non_finite=[0, 0, 0],
                min=[0, 0, -1],
                max=[6, 0, 1],
                mean=[3, 0, 0],
                std=[2, 0, 2 / 3],
                q01=[0.06, 0, -0.98],
                q99=[5.94, 0, 0.98],
            )
        },
        source_config_fingerprint="c0" * 32,
        pack_fingerprint="f0" * 32,
        index=IndexEntry(uri="index.khli", bytes=len(index), crc32c=crc32c(index)),
        hlps=[
            HlpEntry(
                uri="training_fast.khlp",
                hlp_id=HLP_ID.hex(),
                bytes=sample.summary.bytes,
                crc32c=sample.summary.crc32c,
                num_shards=len(SHARDS),
                metadata_offset=sample.summary.metadata_offset,
            )
        ],
    )


def tiles(frames: np.ndarray) -> np.ndarray:
    """(T, H, W, 3) → (T, 4, 4, 3) rounded means: what every decoder agrees on to within a level or two."""
    count, height, width, _ = frames.shape
    return np.rint(frames.reshape(count, 4, height // 4, 4, width // 4, 3).mean((2, 4))).astype(int)


def pin(sample: Sample) -> dict[str, object]:
    """What a file holds: a digest of each stream's payloads, of frames that are exact, and rough means of pictures."""
    index = sample.index()
    out: dict[str, object] = {}
    for stream in index.streams:
        tables = [index.records(shard, stream.stream_id) for shard in range(index.num_shards)]
        rows = [row for table in tables for row in zip(table.offsets.tolist(), table.sizes.tolist(), strict=True)]
        payloads = b"".join(sample.data[offset : offset + size] for offset, size in rows)
        out[f"payloads {stream.key}"] = hashlib.sha256(payloads).hexdigest()
    for (episode, key), frames in decode_all(index, sample.data).items():
        exact = hashlib.sha256(np.ascontiguousarray(frames).tobytes()).hexdigest()
        out[f"{episode} {key}"] = tiles(frames).ravel().tolist() if key.startswith("rgb_") else exact
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--yes", action="store_true", required=True, help="replace the golden files")
    parser.parse_args()
    GOLDEN.mkdir(exist_ok=True)
    pins = {}
    for profile in PROFILES:
        sample = build(profile)
        (GOLDEN / f"{profile}.khlp").write_bytes(sample.data)
        pins[profile] = pin(sample)
    index = index_sample().to_bytes()
    (GOLDEN / "index.khli").write_bytes(index)
    (GOLDEN / "hlp_manifest.json").write_text(golden_manifest(build("training_fast"), index).to_json())
    (GOLDEN / "frames.json").write_text(json.dumps(pins, separators=(",", ":")).replace('","', '",\n"') + "\n")


if __name__ == "__main__":
    main()
