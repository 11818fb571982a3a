"""Read packed robot datasets: the KHLP format and the loaders. Imports neither Dagster nor ``knonik_assets``.

Names are imported when they are first used, so that ``import knonik_loader`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from knonik_loader.configured import from_config
    from knonik_loader.errors import (
        ConfigError,
        DecodeError,
        FormatError,
        KnonikError,
        LoaderClosedError,
        LoginRequired,
        PlanError,
        ResumeMismatchError,
        StorageError,
    )
    from knonik_loader.multi import MultiShardedDataLoader
    from knonik_loader.sharded import ShardedDataLoader

__all__ = [
    "ConfigError",
    "DecodeError",
    "FormatError",
    "KnonikError",
    "LoaderClosedError",
    "LoginRequired",
    "MultiShardedDataLoader",
    "PlanError",
    "ResumeMismatchError",
    "ShardedDataLoader",
    "StorageError",
    "from_config",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - classes of several modules
    """Import a public name from where it lives."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = {"ShardedDataLoader": "sharded", "MultiShardedDataLoader": "multi", "from_config": "configured"}
    home = f"knonik_loader.{homes.get(name, 'errors')}"
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, imported or not."""
    return sorted({*globals(), *__all__})
