"""JPEG in and out of memory that the caller owns, and what a JPEG's header says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import simplejpeg

from knonik_loader.errors import DecodeError, PackError

__all__ = ["JpegHeader", "decode_into", "decode_reduced", "encode", "jpeg_header", "reduced_size"]

# Start-of-frame markers: baseline, extended sequential and progressive, all Huffman-coded.
FRAME_MARKERS = {0xC0, 0xC1, 0xC2}
OTHER_FRAMES = {0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """What the start-of-frame segment of a JPEG says."""

    height: int
    width: int
    components: int

    GREY_OR_COLOUR: ClassVar[tuple[int, int]] = (1, 3)


def jpeg_header(data: bytes | memoryview, where: str) -> JpegHeader:
    """Read a JPEG's header; no pixel is decoded.

    Raises:
        PackError: not a JPEG that every decoder reads: 8-bit, baseline or progressive, grey or three components.
    """
    view = memoryview(data)
    if bytes(view[:2]) != b"\xff\xd8":
        raise PackError(f"{where}: is not a JPEG (begins with {bytes(view[:2]).hex(' ')})")
    at = 2
    while at + 4 <= len(view) and view[at] == 0xFF:
        marker = view[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker in FRAME_MARKERS and at + 10 <= len(view):
            precision, components = view[at + 4], view[at + 9]
            if precision != 8 or components not in JpegHeader.GREY_OR_COLOUR:
                raise PackError(f"{where}: a JPEG of {components} components of {precision} bits is not supported")
            height, width = int.from_bytes(view[at + 5 : at + 7]), int.from_bytes(view[at + 7 : at + 9])
            return JpegHeader(height, width, components)
        if marker in OTHER_FRAMES:
            raise PackError(f"{where}: a lossless, hierarchical or arithmetic-coded JPEG is not supported")
        if marker in (0xD9, 0xDA):
            break
        at += 2 + int.from_bytes(view[at + 2 : at + 4])
    raise PackError(f"{where}: a JPEG without a frame header; is it cut off?")


def encode(image: npt.NDArray[np.uint8], quality: int, chroma: str) -> bytes:
    """JPEG of a C-contiguous (H, W, 3) uint8 RGB image; ``chroma`` is 420 or 444."""
    data: bytes = simplejpeg.encode_jpeg(image, quality, "RGB", chroma, fastdct=False)
    return data


def decode_into(
    data: bytes | memoryview, out: npt.NDArray[Any], where: str, *, fast_upsample: bool = False
) -> npt.NDArray[np.uint8]:
    """Decode a JPEG into ``out``, a C-contiguous (H, W, 3) uint8 array of the picture's size; returns ``out``.

    Raises:
        DecodeError: damaged, or of another size.
    """
    try:
        # strict: a picture that libjpeg had to repair is not the one that was packed
        image = simplejpeg.decode_jpeg(data, "RGB", False, fast_upsample, buffer=out, strict=True)
    except ValueError as error:
        raise DecodeError(f"{where}: the JPEG does not decode into {out.shape}: {error}") from error
    if image.shape != out.shape:
        raise DecodeError(f"{where}: the JPEG is {image.shape}, not {out.shape}")
    return out


# Factors for which the inverse transform of libjpeg-turbo is as fast as for whole pictures; 3/4 and the like cost more
# than decoding whole.
_FACTORS = (8, 4, 2)


def reduced_size(size: tuple[int, int], least: tuple[int, int]) -> tuple[int, int]:
    """The smallest size that a JPEG decodes to cheaply without being less than ``least`` on either side.

    Args:
        size: (H, W) of the picture.
        least: (H, W) wanted at least.
    """
    for factor in _FACTORS:
        reduced = (-(-size[0] // factor), -(-size[1] // factor))
        if reduced[0] >= least[0] and reduced[1] >= least[1]:
            return reduced
    return size


def decode_reduced(
    data: bytes | memoryview, size: tuple[int, int], out: npt.NDArray[Any], where: str
) -> npt.NDArray[np.uint8]:
    """Decode a JPEG of a size into ``out``, which has one of its reduced sizes: fewer frequencies are transformed.

    Raises:
        DecodeError: damaged, or of another size.
    """
    height, width = out.shape[:2]
    factor = next((f for f in _FACTORS if (-(-size[0] // f), -(-size[1] // f)) == (height, width)), 1)
    try:
        found = simplejpeg.decode_jpeg_header(data)[:2]
        if found != size:
            raise DecodeError(f"{where}: the JPEG is {found}, not {size}")
        image = simplejpeg.decode_jpeg(
            data, "RGB", False, False, min_height=height, min_width=width, min_factor=factor, buffer=out, strict=True
        )
    except ValueError as error:
        raise DecodeError(f"{where}: the JPEG does not decode into {out.shape}: {error}") from error
    if image.shape != out.shape:
        raise DecodeError(f"{where}: the JPEG decodes to {image.shape}, not {out.shape}")
    return out
