"""Short clips for the colour codecs, and the streams that hold them."""

import numpy as np
import simplejpeg

from knonik_loader.khlp.types import StreamInfo
from tests.support.stamps import stamp


def rgb(codec: str, height: int = 96, width: int = 112, /, **params: object) -> StreamInfo:
    return StreamInfo(0, "rgb", "cam", codec, (height, width, 3), "uint8", 30.0, params=params)


def video(count: int = 23, height: int = 96, width: int = 112, stamped: bool = True) -> list[np.ndarray]:
    """A still background with sensor noise, a moving square and a stamp in the upper half."""
    rng = np.random.default_rng(5)
    base = rng.integers(70, 180, (height // 8 + 1, width // 8 + 1, 3)).repeat(8, 0).repeat(8, 1)[:height, :width]
    frames = []
    for t in range(count):
        image = np.clip(base + rng.normal(0, 1, base.shape), 0, 255).astype(np.uint8)
        image[height - 24 : height - 8, 2 * t : 2 * t + 16] = (200, 30, 40)
        frames.append(stamp(image, 1, 2, t) if stamped else image)
    return frames


def jpegs(frames: list[np.ndarray], quality: int = 93, chroma: str = "422") -> list[bytes]:
    return [simplejpeg.encode_jpeg(frame, quality, "RGB", chroma, fastdct=False) for frame in frames]


def flicker(frames: list[np.ndarray], strength: float = 0.02) -> list[np.ndarray]:
    """The same frames in light that beats with the shutter."""
    gains = 1 + strength * np.sin(2.3 * np.arange(len(frames)))
    return [np.clip(np.rint(frame * gain), 0, 255).astype(np.uint8) for frame, gain in zip(frames, gains, strict=True)]


def luma_psnr(one: np.ndarray, other: np.ndarray) -> float:
    """PSNR in dB of the luma of two pictures."""
    luma = (one.astype(float) - other) @ np.array([0.299, 0.587, 0.114])
    return float(10 * np.log10(255**2 / max(float(np.mean(luma**2)), 1e-9)))
