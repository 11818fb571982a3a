"""Ray, imported and started only where somebody asks for it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from knonik_assets.engine.work import Answer, WorkQueue, attempt, default_workers, died, unexpected
from knonik_loader.errors import ConfigError

__all__ = ["import_ray", "on_ray", "start_ray"]

_KNOCK_S = 10.0
"""Seconds within which a cluster's head takes a connection."""


def import_ray() -> Any:  # noqa: ANN401 - an optional module
    """The ray module.

    Raises:
        ConfigError: it isn't installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError("engine ray needs Ray: pip install 'knonik[ray]', or use engine processes.") from error
    return ray


def on_ray(
    fn: Callable[[Any], Any],
    todo: Sequence[Any],
    ray: Any,  # noqa: ANN401 - an optional module
    lanes: int,
    attempts: int,
    queue: WorkQueue,
    options: Mapping[str, Any],
) -> Generator[tuple[int, int, Answer], None, None]:
    """(index, attempts, answer) of every item, as they end; closing it early cancels what is at work."""
    task = _task(ray, options)
    deaths = (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.OutOfMemoryError,
        ray.exceptions.ObjectLostError,  # it was done, and its node died before anybody had the result
    )
    running: dict[Any, tuple[int, int]] = {}
    try:
        while queue:
            while len(running) < lanes and (begun := queue.take()) is not None:
                running[task.remote(fn, todo[begun[0]])] = begun
            done, _ = ray.wait(list(running), num_returns=1)
            for reference in done:
                index, tried = running.pop(reference)
                try:
                    answer = ray.get(reference)
                except deaths:
                    if tried < attempts:
                        queue.again(index, tried)
                        continue
                    answer = died(tried)
                except ray.exceptions.RayTaskError as error:
                    # a result that does not pickle: what the function raises is an answer
                    answer = unexpected(error)
                yield index, tried, answer
                queue.done(index)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _task(ray: Any, options: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an optional module
    """What is called on the cluster, with the options of every task.

    Raises:
        ConfigError: Ray knows no such option, or it is one that the engine decides.
    """
    if "max_retries" in options:
        raise ConfigError("ray.task.max_retries is decided by the engine, which tries again when a worker died.")
    try:
        # max_retries=0: attempts are counted here, as in the other engines
        return ray.remote(attempt).options(max_retries=0, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"ray.task {dict(options)} is nothing that Ray takes: {_one_line(error)}") from error


def start_ray(ray: Any, workers: int | None, options: Mapping[str, Any]) -> None:  # noqa: ANN401 - an optional module
    """Join the cluster that the options name, or start a private one for the time of this run.

    Raises:
        ConfigError: nothing answers there, or Ray refuses the options.
    """
    settings: dict[str, Any] = {"log_to_driver": False, **options}
    if settings.setdefault("address", "local") == "local":
        settings.setdefault("include_dashboard", False)
        settings.setdefault("num_cpus", workers or default_workers())
    else:
        _knock(str(settings["address"]))
    try:
        ray.init(**settings)
    except (ConnectionError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"Ray cannot be reached with {dict(options)}: {_one_line(error)}") from error


def _knock(address: str) -> None:
    """See whether anybody listens at an address with a port, which Ray itself would try for minutes.

    Raises:
        ConfigError: nobody does.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _KNOCK_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"ray.address {address}: nobody answers there ({error}). Start a cluster with 'ray start --head', name "
            "another address, or leave it out for a private cluster."
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
