"""One run at a time writes an output directory, wherever it is."""

from __future__ import annotations

from knonik_assets.ingesting.lock import OutputLock
from knonik_assets.storage import Lease, ObjectFolder, Place

__all__ = ["Holding", "hold"]

Holding = OutputLock | Lease


def hold(out: Place) -> Holding:
    """A lock on a local directory, a lease on one at a URL; use it in a ``with``.

    Raises:
        StorageError: on entering: another run holds it (named), or it cannot be written.
    """
    return Lease(ObjectFolder(out)) if out.is_remote else OutputLock(out.path)
