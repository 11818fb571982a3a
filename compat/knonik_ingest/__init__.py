"""The packer module: ``python -m knonik_ingest pack``."""

from knonik_assets.ingest import run
from knonik_assets.pack import pack

__all__ = ["pack", "run"]
