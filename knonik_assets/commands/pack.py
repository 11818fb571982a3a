"""``knonik pack`` and ``python -m knonik_ingest pack``: episodes to a packed dataset.

Both are one command: ``knonik pack`` has no choice of storage profile and writes into a folder named after the dataset.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from knonik_assets.commands.console import Engine, EngineOption, Quiet, Workers, err, out, say
from knonik_loader.errors import ConfigError

__all__ = ["pack_command", "packer_command"]


class PackMode(StrEnum):
    """How shards are grouped to files."""

    shard_batch = "shard_batch"
    episode = "episode"


class Profile(StrEnum):
    """How a packed dataset holds pictures."""

    compact_video = "compact_video"
    training_fast = "training_fast"
    training_compressed = "training_compressed"


class Chroma(StrEnum):
    """Chroma subsampling."""

    c420 = "420"
    c444 = "444"


InputDir = Annotated[str, typer.Option("--input-dir", help="Folder of ingested episodes, or its URL.")]
OutputDir = Annotated[str, typer.Option("--output-dir", help="Where the packed dataset goes: a folder or URL.")]
DatasetName = Annotated[str, typer.Option("--dataset-name", help="The dataset's name in the manifest.")]
ShardSize = Annotated[
    int | None, typer.Option("--shard-size", min=1, help="Frames a shard at most; default: the episodes' hint, or 45.")
]
WindowSize = Annotated[int, typer.Option("--window-size", min=1, help="Shards a KHLP file.")]
Fps = Annotated[float | None, typer.Option("--fps", help="Recorded in the manifest; never resamples.")]
Seed = Annotated[int, typer.Option("--seed", help="Of the shards' order and of the splits.")]
PackModeOption = Annotated[PackMode, typer.Option("--pack-mode", help="Shards of all episodes mixed, or kept whole.")]
Streams = Annotated[str | None, typer.Option("--streams", help="Only these streams, separated by commas.")]
Episodes = Annotated[str | None, typer.Option("--episodes", help="Only these episodes, separated by commas.")]
Exclude = Annotated[str | None, typer.Option("--exclude", help="All but these episodes, separated by commas.")]
Split = Annotated[str | None, typer.Option("--split", help="For example train=0.9,val=0.1.")]
Resize = Annotated[list[str] | None, typer.Option("--resize", help="cam=HxW, once a camera.")]
CodecOption = Annotated[str | None, typer.Option("--codec", help="Video codec of compact_video: h264, vp9, av1.")]
Quality = Annotated[int | None, typer.Option("--quality", help="JPEG quality, or CRF for compact_video.")]
Gop = Annotated[int | None, typer.Option("--gop", min=1, help="Frames from one keyframe to the next.")]
ChromaOption = Annotated[Chroma | None, typer.Option("--chroma", help="Chroma subsampling.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Write a new generation when anything changed.")]

Collect = Annotated[bool, typer.Option("--collect", help="Remove generations that were superseded long ago.")]
KeepDays = Annotated[
    float | None,
    typer.Option("--keep-days", min=0, help="For --collect: days since they were superseded.  [default: 14]"),
]

StorageProfile = Annotated[Profile, typer.Option("--storage-profile", help="How pictures are held.")]


def packer_command(
    input_dir: InputDir,
    output_dir: OutputDir,
    dataset_name: DatasetName,
    storage_profile: StorageProfile = Profile.compact_video,
    shard_size: ShardSize = None,
    window_size: WindowSize = 64,
    fps: Fps = None,
    seed: Seed = 0,
    pack_mode: PackModeOption = PackMode.shard_batch,
    workers: Workers = None,
    engine: EngineOption = Engine.processes,
    streams: Streams = None,
    episodes: Episodes = None,
    exclude: Exclude = None,
    split: Split = None,
    resize: Resize = None,
    codec: CodecOption = None,
    quality: Quality = None,
    gop: Gop = None,
    chroma: ChromaOption = None,
    overwrite: Overwrite = False,
    collect: Collect = False,
    keep_days: KeepDays = None,
    quiet: Quiet = False,
) -> None:
    """Pack episodes into OUTPUT_DIR itself and print the manifest's path."""
    arguments = dict(locals())
    arguments.pop("quiet")
    _pack(_keywords(arguments), quiet=quiet)


def _without_profile(command: Callable[..., None]) -> inspect.Signature:
    signature = inspect.signature(command, eval_str=True)
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "storage_profile"])


@functools.wraps(packer_command)
def pack_command(*, dataset_name: str, output_dir: str, **options: object) -> None:
    """Pack episodes as compact video into OUTPUT_DIR/knonik_<NAME>_hlp and print the manifest's path."""
    if "/" in dataset_name or dataset_name in {"", ".", ".."}:
        raise ConfigError(f"--dataset-name {dataset_name!r} becomes part of a folder's name; use one without slashes.")
    if not output_dir:
        raise ConfigError("--output-dir is empty; name a path (an unset variable of the shell?).")
    folder = f"{output_dir.rstrip('/')}/knonik_{dataset_name}_hlp"
    packer_command(dataset_name=dataset_name, output_dir=folder, **options)  # type: ignore[arg-type]


# Typer reads options from the signature.
pack_command.__signature__ = _without_profile(packer_command)  # type: ignore[attr-defined]
pack_command.__doc__ = "Pack episodes as compact video into OUTPUT_DIR/knonik_<NAME>_hlp and print the manifest's path."


def _keywords(arguments: dict[str, Any]) -> dict[str, Any]:
    """The command line's spelling to the keywords of ``pack()``."""
    options = {key: value.value if isinstance(value, StrEnum) else value for key, value in arguments.items()}
    for key in ("streams", "episodes", "exclude"):
        if options[key] is not None:
            options[key] = [part.strip() for part in options[key].split(",") if part.strip()]
    options["resize"] = options["resize"] or None
    return options


def _pack(options: dict[str, Any], *, quiet: bool) -> None:
    from knonik_assets.collecting import KEEP_DAYS, collect_generations
    from knonik_assets.ingesting.progress import console_progress
    from knonik_assets.pack import pack

    collect, keep_days = options.pop("collect"), options.pop("keep_days")
    if keep_days is not None and not collect:
        raise ConfigError("--keep-days says what --collect may remove; give --collect too, or leave it out.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        paths = pack(**options, progress=None if quiet else console_progress(err))
    for warning in caught:
        say("warning", str(warning.message))
    out.print(str(paths[0]), highlight=False, soft_wrap=True, markup=False)
    if collect:  # last, so that the manifest's path is told whatever collecting meets
        for removed in collect_generations(options["output_dir"], KEEP_DAYS if keep_days is None else keep_days):
            say("removed", str(removed), colour="cyan")
