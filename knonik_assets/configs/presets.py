"""How strongly ingest compresses: named presets, inline presets and overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from knonik_loader.errors import ConfigError

__all__ = [
    "PRESETS",
    "QUALITY_RANGE",
    "RATES",
    "DepthPreset",
    "NumericPreset",
    "Preset",
    "RgbCodecName",
    "RgbPreset",
    "resolve_preset",
]

RATES = (0.001, 1e6)
"""Frames a second: at least the first, below the second."""

RgbCodecName = Literal["vp9", "av1", "h264", "jpeg", "copy"]

QUALITY_RANGE: Mapping[str, tuple[int, int]] = {
    "vp9": (0, 63),
    "av1": (0, 63),
    "h264": (0, 51),
    "jpeg": (1, 100),
    "copy": (0, 63),  # of the VP9 that stands in where packets cannot be copied
}
_JPEG_QUALITY = 95
_MEANINGLESS: Mapping[str, tuple[str, ...]] = {"jpeg": ("gop", "speed"), "copy": ("quality", "gop", "speed", "chroma")}


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class RgbPreset(_Strict):
    """Colour streams."""

    codec: RgbCodecName = "vp9"
    """How pictures are stored; ``copy`` keeps a source video's own packets where it can."""
    quality: int = Field(default=18, ge=0, le=100)
    """CRF for video codecs (lower is better), 1-100 for jpeg (higher is better)."""
    gop: int = Field(default=3, ge=1, le=1000)
    """Frames from one keyframe to the next."""
    speed: int = Field(default=6, ge=0, le=9)
    """0 slowest and smallest, 9 fastest."""
    chroma: Literal["420", "444"] = "420"
    """Chroma subsampling."""
    shard_size: int | None = Field(default=None, ge=1)
    """What ``pack`` uses when no shard size is given; None leaves it to the packer."""
    workers: int | None = Field(default=None, ge=1)
    """Cameras encoded at once; None: as many as there are cores and cameras."""

    @field_validator("chroma", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:  # noqa: ANN401 - raw YAML
        return str(value) if type(value) is int else value

    @model_validator(mode="after")
    def _in_range(self) -> RgbPreset:
        low, high = QUALITY_RANGE[self.codec]
        if not low <= self.quality <= high:
            better = "higher is better" if self.codec == "jpeg" else "a CRF, lower is better"
            raise ValueError(
                f"quality of {self.codec} must lie between {low} and {high} ({better}), not {self.quality}"
            )
        return self


class DepthPreset(_Strict):
    """Depth streams."""

    quantization_mm: float = Field(default=1.0, ge=0.001, le=1000)
    """Step of the stored depth, in millimetres."""
    max_m: float | None = Field(default=None, gt=0)
    """Readings above become "no reading" and are counted; None: what uint16 holds (65535 x quantization_mm)."""


class NumericPreset(_Strict):
    """Numeric streams."""

    level: int = Field(default=1, ge=1, le=22)
    """Zstandard level."""
    chunk_len: int = Field(default=1024, ge=1)
    """Rows a chunk of the Zarr array."""


class Preset(_Strict):
    """The three together; the ``preset`` block of a config."""

    rgb: RgbPreset = RgbPreset()
    """Colour streams."""
    depth: DepthPreset = DepthPreset()
    """Depth streams."""
    numeric: NumericPreset = NumericPreset()
    """Numeric streams."""

    def inactive(self) -> list[str]:
        """Knobs that were set and mean nothing for the chosen codec, by dotted name."""
        return [f"rgb.{knob}" for knob in _MEANINGLESS.get(self.rgb.codec, ()) if knob in self.rgb.model_fields_set]


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


def resolve_preset(preset: Any, overrides: Any, where: str) -> Preset:  # noqa: ANN401 - what a file holds
    """The preset that a name or an inline block, and overrides on top of it, mean.

    Args:
        preset: one of `PRESETS`, a block ``{rgb, depth, numeric}`` that may be partial, or None for ``medium``.
        overrides: a block merged over it, key by key, or None.
        where: what to call the two in messages.

    A change of codec takes along only what means the same for the new one: a CRF is no JPEG quality.

    Raises:
        ConfigError: an unknown name or knob, or a value out of its range.
    """
    from knonik_assets.configs.validation import unknown, validate

    base: Mapping[str, Any] = {}
    own = preset
    if preset is None or isinstance(preset, str):
        name = preset or "medium"
        if name not in PRESETS:
            raise ConfigError(f"{where}: preset: {unknown(name, PRESETS, 'preset')}")
        base, own = PRESETS[name], {}
    for layer, called in ((own, "preset"), (overrides, "preset_overrides")):
        if layer is None:
            continue
        if not isinstance(layer, Mapping):
            raise ConfigError(
                f"{where}: {called} must be a block with rgb, depth or numeric"
                f"{', or a name' if called == 'preset' else ''}, not {layer!r}."
            )
        base = _merge(base, layer)
    return validate(Preset, _fit_codec(base, own, overrides), f"{where}: preset")


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        if value is None:
            continue
        below = merged.get(key)
        merged[key] = (
            _merge(below if isinstance(below, Mapping) else {}, value) if isinstance(value, Mapping) else value
        )
    return merged


def _fit_codec(merged: Mapping[str, Any], *layers: Any) -> dict[str, Any]:  # noqa: ANN401 - what a file holds
    """Drop what a named preset says about another codec, and give JPEG a quality of its own."""
    rgb = merged.get("rgb")
    if not isinstance(rgb, Mapping) or rgb.get("codec") not in _MEANINGLESS:
        return dict(merged)
    said: set[str] = set()
    for layer in layers:
        if isinstance(layer, Mapping) and isinstance(layer.get("rgb"), Mapping):
            said |= set(layer["rgb"])
    dropped = {*_MEANINGLESS[rgb["codec"]], *(("quality",) if rgb["codec"] == "jpeg" else ())} - said
    fitted = {key: value for key, value in rgb.items() if key not in dropped}
    if rgb["codec"] == "jpeg":
        fitted.setdefault("quality", _JPEG_QUALITY)
    return {**merged, "rgb": fitted}
