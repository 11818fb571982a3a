"""Numeric streams: float32 rows in Zarr v2, written once the whole episode is known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt

from knonik_assets.configs.presets import NumericPreset
from knonik_assets.episodes.storing import storage_errors
from knonik_loader.errors import EpisodeError

__all__ = ["NumericStream", "read_array", "write_array"]

_ZSTD = numcodecs.Zstd()


class NumericStream:
    """One numeric stream being collected in memory: 4 bytes a number."""

    def __init__(self, name: str, dim: int, preset: NumericPreset) -> None:
        self.name = name
        self.dim = dim
        self.count = 0
        self._preset = preset
        self._rows: list[npt.NDArray[np.float32]] = []
        self._times: list[npt.NDArray[np.float64]] = []

    def push(self, rows: npt.NDArray[Any], times: npt.NDArray[Any] | None) -> None:
        """Take the next (n, D) rows, and their (n,) seconds where they have their own.

        NaN and infinity are kept: judging them is not the writer's business.

        Raises:
            EpisodeError: another shape, not numbers, or times for some rows only.
        """
        where = f"stream {self.name!r}, row {self.count}"
        rows = np.asarray(rows)
        if rows.ndim != 2 or rows.shape[1] != self.dim or rows.dtype.kind not in "fiub":
            raise EpisodeError(f"{where}: wanted numbers of shape (n, {self.dim}), got {rows.dtype} {rows.shape}")
        if self.count and (times is not None) != bool(self._times):
            raise EpisodeError(f"{where}: either all rows of a stream come with times or none")
        if times is not None:
            times = np.asarray(times, np.float64)
            if times.shape != (len(rows),) or not np.isfinite(times).all():
                raise EpisodeError(f"{where}: wanted {len(rows)} finite times, got shape {times.shape}")
            self._times.append(times.copy())
        with np.errstate(over="ignore"):
            self._rows.append(np.array(rows, np.float32))
        self.count += len(rows)

    def cut(self, length: int) -> None:
        """Keep the first ``length`` rows."""
        self._rows = [np.concatenate(self._rows)[:length]]
        if self._times:
            self._times = [np.concatenate(self._times)[:length]]
        self.count = length

    def write(self, folder: Path, clock: npt.NDArray[np.float64]) -> None:
        """Write ``<name>/`` (T, D) and ``<name>_time/`` (T,), the episode's clock where the rows brought no times.

        Raises:
            StorageError: the disk refuses.
        """
        rows = np.concatenate(self._rows) if self._rows else np.zeros((0, self.dim), np.float32)
        times = np.concatenate(self._times) if self._times else clock
        write_array(folder / self.name, rows, self._preset)
        write_array(folder / f"{self.name}_time", times, self._preset)

    def params(self) -> dict[str, Any]:
        """How the stream is written, for ``stream_params``."""
        return {
            "dim": self.dim,
            "codec": "zarr-zstd",
            "level": self._preset.level,
            "chunk_len": self._preset.chunk_len,
            "own_times": bool(self._times),
        }


def write_array(path: Path, values: npt.NDArray[Any], preset: NumericPreset) -> None:
    """Write a Zarr v2 array of (T, ...) floats in chunks of ``chunk_len`` rows, byte for byte as zarr-python does.

    Without it: a process that writes an episode would load it for this alone.

    Raises:
        StorageError: the disk refuses.
    """
    length, frame = len(values), values.shape[1:]
    rows = min(preset.chunk_len, max(1, length))
    about = {
        "shape": list(values.shape),
        "chunks": [rows, *(max(1, size) for size in frame)],
        "dtype": values.dtype.str,
        "fill_value": 0.0,
        "order": "C",
        "filters": None,
        "dimension_separator": ".",
        "compressor": {"id": "zstd", "level": preset.level},
        "zarr_format": 2,
    }
    codec = numcodecs.Zstd(level=preset.level)
    with storage_errors("write", path):
        path.mkdir(parents=True, exist_ok=True)
        (path / ".zarray").write_text(json.dumps(about, indent=2), encoding="utf-8")
        (path / ".zattrs").write_text("{}", encoding="utf-8")
        for number, start in enumerate(range(0, length if values.size else 0, rows)):
            chunk = np.zeros((rows, *frame), values.dtype)  # the last one is filled up
            part = values[start : start + rows]
            chunk[: len(part)] = part
            name = ".".join([str(number), *"0" * len(frame)])
            # none is left out: a chunk of zeros that isn't there looks like a lost file
            (path / name).write_bytes(codec.encode(chunk))


def read_array(path: Path, shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """Read a whole array; None in ``shape`` takes any size.

    Raises:
        EpisodeError: missing, damaged, or of another shape.
        StorageError: it cannot be read.
    """
    try:
        with storage_errors("read", path):
            values = _read_plain(path)
            if values is None:
                import zarr  # for what others wrote

                values = np.asarray(zarr.open_array(str(path), mode="r")[...])
    except (ValueError, KeyError, RuntimeError, FileNotFoundError) as error:
        raise EpisodeError(f"{path} is missing or damaged: {error}") from error
    if len(values.shape) != len(shape) or any(b not in (None, a) for a, b in zip(values.shape, shape, strict=True)):
        raise EpisodeError(f"{path}: wanted shape {shape}, found {values.shape}")
    return values


def _read_plain(path: Path) -> npt.NDArray[Any] | None:
    """An array as `write_array` lays it out, without the two milliseconds that opening one with zarr takes.

    Returns:
        None for what is laid out otherwise, lacks a chunk or is damaged, which zarr is to read or to refuse.
    """
    try:
        text = json.loads((path / ".zarray").read_bytes())
        shape, chunks, dtype = tuple(text["shape"]), tuple(text["chunks"]), np.dtype(text["dtype"])
        layout = (text["zarr_format"], text["order"], text["filters"], text.get("dimension_separator", "."))
        plain = layout == (2, "C", None, ".") and text["compressor"]["id"] == "zstd" and dtype.kind in "fiu"
        if not plain or chunks[1:] != tuple(max(1, size) for size in shape[1:]) or 0 in shape:
            return None
        rows = [
            np.frombuffer(_ZSTD.decode((path / ".".join([str(number), *"0" * (len(shape) - 1)])).read_bytes()), dtype)
            for number in range(-(-shape[0] // chunks[0]))
        ]
        if any(block.size != math.prod(chunks) for block in rows):
            return None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None
    return np.concatenate(rows).reshape(-1, *shape[1:])[: shape[0]]
