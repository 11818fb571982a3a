"""Telling a person how far a run is: bars on a terminal, lines elsewhere, counts of frames through small files."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

__all__ = ["FrameCount", "Progress", "clear_counts", "console_progress", "progress_folder"]

_EVERY_S = 0.25


class Progress(Protocol):
    """What a run tells while it works. All calls come from one thread."""

    def begin(self, total: int, what: str = "episodes", folder: Path | None = None) -> None:
        """The run starts on so many pieces of work; ``folder`` holds the workers' `FrameCount` files."""
        ...

    def advance(self, text: str = "", count: int = 1) -> None:
        """One more piece is done, or several; ``text`` says in a few words how it went."""
        ...

    def end(self) -> None:
        """The run is over, however it went. Harmless when called again or without a beginning."""
        ...


def console_progress(console: Console) -> Progress:
    """Bars where the console is a terminal, a line for every piece that has something to say elsewhere."""
    return _BarProgress(console) if console.is_terminal else _LineProgress(console)


class _LineProgress:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._done = self._total = 0

    def begin(self, total: int, what: str = "episodes", folder: Path | None = None) -> None:
        del folder
        self._done, self._total = 0, total
        if total:
            self._say(f"{what}: {total} to do")

    def advance(self, text: str = "", count: int = 1) -> None:
        self._done += count
        if text:
            self._say(f"[{self._done}/{self._total}] {text}")

    def end(self) -> None:
        pass

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)


class _BarProgress:
    """One bar over the pieces of work, one over the frames of those that are being worked on."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: _FrameBars | None = None

    def begin(self, total: int, what: str = "episodes", folder: Path | None = None) -> None:
        self.end()
        if total:
            self._bars = _FrameBars(self._console, total, what, folder)
            self._bars.start()

    def advance(self, text: str = "", count: int = 1) -> None:
        if self._bars is not None:
            self._bars.advance(self._bars.pieces, count)
            if text:
                self._bars.console.print(text, highlight=False, markup=False)

    def end(self) -> None:
        bars, self._bars = self._bars, None
        if bars is not None:
            bars.stop()


class _FrameBars(Bars):
    """Reads the workers' counts whenever the bars are drawn, so that no thread of our own has to wait for them."""

    def __init__(self, console: Console, total: int, what: str, folder: Path | None) -> None:
        self._folder = folder
        self._frames: TaskID | None = None  # the base class draws once before there are bars
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=console,
            transient=True,
        )
        self.pieces = self.add_task(what, total=total)
        self._frames = self.add_task("frames", total=None, visible=folder is not None)

    def get_renderables(self) -> Iterator[RenderableType]:
        if self._folder is not None and self._frames is not None:
            done, total = _counted(self._folder)
            self.update(self._frames, completed=done, total=total or None)
        yield from super().get_renderables()


def progress_folder(out: Path) -> Path:
    """Where workers leave their counts."""
    return out / ".knonik" / "progress"


def clear_counts(out: Path) -> None:
    """Remove the counts of an earlier run."""
    shutil.rmtree(progress_folder(out), ignore_errors=True)


def _counted(folder: Path) -> tuple[int, int]:
    """Frames done and to do, over all running workers."""
    done = total = 0
    for path in folder.glob("[!.]*") if folder.is_dir() else ():
        with suppress(OSError, ValueError):
            one, of = path.read_text().split()
            done, total = done + int(one), total + int(of)
    return done, total


class FrameCount:
    """A worker's count of the frames of one episode, left in a file now and then. Thread-safe.

    Args:
        path: the file; its folder is made.
        total: frames of all streams together.
    """

    def __init__(self, path: Path, total: int) -> None:
        self._path, self._total = path, total
        self._done = 0
        self._next = 0.0
        self._lock = threading.Lock()
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._leave()

    def add(self, frames: int = 1) -> None:
        """So many more are done."""
        with self._lock:
            self._done += frames
            if time.monotonic() >= self._next:
                self._leave()

    def close(self) -> None:
        """Remove the file: the episode no longer counts as running."""
        with suppress(OSError):
            self._path.unlink()

    def _leave(self) -> None:
        self._next = time.monotonic() + _EVERY_S
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        with suppress(OSError):  # a count is a courtesy: a full disk is reported by what writes the episode
            partial.write_text(f"{self._done} {self._total}")
            partial.replace(self._path)
