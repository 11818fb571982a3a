"""The ``knonik`` command, and ``python -m knonik_ingest``.

Commands only parse, call and print; what they do lives in the packages. A user's mistake ends in one or two lines on
standard error and exit status 2, bad data or a failed run in 1, Ctrl-C in 130; ``--debug`` shows the traceback.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from knonik_loader.errors import ConfigError, KnonikError

if TYPE_CHECKING:
    from knonik_assets.ingesting.report import IngestReport

__all__ = ["app", "main", "packer_app", "packer_main"]

app = typer.Typer(
    name="knonik",
    help="Robot recordings in, clean episodes and training shards out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
packer_app = typer.Typer(
    name="python -m knonik_ingest",
    help="Ingest, and pack with a choice of storage profile.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console()
err = Console(stderr=True)


# Typer brings its own copy of click and exports only parts of it: the class of every mistake in a call by its subclass.
_CallError: type[Exception] = typer.BadParameter.__mro__[2]

_INTERRUPTED = 130


class Engine(StrEnum):
    """Where episodes are worked on."""

    inline = "inline"
    processes = "processes"
    ray = "ray"


class PackMode(StrEnum):
    """How shards are grouped to files."""

    shard_batch = "shard_batch"
    episode = "episode"


class Profile(StrEnum):
    """How a packed dataset holds pictures."""

    compact_video = "compact_video"
    training_fast = "training_fast"
    training_compressed = "training_compressed"


class ProductName(StrEnum):
    """What a login is for."""

    ingest = "ingest"
    multidataloader = "multidataloader"


class Chroma(StrEnum):
    """Chroma subsampling."""

    c420 = "420"
    c444 = "444"


Config = Annotated[Path, typer.Option("--config", help="Ingest config, JSON or YAML.")]
Input = Annotated[str | None, typer.Option("--input", help="Raw dataset; wins over the config's data_dir.")]
# Places are texts, not paths: a Path would make "s3:/bucket" of a URL.
Output = Annotated[str, typer.Option("--output", help="Where the episode directories go.")]
ForceConfig = Annotated[bool, typer.Option("--force-config", help="Write the dataset config.json anew.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Tasks at once; default: one a core.")]
EngineOption = Annotated[Engine, typer.Option("--engine", help="Where the work runs.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, errors only.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors; may stand anywhere.")] = False,
) -> None:
    if show_version:
        out.print(f"knonik {version('knonik')}", highlight=False)
        raise typer.Exit
    del context, debug  # main() reads --debug before parsing, so that it may stand behind the command too


@packer_app.callback()
def _packer_root() -> None:
    """A callback keeps ``pack`` a command of its own even while it is alone."""


@packer_app.command("ingest")
@app.command("ingest")
def ingest_command(
    config: Config,
    output: Output,
    source: Input = None,
    force_config: ForceConfig = False,
    workers: Workers = None,
    engine: EngineOption = Engine.processes,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first episode that fails.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove episodes that left the source.")] = False,
    quiet: Quiet = False,
) -> None:
    """Turn a raw dataset into episode directories; unchanged episodes are skipped."""
    from knonik_assets.ingest import run
    from knonik_assets.ingesting.progress import console_progress

    report = run(
        config=config,
        input=source,
        output=output,
        force_config=force_config,
        workers=workers,
        engine=engine.value,
        fail_fast=fail_fast,
        prune=prune,
        progress=None if quiet else console_progress(err),
    )
    _print_ingest(report, quiet=quiet)
    if report.failed:
        raise typer.Exit(1)


def _print_ingest(report: IngestReport, *, quiet: bool) -> None:
    for warning in report.warnings:
        _say("warning", warning)
    said: dict[str, list[str]] = {}
    for episode in report.episodes:
        for warning in episode.warnings:
            said.setdefault(warning, []).append(episode.episode_id)
    for warning, episodes in said.items():
        where = episodes[0] if len(episodes) == 1 else f"{len(episodes)} episodes from {episodes[0]} on"
        _say("warning", f"{where}: {warning}")
    for episode in report.failed:
        _say("failed", f"{episode.episode_id} ({episode.source_id}): {episode.reason}", colour="red")
    for episode in report.empty:
        _say("empty", f"{episode.episode_id} ({episode.source_id}): {episode.reason}")
    if not quiet:
        rate = f", {report.frames / report.seconds:.0f} frames/s" if report.frames and report.seconds else ""
        out.print(
            f"{len(report.written)} written, {len(report.skipped)} unchanged, {len(report.failed)} failed: "
            f"{report.frames} frames, {_size(report.bytes)} in {report.seconds:.1f} s{rate} -> {report.output}",
            highlight=False,
            soft_wrap=True,
        )


def _pack(options: dict[str, Any], *, quiet: bool) -> None:
    from knonik_assets.ingesting.progress import console_progress
    from knonik_assets.pack import pack

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        paths = pack(**options, progress=None if quiet else console_progress(err))
    for warning in caught:
        _say("warning", str(warning.message))
    out.print(str(paths[0]), highlight=False, soft_wrap=True, markup=False)


InputDir = Annotated[str, typer.Option("--input-dir", help="Folder of ingested episodes.")]
OutputDir = Annotated[str, typer.Option("--output-dir", help="Where the packed dataset goes.")]
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


def _pack_options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The command line's spelling to the keywords of ``pack()``."""
    options = {key: value.value if isinstance(value, StrEnum) else value for key, value in arguments.items()}
    for key in ("streams", "episodes", "exclude"):
        if options[key] is not None:
            options[key] = [part.strip() for part in options[key].split(",") if part.strip()]
    options["resize"] = options["resize"] or None
    return options


@app.command("pack")
def pack_command(
    input_dir: InputDir,
    output_dir: OutputDir,
    dataset_name: DatasetName,
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
    quiet: Quiet = False,
) -> None:
    """Pack episodes as compact video into OUTPUT_DIR/knonik_<NAME>_hlp and print the manifest's path."""
    arguments = dict(locals())
    arguments.pop("quiet")
    options = _pack_options(arguments)
    if "/" in dataset_name or dataset_name in {"", ".", ".."}:
        raise ConfigError(f"--dataset-name {dataset_name!r} becomes part of a folder's name; use one without slashes.")
    options["output_dir"] = f"{output_dir.rstrip('/')}/knonik_{dataset_name}_hlp"
    _pack({**options, "storage_profile": Profile.compact_video.value}, quiet=quiet)


@packer_app.command("pack")
def packer_command(
    input_dir: InputDir,
    output_dir: OutputDir,
    dataset_name: DatasetName,
    storage_profile: Annotated[Profile, typer.Option("--storage-profile", help="How pictures are held.")] = (
        Profile.compact_video
    ),
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
    quiet: Quiet = False,
) -> None:
    """Pack episodes into OUTPUT_DIR itself and print the manifest's path."""
    arguments = dict(locals())
    arguments.pop("quiet")
    _pack(_pack_options(arguments), quiet=quiet)


@app.command("detect")
def detect_command(
    raw: Annotated[Path, typer.Argument(help="A raw dataset.")],
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    write: Annotated[Path | None, typer.Option("--write", help="Write an ingest config for it here.")] = None,
) -> None:
    """Say what a raw dataset is: family, episodes, streams, and what looks suspicious."""
    from knonik_assets.episodes.storing import storage_errors
    from knonik_assets.sources.detect import config_text, detect, render

    found = detect(raw)
    if write is not None:
        if write.exists():
            raise ConfigError(f"{write} exists already; name a new file for --write.")
        with storage_errors("write", write):
            write.write_text(config_text(found))
    if as_json:
        out.print_json(json.dumps(found.to_dict()))
        return
    out.print(render(found), highlight=False, soft_wrap=True, markup=False)
    if write is not None:
        out.print(f"config written to {write}", highlight=False, soft_wrap=True)


@app.command("inspect")
def inspect_command(
    path: Annotated[Path, typer.Argument(help="KHLP file, manifest, episode directory, ingest output, raw dataset.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every payload and file against its checksum.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    frames: Annotated[list[str] | None, typer.Option("--frames", help="EP:N, a frame to save as PNG.")] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Where the pictures of --frames go.")] = None,
) -> None:
    """Say what is inside, and with --verify whether it is whole."""
    from knonik_assets.packing.inspect import inspect_path, render, save_frames

    if bool(frames) != (out_dir is not None):
        raise ConfigError("--frames EP:N and --out DIR go together: which frames, and where to put them.")
    report = inspect_path(path, verify=verify)
    if as_json:
        out.print_json(json.dumps(report))
    else:
        out.print(render(report), highlight=False, soft_wrap=True)
        if verify and not report.get("damage"):
            out.print("verified: every file and payload agrees with its checksum", highlight=False)
    if frames and out_dir is not None:
        for picture in save_frames(path, frames, out_dir):
            err.print(f"wrote {picture}", highlight=False, soft_wrap=True)
    if report.get("damage"):
        raise typer.Exit(1)


ProductOption = Annotated[ProductName, typer.Option("--product", help="What the login is for.")]


@app.command("login")
def login_command(
    product: ProductOption,
    allow_file_key_store: Annotated[
        bool, typer.Option("--allow-file-key-store", help="Keep tokens in a private file where no keyring is.")
    ] = False,
) -> None:
    """Sign in, where an organisation asks for it."""
    del allow_file_key_store  # nothing is stored as long as no issuer can be signed in with
    _free_or_closed(product)


@app.command("status")
def status_command(product: ProductOption) -> None:
    """Say whether a login is needed and at hand."""
    _free_or_closed(product)


@app.command("logout")
def logout_command(product: ProductOption) -> None:
    """Forget the login."""
    _free_or_closed(product)


def _free_or_closed(product: ProductName) -> None:
    from knonik_loader.access import require

    require(product.value)
    out.print(f"No issuer is configured (KNONIK_ISSUER), so {product.value} needs no login.", highlight=False)


def _say(kind: str, text: str, colour: str = "yellow") -> None:
    err.print(f"[{colour}]{kind}:[/{colour}] {escape(text)}", highlight=False, soft_wrap=True)


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _run(application: typer.Typer, arguments: Sequence[str] | None) -> int:
    argv = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in argv
    if debug:
        argv.remove("--debug")
    try:
        code = typer.main.get_command(application).main(argv, prog_name=application.info.name, standalone_mode=False)
    except KnonikError as error:
        if debug:
            raise
        _say("error", str(error), colour="bold red")
        return error.exit_code
    except _CallError as error:
        if debug:
            raise
        context = getattr(error, "ctx", None)
        hint = f" (see '{context.command_path} --help')" if context is not None else ""
        mistake = _call_mistake(error)
        if mistake:  # empty: called without arguments, and the help is already printed
            _say("error", mistake + hint, colour="bold red")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    if code == _INTERRUPTED:  # also what typer itself makes of Ctrl-C
        _say("interrupted", "stopped by Ctrl-C; what was finished is kept, run the same command again to go on.")
    return code if isinstance(code, int) else 0


def _call_mistake(error: Exception) -> str:
    describe = getattr(error, "format_message", None)
    return " ".join(str(describe() if callable(describe) else error).split()).replace("Value error, ", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``knonik`` and return its exit status."""
    return _run(app, arguments)


def packer_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m knonik_ingest`` and return its exit status."""
    return _run(packer_app, arguments)
