"""Folders of numbered pictures: one JPEG or PNG file a frame."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.sources.arrays import Array, bounded
from knonik_assets.sources.trees import check_inside
from knonik_loader.errors import EpisodeError

__all__ = ["PictureFiles", "picture_files"]

_NAME = re.compile(r"(\d+)\.(jpe?g|png)", re.IGNORECASE)


def picture_files(folder: Path, root: Path, where: str) -> PictureFiles:
    """The pictures of a folder in order of their numbers.

    Args:
        folder: theirs.
        root: what links may not lead out of.
        where: for messages.

    Raises:
        EpisodeError: a number is missing or there twice, no picture is there, or a link leads out of the dataset.
    """
    check_inside(folder, root)
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        number = int(match[1])
        if number in found:
            raise EpisodeError(f"{where}: picture {number} is there as {found[number].name} and as {path.name}.")
        if path.is_symlink():
            check_inside(path, root)
        found[number] = path
    if not found:
        raise EpisodeError(f"{where}: no numbered .jpg or .png is in {folder}.")
    numbers = sorted(found)
    if numbers[-1] - numbers[0] != len(numbers) - 1:
        missing = next(number for number in range(numbers[0], numbers[-1]) if number not in found)
        raise EpisodeError(f"{where}: picture {missing} is missing in {folder}, which goes on to {numbers[-1]}.")
    return PictureFiles([found[number] for number in numbers], where)


class PictureFiles(Array):
    """Encoded pictures, a file each."""

    def __init__(self, paths: list[Path], where: str) -> None:
        super().__init__(where, np.dtype(object), (len(paths),), block=1, holds_bytes=True)
        self._paths = paths

    def row_bytes(self, index: int) -> bytes:
        """See `Array.row_bytes`."""
        path = self._paths[index]
        try:
            with path.open("rb") as file:
                bounded(os.fstat(file.fileno()).st_size, str(path))
                return file.read()
        except OSError as error:
            raise EpisodeError(f"{path}: unreadable: {error.strerror or error}.") from error

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`."""
        out = np.empty(stop - start, object)
        for place in range(start, stop):
            out[place - start] = self.row_bytes(place)
        return out
