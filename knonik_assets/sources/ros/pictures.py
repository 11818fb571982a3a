"""Pictures in ROS messages: raw images of every encoding, compressed ones, and compressed depth.

Encodings: sensor_msgs/image_encodings.hpp; meanings of depth: REP 118; compressed depth: image_transport_plugins'
compressed_depth_image_transport; RVL: Wilson, "Fast lossless depth image compression" (2017).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal

import av
import numpy as np
import numpy.typing as npt

from knonik_assets.sources.images import MAX_PIXELS, decode_depth
from knonik_loader.errors import EpisodeError
from knonik_loader.khlp.colour import SMPTE170M, Converter

__all__ = ["RawPicture", "compressed_depth", "is_grey16", "kind_of_encoding", "raw_depth", "raw_rgb"]

Rgb = npt.NDArray[np.uint8]
_PNG = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct("<iff")
_DEPTH = {"16UC1": "u2", "mono16": "u2", "32FC1": "f4"}
_ORDERS = {
    "rgb8": (1, "rgb"), "bgr8": (1, "bgr"), "rgba8": (1, "rgba"), "bgra8": (1, "bgra"),
    "rgb16": (2, "rgb"), "bgr16": (2, "bgr"), "rgba16": (2, "rgba"), "bgra16": (2, "bgra"),
    "mono8": (1, "y"), "8UC1": (1, "y"), "8UC": (1, "y"), "8UC3": (1, "bgr"), "8UC4": (1, "bgra"),
    "16UC3": (2, "bgr"), "16UC4": (2, "bgra"),
}  # fmt: skip
"""Encoding → bytes a channel, order of channels. Those that don't say an order are OpenCV's."""
_BAYER = ("bayer_rggb", "bayer_bggr", "bayer_gbrg", "bayer_grbg")
_YUV = {
    "yuv422": "uyvy422", "uyvy": "uyvy422", "yuv422_yuy2": "yuyv422", "yuyv": "yuyv422", "yuv422_yuyv": "yuyv422",
    "nv12": "nv12", "nv21": "nv21", "nv24": "nv24",
}  # fmt: skip
_UNORDERED = ("8UC3", "8UC4", "16UC3", "16UC4")


@dataclass(frozen=True, slots=True)
class RawPicture:
    """The members of an image message that say what its bytes are."""

    height: int
    width: int
    encoding: str
    step: int
    big_endian: bool
    data: memoryview

    def check(self, row_bytes: int, rows: int, where: str) -> npt.NDArray[np.uint8]:
        """(rows, row_bytes) of the data without the padding at the end of rows.

        Raises:
            EpisodeError: an absurd size, or fewer bytes than it needs.
        """
        if self.height < 1 or self.width < 1 or self.height * self.width > MAX_PIXELS:
            raise EpisodeError(f"{where}: a picture of {self.height} x {self.width} pixels.")
        step = self.step or row_bytes
        if step < row_bytes or len(self.data) < step * (rows - 1) + row_bytes:
            raise EpisodeError(
                f"{where}: {len(self.data)} bytes in rows of {step} for {self.height} x {self.width} {self.encoding}, "
                f"which needs {rows} rows of {row_bytes}."
            )
        flat = np.frombuffer(self.data, np.uint8)
        if len(flat) < step * rows:  # the last row may lack its padding
            flat = np.concatenate([flat, np.zeros(step * rows - len(flat), np.uint8)])
        return flat[: step * rows].reshape(rows, step)[:, :row_bytes]


def kind_of_encoding(encoding: str) -> Literal["rgb", "depth"] | None:
    """Whether an encoding is one of colour or depth; None for those that nothing is known of."""
    if encoding in _DEPTH:
        return "depth"
    known = encoding in _ORDERS or encoding.lower() in _YUV or encoding.removesuffix("8").removesuffix("16") in _BAYER
    return "rgb" if known else None


def is_unordered(encoding: str) -> bool:
    """Whether an encoding leaves open which channel is red."""
    return encoding in _UNORDERED


def is_grey16(data: bytes) -> bool:
    """Whether a PNG has one channel of 16 bits, as depth has and no colour."""
    return data.startswith(_PNG) and data[24:26] == b"\x10\0"  # of its header: bits, kind of colour


def raw_rgb(picture: RawPicture, where: str) -> Rgb:
    """(H, W, 3) uint8 RGB of a raw image.

    Raises:
        EpisodeError: an unknown encoding, an absurd size or too few bytes.
    """
    encoding = picture.encoding
    if encoding in _ORDERS:
        size, order = _ORDERS[encoding]
        rows = picture.check(picture.width * size * len(order), picture.height, where)
        values = _as_uint8(rows, size, picture).reshape(picture.height, picture.width, len(order))
        if order == "y":
            return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))
        return np.ascontiguousarray(values[..., 2::-1] if order.startswith("bgr") else values[..., :3])
    if encoding.lower() in _YUV:
        return _from_yuv(picture, _YUV[encoding.lower()], where)
    base = encoding.removesuffix("8").removesuffix("16")
    if base in _BAYER:
        size = 2 if encoding.endswith("16") else 1
        rows = picture.check(picture.width * size, picture.height, where)
        return _demosaiced(_as_uint8(rows, size, picture), base.removeprefix("bayer_"))
    raise EpisodeError(f"{where}: pictures in {encoding!r} are not understood.")


def _as_uint8(rows: npt.NDArray[np.uint8], size: int, picture: RawPicture) -> npt.NDArray[np.uint8]:
    if size == 1:
        return rows
    words = np.ascontiguousarray(rows).view(">u2" if picture.big_endian else "<u2")
    return (words >> 8).astype(np.uint8)


def _from_yuv(picture: RawPicture, name: str, where: str) -> Rgb:
    """BT.601, limited range, as camera drivers mean these encodings."""
    height, width = picture.height, picture.width
    if width % 2 and name != "nv24":
        raise EpisodeError(f"{where}: {picture.encoding} needs an even width, not {width}.")
    frame = av.VideoFrame(width, height, name)
    frame.colorspace = SMPTE170M
    if name.endswith("422"):
        planes = [picture.check(2 * width, height, where)]
    else:
        below = {"nv12": (height + 1) // 2, "nv21": (height + 1) // 2, "nv24": 2 * height}[name]
        whole = picture.check(width, height + below, where)
        planes = [whole[:height], whole[height:].reshape(-1, 2 * width if name == "nv24" else width)]
    for plane, rows in zip(frame.planes, planes, strict=True):
        padded = np.zeros((len(rows), plane.line_size), np.uint8)
        padded[:, : rows.shape[1]] = rows
        plane.update(padded.tobytes())
    return Converter().to_rgb(frame, height, width)


def _demosaiced(mosaic: npt.NDArray[np.uint8], pattern: str) -> Rgb:
    """Bilinear interpolation; ``pattern`` names the first two by two pixels row by row."""
    height, width = mosaic.shape
    padded = np.pad(mosaic, 1, mode="reflect" if min(height, width) > 1 else "edge").astype(np.uint16)
    y, x = np.indices((height + 2, width + 2), sparse=True)
    out = np.empty((height, width, 3), np.uint8)
    for channel, colour in enumerate("rgb"):
        here = np.zeros(padded.shape, np.uint16)
        for place, found in enumerate(pattern):
            if found == colour:  # the picture's own (0, 0) is at (1, 1) of the padded one
                here |= (((y + 1) % 2 == place // 2) & ((x + 1) % 2 == place % 2)).astype(np.uint16)
        weight, total = _kernel(here), _kernel(padded * here)
        out[..., channel] = (total + weight // 2) // weight
        own = here[1:-1, 1:-1].astype(bool)
        out[..., channel][own] = mosaic[own]
    return out


def _kernel(values: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """(H, W) sums with weights 1 2 1 / 2 4 2 / 1 2 1 of an array padded by one."""
    rows = values[:-2] + 2 * values[1:-1] + values[2:]
    return np.asarray(rows[:, :-2] + 2 * rows[:, 1:-1] + rows[:, 2:], np.uint16)


def raw_depth(picture: RawPicture, where: str) -> npt.NDArray[Any]:
    """(H, W) values of a depth image: integers are millimetres, floats metres.

    Raises:
        EpisodeError: another encoding, an absurd size or too few bytes.
    """
    kind = _DEPTH.get(picture.encoding)
    if kind is None:
        raise EpisodeError(f"{where}: depth in {picture.encoding!r} is not understood.")
    rows = picture.check(picture.width * int(kind[1]), picture.height, where)
    return np.ascontiguousarray(rows).view((">" if picture.big_endian else "<") + kind)


def compressed_depth(form: str, data: memoryview, where: str) -> npt.NDArray[Any]:
    """(H, W) values of a compressed depth image: uint16 millimetres, or float32 metres with 0 for no reading.

    Raises:
        EpisodeError: neither PNG nor RVL, or damaged.
    """
    content = bytes(data)
    floats = form.strip().startswith("32FC1")
    at = content.find(_PNG, 0, 64)
    if at >= 0:
        values = decode_depth(content[at:], where)
    elif "rvl" in form.lower():
        at = _HEADER.size
        values = _rvl(content, where)
    else:
        raise EpisodeError(f"{where}: compressed depth of format {form!r} that is neither PNG nor RVL.")
    if not floats:
        return values
    if at < _HEADER.size:
        raise EpisodeError(f"{where}: float depth without the header that says how it was quantised.")
    _, a, b = _HEADER.unpack_from(content)
    with np.errstate(divide="ignore", invalid="ignore"):
        metres = np.float32(a) / (values.astype(np.float32) - np.float32(b))
    return np.where((values == 0) | ~np.isfinite(metres), 0, metres).astype(np.float32)


def _rvl(content: bytes, where: str) -> npt.NDArray[np.uint16]:
    """(H, W) of runs of zeros and of differences, each a number of 3-bit digits in nibbles."""
    if len(content) < _HEADER.size + 8:
        raise EpisodeError(f"{where}: compressed depth of {len(content)} bytes has no size.")
    width, height = struct.unpack_from("<II", content, _HEADER.size)
    if not 0 < width * height <= MAX_PIXELS:
        raise EpisodeError(f"{where}: a picture of {height} x {width} pixels.")
    body = content[_HEADER.size + 8 :]
    words = np.frombuffer(body[: len(body) // 4 * 4], "<u4")
    nibbles = ((words[:, None] >> np.arange(28, -1, -4, dtype=np.uint32)) & 15).ravel().astype(np.int64)
    ends = np.flatnonzero(nibbles < 8)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    digit = np.arange(len(nibbles)) - np.repeat(starts, np.diff(np.append(starts, len(nibbles))))
    if not len(ends) or digit[: ends[-1] + 1].max() > 7:
        raise EpisodeError(f"{where}: damaged RVL depth.")
    used = ends[-1] + 1
    numbers = np.add.reduceat((nibbles[:used] & 7) << (3 * digit[:used]), starts)
    return _runs(numbers, height * width, where).reshape(height, width)


def _runs(numbers: npt.NDArray[np.int64], pixels: int, where: str) -> npt.NDArray[np.uint16]:
    out = np.zeros(pixels, np.uint16)
    at = place = 0
    last = 0
    while at < pixels:
        if place + 2 > len(numbers):
            raise EpisodeError(f"{where}: damaged RVL depth: it ends after {at} of {pixels} pixels.")
        zeros, count = int(numbers[place]), int(numbers[place + 1])
        at += zeros
        place += 2
        steps = numbers[place : place + count]
        if at + count > pixels or len(steps) < count or not (zeros or count):
            raise EpisodeError(f"{where}: damaged RVL depth: a run leads beyond its {pixels} pixels.")
        if count:
            values = last + np.cumsum((steps >> 1) ^ -(steps & 1))
            out[at : at + count] = values.astype(np.uint16)
            last = int(values[-1])
        at += count
        place += count
    return out
