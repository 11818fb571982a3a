"""The ingest config: what a raw dataset looks like and how its episodes shall be written."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from knonik_assets.configs.presets import RATES, Preset
from knonik_assets.configs.validation import check_texts

__all__ = [
    "DepthEntry",
    "DirType",
    "ImageEntry",
    "IngestConfig",
    "LanguageBlock",
    "Layout",
    "Orientation",
    "StagedDepth",
    "StagedNumeric",
    "StagedPictures",
    "StagedStreams",
]

DirType = Literal[
    "episodic", "calvin", "zarr", "hdf5", "lerobot_v2", "lerobot_v3", "rosbag", "mcap", "rlds", "d3il", "npy_separate"
]
DataType = Literal["hdf5", "npy", "zarr"]
Orientation = Literal["as_stored", "flip_vertical", "rotate_180"]

_ROS = ("rosbag", "mcap")
_STREAM = re.compile(r"(?!\.)[A-Za-z0-9_.-]{1,128}")


def _stream_name(name: str) -> str:
    if _STREAM.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} cannot be the name of a stream; use 1 to 128 letters of A-Z and a-z, digits, '_', '-' or '.', "
            "not beginning with '.'"
        )
    return name


StreamName = Annotated[str, AfterValidator(_stream_name)]
"""The name that a stream gets in the output."""


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class ImageEntry(_Strict):
    """A colour stream of the layout: ``{"key": source, "fps": n}`` or the bare source string."""

    key: str = Field(min_length=1)
    """Place in the source."""
    fps: float | None = Field(default=None, ge=RATES[0], lt=RATES[1])
    """Nominal rate of this stream; None: the dataset's."""


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

    images: dict[StreamName, ImageEntry] | None = None
    """Colour cameras."""
    depths: dict[StreamName, DepthEntry] | None = None
    """Depth cameras; also spelt ``depth``."""
    numeric: dict[StreamName, str] | None = None
    """Vectors over time."""
    timestamps: str | None = None
    """The episode's clock, in seconds."""

    _bare = field_validator("images", "depths", mode="before")(_bare_string)


class StagedPictures(_Strict):
    """A staged colour stream: one ``.npy`` a frame."""

    dir: str = Field(min_length=1)
    """Folder of the frames."""
    pattern: str = Field(default="frame_%06d.npy", pattern=r"^[^%/\\]*%0?\d{0,2}d[^%/\\]*$")
    """File name of a frame, printf-style; frames are numbered from 0."""
    fps: float | None = Field(default=None, ge=RATES[0], lt=RATES[1])
    """Nominal frame rate of this stream."""


class StagedDepth(StagedPictures):
    """A staged depth stream."""

    unit_m: float | None = Field(default=None, gt=0)
    """Metres that one integer step means; None: millimetres for integers, metres for floats."""


class StagedNumeric(_Strict):
    """A staged numeric stream: one ``.npy`` of (T, D)."""

    path: str = Field(min_length=1)
    """The array's file."""
    chunk_len: int | None = Field(default=None, ge=1)
    """Rows a chunk in the output; None: the preset's."""


class StagedStreams(_Strict):
    """Output name → where the stream is staged."""

    rgb: dict[StreamName, StagedPictures] = Field(default_factory=dict)
    """Colour streams."""
    depth: dict[StreamName, StagedDepth] = Field(default_factory=dict)
    """Depth streams."""
    numeric: dict[StreamName, StagedNumeric] = Field(default_factory=dict)
    """Numeric streams."""

    @model_validator(mode="after")
    def _not_empty(self) -> StagedStreams:
        if not (self.rgb or self.depth or self.numeric):
            raise ValueError("names no stream: npy_separate needs at least one under rgb, depth or numeric")
        return self


class LanguageBlock(_Strict):
    """What the robot was told, said by the config: stronger than what the source says."""

    instruction: str | None = Field(default=None, min_length=1)
    """What the robot was told."""
    rephrases: list[str] = Field(default_factory=list)
    """The same in other words."""

    @model_validator(mode="after")
    def _says_something(self) -> LanguageBlock:
        if self.instruction is None and not self.rephrases:
            raise ValueError("needs an instruction or rephrases; use false to write no annotations")
        return self


class IngestConfig(_Strict):
    """A validated ingest config. Build it with `knonik_assets.configs.load.load_ingest_config`."""

    dir_type: DirType
    """The reader."""
    data_type: DataType | None = None
    """What each episode is; required for ``episodic``."""
    data_dir: str | None = None
    """The raw dataset; ``--input`` wins."""
    fps: float | None = Field(default=None, ge=RATES[0], lt=RATES[1])
    """Nominal frame rate; never resamples. None: from the source, else 30."""
    preset: Preset = Preset()
    """How strongly streams are compressed: a name, or a block; ``preset_overrides`` is merged over it, key by key."""
    layout: Layout = Layout()
    """Output name of each stream → place in the source; everything found where it is not given."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """``dataset``, ``robot_type``, ``layout``, ``language_instruction``; anything else is kept as it is."""
    language: Literal[False] | LanguageBlock | None = None
    """False writes no annotations; None takes them from the source."""
    episode_limit: int | None = Field(default=None, ge=1)
    """Ingest at most so many episodes."""
    strict: bool = False
    """Every layout name that the source lacks is an error."""
    jpeg_channel_order: Literal["rgb", "bgr"] = "rgb"
    """``bgr`` for rigs that gave RGB arrays to OpenCV's encoder."""
    orientation: Orientation = "as_stored"
    """How pictures are turned upright."""
    demos: str | None = Field(default=None, min_length=1)
    """Groups inside one HDF5 file that are episodes, such as ``data/demo_*``."""
    time_source: Literal["log", "header"] = "log"
    """ROS: the bag's own stamps, or those in the messages' headers."""
    msg_path: str | None = None
    """Folder of ``.msg`` files for ROS types that a bag does not define."""
    streams: StagedStreams | None = None
    """``npy_separate``: where each stream is staged."""
    timestamps: str | None = None
    """``npy_separate``: file of the episode's clock, in seconds."""

    _texts = field_validator("metadata")(check_texts)

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
