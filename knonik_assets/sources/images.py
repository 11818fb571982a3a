"""Pictures as sources hold them: encoded or arrays of any layout, to RGB uint8; depth of any unit, to metres."""

from __future__ import annotations

import io
import re
import struct
from typing import Literal

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from knonik_assets.configs.ingest import IngestConfig, Orientation
from knonik_assets.sources.base import EncodedImage, Frame, StreamSpec
from knonik_loader.errors import EpisodeError

__all__ = [
    "MAX_PIXELS",
    "Turner",
    "cut_encoded",
    "decode_depth",
    "decode_image",
    "decode_other",
    "depth_to_m",
    "described",
    "image_shape",
    "picture_layout",
    "sniff",
    "to_rgb",
    "turn",
]

Array = npt.NDArray[np.generic]
Rgb = npt.NDArray[np.uint8]

MAX_PIXELS = 89_000_000
"""A picture that claims more is refused before anything is allocated for it; Pillow warns of a bomb just above."""

_PNG = b"\x89PNG\r\n\x1a\n"
_OTHERS = tuple(
    (name, re.compile(magic, re.DOTALL))
    for name, magic in (
        ("GIF", rb"GIF8"),
        ("WebP", rb"RIFF.{4}WEBP"),
        ("TIFF", rb"II\*\0|MM\0\*"),
        ("BMP", rb"BM.{8}\0"),
        ("JPEG XL", rb"\xff\x0a|\0{3}\x0cJXL "),
        ("JPEG 2000", rb"\xff\x4f\xff\x51|\0{3}\x0cjP  "),
        ("AVIF or HEIF", rb".{4}ftyp(?:avi|hei|mif)"),
    )
)
_MARKER_IN_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # no "\xff+": that searches thirty times slower
_SCAN_BLOCK = 1 << 16
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_CHANNELS = (1, 3, 4)


def sniff(data: bytes) -> Literal["jpeg", "png"] | None:
    """The format that the first bytes show, or None."""
    if data[:3] == b"\xff\xd8\xff":
        return "jpeg"
    return "png" if data[:8] == _PNG else None


def cut_encoded(data: bytes, where: str) -> EncodedImage:
    """One picture without the padding behind it.

    The end is found by walking the picture's own segments, so a thumbnail inside it or a stale tail of a reused row
    buffer doesn't mislead.

    Raises:
        EpisodeError: the bytes are no JPEG or PNG, or end before the picture does.
    """
    kind = sniff(data)
    if kind is None:
        raise EpisodeError(f"{where}: no JPEG or PNG picture ({described(data)}).")
    end = _jpeg_end(data) if kind == "jpeg" else _png_end(data)
    if end is None:
        raise EpisodeError(f"{where}: the {kind.upper()} picture is cut off: {len(data)} bytes hold no end marker.")
    return EncodedImage(data[:end] if end < len(data) else data, kind)


def described(data: bytes) -> str:
    """What bytes that are no JPEG or PNG picture look like, in a few words."""
    known = next((name for name, magic in _OTHERS if magic.match(data)), None)
    if known is not None:
        return f"but {known}"
    if not data.strip(b"\0"):
        return f"{len(data)} bytes, nothing but zeros" if data else "no bytes at all"
    return f"{len(data)} bytes: {data[:8].hex(' ')}{' …' if len(data) > 8 else ''}"


def _jpeg_end(data: bytes) -> int | None:
    at = 2
    while at + 2 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker == 0xD9:
            return at + 2
        elif marker in _STANDALONE:
            at += 2
        else:
            if at + 4 > len(data):
                return None
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            if marker == 0xDA:  # entropy-coded data follows; 0xFF in it is stuffed, so the next marker is a real one
                found = _MARKER_IN_SCAN.search(data, _scan_reaches(data, at))
                if found is None:
                    return None
                at = found.end() - 2
    return None


def _scan_reaches(data: bytes, at: int) -> int:
    """Where in entropy-coded data from ``at`` on the first 0xFF without a stuffed zero is, or where the data ends.

    The expression would get there too, at half the rate and without letting other threads work. It goes by blocks, so
    that a picture of many short scans is not read to its end for each.
    """
    view = np.frombuffer(data, np.uint8)
    while at + 1 < len(view):
        block = view[at : at + _SCAN_BLOCK + 1]
        bare = block[:-1] == 0xFF
        bare &= block[1:] != 0
        first = int(bare.argmax())
        if bare[first]:
            return at + first
        at += len(bare)
    return at


def _png_end(data: bytes) -> int | None:
    at = len(_PNG)
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind = data[at + 4 : at + 8]
        at += 12 + length
        if kind == b"IEND":
            return at if at <= len(data) else None
    return None


def image_shape(image: EncodedImage, where: str) -> tuple[int, int]:
    """(H, W) from the header, checked against `MAX_PIXELS`.

    Raises:
        EpisodeError: an unreadable header, an absurd size or a CMYK JPEG (whose colours nothing here can know).
    """
    if image.format == "jpeg":
        try:
            height, width, space, _ = simplejpeg.decode_jpeg_header(image.data)
        except ValueError as error:
            raise EpisodeError(f"{where}: unreadable JPEG header: {error}.") from error
        if space.upper() in ("CMYK", "YCCK"):
            raise EpisodeError(f"{where}: a {space} JPEG; save it as RGB or grey.")
    else:
        if len(image.data) < 24:
            raise EpisodeError(f"{where}: a PNG of {len(image.data)} bytes has no header.")
        width, height = struct.unpack_from(">II", image.data, 16)
    _check_size(height, width, where)
    return height, width


def _check_size(height: int, width: int, where: str) -> None:
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise EpisodeError(f"{where}: a picture of {height} x {width} pixels; between 1 and {MAX_PIXELS} are accepted.")


def decode_image(image: EncodedImage, where: str = "picture") -> Rgb:
    """(H, W, 3) uint8 RGB of a JPEG (grey, RGB, progressive too) or PNG (alpha is dropped).

    Raises:
        EpisodeError: damaged, absurdly large, CMYK, or 16-bit grey (which is depth).
    """
    image_shape(image, where)
    if image.format == "jpeg":
        try:
            decoded: Rgb = simplejpeg.decode_jpeg(image.data, colorspace="RGB")
        except ValueError as error:
            raise EpisodeError(f"{where}: damaged JPEG: {error}.") from error
        return decoded
    picture = _open(image.data, where)
    if picture.mode.startswith(("I", "F")):
        raise EpisodeError(f"{where}: a 16-bit grey PNG is no colour picture; list it under 'depths' in the layout.")
    return np.asarray(picture.convert("RGB"), np.uint8)


def decode_other(data: bytes, where: str) -> Rgb:
    """(H, W, 3) uint8 RGB of a TIFF or WebP of 8 bits a channel.

    Raises:
        EpisodeError: neither, damaged, absurdly large, or of another depth.
    """
    if not any(magic.match(data) for name, magic in _OTHERS if name in ("TIFF", "WebP")):
        raise EpisodeError(f"{where}: no JPEG, PNG, TIFF or WebP picture ({described(data)}).")
    picture = _open(data, where)
    if picture.mode not in ("L", "RGB", "RGBA"):
        raise EpisodeError(f"{where}: a {picture.format} of mode {picture.mode}; save it as RGB or grey of 8 bits.")
    return np.asarray(picture.convert("RGB"), np.uint8)


def decode_depth(data: bytes, where: str) -> Array:
    """(H, W) raw values of an encoded depth picture: 8- or 16-bit grey PNG, 16-bit or float TIFF.

    Raises:
        EpisodeError: damaged, or a colour picture (depth painted in colours cannot be turned back into metres).
    """
    picture = _open(data, where)
    if picture.mode not in ("L", "F") and not picture.mode.startswith("I"):
        raise EpisodeError(f"{where}: depth stored as a {picture.mode} picture cannot be turned back into metres.")
    return np.asarray(picture)


def _open(data: bytes, where: str) -> Image.Image:
    if (kind := sniff(data)) is not None:
        image_shape(EncodedImage(data, kind), where)
    try:
        picture = Image.open(io.BytesIO(data), formats=("PNG", "TIFF", "JPEG", "WEBP"))
        _check_size(picture.height, picture.width, where)
        picture.load()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise EpisodeError(f"{where}: damaged picture: {error}.") from error
    return picture


def picture_layout(shape: tuple[int, ...]) -> Literal["hw", "hwc", "chw"] | None:
    """How one picture of this shape lies in memory; None when it is no picture. Channels last win over first."""
    if len(shape) == 2:
        return "hw"
    if len(shape) != 3:
        return None
    return "hwc" if shape[2] in _CHANNELS else "chw" if shape[0] in _CHANNELS else None


def to_rgb(array: Array, where: str = "picture", *, scale: float | None = None) -> Rgb:
    """(H, W, 3) uint8 RGB from (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels.

    Args:
        array: uint8, floats, or other integers whose values are 0..255.
        where: for messages.
        scale: what floats are multiplied by: 255 for [0, 1], 1 for 0..255. None decides by this picture alone, so a
            reader that knows more of the stream should say it.

    Raises:
        EpisodeError: another shape, or values outside what the scale allows.
    """
    layout = picture_layout(array.shape)
    if layout is None:
        raise EpisodeError(f"{where}: shape {array.shape} is no picture; wanted (H, W) or 1, 3 or 4 channels.")
    if layout == "chw":
        array = np.moveaxis(array, 0, -1)
    elif layout == "hw":
        array = array[..., None]
    if array.dtype != np.uint8:
        array = _to_uint8(array, where, scale)
    if array.shape[-1] == 1:
        array = np.broadcast_to(array, (*array.shape[:2], 3))
    return np.ascontiguousarray(array[..., :3], dtype=np.uint8)


def _to_uint8(array: Array, where: str, scale: float | None) -> Rgb:
    if array.dtype.kind not in "fiu":
        raise EpisodeError(f"{where}: pictures of type {array.dtype} are not understood; wanted uint8 or floats.")
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind in "iu":
        scale = 1.0
    elif scale is None:
        scale = 255.0 if high <= 1.001 else 1.0
    top = 255.0 / scale
    if not (low >= -0.001 * top and high <= 1.001 * top):  # NaN fails too
        raise EpisodeError(f"{where}: {array.dtype} values from {low:g} to {high:g}, outside 0 to {top:g}.")
    values = np.asarray(array, np.float32) * np.float32(scale)
    out: Rgb = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return out


def turn(array: Array, orientation: Orientation) -> Array:
    """The picture or depth map (H, W, ...) the right way up, contiguous."""
    if orientation == "flip_vertical":
        return np.ascontiguousarray(array[::-1])
    if orientation == "rotate_180":
        return np.ascontiguousarray(array[::-1, ::-1])
    return array


class Turner:
    """Gives encoded pictures the channel order and orientation that the config asks for."""

    def __init__(self, config: IngestConfig) -> None:
        self._orientation = config.orientation
        self._swap = config.jpeg_channel_order == "bgr"

    @property
    def turns_encoded(self) -> bool:
        """Whether encoded pictures have to be decoded here."""
        return self._swap or self._orientation != "as_stored"

    def encoded(self, image: EncodedImage, spec: StreamSpec, where: str) -> Frame:
        """A picture of a colour stream: as it is, or decoded and turned.

        Raises:
            EpisodeError: damaged, or not of the stream's size.
        """
        size = image_shape(image, where)
        if size != spec.shape[:2]:
            raise EpisodeError(f"{where}: {size} pixels, the first picture has {spec.shape[:2]}.")
        if not self.turns_encoded and image.format == spec.encoding:
            return image
        return self.decoded(decode_image(image, where))

    def decoded(self, picture: Rgb) -> Rgb:
        """A decoded picture of a colour stream, turned."""
        if self._swap:
            picture = np.ascontiguousarray(picture[..., ::-1])
        return np.asarray(turn(picture, self._orientation), np.uint8)


def depth_to_m(array: Array, unit_m: float | None, where: str = "depth") -> npt.NDArray[np.float32]:
    """(H, W) float32 metres, 0 for "no reading", from (H, W), (H, W, 1) or (1, H, W).

    Floats are metres and integers millimetres unless ``unit_m`` says what 1 means. NaN, infinity and negative
    values are no reading.

    Raises:
        EpisodeError: another shape or type.
    """
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    elif array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise EpisodeError(f"{where}: {array.dtype} of shape {array.shape} is no depth map; wanted numbers of (H, W).")
    unit = unit_m if unit_m is not None else 1.0 if array.dtype.kind == "f" else 0.001
    metres = np.asarray(array, np.float64 if array.dtype.kind == "f" else None) * unit
    valid = np.isfinite(metres) & (metres > 0)
    return np.where(valid, metres, 0).astype(np.float32)
