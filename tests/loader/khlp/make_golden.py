"""Writes the golden files anew: only on purpose, when a format version that never was released changes.

python -m tests.loader.khlp.make_golden --yes
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np

from knonik_loader.khlp.index import DatasetIndex, EpisodeTable, ShardTable
from tests.loader.khlp.samples import FRAMES, PROFILES, SHARDS, Sample, build, decode_all

GOLDEN = Path(__file__).parent / "golden"


def index_sample() -> DatasetIndex:
    """The sidecar of a file with `samples.SHARDS`; the second episode's clock stutters."""
    names = sorted(FRAMES)
    order = sorted(range(len(SHARDS)), key=lambda i: SHARDS[i][:2])
    times = 100.5 + np.array([0, 0.04, 0.2])
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
        {1: times},
        ShardTable(
            hlp=np.zeros(3, np.uint32),
            shard=np.array(order, np.uint32),
            episode=np.array([names.index(SHARDS[i][0]) for i in order], np.uint32),
            first_frame=np.array([SHARDS[i][1] for i in order], np.uint32),
            frames=np.array([SHARDS[i][2] - SHARDS[i][1] for i in order], np.uint32),
        ),
    )


def pin(sample: Sample) -> dict[str, object]:
    """What decoded frames must be: digests where every decoder gives the same bits, rough means of video."""
    out: dict[str, object] = {}
    for (episode, key), frames in decode_all(sample.index(), sample.data).items():
        video = key.startswith("rgb_") and sample.index().profile == "compact_video"
        means = np.round(frames.astype(float).mean((1, 2)), 2).tolist() if video else None
        out[f"{episode} {key}"] = means or hashlib.sha256(np.ascontiguousarray(frames).tobytes()).hexdigest()
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
    (GOLDEN / "index.khli").write_bytes(index_sample().to_bytes())
    (GOLDEN / "frames.json").write_text(json.dumps(pins, indent=1) + "\n")


if __name__ == "__main__":
    main()
