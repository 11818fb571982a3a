"""``knonik ingest live``: the line protocol on standard input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from knonik_assets.commands.console import Quiet, err, say, size

__all__ = ["live_command"]


def live_command(
    config: Annotated[Path, typer.Option("--config", help="Live config, JSON or YAML.")],
    output: Annotated[
        str | None, typer.Option("--output", help="Where the episode directories go; wins over output_dir.")
    ] = None,
    force_config: Annotated[bool, typer.Option("--force-config", help="Write the dataset config.json anew.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write episodes from frames that another program names on standard input, one JSON object a line."""
    from knonik_assets.live.protocol import run_live

    report = run_live(config, output, force_config=force_config)
    for warning in report.warnings:
        say("warning", warning)
    for episode in report.episodes:
        for warning in episode.warnings:
            say("warning", f"{episode.episode_id}: {warning}")
        if episode.status not in ("written", "discarded"):
            say(episode.status, f"{episode.episode_id}: {episode.reason}", colour="red")
    if not quiet:  # standard output belongs to the answers
        discarded = sum(episode.status == "discarded" for episode in report.episodes)
        err.print(
            f"{len(report.written)} written, {discarded} discarded, {len(report.failed)} failed: "
            f"{report.frames} frames, {size(report.bytes)} in {report.seconds:.1f} s -> {report.output}",
            highlight=False,
            soft_wrap=True,
        )
    if report.failed or not report.written:
        raise typer.Exit(1)
