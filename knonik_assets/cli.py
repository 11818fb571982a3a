"""The ``knonik`` command, and ``python -m knonik_ingest``.

Commands only parse, call and print; what they do lives in the packages. A user's mistake ends in one or two lines on
standard error and exit status 2, bad data or a failed run in 1, Ctrl-C in 130, SIGTERM in 143; ``--debug`` shows the
traceback.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from knonik_assets.commands.bench import bench_command
from knonik_assets.commands.console import out, say
from knonik_assets.commands.datasets import dataset_app
from knonik_assets.commands.ingest import ingest_command
from knonik_assets.commands.live import live_command
from knonik_assets.commands.login import login_command, logout_command, status_command
from knonik_assets.commands.look import detect_command, inspect_command
from knonik_assets.commands.pack import pack_command, packer_command
from knonik_loader.errors import KnonikError

__all__ = ["app", "main", "packer_app", "packer_main"]


class _Group(TyperGroup):
    """Commands of two words, such as ``ingest live`` beside ``ingest``, which has options of its own."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - of typer's own copy of click
        two = " ".join(args[:2])
        return super().resolve_command(ctx, [two, *args[2:]] if two in self.commands else args)


app = typer.Typer(
    name="knonik",
    cls=_Group,
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
# Typer brings its own copy of click and exports only parts of it: the class of every mistake in a call by its subclass.
_CallError: type[Exception] = typer.BadParameter.__mro__[2]

_INTERRUPTED, _TERMINATED = 130, 143


class _Terminated(BaseException):
    """SIGTERM, made to unwind like Ctrl-C: workers are ended, and what is half-written is removed."""


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


app.command("ingest")(ingest_command)
app.command("ingest live")(live_command)
app.command("pack")(pack_command)
app.command("detect")(detect_command)
app.command("inspect")(inspect_command)
app.command("bench")(bench_command)
app.add_typer(dataset_app, name="dataset")
app.command("login")(login_command)
app.command("status")(status_command)
app.command("logout")(logout_command)
packer_app.command("ingest")(ingest_command)
packer_app.command("pack")(packer_command)


def _run(application: typer.Typer, arguments: Sequence[str] | None) -> int:
    argv = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in argv
    if debug:
        argv.remove("--debug")
    try:
        with _sigterm_raises():
            code = typer.main.get_command(application).main(
                argv, prog_name=application.info.name, standalone_mode=False
            )
    except KnonikError as error:
        if debug:
            raise
        say("error", str(error), colour="bold red")
        return error.exit_code
    except _CallError as error:
        if debug:
            raise
        context = getattr(error, "ctx", None)
        hint = f" (see '{context.command_path} --help')" if context is not None else ""
        mistake = _call_mistake(error)
        if mistake:  # empty: called without arguments, and the help is already printed
            say("error", mistake + hint, colour="bold red")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except _Terminated:
        code = _TERMINATED
    if code in {_INTERRUPTED, _TERMINATED}:  # typer itself makes the first of Ctrl-C
        how = "Ctrl-C" if code == _INTERRUPTED else "SIGTERM"
        say("interrupted", f"stopped by {how}; what was finished is kept, run the same command again to go on.")
    return code if isinstance(code, int) else 0


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _call_mistake(error: Exception) -> str:
    describe = getattr(error, "format_message", None)
    return " ".join(str(describe() if callable(describe) else error).split()).replace("Value error, ", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``knonik`` and return its exit status."""
    return _run(app, arguments)


def packer_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m knonik_ingest`` and return its exit status."""
    return _run(packer_app, arguments)
