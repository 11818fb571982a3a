"""``knonik dataset add | list | check``: the cards of the pipeline."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from knonik_assets.commands.console import out, say

__all__ = ["dataset_app"]

dataset_app = typer.Typer(help="Dataset cards: one YAML file a dataset.", no_args_is_help=True)

Folder = Annotated[
    Path | None,
    typer.Option("--cards", help="Folder of the cards; default: KNONIK_DATASETS, or datasets in the Dagster home."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable.")]

_UNWRAPPED = 10_000
"""Columns for output that no terminal shows."""


@dataset_app.command("add")
def add_command(
    name: Annotated[str, typer.Argument(help="The dataset's name.")],
    raw: Annotated[str, typer.Option("--raw", help="Its raw recordings: path or URL.")],
    cards: Folder = None,
) -> None:
    """Write a card from what is found in the raw recordings."""
    from knonik_assets.carding import add_card

    path, found = add_card(name, raw, cards)
    for warning in found.warnings:
        say("warning", warning)
    out.print(f"{found.family}, {found.episodes} episodes -> {path}", highlight=False, soft_wrap=True)
    out.print("Look it over, then reload the code location in Dagster.", highlight=False)


@dataset_app.command("list")
def list_command(cards: Folder = None, as_json: AsJson = False) -> None:
    """List the cards, broken ones with what is wrong; exit status 1 if any is."""
    from knonik_assets.carding import list_cards

    states = list_cards(cards)
    if not states:
        _say_none(cards)
    if as_json:
        out.print_json(json.dumps([asdict(state) for state in states], default=str))
    else:
        table = Table(box=None, pad_edge=False)
        for column in ("dataset", "packs", "schedule", "card"):
            table.add_column(column, overflow="fold")
        for state in states:
            packs = "broken" if state.problems else ", ".join(state.profiles) or "nothing"
            table.add_row(state.name, packs, state.schedule or "", str(state.path))
        # outside of a terminal a path stays in one line, to be searched for
        (out if out.is_terminal else Console(markup=False, width=_UNWRAPPED)).print(table)
        for state in states:
            for problem in state.problems:
                say("error", problem, colour="red")
    if any(state.problems for state in states):
        raise typer.Exit(1)


@dataset_app.command("check")
def check_command(
    name: Annotated[str | None, typer.Argument(help="The dataset; default: every one.")] = None,
    cards: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Look cards and their raw data over; exit status 1 if one cannot be built."""
    from knonik_assets.carding import check_card, list_cards

    names = [name] if name is not None else [state.name for state in list_cards(cards)]
    if not names:
        _say_none(cards)
    states = [check_card(each, cards) for each in names]
    if as_json:
        out.print_json(json.dumps([asdict(state) for state in states], default=str))
    for state in states if not as_json else ():
        found = "" if state.episodes is None else f", {state.episodes} raw episodes"
        verdict = "cannot be built" if state.problems else "can be built"
        out.print(f"{state.name}: {verdict}{found}", highlight=False, soft_wrap=True)
        for note in state.notes:
            say("note", f"{state.name}: {note}")
        for problem in state.problems:
            say("error", f"{state.name}: {problem}", colour="red")
    if any(state.problems for state in states):
        raise typer.Exit(1)


def _say_none(cards: Path | None) -> None:
    from knonik_assets.configs.card import card_folder

    say("note", f"no card is in {cards or card_folder()}; 'knonik dataset add NAME --raw PATH' writes one.")
