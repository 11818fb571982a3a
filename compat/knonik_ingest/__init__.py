"""The packer module: ``python -m knonik_ingest pack``."""

from typing import TYPE_CHECKING

from knonik_assets.entry import lazily

if TYPE_CHECKING:
    from knonik_assets.ingest import run
    from knonik_assets.pack import pack

__all__ = ["pack", "run"]

__getattr__ = lazily({"run": "knonik_assets.ingest", "pack": "knonik_assets.pack"})
