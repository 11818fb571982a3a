"""What this machine could do at best: bare JPEG decodes of a dataset's pictures, without any loader around them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from knonik_loader.engine.dataset import PackedDataset

__all__ = ["BareDecode", "encode_pictures", "stored_jpegs"]

_AT_ONCE = 16
"""Decodes between two looks at the clock."""


class BareDecode:
    """simplejpeg alone, decoding pictures over and over into reused memory that is already there.

    Args:
        jpegs: pictures to decode.
        shapes: (H, W, 3) of each.
        memory: bytes of the arrays that are decoded into, in turn. As large as a loader's batches in flight, or a CPU
            cache makes the limit look higher than it is.
    """

    def __init__(self, jpegs: Sequence[bytes], shapes: Sequence[tuple[int, int, int]], memory: int) -> None:
        largest = max(int(np.prod(shape)) for shape in shapes)
        self._outs = np.ones((max(_AT_ONCE, memory // largest), largest), np.uint8)  # written to: no page faults later
        places = {
            shape: [out[: int(np.prod(shape))].reshape(shape) for out in self._outs] for shape in dict.fromkeys(shapes)
        }
        self._work = [(jpeg, places[shape]) for jpeg, shape in zip(jpegs, shapes, strict=True)]

    @property
    def nbytes(self) -> int:
        """Of the memory that is decoded into."""
        return self._outs.nbytes

    def rate(self, threads: int, seconds: float) -> float:
        """Pictures/s of so many threads side by side, over so many seconds."""
        work, slots = self._work, len(self._outs)
        deadline = time.perf_counter() + seconds

        def decode(thread: int) -> int:
            done = 0
            while time.perf_counter() < deadline:
                for _ in range(_AT_ONCE):
                    number = thread + done * threads
                    jpeg, arrays = work[number % len(work)]
                    simplejpeg.decode_jpeg(jpeg, "RGB", buffer=arrays[number % slots])
                    done += 1
            return done

        start = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            total = sum(pool.map(decode, range(threads)))
        return total / (time.perf_counter() - start)


def encode_pictures(pictures: Sequence[npt.NDArray[np.uint8]], quality: int = 90) -> list[bytes]:
    """JPEGs 4:2:0 of pictures (H, W, 3), to stand for datasets that hold them in another way."""
    return [simplejpeg.encode_jpeg(np.ascontiguousarray(p), quality, "RGB", "420") for p in pictures]


def stored_jpegs(dataset: PackedDataset, keys: Sequence[str], count: int) -> list[tuple[bytes, tuple[int, int, int]]]:
    """Up to ``count`` JPEGs, as stored, of each RGB stream among ``keys`` of a training_fast dataset, with shapes.

    Frames are taken from shards all over the dataset.

    Raises:
        FormatError: of the fitting kind: the dataset is damaged.
        StorageError: it can't be read.
    """
    found: list[tuple[bytes, tuple[int, int, int]]] = []
    shards = dataset.index.shards
    rows = np.unique(np.linspace(0, len(shards) - 1, min(count, len(shards))).astype(int)).tolist()
    for stream in dataset.streams:
        if stream.key not in keys or stream.codec != "kimg":
            continue
        shape: Any = stream.shape
        for turn in range(count):
            row = rows[turn % len(rows)]
            hlp = int(shards.hlp[row])
            table = dataset.hlp_index(hlp).records(int(shards.shard[row]), stream.stream_id)
            frame = (turn // len(rows)) * 7 % len(table)
            key, offset = dataset.hlp_key(hlp), int(table.offsets[frame])
            found.append((bytes(dataset.storage.read(key, offset, int(table.sizes[frame]))), shape))
    return found
