"""From a file or a dict to a validated model: the one place where configs are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from knonik_assets.configs.documents import load_document, load_yaml, parse_yaml, plain
from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.configs.presets import resolve_preset
from knonik_assets.configs.validation import nearest, unknown, validate
from knonik_loader.errors import ConfigError

__all__ = [
    "config_fingerprint",
    "load_document",
    "load_ingest_config",
    "load_yaml",
    "nearest",
    "parse_yaml",
    "unknown",
    "validate",
]

OUTPUT_VERSION = 1
"""Counted up whenever the same config gives other episode files, so that the next run replaces the old ones."""

_NOT_SHAPING = ("data_dir", "episode_limit", "strict")
_HOMES = {
    **dict.fromkeys(("images", "depth", "depths", "numeric"), "layout"),
    **dict.fromkeys(("rgb", "quantization_mm"), "preset"),
    **dict.fromkeys(("dataset", "robot_type", "language_instruction"), "metadata"),
    **dict.fromkeys(("codec", "quality", "gop", "speed", "chroma", "shard_size"), "preset.rgb"),
}


def load_ingest_config(config: str | Path | Mapping[str, Any] | IngestConfig, where: str | None = None) -> IngestConfig:
    """Read, merge and check an ingest config.

    Args:
        config: a JSON or YAML file, or what one would hold.
        where: what to call it in messages; default: the path, or "ingest config".

    Raises:
        ConfigError: the file cannot be read, or what it says cannot be meant; with place and nearest known key.
    """
    if isinstance(config, IngestConfig):
        return config
    if isinstance(config, str | Path):
        where = where or str(config)
        document = load_document(config)
    else:
        where = where or "ingest config"
        document = config
    if not isinstance(document, Mapping):
        raise ConfigError(f"{where} must hold a block of keys and values, beginning with dir_type.")
    data = {key: value for key, value in plain(document, where).items() if value is not None}
    if "output_dir" in data:
        raise ConfigError(f"{where}: output_dir belongs to live configs; say --output (output=) instead.")
    data = _one_spelling_of_depth(data, where)
    overrides = data.pop("preset_overrides", None)
    preset = resolve_preset(data.pop("preset", None), overrides, where)
    # checked with the preset's place open, so that the nearest key to "prest" is found
    _refuse_unknown_top(data, where)
    return validate(IngestConfig, {**data, "preset": preset}, where)


def _refuse_unknown_top(data: Mapping[str, Any], where: str) -> None:
    known = [*IngestConfig.model_fields, "preset_overrides"]
    for key in data:
        if key in _HOMES:
            raise ConfigError(f"{where}: {key} is no key of its own; it belongs into {_HOMES[key]}.")
        if key not in known:
            raise ConfigError(f"{where}: {unknown(key, known)}")


def _one_spelling_of_depth(data: dict[str, Any], where: str) -> dict[str, Any]:
    layout = data.get("layout")
    if not isinstance(layout, Mapping) or "depth" not in layout:
        return data
    if layout.get("depths") is not None:
        raise ConfigError(f"{where}: layout: depth and depths are two spellings of one block; keep one of them.")
    renamed = {"depths" if key == "depth" else key: value for key, value in layout.items() if key != "depths"}
    return {**data, "layout": renamed}


def config_fingerprint(config: IngestConfig) -> str:
    """Hex digest of all that shapes the episodes' bytes: not where the data lies, nor how much of it is taken."""
    said = config.model_dump(mode="json", exclude=set(_NOT_SHAPING))
    said["preset"]["rgb"].pop("workers")
    if config.streams is not None:
        said["streams"] = _without_places(config.streams.model_dump(mode="json"))
        said["timestamps"] = config.timestamps is not None
    text = json.dumps([OUTPUT_VERSION, said], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_places(streams: Any) -> Any:  # noqa: ANN401 - a config block
    """A ``streams`` block without its paths: the content they lead to is in the source's fingerprint."""
    if isinstance(streams, Mapping):
        return {key: _without_places(value) for key, value in streams.items() if key not in ("dir", "path")}
    return streams
