"""A few frames say how a dataset's pictures compare: with JPEG by size, and with the episodes they came from."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.packing.album import Album, Moment, moments
from knonik_assets.packing.existing import REPORT
from knonik_assets.packing.facts import read_facts
from knonik_assets.packing.fidelity import luma_psnr
from knonik_assets.packing.frames import fit
from knonik_assets.storage import Place
from knonik_assets.storage.files import read_bytes
from knonik_loader.errors import ConfigError, DecodeError, EpisodeError, FormatError, StorageError
from knonik_loader.khlp.codecs import jpeg

__all__ = ["JPEG_QUALITY", "SAMPLES", "Originals", "Samples", "find_originals", "lowest", "take"]

SAMPLES = 12
"""Moments looked at, of every camera."""

JPEG_QUALITY = 90
"""With 4:2:0 chroma: what the field keeps pictures in, and what sizes are told against."""

Camera = tuple[str, tuple[int, ...]]
"""A camera's batch key and the shape of its pictures, which may differ between episodes."""


@dataclass(slots=True)
class Samples:
    """What the samples show."""

    jpeg_bytes: dict[Camera, float] = field(default_factory=dict)
    """Mean size of a frame as a JPEG."""
    psnr: dict[str, list[float]] = field(default_factory=dict)
    """Luma PSNR in dB by batch key, a value a sample; infinite where nothing differs."""
    moments: int = 0
    """Moments that were looked at."""
    compared: int = 0
    """Moments that were compared with the episodes."""
    damage: list[str] = field(default_factory=list)


class Originals:
    """The episodes that a dataset was packed from.

    Args:
        folder: the folder of episodes.
        digests: episode → digest of what was packed. An episode with another one is not the original any more.
    """

    def __init__(self, folder: Path, digests: Mapping[str, bytes]) -> None:
        self.folder = folder
        self._digests = digests
        self._readers: dict[str, EpisodeReader | None] = {}

    def rgb(self, moment: Moment, key: str) -> npt.NDArray[np.uint8] | None:
        """The episode's own picture; None where the episode is gone or was changed."""
        if moment.episode not in self._readers:
            path = self.folder / moment.episode
            there = (path / METADATA).is_file() and read_facts(path).digest == self._digests.get(moment.episode)
            self._readers[moment.episode] = EpisodeReader(path) if there else None
        reader = self._readers[moment.episode]
        if reader is None:
            return None
        return next(reader.rgb(key.removeprefix("rgb_"), moment.frame, moment.frame + 1))


def find_originals(path: Place, digests: Mapping[str, bytes], told: Path | None) -> Originals | None:
    """The episodes that the caller names, or that the report of the pack beside the dataset does.

    Raises:
        ConfigError: the folder that the caller names is none.
    """
    if told is not None:
        if not told.is_dir():
            raise ConfigError(f"There is no folder of episodes {told} to compare with; check the path.")
        return Originals(told, digests)
    for folder in (path.parent, path.parent.parent):
        try:
            said: Any = json.loads(read_bytes(folder / REPORT))
            there = Place.of(said["input_dir"], "input_dir")
        except (StorageError, ValueError, KeyError, TypeError):
            continue
        # of episodes at a URL whole videos would have to be fetched for a look at single frames
        return Originals(there.path, digests) if not there.is_remote and there.path.is_dir() else None
    return None


def take(album: Album, originals: Originals | None = None) -> Samples:
    """Decode some frames and measure them."""
    found = Samples()
    sizes: defaultdict[Camera, list[int]] = defaultdict(list)
    for moment in moments(album, SAMPLES):
        try:
            pictures = album.pictures(moment)
        except (DecodeError, FormatError, EpisodeError, StorageError) as error:
            found.damage.append(str(error))
            continue
        found.moments += 1
        compared = False
        for key, image in pictures.items():
            if image.ndim == 3:
                own = _original(originals, moment, key, image)
                if own is not None:
                    found.psnr.setdefault(key, []).append(luma_psnr(own, image))
                    compared = True
                picture = np.ascontiguousarray(image if own is None else own)
                sizes[key, image.shape].append(len(jpeg.encode(picture, JPEG_QUALITY, "420")))
        found.compared += compared
    found.jpeg_bytes = {camera: sum(each) / len(each) for camera, each in sizes.items()}
    return found


def _original(
    originals: Originals | None, moment: Moment, key: str, image: npt.NDArray[Any]
) -> npt.NDArray[np.uint8] | None:
    """The episode's picture at the packed size; None where there is none to compare with."""
    try:
        own = originals.rgb(moment, key) if originals is not None else None
    except (EpisodeError, StorageError):
        return None
    return None if own is None else fit(own, *image.shape[:2])


def lowest(values: list[float]) -> float | None:
    """The lowest PSNR, rounded; None where nothing differs, or nothing was compared."""
    least = min(values, default=math.inf)
    return round(least, 2) if math.isfinite(least) else None
