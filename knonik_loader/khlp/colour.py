"""RGB arrays to video frames and back, with the matrix and range said aloud.

Untagged video makes decoders guess between BT.601 and BT.709 and between limited and full range, which shifts colours
by a few levels in silence. Everything that Knonik encodes is BT.601, limited range, and tagged so; what others encoded
is converted by its own tags, with the guess that players make (BT.709 from 720 lines on) where it has none.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import av
    from av.video.reformatter import VideoReformatter

__all__ = ["Converter", "tag_context"]

# Numbers of ISO/IEC 23001-8, as FFmpeg's AVColorSpace and AVColorRange use them.
BT709, BT470BG, SMPTE170M = 1, 5, 6
LIMITED, FULL = 1, 2
UNSPECIFIED = 2


def tag_context(context: av.VideoCodecContext) -> None:
    """Tag an encoder's stream as BT.601 limited, the form in which `Converter.to_yuv` gives frames."""
    context.colorspace = SMPTE170M
    context.color_range = LIMITED
    context.color_primaries = SMPTE170M
    context.color_trc = SMPTE170M


class Converter:
    """Converts between RGB arrays and video frames; holds scaler state, so use one a thread."""

    def __init__(self) -> None:
        import av.video.reformatter

        self._reformatter: VideoReformatter = av.video.reformatter.VideoReformatter()

    def to_yuv(self, image: npt.NDArray[np.uint8], pixel_format: str = "yuv420p") -> av.VideoFrame:
        """Video frame of an (H, W, 3) uint8 RGB image; odd sizes are padded by repeating the last row and column."""
        import av

        height, width = image.shape[:2]
        if height % 2 or width % 2:
            image = np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame.colorspace, frame.color_range = SMPTE170M, FULL
        out = self._reformatter.reformat(
            frame,
            format=pixel_format,
            dst_colorspace=_sws_matrix(SMPTE170M),
            src_color_range=FULL,
            dst_color_range=LIMITED,
            threads=1,
        )
        out.colorspace, out.color_range = SMPTE170M, LIMITED
        return out

    def to_rgb(
        self, frame: av.VideoFrame, height: int | None = None, width: int | None = None
    ) -> npt.NDArray[np.uint8]:
        """(H, W, 3) uint8 RGB of a decoded frame, cropped to the true size where the encoder had to pad."""
        source = int(frame.colorspace)
        if source in (0, UNSPECIFIED, 3):
            source = BT709 if frame.height >= 720 else SMPTE170M
        full = int(frame.color_range) == FULL or frame.format.name.startswith("yuvj")
        out = self._reformatter.reformat(
            frame,
            format="rgb24",
            src_colorspace=_sws_matrix(source),
            dst_colorspace=_sws_matrix(source),
            src_color_range=FULL if full else LIMITED,
            dst_color_range=FULL,
            threads=1,
        )
        image: npt.NDArray[np.uint8] = out.to_ndarray().astype(np.uint8, copy=False)
        return image[: height or image.shape[0], : width or image.shape[1]]


@cache
def _sws_matrix(colorspace: int) -> int:
    """The scaler's own number for a matrix: it has one for BT.601 under two tags, and knows no others than these."""
    return {BT709: 1, BT470BG: 5, SMPTE170M: 5, 7: 7, 9: 9}.get(colorspace, 5)
