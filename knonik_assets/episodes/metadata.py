"""``metadata.json`` of an ingested episode, as a model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["EpisodeMetadata", "FileEntry"]


class FileEntry(BaseModel):
    """One file of the episode directory."""

    model_config = ConfigDict(extra="forbid")

    bytes: int
    sha256: str


class EpisodeMetadata(BaseModel):
    """Everything known about an episode. Unknown keys are kept: users' own ``metadata`` entries stand beside ours."""

    model_config = ConfigDict(extra="allow")

    dataset: str
    robot_type: str
    source_format: str
    episode_id: str
    source_id: str
    source_fingerprint: str
    config_fingerprint: str
    rgb_streams: list[str] = Field(default_factory=list)
    depth_streams: list[str] = Field(default_factory=list)
    numeric_streams: list[str] = Field(default_factory=list)
    start_time: float
    end_time: float
    episode_length: int
    fps: float
    timestamps_origin: Literal["source", "frame_index"] = "source"
    """``frame_index``: the source has no clock, so time is frame index / fps."""
    trimmed: dict[str, int] = Field(default_factory=dict)
    """Stream → frames cut from its end because another stream was shorter."""
    stream_params: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Batch key → how it was written: codec, quality, width, height, quantization_mm, ..."""
    stream_roles: dict[str, str] = Field(default_factory=dict)
    """Role (``action``, ``state``) → numeric stream, where the source declares it."""
    channel_names: dict[str, list[str]] = Field(default_factory=dict)
    urdf_joints: list[str] = Field(default_factory=list)
    camera_info: dict[str, Any] = Field(default_factory=dict)
    source_bag: str | None = None
    ros_cameras: list[str] = Field(default_factory=list)
    ros_depth_streams: list[str] = Field(default_factory=list)
    ros_numeric_streams: dict[str, int] = Field(default_factory=dict)
    ros_skipped: dict[str, int] = Field(default_factory=dict)
    renamed_streams: dict[str, str] = Field(default_factory=dict)
    """Source name → output name, where a name had to be made safe."""
    jpeg_channel_order: Literal["rgb", "bgr"] = "rgb"
    orientation: str = "as_stored"
    files: dict[str, FileEntry] = Field(default_factory=dict)
    """Relative path with forward slashes → size and digest, of every file but this one."""
