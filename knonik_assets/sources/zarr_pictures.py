"""Zarr arrays whose chunks are pictures in a picture format: JPEG XL and JPEG 2000, as UMI's datasets have them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.sources.arrays import Array, bounded
from knonik_assets.sources.read_ahead import read_ahead
from knonik_assets.sources.store_files import Files
from knonik_loader.errors import EpisodeError

__all__ = ["PictureArray", "picture_codec"]

_PREFIX = "imagecodecs_"
_AHEAD_BYTES, _MOST_AHEAD = 16 << 20, 8
"""Decoded pictures that wait for whoever reads the stream."""


def picture_codec(meta: Mapping[str, Any]) -> str | None:
    """``jpegxl`` where the metadata of an array names ``imagecodecs_jpegxl``, and so on; else None."""
    compressor = meta.get("compressor")
    name = compressor.get("id") if isinstance(compressor, dict) else None
    return name.removeprefix(_PREFIX) if isinstance(name, str) and name.startswith(_PREFIX) else None


def _decoder(codec: str, where: str) -> Callable[..., Any]:
    """The function of imagecodecs that decodes a picture format.

    Raises:
        EpisodeError: imagecodecs isn't installed, or doesn't know the format.
    """
    try:
        import imagecodecs
    except ImportError as error:
        raise EpisodeError(
            f"{where}: its pictures are stored with the codec {_PREFIX + codec!r}; install what decodes them: "
            "pip install 'knonik[imagecodecs]'."
        ) from error
    decode: Callable[..., Any] | None = getattr(imagecodecs, f"{codec}_decode", None)
    if decode is None or not getattr(getattr(imagecodecs, codec.upper(), None), "available", False):
        raise EpisodeError(f"{where}: this imagecodecs {imagecodecs.__version__} cannot decode {codec!r}.")
    return decode


class PictureArray(Array):
    """Chunks along time alone, each one picture (or a few) in a picture format."""

    def __init__(self, files: Files, folder: str, meta: Mapping[str, Any], codec: str, where: str) -> None:
        chunks, filters = meta.get("chunks"), meta.get("filters")
        try:
            dtype = np.dtype(str(meta.get("dtype")))
        except TypeError as error:
            raise EpisodeError(f"{where}: damaged metadata: dtype is {meta.get('dtype')!r}.") from error
        shape = tuple(meta["shape"])
        whole = isinstance(chunks, list) and len(chunks) == len(shape) > 1 and chunks[1:] == list(shape[1:])
        plain = not filters and dtype.kind in "uif" and meta.get("order", "C") == "C"
        if not (
            isinstance(chunks, list) and whole and plain and isinstance(chunks[0], int) and 0 < chunks[0] < 1 << 20
        ):
            raise EpisodeError(
                f"{where}: {_PREFIX}{codec} in chunks of {chunks} is not understood; wanted whole pictures."
            )
        super().__init__(where, dtype, shape, block=int(chunks[0]))
        self._files, self._folder, self._codec = files, folder, codec
        self._between = "/" if meta.get("dimension_separator") == "/" else "."

    def _name(self, chunk: int) -> str:
        rest = self._between.join("0" for _ in self.shape[1:])
        return f"{self._folder}/{chunk}{self._between}{rest}" if rest else f"{self._folder}/{chunk}"

    def _chunk(self, chunk: int) -> npt.NDArray[Any]:
        where = f"{self.where}, row {chunk * self.block}"
        data = self._files.read(self._name(chunk))
        if data is None:
            raise EpisodeError(f"{where}: the chunk is missing (an interrupted copy); copy the store again.")
        shape = self.shape[1:] if self.block == 1 else (self.block, *self.shape[1:])
        bounded(math.prod(shape) * self.dtype.itemsize, where)
        out = np.empty(shape, self.dtype)
        try:
            # given the room for it, a picture that claims another size is refused before any is taken
            _decoder(self._codec, self.where)(data, out=out)
        except (RuntimeError, ValueError, TypeError) as error:
            raise EpisodeError(f"{where}: damaged {self._codec} picture: {error}.") from error
        return out.reshape(self.block, *self.shape[1:])

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """See `Array.rows`."""
        chunks = [self._chunk(chunk) for chunk in range(start // self.block, -(-stop // self.block))]
        joined = (
            chunks[0] if len(chunks) == 1 else np.concatenate(chunks or [np.empty((0, *self.shape[1:]), self.dtype)])
        )
        skip = start - start // self.block * self.block
        return joined[skip : skip + stop - start]

    def stream_rows(self, start: int, stop: int) -> Iterator[npt.NDArray[Any]]:
        """See `Array.stream_rows`. Pictures are decoded ahead, several at once."""
        first, size = start // self.block, max(1, self.block * math.prod(self.shape[1:]) * self.dtype.itemsize)
        calls = (partial(self._chunk, chunk) for chunk in range(first, -(-stop // self.block)))
        for at, rows in enumerate(read_ahead(calls, min(_MOST_AHEAD, _AHEAD_BYTES // size)), first):
            begin = at * self.block
            yield from rows[max(0, start - begin) : stop - begin]

    def check_complete(self, *, numeric: bool) -> str | None:
        """See `Array.check_complete`."""
        return self.check_rows(0, self.shape[0], numeric=numeric, where=self.where)

    def check_rows(self, start: int, stop: int, *, numeric: bool, where: str) -> str | None:
        """`check_complete` for some rows."""
        _decoder(self._codec, self.where)
        wanted = range(start // self.block, -(-stop // self.block))
        missing = sum(self._files.size(self._name(chunk)) is None for chunk in wanted)
        if missing:
            raise EpisodeError(f"{where}: {missing} of {len(wanted)} chunks are missing (an interrupted copy).")
        return None

    def hash_rows(self, digest: hashlib._Hash, start: int, stop: int) -> None:
        """See `Array.hash_rows`. Pictures of their own are taken as they lie."""
        if self.block != 1:
            super().hash_rows(digest, start, stop)
            return
        for chunk in range(start, stop):
            data = self._files.read(self._name(chunk)) or b""
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
