"""The other end of `WorkerProcess`: calls the user's function with one sample after the other."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import multiprocessing.spawn
import pickle
import random
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from knonik_loader.engine.caught import Caught
from knonik_loader.engine.transport import Parcel, Region, receive, send

__all__ = ["Failed", "Setup", "serve"]


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker needs to know before the first sample."""

    function: bytes
    """Pickled."""
    main: dict[str, Any]
    """How to import the program's main module, where the function needs it; see `multiprocessing.spawn.prepare`."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What went wrong in the worker."""

    kind: str
    message: str
    trace: str
    error: bytes | None
    """The exception itself, where it can be pickled."""


def serve(connection: Connection, fd: int) -> None:
    """Answer each sample until the other end is closed, whichever way that process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the loader decides when to end, not the terminal
    region = Region(fd)
    function: Callable[[dict[str, Any]], object] | None = None
    with Caught() as caught:
        function = _load(connection.recv())
    answer: object = _failed(caught.error) if caught.error is not None else None
    # The other end may be gone at any moment, and then nobody is left to tell.
    with contextlib.suppress(EOFError, OSError):
        connection.send(answer)
        while function is not None:
            connection.send(_answer(function, connection.recv(), region))


def _load(setup: Setup) -> Callable[[dict[str, Any]], object]:
    if setup.main:
        # As multiprocessing does it, so that a main module without a guard fails instead of running once more.
        process = multiprocessing.process.current_process()
        setattr(process, "_inheriting", True)  # noqa: B010 - not in the type's stub
        multiprocessing.spawn.prepare(setup.main)
        delattr(process, "_inheriting")
    function: Callable[[dict[str, Any]], object] = pickle.loads(setup.function)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # there are as many workers as are to run at once
    return function


def _answer(function: Callable[[dict[str, Any]], object], parcel: Parcel, region: Region) -> Parcel | Failed:
    result: Parcel | None = None
    with Caught() as caught:
        sample = receive(parcel, region, copy=False)
        _seed(sample["rng_seed"])
        # Behind the sample, as the function may return views of it.
        result = send(function(sample), region, parcel.end)
    return result if result is not None else _failed(caught.error or RuntimeError("no result"))


def _seed(seed: int) -> None:
    """The global generators, so that what draws from them doesn't depend on which worker gets which sample."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed % 2**63)


def _failed(error: BaseException) -> Failed:
    pickled: bytes | None = None
    with Caught() as caught:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # an exception may pickle and not come back
    trace = "".join(traceback.format_exception(error))
    return Failed(type(error).__name__, str(error), trace, None if caught.error is not None else pickled)
