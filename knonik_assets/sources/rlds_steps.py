"""One record as arrays over steps."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from knonik_assets.sources.arrays import Array, MemoryArray, bounded
from knonik_assets.sources.arrays import Path as Place
from knonik_assets.sources.base import EncodedImage
from knonik_assets.sources.images import described, image_shape, sniff
from knonik_assets.sources.rlds_features import Feature
from knonik_assets.sources.rlds_records import Leaf
from knonik_loader.errors import EpisodeError

__all__ = ["count_steps", "step_arrays", "texts"]

_STEPS = "steps/"
_FLAGS = ("is_first", "is_last", "is_terminal", "reward", "discount")
_RAGGED = "/ragged_flat_values"


def count_steps(leaves: Mapping[str, Leaf], features: Mapping[str, Feature], where: str) -> int:
    """How many steps a record has: what its single values say, and all of them the same.

    Raises:
        EpisodeError: nothing in it tells, or two leaves disagree.
    """
    counts: dict[str, int] = {}
    for name, feature in features.items():
        leaf = leaves.get(_STEPS + name)
        if leaf is None or feature.ragged:
            continue
        encoded = isinstance(leaf, list) and feature.kind in ("image", "tensor")
        size = 1 if encoded else feature.size if feature.kind in ("text", "tensor") else None
        if not size:
            continue
        if len(leaf) % size:
            what = "texts" if feature.kind == "text" else "numbers"
            raise EpisodeError(f"{where}: {name} has {len(leaf)} {what}, no multiple of {size}.")
        counts[name] = len(leaf) // size
    if not counts:
        raise EpisodeError(f"{where}: no leaf of a step that features.json names is in the record.")
    told = next((name for name in _FLAGS if name in counts), next(iter(counts)))
    for name, count in counts.items():
        if count != counts[told]:
            raise EpisodeError(f"{where}: {name} has {count} steps, {told} has {counts[told]}.")
    return counts[told]


def texts(leaf: Leaf | None, size: int | None = 1) -> list[list[str]]:
    """A leaf of texts, of which every value has ``size``: the first of each value, then the second, and so on."""
    if not isinstance(leaf, list) or not size:
        return []
    said = [one.decode("utf-8", "replace").strip() for one in leaf]
    return [said[place::size] for place in range(size)]


def step_arrays(
    leaves: Mapping[str, Leaf], features: Mapping[str, Feature], steps: int, where: str, warnings: list[str]
) -> tuple[dict[Place, Array], dict[str, list[int]]]:
    """Arrays of every leaf that becomes one, and the frames for which a camera had no picture.

    Raises:
        EpisodeError: a leaf contradicts its feature.
    """
    found: dict[Place, Array] = {}
    black: dict[str, list[int]] = {}
    unread: list[str] = []
    for name, feature in features.items():
        place = tuple(name.split("/"))
        at = f"{where}: {'.'.join(place)}"
        leaf = leaves.get(_STEPS + name)
        if leaf is None and (flat := leaves.get(_STEPS + name + _RAGGED)) is not None:
            array, reason = _ragged(name, flat, leaves, feature, steps, at)
            if array is not None:
                found[place] = array
            else:
                unread.append(f"{name} ({reason})")
        elif leaf is None:
            unread.append(f"{name} (declared, but not in the record)")
        elif feature.kind == "image":
            array = _pictures(leaf, feature, steps, at, ".".join(place), black, warnings)
            if array is not None:
                found[place] = array
        elif feature.kind == "tensor" and feature.size is not None:
            found[place] = MemoryArray(at, _numbers(leaf, feature, steps, at))
        elif feature.kind != "text":
            unread.append(f"{name} (its shape varies)" if feature.kind == "tensor" else name)
    if unread:
        warnings.append(f"left out: {', '.join(unread[:12])}")
    return found, black


def _numbers(leaf: Leaf, feature: Feature, steps: int, where: str) -> npt.NDArray[Any]:
    """(T, ...) of a tensor."""
    dtype, size = feature.numpy, feature.size
    if dtype is None or dtype.hasobject or size is None:
        raise EpisodeError(f"{where}: type {feature.dtype!r} is not understood.")
    shape = tuple(side or 0 for side in feature.shape or ())
    if isinstance(leaf, list):
        if feature.encoding == "none":
            raise EpisodeError(f"{where}: bytes where numbers are declared.")
        return _packed(leaf, feature, dtype, size, where).reshape(steps, *shape)
    if len(leaf) != steps * size:
        raise EpisodeError(f"{where}: {len(leaf)} numbers for {steps} steps of {size}.")
    values: npt.NDArray[Any] = leaf.reshape(steps, *shape)
    if dtype == np.uint64:
        return values.view(np.uint64)
    if dtype.kind in "iu" and values.dtype.kind == "i" and values.size:
        span = np.iinfo(dtype)  # every integer is stored with 64 bits; a picture is one by its declared type
        if span.min <= values.min() and values.max() <= span.max:
            values = values.astype(dtype)
    return values


def _packed(leaf: Sequence[bytes], feature: Feature, dtype: np.dtype[Any], size: int, where: str) -> npt.NDArray[Any]:
    """Raw little-endian bytes a step, perhaps deflated."""
    wanted = bounded(size * dtype.itemsize, where)
    rows = np.empty((len(leaf), size), dtype)
    bounded(rows.nbytes, where)
    for step, data in enumerate(leaf):
        if feature.encoding == "zlib":
            try:
                data = zlib.decompressobj().decompress(data, wanted + 1)
            except zlib.error as error:
                raise EpisodeError(f"{where}, step {step}: damaged: {error}.") from error
        if len(data) != wanted:
            raise EpisodeError(f"{where}, step {step}: {len(data)} bytes, {wanted} are declared.")
        rows[step] = np.frombuffer(data, dtype.newbyteorder("<"))
    return rows


def _ragged(
    name: str, flat: Leaf, leaves: Mapping[str, Leaf], feature: Feature, steps: int, where: str
) -> tuple[Array | None, str]:
    """A sequence inside of steps: an array where it is equally long in every step."""
    if isinstance(flat, list) or feature.kind != "tensor" or feature.size is None:
        return None, "a sequence of something else than numbers inside of steps"
    levels: list[npt.NDArray[np.int64]] = []
    while isinstance(level := leaves.get(f"{_STEPS}{name}/ragged_row_lengths_{len(levels)}"), np.ndarray):
        levels.append(level.astype(np.int64))
    if len(levels) > 1 and len(levels[0]) == 1 and levels[0][0] == steps:
        levels = levels[1:]  # the steps themselves counted as a level
    if not levels or len(levels[0]) != steps:
        return None, "its row lengths don't fit the steps"
    if any(len(level) and level.min() != level.max() for level in levels):
        spread = next(level for level in levels if len(level) and level.min() != level.max())
        return None, f"a sequence of {spread.min()} to {spread.max()} values a step"
    sides = [int(level[0]) if len(level) else 0 for level in levels]
    shape = (steps, *sides, *(side or 0 for side in feature.shape or ()))
    if math.prod(shape) != len(flat) or not all(sides):
        return None, "its row lengths don't fit its values"
    return MemoryArray(where, flat.reshape(shape)), ""


def _pictures(
    leaf: Leaf,
    feature: Feature,
    steps: int,
    where: str,
    camera: str,
    black: dict[str, list[int]],
    warnings: list[str],
) -> Array | None:
    """A camera's pictures; black ones where the dataset has an empty text for a picture."""
    if not isinstance(leaf, list):
        return NoPictures(where, steps, f"{where}: numbers where pictures are declared.")
    if len(leaf) != steps:
        return NoPictures(where, steps, f"{where}: {len(leaf)} pictures for {steps} steps.")
    for step, data in enumerate(leaf):
        if data and sniff(data) is None:
            return NoPictures(where, steps, f"{where}, step {step}: no JPEG or PNG picture ({described(data)}).")
    empty = [step for step, data in enumerate(leaf) if not data]
    if len(empty) == steps and steps:
        warnings.append(f"{camera}: left out: none of its steps has a picture")
        return None
    try:
        if empty:
            step = next(step for step, data in enumerate(leaf) if data)
            stand_in = _black(leaf[step], f"{where}, step {step}")
            leaf = [data or stand_in for data in leaf]
            black[camera] = empty
            warnings.append(f"{camera}: {len(empty)} of {steps} steps have no picture; they become black ones")
        _compare_size(leaf, feature, where, camera, warnings)
        return FloatPictures(where, leaf) if feature.dtype == "float32" else MemoryArray(where, leaf)
    except EpisodeError as error:
        return NoPictures(where, steps, str(error))


def _compare_size(leaf: Sequence[bytes], feature: Feature, where: str, camera: str, warnings: list[str]) -> None:
    """Say so where pictures are not of the size that features.json declares; the pictures are believed."""
    kind = sniff(leaf[0]) if leaf else None
    declared = feature.shape[:2] if feature.shape is not None and len(feature.shape) == 3 else (None, None)
    if kind is None or None in declared:
        return
    size = image_shape(EncodedImage(leaf[0], kind), f"{where}, step 0")
    if size != declared:
        warnings.append(
            f"{camera}: pictures of {size} pixels, features.json says {declared}; the pictures are believed"
        )


def _black(like: bytes, where: str) -> bytes:
    """A black picture of the same format and size."""
    kind = sniff(like)
    if kind is None:
        raise EpisodeError(f"{where}: no JPEG or PNG picture.")
    height, width = image_shape(EncodedImage(like, kind), where)
    if kind == "jpeg":
        return bytes(simplejpeg.encode_jpeg(np.zeros((height, width, 3), np.uint8), quality=95))
    buffer = io.BytesIO()
    with Image.open(io.BytesIO(like), formats=("PNG",)) as picture:
        mode = picture.mode
    Image.new(mode, (width, height)).save(buffer, "PNG")
    return buffer.getvalue()


class NoPictures(Array):
    """A camera that cannot be read: an error of the episode, unless the layout leaves the camera out.

    Args:
        where: for messages.
        steps: that the record has.
        reason: the error's words.
    """

    def __init__(self, where: str, steps: int, reason: str) -> None:
        super().__init__(where, np.dtype(object), (steps,), holds_bytes=True)
        self._reason = reason

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`. Always the error."""
        raise EpisodeError(self._reason)


class FloatPictures(Array):
    """Pictures of one float a pixel, which TFDS stores as the four bytes of an RGBA PNG."""

    def __init__(self, where: str, pictures: Sequence[bytes]) -> None:
        height, width = image_shape(EncodedImage(pictures[0], "png"), where) if pictures else (0, 0)
        super().__init__(where, np.dtype(np.float32), (len(pictures), height, width), block=1)
        self._pictures = pictures

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`."""
        found = [self._row(place) for place in range(start, stop)]
        return np.stack(found) if found else np.empty((0, *self.shape[1:]), self.dtype)

    def _row(self, place: int) -> npt.NDArray[Any]:
        where = f"{self.where}, row {place}"
        size = image_shape(EncodedImage(self._pictures[place], "png"), where)
        if size != self.shape[1:]:
            raise EpisodeError(f"{where}: {size} pixels, the first has {self.shape[1:]}.")
        try:
            with Image.open(io.BytesIO(self._pictures[place]), formats=("PNG",)) as picture:
                pixels = np.asarray(picture.convert("RGBA") if picture.mode == "P" else picture)
        except (OSError, SyntaxError, ValueError) as error:
            raise EpisodeError(f"{where}: damaged picture: {error}.") from error
        if pixels.shape != (*size, 4):
            raise EpisodeError(f"{where}: a {pixels.shape} picture where four channels hold a float each.")
        return np.ascontiguousarray(pixels).view("<f4")[..., 0]
