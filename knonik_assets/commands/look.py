"""``knonik detect`` and ``knonik inspect``: what is there, and is it whole."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from knonik_assets.commands.console import err, out
from knonik_loader.errors import ConfigError, SourceError

__all__ = ["detect_command", "inspect_command"]


def detect_command(
    raw: Annotated[str, typer.Argument(help="A raw dataset: path or URL.")],
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", help="File for an ingest config: commented YAML, or .json."),
    ] = None,
) -> None:
    """Say what a raw dataset is: family, episodes, streams, and what looks suspicious; status 1 if none can be read."""
    from knonik_assets.episodes.storing import storage_errors
    from knonik_assets.sources.detect import config_text, datasets_in, describe
    from knonik_assets.sources.detect_table import render, render_list

    _named(raw, "a raw dataset")
    families = datasets_in(raw)
    if len(families) > 1:
        if as_json:
            listed = [{**asdict(family), "root": family.where} for family in families]
            shown = [{key: value for key, value in one.items() if key != "url"} for one in listed]
            out.print_json(json.dumps({"path": raw, "datasets": shown}))
        else:
            out.print(render_list(families), highlight=False, soft_wrap=True, markup=False)
        raise SourceError(f"{raw} holds {len(families)} datasets; name one of them.")
    found = describe(families[0], raw)
    if as_json:
        out.print_json(json.dumps(found.to_dict()))
    else:
        out.print(render(found), highlight=False, soft_wrap=True, markup=False)
    if write is not None:
        text = config_text(found, as_json=write.suffix.lower() == ".json")
        if write.exists():
            raise ConfigError(f"{write} exists already; name a new file for --write.")
        with storage_errors("write", write):
            write.write_text(text, "utf-8")
        err.print(f"config written to {write}", highlight=False, soft_wrap=True)
    if not found.readable:
        raise typer.Exit(1)


def _named(path: str, what: str) -> None:
    """Refuse an empty path, which Python would take for the folder it runs in: often a variable that nobody set.

    Raises:
        ConfigError: it is empty.
    """
    if not path:
        raise ConfigError(f"the path is empty; name {what} ('.' is this folder).")


def inspect_command(
    path: Annotated[
        str, typer.Argument(help="KHLP file or manifest (also by URL), episode directory, ingest output, raw dataset.")
    ],
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every payload and file against its checksum.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    frames: Annotated[
        list[str] | None, typer.Option("--frames", help="EP:N, a frame to save as PNG in --out; may be repeated.")
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", help="Where pictures go; without --frames a contact sheet of sampled frames."),
    ] = None,
    episodes: Annotated[
        Path | None, typer.Option("--episodes", help="Episodes to compare a packed dataset's pictures with.")
    ] = None,
) -> None:
    """Say what is inside, and with --verify whether it is whole."""
    from knonik_assets.packing.inspect import inspect_path, render, save_frames, save_sheet

    _named(path, "what to look at")
    if frames and out_dir is None:
        raise ConfigError("--frames says which pictures to save; say where to with --out DIR.")
    report = inspect_path(path, verify, episodes)
    if as_json:
        out.print_json(json.dumps(report))
    else:
        out.print(render(report), highlight=False, soft_wrap=True)
        if verify and not report.get("damage"):
            out.print("verified: every file and payload agrees with its checksum", highlight=False)
    if out_dir is not None:
        for picture in save_frames(path, frames, out_dir) if frames else [save_sheet(path, out_dir)]:
            err.print(f"wrote {picture}", highlight=False, soft_wrap=True)
    if report.get("damage"):
        raise typer.Exit(1)
