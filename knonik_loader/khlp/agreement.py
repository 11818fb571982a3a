"""Whether a manifest, its sidecar and its KHLP files tell the same story.

The same facts stand in several places, so that each of them can be read alone. Whoever opens more than one holds them
against each other here: nothing is decoded and nothing further is read, and where two disagree neither is believed.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import FormatError
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.manifest import Manifest
from knonik_loader.khlp.reader import HlpIndex

__all__ = ["check_file", "check_tables", "shards_of_files"]

Rows = npt.NDArray[np.int64]


def check_tables(manifest: Manifest, index: DatasetIndex, where: str) -> None:
    """Hold a manifest against the tables of its sidecar.

    Args:
        manifest: checked by itself.
        index: checked by itself.
        where: the manifest's name for messages; the sidecar's is its own.

    Raises:
        FormatError: they disagree, naming both and what each says.
    """
    episodes, shards = index.episodes, index.shards
    told = {
        "num_episodes": (manifest.num_episodes, len(episodes)),
        "num_shards": (manifest.num_shards, len(shards)),
        "num_frames": (manifest.num_frames, index.num_frames),
    }
    for name, (said, found) in told.items():
        if said != found:
            raise _disagree(where, index.where, f"{name} is {said}, but there are {found}")
    if (episodes.fps != manifest.fps).any():
        row = int(np.argmax(episodes.fps != manifest.fps))
        raise _disagree(
            where, index.where, f"fps is {manifest.fps:g}, but {episodes.episode_id[row]!r} has {episodes.fps[row]:g}"
        )
    strange = sorted({name for name in episodes.split if name} - manifest.splits.keys())
    if strange:
        raise _disagree(where, index.where, f"there is no split {strange[0]!r}, but episodes are in it")
    if (shards.hlp >= len(manifest.hlps)).any():
        raise _disagree(where, index.where, f"{len(manifest.hlps)} files are listed, but a shard lies in another one")
    _check_sizes(manifest, index, where)


def _check_sizes(manifest: Manifest, index: DatasetIndex, where: str) -> None:
    """Shards are as long, and files hold as many of them, as the manifest says."""
    shards = index.shards
    length = index.episodes.length[shards.episode]
    cut = np.minimum(manifest.shard_size, length - shards.first_frame)  # (S,) frames, by the manifest
    if (shards.frames != cut).any():
        row = int(np.argmax(shards.frames != cut))
        raise _disagree(
            where,
            index.where,
            f"shard_size is {manifest.shard_size}, but a shard of {index.episodes.episode_id[shards.episode[row]]!r} "
            f"has {shards.frames[row]} frames from {shards.first_frame[row]} on",
        )
    counts = np.array([entry.num_shards for entry in manifest.hlps], np.int64)  # (H,)
    found = np.bincount(shards.hlp, minlength=len(counts))
    if (found != counts).any() or (shards.shard >= counts[shards.hlp]).any():
        number = int(np.argmax(found != counts))
        raise _disagree(
            where,
            index.where,
            f"{manifest.hlps[number].uri} has {counts[number]} shards, but {found[number]} are placed there",
        )
    full = counts[:-1] != manifest.window_size if len(counts) > 1 else counts > manifest.window_size
    if manifest.pack_mode == "shard_batch" and (full.any() or counts[-1] > manifest.window_size):
        raise _disagree(where, index.where, f"window_size is {manifest.window_size}, but files hold other numbers")


def shards_of_files(index: DatasetIndex, files: int) -> list[Rows]:
    """For each of so many files, its rows of the shard table."""
    order = np.argsort(index.shards.hlp, kind="stable")
    borders = np.searchsorted(index.shards.hlp, np.arange(files + 1), sorter=order)
    return [order[first:end] for first, end in pairwise(borders.tolist())]


def check_file(manifest: Manifest, number: int, hlp: HlpIndex, index: DatasetIndex, rows: Rows, where: str) -> None:
    """Hold an opened KHLP file against the manifest and the sidecar that name it.

    Args:
        manifest: the manifest.
        number: of the file in it.
        hlp: the opened file.
        index: the sidecar.
        rows: the file's rows of the shard table, see `shards_of_files`.
        where: the manifest's name for messages.

    Raises:
        FormatError: they disagree, naming both and what each says.
    """
    entry = manifest.hlps[number]
    told = (
        ("hlp_id", entry.hlp_id, hlp.hlp_id.hex()),
        ("storage_profile", manifest.storage_profile, hlp.profile),
        ("num_shards", entry.num_shards, hlp.num_shards),
    )
    for name, said, found in told:
        if said != found:
            raise _disagree(where, hlp.where, f"its {name} is {said}, but it has {found}")
    streams = tuple(stream.info() for stream in manifest.streams)
    if hlp.streams != streams:
        keys = [stream.key for stream in streams], [stream.key for stream in hlp.streams]
        odd = [here.key for here, there in zip(streams, hlp.streams, strict=False) if here != there]
        what = f"{odd[0]!r} differs" if keys[0] == keys[1] else f"{keys[0]} are there, but it has {keys[1]}"
        raise _disagree(where, hlp.where, f"its streams: {what}")
    episodes, shards = index.episodes, index.shards
    for row in rows.tolist():
        shard, episode = int(shards.shard[row]), int(shards.episode[row])
        stored, owner = hlp.shard(shard), hlp.episode(shard)
        name = episodes.episode_id[episode]
        wanted = _frames(name, int(shards.first_frame[row]), int(shards.frames[row]))
        there = _frames(stored.episode_id, stored.first_frame, stored.frames)
        if wanted != there:
            raise _disagree(index.where, hlp.where, f"its shard {shard} is {wanted}, but it has {there}")
        if owner.digest != episodes.digest[episode].tobytes() or owner.source_id != episodes.source_id[episode]:
            raise _disagree(index.where, hlp.where, f"its {name!r} was ingested otherwise, or from another source")
        if not _same_clock(index, episode, int(shards.first_frame[row]), hlp.times(shard)):
            raise _disagree(index.where, hlp.where, f"its {name!r} runs on another clock")


def _same_clock(index: DatasetIndex, episode: int, first: int, times: npt.NDArray[np.float64]) -> bool:
    """Whether a shard's (n,) times are those that the sidecar gives or, for a regular clock, stands for."""
    if episode in index.clocks:
        return np.array_equal(times, index.clocks[episode][first : first + len(times)])
    nominal = index.episodes.t0[episode] + (first + np.arange(len(times))) / index.episodes.fps[episode]
    # two roundings to whole microseconds, and what f64 leaves of one in seconds since 1970 or anything larger
    return bool((np.abs(times - nominal) <= 2e-6 + 4 * np.spacing(np.abs(nominal))).all())


def _frames(episode: str, first: int, count: int) -> str:
    return f"frames {first} to {first + count - 1} of {episode!r}"


def _disagree(one: str, other: str, what: str) -> FormatError:
    return FormatError(
        f"{one} and {other} do not belong together: by the former {what}. Copy the dataset again, as a whole, or pack "
        "it again."
    )
