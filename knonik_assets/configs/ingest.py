"""The ingest config: what a raw dataset looks like and how its episodes shall be written."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from knonik_assets.configs.presets import Preset

__all__ = ["DepthEntry", "DirType", "ImageEntry", "IngestConfig", "LanguageBlock", "Layout"]

DirType = Literal[
    "episodic", "calvin", "zarr", "hdf5", "lerobot_v2", "lerobot_v3", "rosbag", "mcap", "rlds", "d3il", "npy_separate"
]
DataType = Literal["hdf5", "npy", "zarr"]
Orientation = Literal["as_stored", "flip_vertical", "rotate_180"]

_ROS = ("rosbag", "mcap")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ImageEntry(_Strict):
    """A colour stream of the layout: ``{"key": source, "fps": n}`` or the bare source string."""

    key: str = Field(min_length=1)
    fps: float | None = Field(default=None, gt=0)


class DepthEntry(ImageEntry):
    """A depth stream of the layout."""

    unit_m: float | None = Field(default=None, gt=0)
    """Metres that one integer step means; None: millimetres for integers, metres for floats."""


def _bare_string(value: Any) -> Any:  # noqa: ANN401 - raw YAML
    if isinstance(value, dict):
        return {name: {"key": entry} if isinstance(entry, str) else entry for name, entry in value.items()}
    return value


class Layout(_Strict):
    """Output name → place in the source.

    Paths use dots; a key that itself holds a dot or slash is matched whole first.
    """

    images: dict[str, ImageEntry] | None = None
    depths: dict[str, DepthEntry] | None = None
    """Also spelt ``depth``."""
    numeric: dict[str, str] | None = None
    timestamps: str | None = None

    _bare = field_validator("images", "depths", mode="before")(_bare_string)


class LanguageBlock(_Strict):
    """What the robot was told, said by the config: stronger than what the source says."""

    instruction: str | None = Field(default=None, min_length=1)
    rephrases: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _says_something(self) -> LanguageBlock:
        if self.instruction is None and not self.rephrases:
            raise ValueError("needs an instruction or rephrases; use false to write no annotations")
        return self


class IngestConfig(_Strict):
    """A validated ingest config. Build it with `knonik_assets.configs.load.load_ingest_config`."""

    dir_type: DirType
    data_type: DataType | None = None
    data_dir: str | None = None
    fps: float | None = Field(default=None, gt=0)
    """Nominal frame rate; never resamples. None: from the source, else 30."""
    preset: Preset = Preset()
    """Resolved: name, inline dict and overrides are merged before this model is built."""
    layout: Layout = Layout()
    metadata: dict[str, Any] = Field(default_factory=dict)
    language: Literal[False] | LanguageBlock | None = None
    """False writes no annotations; None takes them from the source."""
    episode_limit: int | None = Field(default=None, ge=1)
    strict: bool = False
    jpeg_channel_order: Literal["rgb", "bgr"] = "rgb"
    orientation: Orientation = "as_stored"
    demos: str | None = Field(default=None, min_length=1)
    time_source: Literal["log", "header"] = "log"
    msg_path: str | None = None
    streams: dict[str, Any] | None = None
    timestamps: str | None = None

    @field_validator("metadata")
    @classmethod
    def _texts(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in ("dataset", "robot_type", "language_instruction"):
            if key in value and not (isinstance(value[key], str) and value[key].strip()):
                raise ValueError(f"{key} must be a text, not {value[key]!r}")
        return value

    @model_validator(mode="after")
    def _fitting(self) -> IngestConfig:
        """Refuse blocks that the chosen reader would ignore."""
        if self.dir_type == "episodic" and self.data_type is None:
            raise ValueError("data_type is required with dir_type episodic: hdf5, npy or zarr")
        if self.dir_type != "episodic" and self.data_type is not None:
            raise ValueError(f"data_type is for dir_type episodic only; remove it for {self.dir_type}")
        said = self.model_fields_set
        ours = self.dir_type if self.data_type is None else f"{self.dir_type} {self.data_type}"
        for key, kinds in (
            ("streams", ("npy_separate",)),
            ("timestamps", ("npy_separate",)),
            ("demos", ("episodic hdf5", "hdf5")),
            ("time_source", _ROS),
            ("msg_path", _ROS),
        ):
            if key in said and ours not in kinds:
                raise ValueError(f"{key} is for dir_type {' or '.join(kinds)} only, not {ours}; remove it{_hint(key)}")
        if self.dir_type == "npy_separate":
            if self.streams is None:
                raise ValueError("streams is required with dir_type npy_separate: it says where each stream is staged")
            if "layout" in said:
                raise ValueError("layout is not for dir_type npy_separate; describe the staged files under streams")
        if self.jpeg_channel_order == "bgr" and self.dir_type in ("calvin", "npy_separate"):
            raise ValueError(f"jpeg_channel_order bgr has no meaning for {self.dir_type}, which holds no JPEG pictures")
        return self


def _hint(key: str) -> str:
    return " (layout.timestamps names the clock)" if key == "timestamps" else ""
