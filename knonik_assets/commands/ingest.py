"""``knonik ingest``: a raw dataset to episode directories."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from knonik_assets.commands.console import Engine, EngineOption, Quiet, Workers, err, out, say, size

if TYPE_CHECKING:
    from knonik_assets.ingesting.report import IngestReport

__all__ = ["ingest_command"]

Config = Annotated[Path, typer.Option("--config", help="Ingest config, JSON or YAML.")]
Input = Annotated[str | None, typer.Option("--input", help="Raw dataset; wins over the config's data_dir.")]
# Places are texts, not paths: a Path would make "s3:/bucket" of a URL.
Output = Annotated[str, typer.Option("--output", help="Where the episode directories go.")]
ForceConfig = Annotated[bool, typer.Option("--force-config", help="Write the dataset config.json anew.")]


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


def _print_warnings(report: IngestReport) -> None:
    """What episodes warn of, once where it is the same but for numbers; ``ingest_report.json`` has all of it."""
    said: dict[str, list[tuple[str, str]]] = {}
    for episode in report.episodes:
        for warning in episode.warnings:
            said.setdefault(re.sub(r"\d+", "0", warning), []).append((episode.episode_id, warning))
    for alike in said.values():
        first, text = alike[0]
        count = len({name for name, _ in alike})
        where = first if count == 1 else f"{count} episodes from {first} on"
        if count == 1 and len(alike) > 1:
            where = f"{first}, {len(alike)} times"
        if any(other != text for _, other in alike):
            where += ", the first"
        say("warning", f"{where}: {text}")


def _print_ingest(report: IngestReport, *, quiet: bool) -> None:
    for warning in report.warnings:
        say("warning", warning)
    _print_warnings(report)
    for episode in report.failed:
        say("failed", f"{episode.episode_id} ({episode.source_id}): {episode.reason}", colour="red")
    for episode in report.empty:
        say("empty", f"{episode.episode_id} ({episode.source_id}): {episode.reason}")
    if not quiet:
        rate = f", {report.frames / report.seconds:.0f} frames/s" if report.frames and report.seconds else ""
        out.print(
            f"{len(report.written)} written, {len(report.skipped)} unchanged, {len(report.failed)} failed: "
            f"{report.frames} frames, {size(report.bytes)} in {report.seconds:.1f} s{rate} -> {report.output}",
            highlight=False,
            soft_wrap=True,
        )
