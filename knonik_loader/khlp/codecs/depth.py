"""Depth: quantised values, lossless, every frame on its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import zstandard

from knonik_loader.errors import DecodeError
from knonik_loader.khlp.codecs.common import check_array, expect_kind, number, payload
from knonik_loader.khlp.types import Dependency, FrameInput, Record, StreamInfo

__all__ = ["DepthCodec"]

LEFT = b"Z\x01\x00\x00"
"""Begins a record: differences to the pixel before, low bytes then high bytes, compressed with zstd."""


class DepthCodec:
    """uint16 multiples of ``quantization_mm`` in, float32 metres out; 0 means "no reading" on both sides.

    Parameters: ``quantization_mm`` (millimetres a step, default 1) and ``level`` of zstd (default 3).
    """

    name: ClassVar[str] = "depth"
    dependency: ClassVar[Dependency] = "none"

    def __init__(self, info: StreamInfo) -> None:
        expect_kind(info, "depth", 2)
        self._info = info
        self._metres = np.float32(number(info, "quantization_mm", 1.0, 1e-6, 1e6) / 1000)
        self._compressor = zstandard.ZstdCompressor(
            level=int(number(info, "level", 3, 1, 19)), write_content_size=True, write_checksum=False
        )
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, frames: Iterable[FrameInput]) -> list[Record]:
        """One record a frame; each frame is uint16 (H, W)."""
        records = []
        for frame in frames:
            flat = check_array(self._info, frame, self._info.shape, "uint16").ravel()
            steps = np.diff(flat, prepend=np.uint16(0)).astype("<u2")  # wraps, and wraps back
            planes = steps.view(np.uint8).reshape(-1, 2).T  # low bytes, high bytes
            records.append(Record(LEFT + self._compressor.compress(planes.tobytes())))
        return records

    def decode(
        self, records: Mapping[int, memoryview], wanted: Sequence[int], out: Mapping[int, npt.NDArray[Any]]
    ) -> None:
        """Decode each wanted frame: value x quantization in metres."""
        for row in wanted:
            data = payload(self._info, records, row)
            np.multiply(self.quantised(data, row), self._metres, out=out[row], dtype=np.float32, casting="unsafe")

    def quantised(self, data: bytes | memoryview, row: int = 0) -> npt.NDArray[np.uint16]:
        """(H, W) uint16 of one record, as it was encoded.

        Raises:
            DecodeError: damaged, or of another size.
        """
        where = f"stream {self._info.key!r}, row {row}"
        pixels = self._info.shape[0] * self._info.shape[1]
        if bytes(data[: len(LEFT)]) != LEFT:
            raise DecodeError(f"{where}: is not a depth record of this version")
        try:
            # the frame says its size; no more than the stream's is ever allocated
            if zstandard.frame_content_size(data[len(LEFT) :]) != 2 * pixels:
                raise DecodeError(f"{where}: holds another number of pixels than {self._info.shape}")
            raw = self._decompressor.decompress(data[len(LEFT) :], max_output_size=2 * pixels)
        except zstandard.ZstdError as error:
            raise DecodeError(f"{where}: does not decompress: {error}") from error
        if len(raw) != 2 * pixels:
            raise DecodeError(f"{where}: decompresses to {len(raw)} bytes, not {2 * pixels}")
        planes = np.frombuffer(raw, np.uint8).reshape(2, pixels)
        steps = planes[0] | planes[1].astype(np.uint16) << np.uint16(8)
        return np.cumsum(steps, dtype=np.uint16).reshape(self._info.shape[:2])
