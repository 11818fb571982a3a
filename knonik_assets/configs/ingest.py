"""The ingest config: what a raw dataset looks like and how its episodes shall be written (SPEC of the ``config`` file)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from knonik_assets.configs.presets import Preset

__all__ = ["DepthEntry", "DirType", "ImageEntry", "IngestConfig", "LanguageBlock", "Layout"]

DirType = Literal[
    "episodic", "calvin", "zarr", "hdf5", "lerobot_v2", "lerobot_v3", "rosbag", "mcap", "rlds", "d3il", "npy_separate"
]
DataType = Literal["hdf5", "npy", "zarr"]
Orientation = Literal["as_stored", "flip_vertical", "rotate_180"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ImageEntry(_Strict):
    """A colour stream of the layout: ``{"key": source, "fps": n}`` or the bare source string."""

    key: str
    fps: float | None = Field(None, gt=0)


class DepthEntry(ImageEntry):
    """A depth stream of the layout."""

    unit_m: float | None = Field(None, gt=0)
    """Metres that one integer step means; None: millimetres for integers, metres for floats."""


def _bare_string(value: Any) -> Any:  # noqa: ANN401 - raw YAML
    if isinstance(value, dict):
        return {name: {"key": entry} if isinstance(entry, str) else entry for name, entry in value.items()}
    return value


class Layout(_Strict):
    """Output name → place in the source. Paths use dots; a key that itself holds a dot or slash is matched whole first."""

    images: dict[str, ImageEntry] | None = None
    depths: dict[str, DepthEntry] | None = None
    """Also spelt ``depth``."""
    numeric: dict[str, str] | None = None
    timestamps: str | None = None

    _bare = field_validator("images", "depths", mode="before")(_bare_string)


class LanguageBlock(_Strict):
    """What the robot was told, said by the config: stronger than what the source says."""

    instruction: str | None = None
    rephrases: list[str] = Field(default_factory=list)


class IngestConfig(_Strict):
    """A validated ingest config. Build it with `knonik_assets.configs.load.load_ingest_config`."""

    dir_type: DirType
    data_type: DataType | None = None
    data_dir: str | None = None
    fps: float | None = Field(None, gt=0)
    """Nominal frame rate; never resamples. None: from the source, else 30."""
    preset: Preset = Preset()
    """Resolved: name, inline dict and overrides are merged before this model is built."""
    layout: Layout = Layout()
    metadata: dict[str, Any] = Field(default_factory=dict)
    language: Literal[False] | LanguageBlock | None = None
    """False writes no annotations; None takes them from the source."""
    episode_limit: int | None = Field(None, ge=1)
    strict: bool = False
    jpeg_channel_order: Literal["rgb", "bgr"] = "rgb"
    orientation: Orientation = "as_stored"
    demos: str | None = None
    time_source: Literal["log", "header"] = "log"
    msg_path: str | None = None
    streams: dict[str, Any] | None = None
    timestamps: str | None = None
