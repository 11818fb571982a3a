"""Which features of a LeRobot dataset become streams, and under which names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from knonik_assets.configs.ingest import DepthEntry, ImageEntry, IngestConfig, Layout
from knonik_assets.sources.lerobot_data import INDEX_COLUMNS, is_picture, is_vector
from knonik_assets.sources.lerobot_language import ANNOTATIONS
from knonik_assets.sources.lerobot_meta import Meta
from knonik_assets.sources.naming import nearest, safe_stream_name
from knonik_loader.errors import SourceError

__all__ = ["Choice", "bare_name", "choose", "find_cameras"]

_WIDEST_ROW = 4096
"""Numbers a row at most."""
_CAMERA_PREFIXES = ("observation.images.", "images.", "observation.")
_PRIMARY: Mapping[str, tuple[str, Literal["state", "action"]]] = {
    "observation.state": ("state", "state"),
    "action": ("action", "action"),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One stream to read."""

    kind: Literal["rgb", "depth", "numeric"]
    name: str
    key: str
    """The feature's full name."""
    held: Literal["video", "picture", "column"]
    fps: float | None = None
    unit_m: float | None = None
    role: Literal["state", "action"] | None = None


def bare_name(key: str) -> str:
    """A camera's short name: ``observation.images.cam_high`` → ``cam_high``."""
    for prefix in _CAMERA_PREFIXES:
        if key.startswith(prefix) and len(key) > len(prefix):
            return key[len(prefix) :]
    return key


def find_cameras(meta: Meta, schema: pa.Schema, on_disk: Sequence[str]) -> dict[str, Literal["video", "picture"]]:
    """Cameras that really exist: picture columns, and video features that have files or places in the metadata.

    A place alone makes no camera that the features don't list: tools that take a camera out leave its places behind.

    Args:
        meta: of the dataset.
        schema: of the data files.
        on_disk: video features that have files.
    """
    cameras: dict[str, Literal["video", "picture"]] = {
        field.name: "picture" for field in schema if is_picture(field.type)
    }
    placed = {key for hint in meta.hints.values() for key in hint.videos}
    for key, feature in meta.features.items():
        if feature.dtype == "video" and key not in cameras and (key in placed or key in on_disk):
            cameras[key] = "video"
    for key in sorted({*on_disk, *(() if meta.features else placed)}):
        cameras.setdefault(key, "video")
    return cameras


def choose(
    config: IngestConfig,
    meta: Meta,
    schema: pa.Schema,
    cameras: Mapping[str, Literal["video", "picture"]],
    where: str,
    warnings: list[str],
) -> list[Choice]:
    """The streams that the layout asks for, or all.

    Raises:
        SourceError: nothing of the layout exists; under ``strict``, anything of it doesn't.
    """
    layout = config.layout
    chosen: list[Choice] = []
    if layout.images is None and layout.depths is None:
        for key, held in cameras.items():
            depth = _is_depth(meta, key)
            chosen.append(Choice("depth" if depth else "rgb", safe_stream_name(bare_name(key)), key, held))
    else:
        blocks: list[tuple[Literal["rgb", "depth"], str, Mapping[str, ImageEntry]]] = [
            ("rgb", "images", layout.images or {}),
            ("depth", "depths", dict(layout.depths or {})),
        ]
        for kind, block, entries in blocks:
            for name, entry in entries.items():
                found = _camera(entry.key, cameras)
                if found is None:
                    known = [bare_name(camera) for camera in cameras]
                    _missing(config, f"{where}: layout.{block}.{name} names {entry.key!r}", entry.key, known, warnings)
                    continue
                _check_kind(meta, kind, found, cameras[found], f"{where}: layout.{block}.{name}")
                unit = entry.unit_m if isinstance(entry, DepthEntry) else None
                chosen.append(Choice(kind, safe_stream_name(name), found, cameras[found], entry.fps, unit))
    chosen += _numeric(config, meta, schema, where, warnings)
    if not any(_named(layout, choice) for choice in chosen):
        raise SourceError(
            f"{where}: no stream of the layout is in it; {nearest('', [*cameras, *_columns(meta, schema)])}."
        )
    return chosen


def _named(layout: Layout, choice: Choice) -> bool:
    """Whether the layout names the stream; one that names none takes everything."""
    blocks = {"rgb": layout.images, "depth": layout.depths, "numeric": layout.numeric}
    return not any(blocks.values()) or choice.name in (blocks[choice.kind] or ())


def _is_depth(meta: Meta, key: str) -> bool:
    feature = meta.features.get(key)
    return feature is not None and feature.depth is not None


def _camera(wanted: str, cameras: Mapping[str, str]) -> str | None:
    if wanted in cameras:
        return wanted
    return next((key for key in cameras if bare_name(key) == wanted), None)


def _check_kind(meta: Meta, kind: str, key: str, held: str, where: str) -> None:
    if kind == "rgb" and _is_depth(meta, key):
        raise SourceError(f"{where}: {key} is a depth map; list it under 'depths'.")
    if kind == "depth" and held == "video" and not _is_depth(meta, key):
        raise SourceError(f"{where}: {key} is a colour video; depth painted in colours cannot be turned into metres.")


def _columns(meta: Meta, schema: pa.Schema) -> list[str]:
    wide = _wide(meta, schema)
    return [field.name for field in schema if field.name not in (*INDEX_COLUMNS, *wide) and is_vector(field.type)]


def _wide(meta: Meta, schema: pa.Schema) -> list[str]:
    """Columns of numbers that are pictures or depth maps, as lists of lists."""
    return [
        field.name
        for field in schema
        if is_vector(field.type)
        and (feature := meta.features.get(field.name)) is not None
        and math.prod(feature.shape) > _WIDEST_ROW
    ]


def _numeric(config: IngestConfig, meta: Meta, schema: pa.Schema, where: str, warnings: list[str]) -> list[Choice]:
    columns = _columns(meta, schema)
    if config.layout.numeric is None:
        left_out = [
            field.name
            for field in schema
            if field.name not in (*INDEX_COLUMNS, *ANNOTATIONS)
            and not is_vector(field.type)
            and not is_picture(field.type)
        ]
        if left_out:
            warnings.append(f"{where}: left out, as they are no numbers: {', '.join(left_out)}")
        if wide := _wide(meta, schema):
            warnings.append(
                f"{where}: left out, as rows of more than {_WIDEST_ROW} numbers are no vectors, and pictures or depth "
                f"as lists of numbers are not read: {', '.join(wide)}; store them as images or video"
            )
        return [_column(_PRIMARY[key][0] if key in _PRIMARY else safe_stream_name(key), key) for key in columns]
    chosen = []
    short = {name: key for key, (name, _) in _PRIMARY.items() if key in columns}
    for name, wanted in config.layout.numeric.items():
        key = wanted if wanted in columns else short.get(wanted)
        if key is None:
            known = [*short, *(column for column in columns if column not in _PRIMARY)]
            _missing(config, f"{where}: layout.numeric.{name} names {wanted!r}", wanted, known, warnings)
            continue
        chosen.append(_column(safe_stream_name(name), key))
    return chosen


def _column(name: str, key: str) -> Choice:
    return Choice("numeric", name, key, "column", role=_PRIMARY[key][1] if key in _PRIMARY else None)


def _missing(config: IngestConfig, what: str, wanted: str, known: Sequence[str], warnings: list[str]) -> None:
    text = f"{what}, which isn't there; {nearest(wanted, known)}"
    if config.strict:
        raise SourceError(text + ".")
    warnings.append(f"{text}; left out")
