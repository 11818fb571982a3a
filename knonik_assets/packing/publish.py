"""Putting a packed dataset in place: files first, then the index, then the manifest, each whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from crc32c import crc32c

from knonik_assets.configs.documents import write_whole
from knonik_assets.packing.existing import folder_of, manifest_name
from knonik_assets.packing.plan import PackPlan
from knonik_assets.packing.survey import Survey, build_index
from knonik_loader.khlp.index import INDEX_NAME
from knonik_loader.khlp.manifest import MANIFEST_NAME, HlpEntry, IndexEntry, Manifest, StreamEntry
from knonik_loader.khlp.writer import HlpSummary

__all__ = ["describe", "paths_of", "publish"]


def describe(
    out: Path,
    generation: int,
    plan: PackPlan,
    found: Survey,
    files: Sequence[HlpSummary],
    psnr: Mapping[str, float],
) -> tuple[Manifest, bytes]:
    """The manifest and the index of files that are already there; nothing is written.

    Args:
        out: the output directory.
        generation: number of the generation.
        plan: what was packed.
        found: clocks and statistics.
        files: what was written, in the plan's order.
        psnr: worst luma PSNR by batch key, of streams that are not lossless.
    """
    folder = folder_of(out, generation)
    index = build_index(plan, found).to_bytes()
    prefix = "" if folder == out else f"{folder.name}/"
    options = plan.options
    manifest = Manifest(
        dataset=options.dataset_name,
        generation=generation,
        storage_profile=options.storage_profile,
        pack_mode=options.pack_mode,
        shard_size=plan.shard_size,
        window_size=options.window_size,
        fps=plan.fps,
        seed=options.seed,
        num_hlps=len(plan.files),
        num_episodes=len(plan.episodes),
        num_shards=plan.num_shards,
        num_frames=plan.num_frames,
        streams=[_entry(plan, number, psnr) for number in range(len(plan.streams))],
        splits=options.split,
        stats=dict(found.stats),
        source_config_fingerprint=plan.source_config_fingerprint,
        pack_fingerprint=plan.fingerprint,
        index=IndexEntry(uri=f"{prefix}{INDEX_NAME}", bytes=len(index), crc32c=crc32c(index)),
        hlps=[
            HlpEntry(
                uri=f"{prefix}{file.name}",
                hlp_id=file.hlp_id.hex(),
                bytes=summary.bytes,
                crc32c=summary.crc32c,
                num_shards=summary.num_shards,
                metadata_offset=summary.metadata_offset,
            )
            for file, summary in zip(plan.files, files, strict=True)
        ],
    )
    return manifest, index


def publish(out: Path, manifest: Manifest, index: bytes) -> None:
    """Make a described dataset the current one.

    Raises:
        StorageError: the disk stands in the way; the dataset that was current before still is.
    """
    write_whole(out / manifest.index.uri, index)
    text = manifest.to_json().encode()
    # The generation's own copy first: from the moment the manifest is current, every trace of the generation is there.
    write_whole(out / manifest_name(manifest.generation), text)
    write_whole(out / MANIFEST_NAME, text)


def _entry(plan: PackPlan, number: int, psnr: Mapping[str, float]) -> StreamEntry:
    stream = plan.streams[number]
    return StreamEntry(
        stream_id=stream.stream_id,
        kind=stream.kind,
        name=stream.name,
        codec=stream.codec,
        shape=stream.shape,
        dtype=stream.dtype,
        fps=stream.fps,
        channel_names=stream.channel_names,
        params=dict(stream.params),
        psnr_y=psnr.get(stream.key),
    )


def paths_of(out: Path, manifest: Manifest) -> list[Path]:
    """The files of a dataset, the current manifest first."""
    return [out / MANIFEST_NAME, out / manifest.index.uri, *(out / entry.uri for entry in manifest.hlps)]
