"""Putting a packed dataset in place: files first, then the index, then the manifest, each whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from crc32c import crc32c

from knonik_assets.configs.documents import write_whole
from knonik_assets.packing.existing import folder_of, manifest_name
from knonik_assets.packing.plan import PackPlan
from knonik_assets.packing.survey import Survey, build_index
from knonik_assets.storage import ConflictError, ObjectFolder, ObjectInfo, Place
from knonik_assets.storage.files import listing
from knonik_loader.errors import PackError
from knonik_loader.khlp.index import INDEX_NAME
from knonik_loader.khlp.manifest import MANIFEST_NAME, HlpEntry, IndexEntry, Manifest, StreamEntry
from knonik_loader.khlp.writer import HlpSummary

__all__ = ["check_uploads", "describe", "paths_of", "publish", "put_whole"]


def describe(
    out: Place,
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


def publish(
    out: Place, manifest: Manifest, index: bytes, before: ObjectInfo | None, unfinished: ObjectInfo | None
) -> None:
    """Make a described dataset the current one.

    Args:
        out: the output directory.
        manifest: what `describe` gave.
        index: that, too.
        before: the manifest that was current when the run began; None: there was none.
        unfinished: the generation's own manifest, which a run left that was killed before it was current; None: there
            was none when the run began.

    Raises:
        StorageError: the disk or store stands in the way; the dataset that was current before still is.
        PackError: at a URL: another run has made its dataset the current one meanwhile.
    """
    put_whole(out / manifest.index.uri, index)
    text = manifest.to_json().encode()
    # The generation's own copy first: from the moment the manifest is current, every trace of the generation is there.
    if not out.is_remote:
        put_whole(out / manifest_name(manifest.generation), text)
        put_whole(out / MANIFEST_NAME, text)
        return
    folder = ObjectFolder(out)
    try:
        folder.put_bytes(
            manifest_name(manifest.generation), text, if_none_match=unfinished is None, if_match=unfinished
        )
        folder.put_bytes(MANIFEST_NAME, text, if_none_match=before is None, if_match=before)
    except ConflictError as error:
        raise PackError(
            f"{out}: another run packed this dataset at the same time and was first; its manifest stands, and this "
            "run's files are in nobody's way. Look at what it packed, and pack again if that is not what you want."
        ) from error


def put_whole(place: Place, data: bytes) -> None:
    """Write a small file whole or not at all.

    Raises:
        StorageError: the disk or store refuses; what stood there before still does.
    """
    if place.is_remote:
        ObjectFolder(place.parent).put_bytes(place.name, data)
    else:
        write_whole(place.path, data)


def check_uploads(folder: Place, uploads: Iterable[tuple[str, str]]) -> None:
    """Before a manifest names uploaded files: they are still those that were uploaded, or checked.

    Args:
        folder: where they are.
        uploads: name and etag of each.

    Raises:
        PackError: another run has written over one, or removed it.
    """
    there = listing(folder)
    for name, etag in uploads:
        if name not in there or there[name].etag != etag:
            became = "replaced" if name in there else "removed"
            raise PackError(
                f"{folder / name} was {became} by another run while this one packed; see that only one run writes "
                "there, and pack again."
            )


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


def paths_of(out: Place, manifest: Manifest) -> list[Place]:
    """The files of a dataset, the current manifest first."""
    return [out / MANIFEST_NAME, out / manifest.index.uri, *(out / entry.uri for entry in manifest.hlps)]
