"""From the frames that codecs decode to those that a batch holds: size, type, scale, padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from knonik_loader.config_streams import LoadedStream
from knonik_loader.khlp.types import Codec

if TYPE_CHECKING:
    from av.video.reformatter import VideoReformatter

__all__ = ["PictureChange", "change_rows"]

Array = npt.NDArray[Any]

# What FFmpeg's scaler calls its methods: means over the area of an output pixel, and linear interpolation.
_AREA, _BILINEAR = 32, 2
# It would halve the colours' width first (8192, 16384: it doesn't), and round differently from processor to processor
# (262144, 524288). With these, means are exact but for rounding to whole levels.
_EXACT = 8192 | 16_384 | 262_144 | 524_288


class ReducingCodec(Protocol):
    """A codec that can decode to a fraction of the size for less than decoding whole."""

    def reduced(self, height: int, width: int) -> tuple[int, int]:
        """The smallest size that it decodes to without being less than this one on either side."""
        ...


class PictureChange:
    """How the pictures of one stream become those of the batch; holds scratch memory, so use one a thread.

    RGB pictures are reduced by the decoder as far as that is cheap (JPEG, by 2, 4 or 8), then by averages over areas,
    or enlarged by linear interpolation. Depth takes the nearest value: an average of two distances, or of a distance
    and "no reading", is a place where nothing is.

    Args:
        loaded: the stream, which the dataset has.
        codec: of the stream.
    """

    def __init__(self, loaded: LoadedStream, codec: Codec) -> None:
        assert loaded.stored is not None
        self._batch, stored = loaded.batch, loaded.stored
        height, width = loaded.resize or stored.shape[:2]
        self._size = (height, width)
        self.decoded = stored.shape
        """Of a frame as the codec shall write it."""
        if loaded.resize and hasattr(codec, "reduced"):
            self.decoded = (*cast("ReducingCodec", codec).reduced(height, width), *stored.shape[2:])
        self.direct = (self.decoded, stored.dtype) == (self._batch.shape, self._batch.dtype)
        """Whether the codec can write into the batch itself."""
        self._dtype = stored.dtype
        self._scratch = np.empty((0, *self.decoded), stored.dtype)
        self._scaler: VideoReformatter | None = None
        if stored.kind == "depth" and self._size != stored.shape:
            self._rows, self._columns = (
                ((np.arange(new) * 2 + 1) * old // (2 * new)) for new, old in zip(self._size, stored.shape, strict=True)
            )

    def scratch(self, frames: int) -> Array:
        """(frames, ...) memory to decode into, valid until the next call."""
        if len(self._scratch) < frames:
            self._scratch = np.empty((frames, *self.decoded), self._dtype)
        return self._scratch[:frames]

    def write(self, frame: Array, out: Array) -> None:
        """Turn a decoded frame into the batch's."""
        height, width = self._size
        place = out[:height, :width]
        if place.shape != out.shape:
            out[height:] = 0
            out[:height, width:] = 0
        if self._batch.kind == "depth":
            resized = frame[self._rows[:, None], self._columns] if frame.shape != self._size else frame
            np.copyto(place, resized, casting="same_kind")
            return
        if frame.shape[:2] != self._size:
            frame = self._resized(frame)
        if out.dtype == np.uint8:
            np.copyto(place, frame)
        else:
            # A quotient, not a product with 1/255: 255 becomes 1.0 exactly. Halves are computed as single precision.
            np.divide(frame, 255, out=place, dtype=np.result_type(out.dtype, np.float32), casting="same_kind")

    def _resized(self, frame: Array) -> Array:
        """(h, w, 3) uint8 → (H, W, 3)."""
        import av.video.reformatter

        height, width = self._size
        if self._scaler is None:
            self._scaler = av.video.reformatter.VideoReformatter()
        method = _AREA if height <= frame.shape[0] and width <= frame.shape[1] else _BILINEAR
        picture = av.VideoFrame.from_numpy_buffer(frame, format="rgb24")
        scaled = self._scaler.reformat(
            picture,
            width=width,
            height=height,
            format="rgb24",
            interpolation=av.video.reformatter.Interpolation(method | _EXACT),
            threads=1,
        )
        plane = scaled.planes[0]
        lines = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)[:height, : width * 3]
        resized: Array = lines.reshape(height, width, 3)
        return resized


def change_rows(loaded: LoadedStream, rows: npt.NDArray[np.float32]) -> Array:
    """(n, D) rows of a numeric stream as stored → (n, D') as the batch has them."""
    batch = loaded.batch
    values: Array = rows.astype(np.result_type(batch.dtype, np.float32), copy=False)
    if loaded.scale is not None:
        values = loaded.scale.normalize(values)
    result = np.zeros((len(rows), *batch.shape), batch.dtype)
    result[:, : rows.shape[1]] = values
    return result
