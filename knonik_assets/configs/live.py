"""The config of a live capture: where episodes go and how they are compressed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from knonik_assets.configs.documents import load_document, plain
from knonik_assets.configs.load import OUTPUT_VERSION
from knonik_assets.configs.presets import Preset, resolve_preset
from knonik_assets.configs.validation import check_texts, unknown, validate
from knonik_loader.errors import ConfigError

__all__ = ["LiveConfig", "live_fingerprint", "load_live_config"]


class LiveConfig(BaseModel):
    """What `knonik ingest live` and `run_live` are told."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    dir_type: Literal["live"] = "live"
    """May be left out."""
    output_dir: str | None = Field(default=None, min_length=1)
    """Where the episode directories go; ``--output`` wins."""
    preset: Preset = Preset()
    """How strongly streams are compressed: a name, or a block; ``preset_overrides`` is merged over it, key by key."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """``dataset``, ``robot_type``, ``language_instruction`` of every episode; anything else is kept as it is."""

    _texts = field_validator("metadata")(check_texts)


def load_live_config(config: str | Path | Mapping[str, Any], where: str | None = None) -> LiveConfig:
    """Read and check the config of a live capture.

    Args:
        config: a JSON or YAML file, or what one would hold.
        where: what to call it in messages; default: the path, or "live config".

    Raises:
        ConfigError: the file cannot be read, or what it says cannot be meant; with place and nearest known key.
    """
    if isinstance(config, str | Path):
        where, document = where or str(config), load_document(config)
    else:
        where, document = where or "live config", config
    if not isinstance(document, Mapping):
        raise ConfigError(f"{where} must hold a block of keys and values, such as output_dir and preset.")
    data = {key: value for key, value in plain(document, where).items() if value is not None}
    known = [*LiveConfig.model_fields, "preset_overrides"]
    for key in data:
        if key not in known:
            raise ConfigError(f"{where}: {unknown(key, known)}")
    preset = resolve_preset(data.pop("preset", None), data.pop("preset_overrides", None), where)
    return validate(LiveConfig, {**data, "preset": preset}, where)


def live_fingerprint(preset: Preset) -> str:
    """Hex digest of what shapes the files of a live episode besides its frames."""
    said = preset.model_dump(mode="json")
    said["rgb"].pop("workers")
    text = json.dumps([OUTPUT_VERSION, "live", said], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
