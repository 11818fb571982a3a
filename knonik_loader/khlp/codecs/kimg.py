"""KIMG: every frame its own JPEG, for the fastest training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import DecodeError, PackError
from knonik_loader.khlp.codecs import jpeg
from knonik_loader.khlp.codecs.common import check_array, choice, expect_kind, number, payload
from knonik_loader.khlp.types import Dependency, FrameInput, Record, StreamInfo

__all__ = ["KimgCodec", "check_jpeg", "jpeg_pixels"]


def check_jpeg(info: StreamInfo, data: bytes, row: int) -> None:
    """Refuse a JPEG that is to pass through and is not of the stream's size.

    Raises:
        PackError: another size, or a JPEG that not every decoder reads.
    """
    header = jpeg.jpeg_header(data, f"stream {info.key!r}, frame {row}")
    if (header.height, header.width) != info.shape[:2]:
        raise PackError(
            f"stream {info.key!r}, frame {row}: the JPEG is {header.height}x{header.width}, "
            f"the stream is {info.shape[0]}x{info.shape[1]}"
        )


def jpeg_pixels(info: StreamInfo, data: bytes, row: int) -> npt.NDArray[np.uint8]:
    """The (H, W, 3) picture of a JPEG that an encoder was given.

    Raises:
        PackError: damaged, of another size, or a JPEG that not every decoder reads.
    """
    check_jpeg(info, data, row)
    try:
        return jpeg.decode_into(data, np.empty(info.shape, np.uint8), f"stream {info.key!r}, frame {row} of the shard")
    except DecodeError as error:
        raise PackError(str(error)) from error


class KimgCodec:
    """A JPEG a frame; JPEGs that come as such are stored byte for byte.

    Parameters: ``quality`` (1 to 100, default 95) and ``chroma`` (420 or 444) of frames that come as arrays.
    """

    name: ClassVar[str] = "kimg"
    dependency: ClassVar[Dependency] = "none"

    def __init__(self, info: StreamInfo) -> None:
        expect_kind(info, "rgb", 3)
        self._info = info
        self._named = f"stream {info.key!r}"
        self._quality = int(number(info, "quality", 95, 1, 100))
        self._chroma = choice(info, "chroma", "420", ("420", "444"))

    def encode(self, frames: Iterable[FrameInput]) -> list[Record]:
        """One record a frame; frames are uint8 (H, W, 3) RGB or JPEG bytes."""
        records = []
        for row, frame in enumerate(frames):
            if isinstance(frame, bytes):
                check_jpeg(self._info, frame, row)
                records.append(Record(frame))
            else:
                image = check_array(self._info, frame, self._info.shape, "uint8")
                records.append(Record(jpeg.encode(image, self._quality, self._chroma)))
        return records

    def decode(
        self, records: Mapping[int, memoryview], wanted: Sequence[int], out: Mapping[int, npt.NDArray[Any]]
    ) -> None:
        """Decode each wanted frame from its own record; ``out`` may have a `reduced` size instead."""
        for row in wanted:
            data, where = payload(self._info, records, row), f"{self._named}, row {row}"
            if out[row].shape == self._info.shape:
                jpeg.decode_into(data, out[row], where)
            else:
                jpeg.decode_reduced(data, (self._info.shape[0], self._info.shape[1]), out[row], where)

    def reduced(self, height: int, width: int) -> tuple[int, int]:
        """The smallest size that is decoded for less than the whole, and is no less than this one on either side."""
        return jpeg.reduced_size((self._info.shape[0], self._info.shape[1]), (height, width))
