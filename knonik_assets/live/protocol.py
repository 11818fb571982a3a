"""The line protocol: one JSON object a line in, one out; for producers in any language.

A bad line is answered by an error and changes nothing. Pictures and rows come as ``.npy`` files, read without pickle,
whose size is checked before anything is allocated for them.
"""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from knonik_assets.configs.documents import local_path, parse_json
from knonik_assets.configs.live import load_live_config
from knonik_assets.configs.validation import unknown, validate
from knonik_assets.live.report import LiveReport
from knonik_assets.live.session import LiveSession
from knonik_assets.sources.npy_arrays import npy_file
from knonik_loader.errors import ConfigError, EpisodeError, KnonikError

__all__ = ["LONGEST_LINE", "Protocol", "run_live"]

LONGEST_LINE = 1 << 20
"""Bytes of a line at most; longer ones are skipped in pieces."""
_MOST_BYTES = 1 << 30
"""Of one frame's array."""
_SHOWN = 2000


class _Command(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    cmd: str


class _Start(_Command):
    metadata: dict[str, Any] | None = None


class _Camera(_Command):
    name: str
    fps: float


class _Numbers(_Command):
    name: str
    dim: int
    role: Literal["action", "state"] | None = None
    channel_names: list[str] | None = None


class _Frame(_Command):
    name: str
    path: str
    timestamp: float | None = None


_COMMANDS: Mapping[str, type[_Command]] = {
    "start": _Start,
    "register_rgb": _Camera,
    "register_depth": _Camera,
    "register_numeric": _Numbers,
    "rgb": _Frame,
    "depth": _Frame,
    "numeric": _Frame,
    "end": _Command,
    "abort": _Command,
    "exit": _Command,
}


class Protocol:
    """Turns lines into calls of a session and their outcome into answers."""

    def __init__(self, session: LiveSession) -> None:
        self.session = session
        self.over = False
        """Whether the producer said ``exit``."""
        self._count = 0

    def answer(self, line: bytes | None) -> dict[str, Any]:
        """Do what a line says.

        Args:
            line: its bytes; None for one that was too long to be read.

        Returns:
            ``{"ok": true}``, or ``{"ok": false, "error": text}``.
        """
        self._count += 1
        try:
            self._do(line)
        except KnonikError as error:
            text = str(error)
            return {"ok": False, "error": text if len(text) <= _SHOWN else text[:_SHOWN] + " …"}
        except MemoryError:
            return {"ok": False, "error": f"command {self._count}: there is not enough memory for it."}
        return {"ok": True}

    def _do(self, line: bytes | None) -> None:
        where = f"command {self._count}"
        command = _parsed(line, where)
        session = self.session
        if isinstance(command, _Camera | _Numbers) and not session.is_open:
            raise EpisodeError("no episode is open: start one first, streams are registered after its start")
        match command:
            case _Start(metadata=metadata):
                session.start(metadata)
            case _Camera(cmd="register_rgb", name=name, fps=fps):
                session.register_rgb(name, fps)
            case _Camera(name=name, fps=fps):
                session.register_depth(name, fps)
            case _Numbers(name=name, dim=dim, role=role, channel_names=names):
                session.register_numeric(name, dim, role, names)
            case _Frame(cmd="rgb" | "depth" | "numeric" as kind, name=name, path=path, timestamp=timestamp):
                session.push(kind, name, self._load(kind, name, path), timestamp)
            case _Command(cmd="end"):
                session.end()
            case _Command(cmd="abort"):
                if not session.is_open:
                    raise EpisodeError("no episode is open: there is nothing to abort")
                session.abort()
            case _:
                self.over = True
                if session.is_open:
                    session.end()

    def _load(self, kind: Literal["rgb", "depth", "numeric"], name: str, path: str) -> npt.NDArray[np.generic]:
        """The array of a ``.npy`` file, checked against its stream before it is read.

        Raises:
            EpisodeError: missing, damaged, pickled, or not what the stream takes.
        """
        file = local_path(path, "path")
        try:
            status = file.stat()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise EpisodeError(
                f"{path}: cannot be read: {reason}; write the file before the line that names it."
            ) from error
        if file.suffix != ".npy" or not stat.S_ISREG(status.st_mode):
            raise EpisodeError(f"{path}: is no .npy file.")
        found = npy_file(file, path)
        self.session.check(kind, name, found.shape, found.dtype)
        size = found.dtype.itemsize * int(np.prod(found.shape, dtype=np.int64))
        if size > _MOST_BYTES:
            raise EpisodeError(f"{path}: {size} bytes; a frame of at most {_MOST_BYTES} is accepted.")
        return found.rows(0, found.shape[0]) if found.shape else found.whole()


def _parsed(line: bytes | None, where: str) -> _Command:
    if line is None:
        raise ConfigError(f"{where}: the line is longer than {LONGEST_LINE} bytes; frames belong into .npy files.")
    try:
        text = line.decode().strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: the line is no UTF-8 text (byte {error.start}).") from error
    if not text:
        raise ConfigError(f"{where}: the line is empty; a line holds one JSON object.")
    document = parse_json(text, where)
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: a line holds one JSON object, such as {{'cmd': 'start'}}.".replace("'", '"'))
    name = document.get("cmd")
    if not isinstance(name, str) or name not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        said = unknown(name, _COMMANDS, "cmd") if isinstance(name, str) else f"cmd must be one of {known}."
        raise ConfigError(f"{where}: {said}")
    return validate(_COMMANDS[name], document, f"{where} ({name})")


def run_live(
    config: str | Path | Mapping[str, Any],
    output: str | Path | None = None,
    *,
    force_config: bool = False,
    source: IO[bytes] | IO[str] | None = None,
    answers: IO[str] | None = None,
) -> LiveReport:
    """Serve the line protocol until the input ends or the producer says ``exit``; an open episode is written then.

    Args:
        config: path of a live config (JSON or YAML), or what one would hold.
        output: where the episode directories go; wins over the config's ``output_dir``.
        force_config: write the dataset config anew where there is one.
        source: where lines come from; default: standard input.
        answers: where answers go; default: standard output.

    Returns:
        What became of every episode; also in ``ingest_report.json``.

    Raises:
        ConfigError: a mistake in the config or the call; the output is untouched.
        StorageError: another run writes the output, or it cannot be written.
        LoginRequired: an issuer is configured and there is no valid token.
    """
    if source is None and sys.stdin is None:
        raise ConfigError("standard input is closed; send the lines of a producer to it.")
    lines = _lines(source if source is not None else getattr(sys.stdin, "buffer", sys.stdin))
    to = answers if answers is not None else sys.stdout
    session = LiveSession(load_live_config(config), output, force_config=force_config)
    with session:
        protocol = Protocol(session)
        listening = True
        for line in lines:
            answer = json.dumps(protocol.answer(line))
            if listening:
                # A producer that stopped listening may still send: what it sends is kept.
                listening = _say(to, answer, session.report)
            if protocol.over:
                break
        if session.is_open:
            with suppress(EpisodeError):  # in the report; nobody is left to answer
                session.end()
    return session.report


def _say(to: IO[str], answer: str, report: LiveReport) -> bool:
    """Write an answer; False where nobody listens any more, or there is no room for it."""
    try:
        to.write(answer + "\n")
        to.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            report.warnings.append(
                f"answers could not be written ({error.strerror}); what came in was taken all the same"
            )
        return False
    return True


def _lines(source: IO[bytes] | IO[str]) -> Iterator[bytes | None]:
    """The lines of the input; None for each that is too long."""
    while piece := source.readline(LONGEST_LINE + 1):
        line = piece if isinstance(piece, bytes) else piece.encode("utf-8", "surrogatepass")
        if len(line) <= LONGEST_LINE or line.endswith(b"\n"):
            yield line
            continue
        while (piece := source.readline(LONGEST_LINE)) and piece[-1:] not in (b"\n", "\n"):
            pass
        yield None
