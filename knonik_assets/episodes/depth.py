"""Depth streams: uint16 multiples of a quantum in HDF5, one compressed chunk a frame, 0 meaning "no reading"."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from knonik_assets.configs.presets import DepthPreset
from knonik_assets.episodes.storing import storage_errors
from knonik_assets.episodes.video import array_of
from knonik_loader.errors import EpisodeError, StorageError

__all__ = ["DepthStream", "frames", "quantise", "read_facts"]

_DATASET = "depth"
_GZIP_LEVEL = 1
"""Level 6 takes three times as long and saves nothing on noisy depth."""
_HIGHEST = 65535


def quantise(frame_m: npt.NDArray[np.floating[Any]], preset: DepthPreset) -> tuple[npt.NDArray[np.uint16], int, int]:
    """Metres to multiples of ``quantization_mm``, halves up.

    Args:
        frame_m: (H, W) metres; 0, negative, NaN and infinite mean "no reading".
        preset: The quantum and the largest reading kept.

    Returns:
        (H, W) uint16 with 0 for "no reading"; how many readings lay above the maximum; how many were nearer than half a
        quantum. Both kinds became "no reading".
    """
    metres = np.asarray(frame_m, np.float64)
    reading = np.isfinite(metres) & (metres > 0)
    steps = np.floor(np.where(reading, metres, 0.0) * 1000.0 / preset.quantization_mm + 0.5)
    above = steps > _HIGHEST
    if preset.max_m is not None:
        above |= reading & (metres > preset.max_m)
    below = reading & (steps == 0)
    return np.where(above, 0, steps).astype(np.uint16), int(above.sum()), int(below.sum())


class DepthStream:
    """One depth stream being written. One thread at a time."""

    def __init__(self, folder: Path, name: str, preset: DepthPreset, fps: float) -> None:
        self.name = name
        self.fps = fps
        self.count = 0
        self._path = folder / f"depth_{name}.hdf5"
        self._preset = preset
        self._file: Any = None
        self._data: Any = None
        self._shape: tuple[int, int] | None = None
        self._counts: list[tuple[int, int, int]] = []
        """Of each frame: readings above the maximum, below half a quantum, and pixels without a reading."""

    @property
    def path(self) -> Path | None:
        """The stream's file; None as long as nothing was pushed."""
        return self._path if self._shape is not None else None

    def push(self, frame_m: npt.NDArray[Any]) -> None:
        """Write the next (H, W) frame in metres; a frame that is refused leaves the stream as it was.

        Raises:
            EpisodeError: no such array, or not of the first frame's shape.
            StorageError: the disk refuses.
        """
        where = f"stream 'depth_{self.name}', frame {self.count}"
        frame_m = array_of(frame_m, where)
        if frame_m.dtype.kind != "f" or frame_m.ndim != 2 or frame_m.size == 0:
            raise EpisodeError(f"{where}: wanted float (H, W) metres, got {frame_m.dtype} {frame_m.shape}")
        if self._shape is not None and frame_m.shape != self._shape:
            raise EpisodeError(
                f"{where}: the shape is {frame_m.shape}, but the stream's first one was {self._shape}; "
                "a stream keeps one shape"
            )
        steps, above, below = quantise(frame_m, self._preset)
        # Compressed here rather than by HDF5, whose global lock would make all cameras wait for one another.
        planes = steps.astype("<u2").view(np.uint8).reshape(-1, 2).T
        chunk = zlib.compress(planes.tobytes(), _GZIP_LEVEL)
        with storage_errors("write", self._path):
            if self._data is None:
                self._open(frame_m.shape)
            self._data.resize(self.count + 1, axis=0)
            self._data.id.write_direct_chunk((self.count, 0, 0), chunk)
        self.count += 1
        self._counts.append((above, below, int(np.count_nonzero(steps == 0))))

    def cut(self, length: int) -> None:
        """Keep the first ``length`` frames.

        Raises:
            StorageError: the disk refuses.
        """
        with storage_errors("write", self._path):
            self._data.resize(length, axis=0)
        self.count = length
        del self._counts[length:]

    def finish(self) -> None:
        """Close the file."""
        if self._file is not None:
            with storage_errors("write", self._path):
                self._file.close()
            self._file = self._data = None

    def abort(self) -> None:
        """Close the file whatever its state; errors no longer matter."""
        if self._file is not None:
            with suppress(OSError, RuntimeError):
                self._file.close()
            self._file = self._data = None

    def verify(self) -> None:
        """Check that the closed file holds every frame.

        Raises:
            EpisodeError: it does not.
        """
        if self._shape is None:
            return
        with storage_errors("read", self._path), h5py.File(self._path) as file:
            data = file[_DATASET]
            chunks = data.id.get_num_chunks()
            if data.shape[0] != self.count or chunks != self.count:
                raise EpisodeError(
                    f"stream 'depth_{self.name}': {self.count} frames went in, {chunks} are in {self._path.name}"
                )

    def params(self) -> dict[str, Any]:
        """How the stream was written, for ``stream_params``."""
        above, below, without = (sum(counts) for counts in zip((0, 0, 0), *self._counts, strict=True))
        out: dict[str, Any] = {
            "fps": self.fps,
            "codec": "hdf5-gzip",
            "level": _GZIP_LEVEL,
            "quantization_mm": self._preset.quantization_mm,
            "max_m": self._preset.max_m,
            "above_max": above,
            "below_quantum": below,
            "no_reading": without,
        }
        return out if self._shape is None else out | {"height": self._shape[0], "width": self._shape[1]}

    def _open(self, shape: tuple[int, int]) -> None:
        self._file = h5py.File(self._path, "w", libver=("earliest", "v110"))
        self._data = self._file.create_dataset(
            _DATASET,
            shape=(0, *shape),
            maxshape=(None, *shape),
            chunks=(1, *shape),
            dtype="<u2",
            compression="gzip",
            compression_opts=_GZIP_LEVEL,
            shuffle=True,
            track_times=False,
        )
        self._data.attrs["quantization_mm"] = self._preset.quantization_mm
        self._data.attrs["no_reading"] = np.uint16(0)
        self._shape = shape


def frames(path: Path, start: int, stop: int) -> Iterator[npt.NDArray[np.uint16]]:
    """(H, W) uint16 frames ``start`` to ``stop``, read one by one.

    Raises:
        EpisodeError: the file is damaged or holds fewer frames.
        StorageError: the file cannot be read.
    """
    with _damage(path):
        file = h5py.File(path)
    with file:
        with _damage(path):
            data = file[_DATASET]
        if data.ndim != 3 or data.dtype != np.uint16 or len(data) < stop:
            raise EpisodeError(f"{path}: wanted {stop} uint16 frames, found {data.dtype} {data.shape}")
        for index in range(start, stop):
            with _damage(path):
                frame = data[index]
            yield frame


def read_facts(path: Path) -> tuple[int, tuple[int, int], float]:
    """Frames, (H, W) and ``quantization_mm`` of a depth file.

    Raises:
        EpisodeError: the file is damaged.
        StorageError: the file cannot be read.
    """
    with _damage(path), h5py.File(path) as file:
        data = file[_DATASET]
        length, height, width = (int(size) for size in data.shape)
        return length, (height, width), float(data.attrs["quantization_mm"])


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Tell a damaged file (h5py says OSError without a number, too) from one that cannot be read."""
    try:
        yield
    except OSError as error:
        if error.errno and not isinstance(error, FileNotFoundError):
            raise StorageError(f"cannot read {path}: {os.strerror(error.errno)}") from error
        raise EpisodeError(f"{path} is missing or damaged: {error}") from error
    except (KeyError, ValueError, RuntimeError) as error:
        raise EpisodeError(f"{path} is damaged: {error}") from error
