"""How strongly ingest compresses: named presets, inline presets and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["PRESETS", "DepthPreset", "NumericPreset", "Preset", "RgbCodecName", "RgbPreset"]

RgbCodecName = Literal["vp9", "av1", "h264", "jpeg", "copy"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RgbPreset(_Strict):
    """Colour streams."""

    codec: RgbCodecName = "vp9"
    quality: int = Field(18, ge=0, le=100)
    """CRF for video codecs (lower is better), 1-100 for jpeg (higher is better)."""
    gop: int = Field(3, ge=1, le=1000)
    """Frames from one keyframe to the next."""
    speed: int = Field(6, ge=0, le=9)
    """0 slowest and smallest, 9 fastest."""
    chroma: Literal["420", "444"] = "420"
    shard_size: int | None = Field(None, ge=1)
    """What ``pack`` uses when no shard size is given; None leaves it to the packer."""
    workers: int | None = Field(None, ge=1)
    """Cameras encoded at once; None: as many as there are cores and cameras."""


class DepthPreset(_Strict):
    """Depth streams."""

    quantization_mm: float = Field(1.0, gt=0)
    max_m: float | None = Field(None, gt=0)
    """Readings above become "no reading" and are counted; None: what uint16 holds (65535 x quantization_mm)."""


class NumericPreset(_Strict):
    """Numeric streams."""

    level: int = Field(1, ge=1, le=22)
    """Zstandard level."""
    chunk_len: int = Field(1024, ge=1)
    """Rows a chunk of the Zarr array."""


class Preset(_Strict):
    """The three together; the ``preset`` block of a config."""

    rgb: RgbPreset = RgbPreset()
    depth: DepthPreset = DepthPreset()
    numeric: NumericPreset = NumericPreset()

    def inactive(self) -> list[str]:
        """Knobs that were set and mean nothing for the chosen codec, by dotted name."""
        meaningless: Mapping[str, tuple[str, ...]] = {
            "jpeg": ("gop", "speed"),
            "copy": ("quality", "gop", "speed", "chroma"),
        }
        return [f"rgb.{knob}" for knob in meaningless.get(self.rgb.codec, ()) if knob in self.rgb.model_fields_set]


PRESETS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "ultra_low": {
        "rgb": {"codec": "vp9", "quality": 4, "gop": 1},
        "depth": {"quantization_mm": 1},
        "numeric": {"level": 1},
    },
    "low": {
        "rgb": {"codec": "vp9", "quality": 12, "gop": 3, "speed": 9},
        "depth": {"quantization_mm": 1},
        "numeric": {"level": 1},
    },
    "medium": {
        "rgb": {"codec": "vp9", "quality": 18, "gop": 3},
        "depth": {"quantization_mm": 1},
        "numeric": {"level": 1},
    },
    "high": {
        "rgb": {"codec": "vp9", "quality": 30, "gop": 30},
        "depth": {"quantization_mm": 2},
        "numeric": {"level": 9},
    },
}
