"""``metadata.json`` of an ingested episode, as a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from knonik_assets.episodes.storing import storage_errors
from knonik_loader.errors import ConfigError, EpisodeError

__all__ = ["METADATA", "EpisodeMetadata", "FileEntry", "check_extra", "is_ours", "read_metadata", "write_metadata"]

METADATA = "metadata.json"
_OURS = {"source_fingerprint", "config_fingerprint"}
"""Keys of every episode's metadata that other tools hardly have."""


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


_FROM_THE_SOURCE = frozenset({
    "urdf_joints", "camera_info", "source_bag", "ros_cameras", "ros_depth_streams", "ros_numeric_streams",
    "ros_skipped", "renamed_streams",
})  # fmt: skip


def check_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Further entries of ``metadata.json``, made into plain JSON values; numbers that JSON lacks become null.

    Raises:
        ConfigError: an entry is one that the writer itself fills in, or holds what JSON cannot.
    """
    ours = sorted(extra.keys() & (EpisodeMetadata.model_fields.keys() - _FROM_THE_SOURCE))
    if ours:
        raise ConfigError(f"metadata entry {ours[0]!r} is filled in by ingest itself: rename yours")
    out: dict[str, Any] = {}
    for key, value in extra.items():
        try:
            out[str(key)] = to_jsonable_python(value, inf_nan_mode="null", fallback=_plain)
        except (PydanticSerializationError, TypeError, ValueError) as error:
            raise ConfigError(f"metadata entry {key!r} cannot be kept in JSON: {error}") from error
    return out


def write_metadata(folder: Path, metadata: EpisodeMetadata) -> None:
    """Write ``metadata.json``, the last file of an episode; the same content gives the same bytes.

    Raises:
        StorageError: the disk refuses.
    """
    content = metadata.model_dump(mode="json")
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    path = folder / METADATA
    with storage_errors("write", path):
        path.write_text(text, encoding="utf-8", newline="\n")


def read_metadata(folder: Path) -> EpisodeMetadata:
    """Read an episode's ``metadata.json``.

    Raises:
        EpisodeError: it is missing or not valid.
        StorageError: it cannot be read.
    """
    path = folder / METADATA
    with storage_errors("read", path):
        try:
            return EpisodeMetadata.model_validate_json(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise EpisodeError(f"{folder} is no ingested episode: it has no {METADATA}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            if is_ours(folder) is False:
                raise EpisodeError(
                    f"{path} is no ingested episode's, or damaged ({place or 'the file'}: {first['msg']}); move "
                    f"{folder.name} away if another tool put it there, else ingest it again"
                ) from error
            raise EpisodeError(f"{path} is damaged: {place or 'the file'}: {first['msg']}; ingest it again") from error


def is_ours(folder: Path) -> bool | None:
    """Whether a ``metadata.json`` says what an ingest does, whole or not; None where it is missing or no JSON.

    Raises:
        StorageError: it cannot be read.
    """
    path = folder / METADATA
    with storage_errors("read", path):
        try:
            found = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
            return None
    return isinstance(found, dict) and bool(found.keys() & _OURS)


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a source found
    if isinstance(value, np.ndarray | np.generic):
        return to_jsonable_python(value.tolist(), inf_nan_mode="null")
    raise TypeError(f"a {type(value).__name__} is no JSON value")
