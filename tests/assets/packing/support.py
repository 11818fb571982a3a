"""Stamped episodes, written with the real writer, and packed datasets read back frame by frame."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from knonik_assets.configs.presets import DepthPreset, Preset, RgbPreset
from knonik_assets.episodes.writer import EpisodeWriter
from knonik_assets.packing.existing import read_manifest
from knonik_assets.packing.stored import open_packed
from knonik_assets.sources.base import Language
from knonik_loader.khlp.index import DatasetIndex
from tests.support.buckets import bucket_tree
from tests.support.stamps import episode_arrays

PROFILES = ("compact_video", "training_fast", "training_compressed")
LENGTHS = (23, 10, 31)
SIZE = (80, 96)


def write_episode(
    out: Path,
    episode: int,
    frames: int,
    *,
    codec: str = "jpeg",
    quality: int | None = None,
    cameras: int = 2,
    depth: bool = True,
    size: tuple[int, int] = SIZE,
    fps: float = 30.0,
    jitter: bool = False,
    numerics: tuple[str, ...] = ("state", "action"),
    shard_size: int | None = None,
    instruction: str | None = None,
    spoil: float | None = None,
) -> Path:
    """One episode; ``source_id`` is ``raw_<n>``, ``spoil`` replaces a value of ``state``."""
    arrays = episode_arrays(episode, frames, cameras, *size, fps=fps)
    rgb = RgbPreset(
        codec=codec, quality=quality or (92 if codec == "jpeg" else 10), gop=6, speed=9, shard_size=shard_size
    )
    times = arrays["timestamps"] + 100 * episode
    if jitter:
        times = times + 2e-4 * np.sin(np.arange(frames))
    with EpisodeWriter(
        out,
        f"episode_{episode:06d}",
        preset=Preset(rgb=rgb, depth=DepthPreset(quantization_mm=2)),
        source_format="hdf5",
        source_id=f"raw_{episode}",
        source_fingerprint=f"{episode:064x}",
        config_fingerprint="c" * 64,
        dataset="stamped",
        robot_type="none",
        fps=fps,
    ) as writer:
        for camera in range(cameras):
            writer.add_rgb(f"cam_{camera}")
        if depth:
            writer.add_depth("front")
        for name in numerics:
            writer.add_numeric(name, 4)
        for t in range(frames):
            for camera in range(cameras):
                writer.rgb(f"cam_{camera}", arrays[f"cam_{camera}"][t])
            if depth:
                writer.depth("front", depth_m(episode, t))
        if spoil is not None:
            arrays["state"][2, 1] = spoil
        for name in numerics:
            writer.numeric(name, arrays[name])
        writer.clock(times, "source")
        if instruction is not None:
            writer.language(Language(instruction))
        writer.commit()
    return out / f"episode_{episode:06d}"


def depth_m(episode: int, frame: int) -> np.ndarray:
    """(12, 16) metres, multiples of 2 mm, that name episode and frame; a corner without reading."""
    image = np.full((12, 16), 0.1 * (episode + 1) + 0.002 * frame, np.float32)
    image[0, 0] = 0
    return image


def write_episodes(out: Path, lengths: tuple[int, ...] = LENGTHS, **options: object) -> Path:
    for episode, frames in enumerate(lengths):
        write_episode(out, episode, frames, **options)
    return out


def four_episodes(out: Path) -> Path:
    """Of jittering clocks, 76 frames in all, the last one with an instruction."""
    write_episodes(out, jitter=True)
    write_episode(out, 3, 12, instruction="pick up the cube")
    return out


def stored(url: str) -> dict[str, bytes]:
    """Key → content of what a pack wrote, as `tests.support.road.tree` has it of a local one."""
    there = bucket_tree(url)
    return {key: data for key, data in there.items() if not key.startswith(".knonik/") and "report" not in key}


def read_all(manifest_path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Episode → batch key (and ``time``) → every frame, by way of manifest, index and the files they name."""
    manifest = read_manifest(manifest_path)
    folder = manifest_path.parent
    index = DatasetIndex.from_bytes((folder / manifest.index.uri).read_bytes())
    table = index.shards
    found: dict[str, dict[str, list[np.ndarray]]] = {}
    for row in range(len(table)):
        name = index.episodes.episode_id[table.episode[row]]
        entry = manifest.hlps[table.hlp[row]]
        with open_packed(folder / entry.uri, entry.metadata_offset) as packed:
            shard, count = int(table.shard[row]), int(table.frames[row])
            stored = packed.index.shard(shard)
            assert (stored.episode_id, stored.first_frame, stored.frames) == (name, table.first_frame[row], count)
            keys = found.setdefault(name, {})
            keys.setdefault("time", []).append(packed.index.times(shard))
            for stream in packed.index.streams:
                frames = packed.frames(shard, stream, list(range(count)))
                keys.setdefault(stream.key, []).append(np.stack([frames[i] for i in range(count)]))
    return {name: {key: np.concatenate(parts) for key, parts in keys.items()} for name, keys in found.items()}
