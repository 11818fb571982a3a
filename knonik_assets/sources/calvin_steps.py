"""Steps of a CALVIN episode as arrays over time."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path as File
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.sources.arrays import Array, Path, bounded
from knonik_assets.sources.npy_arrays import NpzFile
from knonik_assets.sources.trees import check_inside
from knonik_loader.errors import EpisodeError

__all__ = ["Steps", "step_arrays"]


class Steps:
    """The archives of one episode's steps, both ends included."""

    def __init__(self, folder: File, digits: int, first: int, last: int) -> None:
        self.folder, self._digits = folder, digits
        self.first, self.last = first, last
        self._lock = threading.Lock()
        self._tables: dict[str, npt.NDArray[Any]] | None = None

    def __len__(self) -> int:
        return self.last - self.first + 1

    def path(self, place: int) -> File:
        """Where a step is, counted from the episode's first."""
        return self.folder / f"episode_{self.first + place:0{self._digits}d}.npz"

    def check(self) -> None:
        """See that every step is there.

        Raises:
            EpisodeError: names the first that isn't.
        """
        bounded(len(self), str(self.folder))
        missing, named = 0, ""
        for place in range(len(self)):
            path = self.path(place)
            if path.is_symlink():
                check_inside(path, self.folder)
            if not path.is_file():
                missing += 1
                named = named or path.name
                if missing > 1000:
                    break
        if missing:
            many = f"{'more than ' if missing > 1000 else ''}{missing} of its {len(self)} steps are missing"
            raise EpisodeError(f"{self.folder}: {many}, the first is {named} (an interrupted download?).")

    def first_arrays(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Name → type and shape in the first step.

        Raises:
            EpisodeError: it is damaged.
        """
        with closing(NpzFile(self.path(0))) as archive:
            arrays = {name: archive.array(name) for name in archive.names()}
            return {name: (array.dtype, array.shape) for name, array in arrays.items()}

    def value(self, place: int, name: str) -> npt.NDArray[Any]:
        """One array of one step.

        Raises:
            EpisodeError: missing or damaged.
        """
        with closing(NpzFile(self.path(place))) as archive:
            return archive.value(name)

    def table(self, name: str) -> npt.NDArray[Any]:
        """(T, D) of an array that has one axis a step: all such arrays are read at once, as the files are many.

        Raises:
            EpisodeError: a step is damaged, or differs in shape from the first.
        """
        with self._lock:
            if self._tables is None:
                self._tables = self._read_tables()
            return self._tables[name]

    def _read_tables(self) -> dict[str, npt.NDArray[Any]]:
        known = {name: found for name, found in self.first_arrays().items() if len(found[1]) <= 1}
        tables = {
            name: np.empty((len(self), *shape), dtype)
            for name, (dtype, shape) in known.items()
            if not dtype.hasobject and bounded(len(self) * dtype.itemsize * max(1, *shape, 1), str(self.folder))
        }
        for place in range(len(self)):
            with closing(NpzFile(self.path(place))) as archive:
                for name, table in tables.items():
                    table[place] = like_first(
                        archive.value(name), table.dtype, table.shape[1:], f"{archive.path}: {name}"
                    )
        return tables

    def digest(self) -> str:
        """Hex digest of every array of every step, by the check sums in the archives.

        Raises:
            EpisodeError: a step is missing or damaged.
        """
        digest = hashlib.sha256()
        for place in range(len(self)):
            with closing(NpzFile(self.path(place))) as archive:
                digest.update(repr(archive.check_sums()).encode())
        return digest.hexdigest()

    def close(self) -> None:
        """Forget what was read; idempotent."""
        with self._lock:
            self._tables = None


def like_first(value: npt.NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> npt.NDArray[Any]:
    """The value in the type of the episode's first step.

    Raises:
        EpisodeError: it has another shape, or a type that would lose something.
    """
    if value.shape != shape:
        raise EpisodeError(f"{where}: shape {value.shape}, the episode's first step has {shape}.")
    if not np.can_cast(value.dtype, dtype, "safe") and not (value.dtype.kind == dtype.kind == "f"):
        raise EpisodeError(f"{where}: {value.dtype}, the episode's first step has {dtype}.")
    return value.astype(dtype, copy=False)


def step_arrays(steps: Steps, where: str) -> dict[Path, Array]:
    """The arrays of an episode. Pictures of more channels than a picture has are taken apart.

    ``rgb_tactile`` (H, W, 6) holds two sensors' pictures, ``depth_tactile`` (H, W, 2) two depth maps: they become
    ``rgb_tactile_0``, ``rgb_tactile_1`` and so on.

    Raises:
        EpisodeError: the first step is damaged.
    """
    found: dict[Path, Array] = {}
    for name, (dtype, shape) in steps.first_arrays().items():
        path = tuple(part for part in name.split("/") if part)
        if dtype.hasobject:
            continue
        each = 3 if dtype == np.uint8 else 1
        if len(shape) == 3 and shape[2] in (2 * each, 3 * each) and shape[2] not in (1, 3, 4) and min(shape[:2]) >= 8:
            for part in range(shape[2] // each):
                own = slice(part * each, (part + 1) * each)
                array = StepArray(steps, name, dtype, shape, f"{where}: {name}_{part}", own)
                found[(*path[:-1], f"{path[-1]}_{part}")] = array
        else:
            found[path] = StepArray(steps, name, dtype, shape, f"{where}: {name}")
    return found


class StepArray(Array):
    """One array of every step."""

    def __init__(
        self,
        steps: Steps,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        where: str,
        part: slice | None = None,
    ) -> None:
        stored = shape
        if part is not None:
            shape = shape[:2] if part.stop - part.start == 1 else (*shape[:2], part.stop - part.start)
        super().__init__(where, dtype, (len(steps), *shape), block=1)
        self._steps, self._name, self._part, self._stored = steps, name, part, stored

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`."""
        if len(self._stored) <= 1:
            return self._steps.table(self._name)[start:stop]
        values = [self._row(place) for place in range(start, stop)]
        return np.stack(values) if values else np.empty((0, *self.shape[1:]), self.dtype)

    def _row(self, place: int) -> npt.NDArray[Any]:
        value = self._steps.value(place, self._name)
        where = f"{self._steps.path(place)}: {self._name}"
        value = like_first(value, self.dtype, self._stored, where)
        if self._part is None:
            return value
        part = value[..., self._part]
        return part[..., 0] if part.shape[-1] == 1 else part

    def stream(self) -> Iterator[npt.NDArray[Any]]:
        """See `Array.stream`."""
        for place in range(self.shape[0]):
            yield self._row(place) if len(self._stored) > 1 else self._steps.table(self._name)[place]
