"""Answers of a dataset card to what the dataset config asks, checked before there are episodes to hold them against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from knonik_assets.configs.dataset import (
    ArmConfig,
    LanguageConfig,
    RolesConfig,
    TimestampsConfig,
    check_semantics,
)
from knonik_assets.configs.validation import validate

__all__ = ["check_answers"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Rgb(_Strict):
    width: int | None = None
    height: int | None = None
    codec: str | None = None
    fps: float | None = None


class _Depth(_Strict):
    width: int | None = None
    height: int | None = None
    fps: float | None = None
    quantization_mm: float | None = None


class _Numeric(_Strict):
    dim: int | None = None
    channel_names: list[str] | None = None


class _Streams(_Strict):
    rgb: dict[str, _Rgb] | None = None
    depth: dict[str, _Depth] | None = None
    numeric: dict[str, _Numeric] | None = None


class _Answers(_Strict):
    """A `DatasetConfig` of which everything may be left out."""

    dataset: str | None = None
    robot_type: str | None = None
    fps: float | None = None
    timestamps: TimestampsConfig | None = None
    streams: _Streams | None = None
    roles: RolesConfig | None = None
    action_semantics: str | None = None
    arms: list[ArmConfig] | None = None
    language: LanguageConfig | None = None

    @field_validator("action_semantics")
    @classmethod
    def _known_semantics(cls, value: str | None) -> str | None:
        return value if value is None else check_semantics(value)


def check_answers(answers: Mapping[str, Any], where: str) -> None:
    """Refuse answers to what no dataset config asks, and of another type than it asks for.

    Whether the streams and positions that they name exist is known only with the episodes.

    Raises:
        ConfigError: with the place and the nearest known key.
    """
    validate(_Answers, answers, where)
