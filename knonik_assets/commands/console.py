"""What all commands share: the two consoles, how things are said, and options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

__all__ = ["Engine", "EngineOption", "Quiet", "Workers", "err", "out", "say", "size"]

# paths and names are said as they are: a "[" in them is no markup
out = Console(markup=False)
err = Console(stderr=True, markup=False)


class Engine(StrEnum):
    """Where episodes are worked on."""

    inline = "inline"
    processes = "processes"
    ray = "ray"


Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Tasks at once; default: one a core.")]
EngineOption = Annotated[Engine, typer.Option("--engine", help="Where the work runs.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, errors only.")]


def say(kind: str, text: str, colour: str = "yellow") -> None:
    """One line on standard error: what kind of news, then the news."""
    err.print(Text.assemble((f"{kind}:", colour), " ", text), highlight=False, soft_wrap=True)


def size(count: float) -> str:
    """Bytes in the unit a person would use."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
