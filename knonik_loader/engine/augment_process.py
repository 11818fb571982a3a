"""``augment_execution="process"``: worker processes that call the user's function, started afresh and never forked."""

from __future__ import annotations

import contextlib
import multiprocessing.process
import multiprocessing.spawn
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from knonik_loader.engine.augment import AugmentFn, RemoteError
from knonik_loader.engine.augment_worker import Failed, Setup
from knonik_loader.engine.transport import Parcel, Region, receive, send
from knonik_loader.errors import ConfigError

__all__ = ["WorkerPool", "WorkerProcess", "pickled_function"]

_BOOT = (
    "import sys; from multiprocessing.connection import Connection; c = Connection(int(sys.argv[1])); "
    "sys.path[:] = c.recv(); from knonik_loader.engine.augment_worker import serve; serve(c, int(sys.argv[2]))"
)
_PATIENCE_S = 1.0


def pickled_function(function: AugmentFn) -> bytes:
    """The function as worker processes get it.

    Raises:
        ConfigError: it can't be sent.
    """
    try:
        return pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"loader_cfg.augment_fn can't be sent to worker processes ({error}); define it at the top level of a "
            "module (no lambda, nothing inside a function), or use augment_execution='threaded'"
        ) from error


class WorkerProcess:
    """One worker, called like the function itself; started by the first call, and again after it has died."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._region: Region | None = None
        self._busy = self._stopped = False

    def __call__(self, sample: dict[str, Any]) -> Mapping[str, Any]:
        """What the function returns for the sample, which only one thread at a time may ask for.

        Raises:
            RemoteError: the function raised, or its process died.
        """
        with self._guard:
            if self._stopped:
                raise RemoteError("the pass has ended")
            self._busy = True
        try:
            connection, region = self._started()
            connection.send(send(sample, region))
            answer = connection.recv()
        except (EOFError, OSError) as error:
            raise RemoteError(self._obituary("while it worked on this sample")) from error
        finally:
            with self._guard:
                self._busy = False
        if isinstance(answer, Parcel):
            result: Mapping[str, Any] = receive(answer, region, copy=True)
            return result
        raise _remote_error(answer)

    def interrupt(self) -> None:
        """End the process if it is at work: the call that waits for it then fails, and so does any until `resume`."""
        with self._guard:
            self._stopped = True
            if self._busy and self._process is not None:
                self._process.kill()

    def resume(self) -> None:
        """Take calls again."""
        with self._guard:
            self._stopped = False

    def hang_up(self) -> None:
        """Let the process end by itself, without waiting for it."""
        with self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def close(self, deadline: float | None = None) -> int | None:
        """End the process, by force after a `time.monotonic` deadline; gives its exit status, None where none ran."""
        with self._guard:
            process, connection, region = self._process, self._connection, self._region
            self._process = self._connection = self._region = None
        if connection is not None:
            connection.close()
        if region is not None:
            region.close()
        if process is None:
            return None
        try:
            # Without a connection the worker ends by itself, unless it is in the midst of a sample.
            return process.wait(_PATIENCE_S if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _started(self) -> tuple[Connection, Region]:
        if self._connection is not None and self._region is not None:
            return self._connection, self._region
        if getattr(multiprocessing.process.current_process(), "_inheriting", False):
            raise RemoteError(
                "a worker process imports the main module again, and that started a loader: protect the program's "
                "start by `if __name__ == '__main__':`, or define augment_fn in a module of its own"
            )
        region = Region()
        ours, theirs = socket.socketpair()
        command = [os.fsdecode(multiprocessing.spawn.get_executable()), "-c", _BOOT, str(theirs.fileno())]
        with theirs:
            process = subprocess.Popen(
                [*command, str(region.fd)],
                pass_fds=(theirs.fileno(), region.fd),
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is the loader's business
            )
        connection = Connection(ours.detach())
        with self._guard:
            self._process, self._connection, self._region = process, connection, region
            if self._stopped:
                process.kill()  # it was interrupted while it started
        try:
            connection.send([*sys.path])
            connection.send(self._setup)
            answer = connection.recv()
        except (EOFError, OSError) as error:
            raise RemoteError(self._obituary("before it could import augment_fn; its output says why")) from error
        if isinstance(answer, Failed):
            self.close()
            raise RemoteError(
                f"a worker process can't import it: {answer.kind}: {answer.message}; it must be importable by name "
                "from a module, and the main module needs its `if __name__ == '__main__':`"
            ) from _remote_error(answer)
        return connection, region

    def _obituary(self, when: str) -> str:
        status = self.close()
        if status is None or status >= 0:
            return f"the worker process ended with exit status {status} {when}"
        name = signal.Signals(-status).name
        hint = "; the system may have run out of memory: use fewer augment_workers" if name == "SIGKILL" else ""
        return f"the worker process was ended by {name} {when}{hint}"


class WorkerPool:
    """The workers of one loader, kept from pass to pass; they end with the loader, or with this process.

    Args:
        function: pickled; see `pickled_function`.
        keep: workers that wait for the next pass.
    """

    def __init__(self, function: bytes, keep: int) -> None:
        self._keep = keep
        self._setup = Setup(function, _main_module() if b"__main__" in function else {})
        self._lock = threading.Lock()
        self._idle: list[WorkerProcess] = []
        self._closed = False
        # Only idle ones: a worker in use belongs to a thread that brings it back.
        weakref.finalize(self, _close_all, self._idle, os.getpid())

    @contextlib.contextmanager
    def borrow(self) -> Iterator[WorkerProcess]:
        """A worker that nobody else uses."""
        with self._lock:
            worker = self._idle.pop() if self._idle else WorkerProcess(self._setup)
        worker.resume()
        try:
            yield worker
        finally:
            with self._lock:
                # A pass may begin before the threads of the one before have brought theirs back.
                kept = not self._closed and len(self._idle) < self._keep
                if kept:
                    self._idle.append(worker)
            if not kept:
                worker.close()

    def close(self) -> None:
        """End the workers: idle ones now, the others when their threads are done with them."""
        with self._lock:
            self._closed = True
            idle = list(self._idle)
        _close_all(idle, os.getpid())


def _close_all(workers: list[WorkerProcess], pid: int) -> None:
    if pid != os.getpid():
        return  # a forked copy: the workers are the parent's
    for worker in workers:
        worker.hang_up()
    deadline = time.monotonic() + _PATIENCE_S
    for worker in workers:
        worker.close(deadline)


def _main_module() -> dict[str, Any]:
    """What `multiprocessing.spawn.prepare` needs to import this program's main module under another name."""
    main = sys.modules["__main__"]
    found: dict[str, Any] = {"sys_argv": list(sys.argv)}
    name = getattr(getattr(main, "__spec__", None), "name", None)
    path = getattr(main, "__file__", None)
    if name is not None:
        return found | {"init_main_from_name": name}
    if path is None:
        raise ConfigError(
            "loader_cfg.augment_fn is defined in an interactive session, where worker processes can't import it from; "
            "put it into a module, or use augment_execution='threaded'"
        )
    return found | {"init_main_from_path": os.path.normpath(Path(path).absolute())}


def _remote_error(failed: Failed) -> RemoteError:
    error = RemoteError(f"{failed.kind}: {failed.message}")
    if failed.error is not None:
        error.__cause__ = pickle.loads(failed.error)
    error.add_note(f"In the worker process:\n{failed.trace}")
    return error
