"""What ``pack`` is asked for: every option, checked before anything is read or written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from operator import index
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from knonik_assets.configs.presets import RATES
from knonik_loader.khlp.types import PAYLOAD_OF_PROFILE, StorageProfile

__all__ = ["DEFAULT_SHARD_SIZE", "PackMode", "PackOptions", "VideoCodecName"]

PackMode = Literal["shard_batch", "episode"]
VideoCodecName = Literal["h264", "vp9", "av1"]

DEFAULT_SHARD_SIZE = 45
"""Frames a shard when neither the call nor the episodes' preset says otherwise."""

_MEANINGLESS: Mapping[StorageProfile, Mapping[str, str]] = {
    "compact_video": {},
    "training_fast": {
        "codec": "every frame is a JPEG of its own",
        "gop": "every frame decodes alone",
    },
    "training_compressed": {"codec": "keyframes and deltas are JPEGs"},
}
_SPLIT_NAME = r"[A-Za-z0-9_.-]+"
_MOST_PIXELS = 1 << 27
"""FFmpeg makes no picture of more than about twice as many."""


class PackOptions(BaseModel):
    """The options of one pack, as they decide its bytes; where the work runs is not among them.

    ``streams``, ``resize`` name streams with or without ``rgb_`` / ``depth_``; ``episodes`` and ``exclude`` name
    episode directories. Lists may be given as one string with commas.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    dataset_name: str = Field(min_length=1)
    """The dataset's name in the manifest."""
    shard_size: int | None = Field(None, ge=1)
    """Frames a shard at most; None: the ``rgb.shard_size`` hint of the episodes' preset, else 45."""
    window_size: int = Field(64, ge=1)
    """Shards a KHLP file."""
    fps: float | None = Field(None, ge=RATES[0], lt=RATES[1], allow_inf_nan=False)
    """Recorded, never resamples; None: the episodes' own."""
    seed: int = 0
    """Of the shards' order and of the splits."""
    pack_mode: PackMode = "shard_batch"
    """``shard_batch``: shards of all episodes shuffled, then grouped; ``episode``: episodes kept whole and in order."""
    storage_profile: StorageProfile = "compact_video"
    """How pictures are held."""
    streams: tuple[str, ...] | None = None
    """Only these streams; None: all."""
    episodes: tuple[str, ...] | None = None
    """Only these episodes; None: all."""
    exclude: dict[str, str] = Field(default_factory=dict)
    """Episode → why it is left out."""
    split: dict[str, float] = Field(default_factory=dict)
    """Name → fraction; empty: not split."""
    resize: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """RGB stream → (height, width)."""
    codec: VideoCodecName | None = None
    """Video codec of compact_video; None: h264."""
    quality: int | None = Field(None, ge=0, le=100)
    """JPEG quality, or CRF for compact_video; None: the profile's default."""
    gop: int | None = Field(None, ge=1, le=65535)
    """Frames from one keyframe to the next; None: the profile's default."""
    chroma: Literal["420", "444"] | None = None
    """Chroma subsampling; None: 420."""

    @field_validator("shard_size", "window_size", "fps", "seed", "quality", "gop", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:  # noqa: ANN401 - whatever the caller gave
        if isinstance(value, bool):
            raise ValueError(f"must be a number, got {value}")  # noqa: TRY004 - the kind that pydantic collects
        return value

    @field_validator("dataset_name")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.isprintable() or not value.strip():
            raise ValueError(f"the name {value!r} must be visible, on one line")
        return value

    @field_validator("streams", "episodes", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:  # noqa: ANN401
        names = None if value is None else _split_commas(value)
        if names is not None and not (isinstance(names, tuple) and names):
            raise ValueError(f"must be one name or several, got {value!r}")
        return names

    @field_validator("exclude", mode="before")
    @classmethod
    def _reasons(cls, value: Any) -> Any:  # noqa: ANN401
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return {name: "excluded" if reason is None else reason for name, reason in value.items()}
        names = _split_commas(value)
        if not isinstance(names, tuple):
            raise ValueError(f"must be names of episodes, or a dict of names and reasons, got {value!r}")  # noqa: TRY004
        return dict.fromkeys(names, "excluded")

    @field_validator("split", mode="before")
    @classmethod
    def _fractions(cls, value: Any) -> Any:  # noqa: ANN401
        fractions = {} if value is None else _pairs(value, "split", "train=0.9,val=0.1")
        for name, fraction in fractions.items():
            if isinstance(fraction, bool):
                raise ValueError(f"the fraction of split {name!r} must be a number, got {fraction}")  # noqa: TRY004
        return fractions

    @field_validator("resize", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:  # noqa: ANN401
        if value is None:
            return {}
        return {name: _size(name, size) for name, size in _pairs(value, "resize", "cam=224x224").items()}

    @field_validator("chroma", mode="before")
    @classmethod
    def _chroma(cls, value: Any) -> Any:  # noqa: ANN401 - YAML reads 420 as a number
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    @field_validator("split")
    @classmethod
    def _whole(cls, value: dict[str, float]) -> dict[str, float]:
        for name, fraction in value.items():
            if not re.fullmatch(_SPLIT_NAME, name):
                raise ValueError(f"the split name {name!r} may hold letters, digits, '_', '.' and '-' only")
            if not 0 < fraction <= 1:
                raise ValueError(f"the fraction of split {name!r} is {fraction:g}; it must be above 0 and at most 1")
        total = sum(value.values())
        if value and abs(total - 1) > 1e-6:
            raise ValueError(f"the fractions of the splits add up to {total:g}; they must add up to 1")
        return value

    @model_validator(mode="after")
    def _meaningful(self) -> Self:
        for option, why in _MEANINGLESS[self.storage_profile].items():
            if getattr(self, option) is not None:
                raise ValueError(
                    f"{option} means nothing for storage_profile {self.storage_profile!r}: {why}; leave it out"
                )
        if self.storage_profile != "compact_video" and self.quality == 0:
            raise ValueError(
                f"quality must be 1 to 100 for storage_profile {self.storage_profile!r} (JPEG, higher is better)"
            )
        codec = self.codec or "h264"
        limit = {"h264": 51, "vp9": 63, "av1": 63}[codec]
        if self.storage_profile == "compact_video" and self.quality is not None and self.quality > limit:
            raise ValueError(
                f"quality {self.quality} is out of range: {codec} takes 0 to {limit} (CRF, lower is better)"
            )
        return self

    @property
    def payload(self) -> str:
        """What the profile stores, as users call it: ``shdr``, ``kimg`` or ``kdelta``."""
        return PAYLOAD_OF_PROFILE[self.storage_profile]


def _split_commas(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Iterable) or isinstance(value, Mapping):
        return value
    parts: list[Any] = []
    for item in value:
        parts += [part.strip() for part in item.split(",") if part.strip()] if isinstance(item, str) else [item]
    return tuple(dict.fromkeys(parts))


def _pairs(value: Any, option: str, example: str) -> dict[Any, Any]:  # noqa: ANN401
    """``a=1,b=2``, a list of such strings, or a mapping, as a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    found: dict[Any, Any] = {}
    parts = _split_commas(value)
    if not isinstance(parts, tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{option} must read like {example!r} or be a dict, got {value!r}")
    if isinstance(value, str) and not parts:
        raise ValueError(f"{option} is empty; write it like {example!r}, or leave it out")
    for part in parts:
        name, equals, text = part.partition("=")
        if not equals or not name.strip() or not text.strip():
            raise ValueError(f"{option} must read like {example!r}, got {part!r}")
        if name.strip() in found:
            raise ValueError(f"{option} names {name.strip()!r} twice")
        found[name.strip()] = text.strip()
    return found


def _size(name: str, value: Any) -> Any:  # noqa: ANN401
    """(height, width) of ``HxW`` or a pair."""
    parts = value.lower().split("x") if isinstance(value, str) else value
    try:
        height, width = (int(part) if isinstance(part, str) else index(part) for part in parts)
    except (TypeError, ValueError) as error:
        raise ValueError(f"resize of {name!r} must read HxW, for example 224x224, got {value!r}") from error
    if not (1 <= height <= 16384 and 1 <= width <= 16384):
        raise ValueError(f"resize of {name!r} must be 1 to 16384 each way, got {height}x{width}")
    if height * width > _MOST_PIXELS:
        raise ValueError(f"resize of {name!r} to {height}x{width} makes more than {_MOST_PIXELS} pixels a picture")
    return (height, width)
