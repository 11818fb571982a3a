"""Data at URLs: places, objects, leases and scratch space. Knows neither episodes nor packed files.

* `Place` — a local path or an ``s3://``, ``gs://`` or ``az://`` URL, as somebody named it.
* `ObjectFolder` — list, read, download, upload, put on a condition and delete below a remote place.
* `files` — files at any place, local or not: looked for, read, listed, removed.
* `Lease` — one run at a time writes a remote folder.
* `Scratch` — bounded local space that remote data is staged through, a `Room` for each piece of work.
"""

from knonik_assets.storage import files
from knonik_assets.storage.lease import LEASE, Lease, check_lease
from knonik_assets.storage.objects import ONE_PIECE, ConflictError, ObjectFolder, ObjectInfo
from knonik_assets.storage.place import Place
from knonik_assets.storage.scratch import Room, Scratch, ScratchBusyError

__all__ = [
    "LEASE",
    "ONE_PIECE",
    "ConflictError",
    "Lease",
    "ObjectFolder",
    "ObjectInfo",
    "Place",
    "Room",
    "Scratch",
    "ScratchBusyError",
    "check_lease",
    "files",
]
