"""What an HDF5 dataset holds (pictures, depth, numbers) and how to read it frame by frame in bounded memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import h5py
import numpy as np

from knonik_assets.sources.hdf5_paths import reading
from knonik_assets.sources.images import cut_encoded, image_shape, picture_layout, sniff
from knonik_loader.errors import EpisodeError

__all__ = ["Content", "check_written", "classify", "first_shape", "float_scale", "hash_dataset", "read_rows"]

_BLOCK_BYTES = 64 << 20
"""Most that is read at once of a dataset whose chunks hold many frames."""
_WIDEST_ROW = 4096
"""Numbers a row at most; wider arrays are no vectors."""
_LEAST_SIDE = 8


@dataclass(frozen=True, slots=True)
class Content:
    """What one dataset holds."""

    kind: Literal["encoded", "picture", "depth", "encoded_depth", "numeric", "other"]
    length: int
    shape: tuple[int, ...]
    """Of one frame as stored; for encoded rows (H, W, 3) is not known yet, so ()."""
    format: Literal["jpeg", "png"] | None = None


def classify(dataset: h5py.Dataset, name: str, where: str) -> Content:
    """What a dataset holds, by its shape, type and, for rows of bytes, their first bytes.

    Raises:
        EpisodeError: its first row cannot be read.
    """
    dtype, shape = dataset.dtype, dataset.shape
    if shape is None or len(shape) == 0:
        return Content("other", 0, ())
    length, frame = int(shape[0]), tuple(int(side) for side in shape[1:])
    if _is_bytes(dataset) or (dtype == np.uint8 and len(shape) == 2):
        found = _sniff_rows(dataset, where) if length else None
        if found is not None:
            first, kind = found
            deep = kind == "png" and first[24:26] == b"\x10\x00"  # 16 bits, grey
            return Content("encoded_depth" if deep else "encoded", length, (), kind)
        if _is_bytes(dataset):
            return Content("other", length, ())
    if dtype.kind not in "biuf":
        return Content("other", length, frame)
    return Content(_array_kind(frame, dtype, "depth" in name.lower()), length, frame)


def _array_kind(
    frame: tuple[int, ...], dtype: np.dtype[Any], called_depth: bool
) -> Literal["picture", "depth", "numeric", "other"]:
    layout = picture_layout(frame)
    sides = {"hw": frame[:2], "hwc": frame[:2], "chw": frame[1:]}.get(layout or "", ())
    if layout is not None and min(sides) >= _LEAST_SIDE and dtype.kind in "iuf":
        channels = {"hw": 1, "hwc": frame[-1], "chw": frame[0]}[layout]
        if channels == 1 and (called_depth or dtype != np.uint8):
            return "depth"
        if dtype == np.uint8 or dtype.kind == "f":
            return "picture"
    return "numeric" if math.prod(frame) <= _WIDEST_ROW else "other"


def _is_bytes(dataset: h5py.Dataset) -> bool:
    """Whether every element of a one-dimensional dataset is a run of bytes."""
    dtype = dataset.dtype
    if dataset.ndim != 1:
        return False
    return (dtype.kind in "SV" and not dtype.names) or h5py.check_vlen_dtype(dtype) == np.uint8 or _is_text(dtype)


def _is_text(dtype: np.dtype[Any]) -> bool:
    return h5py.check_string_dtype(dtype) is not None


def _sniff_rows(dataset: h5py.Dataset, where: str) -> tuple[bytes, Literal["jpeg", "png"]] | None:
    first = _row_bytes(dataset, 0, where)
    kind = sniff(first)
    return None if kind is None else (first, kind)


def _row_bytes(dataset: h5py.Dataset, index: int, where: str) -> bytes:
    with reading(f"{where}, row {index}"):
        row = dataset[index]
    if isinstance(row, np.ndarray):
        return row.tobytes()
    if isinstance(row, np.void):
        return row.tobytes()
    return bytes(row) if isinstance(row, bytes) else str(row).encode("utf-8", "surrogateescape")


def check_written(dataset: h5py.Dataset, where: str) -> None:
    """Refuse pictures that nobody wrote: HDF5 reads them as zeros without a word.

    Raises:
        EpisodeError: chunks of the dataset were never written.
    """
    with reading(where):
        if dataset.is_virtual or not dataset.size:
            return
        if dataset.chunks is None:
            missing, wanted = (0, 1) if dataset.id.get_storage_size() else (1, 1)
        else:
            wanted = math.prod(-(-side // chunk) for side, chunk in zip(dataset.shape, dataset.chunks, strict=True))
            missing = wanted - dataset.id.get_num_chunks()
    if missing > 0:
        raise EpisodeError(f"{where}: {missing} of {wanted} chunks were never written (an interrupted recording).")


def first_shape(dataset: h5py.Dataset, content: Content, where: str) -> tuple[int, int]:
    """(H, W) of a picture or depth stream; (0, 0) when it has no frame.

    Raises:
        EpisodeError: the first picture is damaged.
    """
    if content.kind in ("encoded", "encoded_depth"):
        if not content.length:
            return 0, 0
        return image_shape(cut_encoded(_row_bytes(dataset, 0, where), f"{where}, row 0"), f"{where}, row 0")
    height, width = content.shape[1:] if picture_layout(content.shape) == "chw" else content.shape[:2]
    return height, width


def read_rows(dataset: h5py.Dataset, content: Content, where: str) -> Iterator[Any]:
    """The frames one after another: `EncodedImage`, or arrays as stored. Reads single frames or whole chunks."""
    if content.kind in ("encoded", "encoded_depth"):
        for index in range(content.length):
            yield cut_encoded(_row_bytes(dataset, index, where), f"{where}, row {index}")
        return
    frame_bytes = max(1, dataset.dtype.itemsize * math.prod(content.shape))
    along = dataset.chunks[0] if dataset.chunks else 1
    block = max(1, min(along, _BLOCK_BYTES // frame_bytes))
    for start in range(0, content.length, block):
        with reading(f"{where}, rows from {start}"):
            rows = dataset[start : start + block]
        yield from rows


def float_scale(dataset: h5py.Dataset, where: str) -> float | None:
    """What floats of a picture dataset are multiplied by: 255 for [0, 1], 1 for 0..255; None for integers.

    Decided once for the stream from pictures spread over it, as one dark picture says nothing; a picture that
    contradicts it fails later instead of coming out wrong.

    Raises:
        EpisodeError: values are neither.
    """
    if dataset.dtype.kind != "f":
        return None
    length = dataset.shape[0]
    low, high = 0.0, 0.0
    for index in sorted({round(place * (length - 1) / 8) for place in range(9)}):
        with reading(f"{where}, row {index}"):
            picture = dataset[index]
        low, high = min(low, float(picture.min())), max(high, float(picture.max()))
    scale = 255.0 if high <= 1.001 else 1.0
    top = 255.0 / scale
    if not (low >= -0.001 * top and high <= 1.001 * top):
        raise EpisodeError(f"{where}: floats from {low:g} to {high:g} are neither in [0, 1] nor in 0..255.")
    return scale


def hash_dataset(dataset: h5py.Dataset, digest: hashlib._Hash, where: str) -> None:
    """Feed type, shape and content to a digest; compressed chunks as they lie, so nothing is decompressed."""
    with reading(where):
        digest.update(f"{dataset.dtype.str}{dataset.shape}{dataset.chunks}".encode())
        if dataset.chunks is not None and dataset.dtype.kind != "O":
            places: list[tuple[int, ...]] = []
            dataset.id.chunk_iter(lambda info: places.append(info.chunk_offset))
            for place in sorted(places):
                _, chunk = dataset.id.read_direct_chunk(place)
                digest.update(f"{place}{len(chunk)}".encode())
                digest.update(chunk)
            return
    for index in range(dataset.shape[0] if dataset.shape else 0):
        row = _row_bytes(dataset, index, where) if dataset.dtype.kind == "O" else None
        if row is None:
            with reading(f"{where}, row {index}"):
                row = np.ascontiguousarray(dataset[index]).tobytes()
        digest.update(len(row).to_bytes(8, "little"))
        digest.update(row)
