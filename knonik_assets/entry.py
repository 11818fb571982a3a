"""Where the commands start: nothing heavy is imported before Ctrl-C is looked after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["knonik", "lazily", "packer"]

_INTERRUPTED = 130


def knonik() -> int:
    """Run ``knonik`` and return its exit status."""
    return _start("main")


def packer() -> int:
    """Run ``python -m knonik_ingest`` and return its exit status."""
    return _start("packer_main")


def _start(name: str) -> int:
    try:
        main: Callable[[], int] = getattr(import_module("knonik_assets.cli"), name)
    except KeyboardInterrupt:
        return _INTERRUPTED
    return main()


def lazily(places: Mapping[str, str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for a module whose names are defined elsewhere: imported when first asked for.

    Args:
        places: name → module that defines it.
    """

    def get(name: str) -> Any:  # noqa: ANN401 - whatever the modules define
        if name not in places:
            raise AttributeError(f"there is no {name!r} here; there are {', '.join(places)}")
        return getattr(import_module(places[name]), name)

    return get
