"""A dataset card: one YAML file that says where a dataset's raw data lies and what shall become of it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from knonik_assets.configs.answers import check_answers
from knonik_assets.configs.cron import cron_mistake
from knonik_assets.configs.documents import load_yaml
from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.configs.lines import with_line
from knonik_assets.configs.load import load_ingest_config
from knonik_assets.configs.pack import PackOptions
from knonik_assets.configs.validation import unknown, validate
from knonik_assets.storage import Place
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.types import PAYLOAD_OF_PROFILE, StorageProfile

__all__ = [
    "EPISODE_CHECKS",
    "CheckThresholds",
    "DatasetCard",
    "Severity",
    "card_folder",
    "card_schema",
    "lake_folder",
    "load_card",
]

Severity = Literal["error", "warn"]
EPISODE_CHECKS = (
    "every_raw_episode_present",
    "no_frames_cut",
    "has_frames",
    "timestamps_increase",
    "no_gaps",
    "steady_clock",
    "same_shape",
    "finite_values",
    "cameras_alive",
    "cameras_lit",
    "cameras_sharp",
    "channels_alive",
    "action_follows_state",
    "no_duplicates",
    "checksums",
)
"""What every ingested episode is asked; `knonik_assets.quality.expectations` says how."""
PROFILES: tuple[StorageProfile, ...] = tuple(PAYLOAD_OF_PROFILE)

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")
_OWNER = re.compile(r"team:[A-Za-z0-9_.-]+|[^@\s]+@[^@\s]+\.[^@\s]+")
_TAG = re.compile(r"[A-Za-z0-9_.-]{1,63}")
# What the pipeline itself decides; everything else that pack() takes may stand in a card.
_PACK_KEYS = [key for key in PackOptions.model_fields if key not in ("dataset_name", "storage_profile")] + ["workers"]
_PIPELINE_KEYS = {
    "input_dir": "the card's 'episodes'",
    "output_dir": "the card's 'packed'",
    "dataset_name": "the card's 'name'",
    "storage_profile": "'profiles'",
    "engine": "the card's 'engine'",
    "overwrite": "the pipeline: every change makes a new generation",
    "collect": "the card's 'keep_days'",
    "keep_days": "the card's own 'keep_days'",
}


CardPlace = Annotated[Place, WithJsonSchema({"type": "string", "format": "path"})]
"""A local path or a URL."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class CheckThresholds(_Strict):
    """When a check of the pipeline fails, and how much that weighs."""

    min_frames: int = Field(default=1, ge=1)
    """Frames that an episode has at least."""
    max_cut: int = Field(default=0, ge=0)
    """Frames that ingest may have cut from the end of a stream, to make all streams equally long."""
    max_gap: float = Field(default=1.5, gt=1)
    """Longest step of an episode's clock, in frame periods."""
    max_jitter: float = Field(default=0.25, gt=0)
    """Standard deviation of the clock's steps, in frame periods."""
    black_level: float = Field(default=16.0, ge=0, le=255)
    """A camera is black when its brightest 1 % of pixels stay below this luma in half of the sampled frames."""
    max_frozen: float = Field(default=0.5, gt=0, le=1)
    """Share of an episode for which a camera may show one picture while the robot moves."""
    max_saturated: float = Field(default=0.5, gt=0, le=1)
    """Share of a camera's pixels that may be white in half of the sampled frames."""
    min_sharpness: float = Field(default=0.3, ge=0, lt=1)
    """Sharpness of a camera, as a share of what it has in the median episode; from four episodes on."""
    max_constant_channels: int = Field(default=0, ge=0)
    """Channels of action and state together that may stand still for a whole episode."""
    max_offset: float = Field(default=0.25, gt=0)
    """Mean distance of action and state in a channel, as a share of that channel's range."""
    psnr_floor: dict[StorageProfile, float] = Field(default_factory=dict)
    """dB by profile; the rest keeps its default floor."""
    max_packed_gb: float | None = Field(default=None, gt=0)
    """Size of one packed profile above which the size check warns."""
    severity: dict[str, Severity] = Field(default_factory=dict)
    """Check → ``error`` (an episode that fails it is bad) or ``warn`` (it is reported and goes on)."""

    @field_validator("severity")
    @classmethod
    def _known_checks(cls, value: dict[str, Severity]) -> dict[str, Severity]:
        for name in value:
            if name not in EPISODE_CHECKS:
                raise ValueError(unknown(name, EPISODE_CHECKS, "check"))
        return value


class DatasetCard(_Strict):
    """A validated card. Build it with `load_card`: paths are then absolute and every default is filled in."""

    name: str
    """The dataset's name, and its partition in Dagster; by default the file's name without ``.yaml``."""
    description: str = ""
    """Shown in the UI."""
    owners: tuple[str, ...] = ()
    """E-mail addresses or ``team:<name>``."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Key → value, shown and searchable in the UI."""
    raw: CardPlace
    """Raw recordings: a path or URL. Relative paths in a card go from the card's folder."""
    episodes: CardPlace
    """Ingested episodes; by default ``<lake>/<name>/episodes``."""
    packed: CardPlace
    """Packed datasets, a folder a profile; by default ``<lake>/<name>/packed``."""
    ingest: dict[str, Any]
    """The ingest config, without ``data_dir``."""
    pack: dict[StorageProfile, dict[str, Any]] = Field(default_factory=dict)
    """Profile → keywords of ``pack()``."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Answers to what the dataset config cannot know."""
    schedule: str | None = None
    """Cron of re-packs, five fields."""
    fresh_hours: float | None = Field(default=None, ge=0.1, le=1_000_000)
    """Hours after which a dataset that was not built again is overdue; by default a schedule's longest pause and a
    quarter more for packed data, and never for the rest."""
    keep_days: float | Literal["forever"] = 14
    """Days for which a generation of packed data is kept after another superseded it; ``forever`` keeps them all."""
    exclude: dict[str, str] = Field(default_factory=dict)
    """Episode (``episode_000003``, or its name in the source) → why it stays out of the packs."""
    on_bad_episode: Literal["exclude", "block"] = "exclude"
    """``exclude``: bad episodes stay out of the packs, with a warning; ``block``: one bad episode stops all packing."""
    checks: CheckThresholds = CheckThresholds()
    """When checks fail."""
    engine: Literal["inline", "processes", "ray"] = "processes"
    """Where episodes and shards are worked on."""
    ray: dict[str, Any] | None = None
    """For engine ``ray``: ``address`` and further keywords of ``ray.init``; ``task``: options of every task."""
    path: Path
    """The card's own file."""

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(
                f"{value!r} may hold letters, digits, '_', '-' and '.' only, at most 128, and begins with no dot"
            )
        return value

    @field_validator("owners")
    @classmethod
    def _known_owners(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for owner in value:
            if not _OWNER.fullmatch(owner):
                raise ValueError(f"{owner!r} is neither an e-mail address nor 'team:<name>'")
        return value

    @field_validator("tags")
    @classmethod
    def _plain_tags(cls, value: dict[str, str]) -> dict[str, str]:
        for part in (*value, *value.values()):
            if not _TAG.fullmatch(part):
                raise ValueError(f"{part!r} may hold letters, digits, '_', '-' and '.' only, 1 to 63 of them")
        return value

    @field_validator("schedule")
    @classmethod
    def _readable_cron(cls, value: str | None) -> str | None:
        mistake = cron_mistake(value) if value is not None else None
        if mistake:
            raise ValueError(f"{value!r} is no cron expression: {mistake}")
        return value

    @field_validator("keep_days", mode="before")
    @classmethod
    def _days(cls, value: object) -> object:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value != "forever" and not (number and value >= 0):  # type: ignore[operator]
            raise ValueError(f"must be a number of days from 0 on, or forever, not {value!r}")
        return value

    @model_validator(mode="after")
    def _ray_for_ray(self) -> Self:
        if self.ray is not None and self.engine != "ray":
            raise ValueError(f"the ray block is for 'engine: ray' and engine is {self.engine!r}; change one of them")
        return self

    @property
    def profiles(self) -> tuple[StorageProfile, ...]:
        """The packed profiles that this dataset asks for."""
        return tuple(self.pack)

    def packed_folder(self, profile: StorageProfile) -> Place:
        """Where a profile's manifest lies."""
        return self.packed / profile

    def ingest_config(self) -> IngestConfig:
        """The validated ingest config."""
        return _ingest_config(self.ingest, str(self.path))


def card_schema() -> dict[str, Any]:
    """JSON schema of a card as people write it, for editors."""
    schema = DatasetCard.model_json_schema()
    written = {key: value for key, value in schema["properties"].items() if key != "path"}
    ingest = IngestConfig.model_json_schema(ref_template="#/$defs/{model}")
    definitions = {**schema.pop("$defs", {}), **ingest.pop("$defs", {})}
    # presets are named, or given as a block, and data_dir is the card's own
    keys = {**ingest["properties"], "preset": {"type": ["string", "object"]}, "preset_overrides": {"type": "object"}}
    keys.pop("data_dir", None)
    keys["layout"] = {"type": "object"}
    written["ingest"] = {**ingest, "properties": keys, "required": ["dir_type"]}
    written["pack"] = {
        "type": "object",
        "properties": {
            "profiles": {"type": ["array", "object", "string"], "items": {"enum": list(PROFILES)}},
            **{key: {} for key in _PACK_KEYS},
        },
        "additionalProperties": False,
    }
    return {**schema, "properties": written, "required": ["raw", "ingest"], "$defs": definitions}


def card_folder() -> Path:
    """Where the cards are: ``KNONIK_DATASETS``, else ``datasets`` in ``DAGSTER_HOME`` or in ``./dagster_home``."""
    chosen = os.environ.get("KNONIK_DATASETS")
    if chosen:
        return Path(chosen).expanduser().resolve()
    home = os.environ.get("DAGSTER_HOME")
    return (Path(home).expanduser() if home else Path("dagster_home")).resolve() / "datasets"


def lake_folder(folder: Path) -> Place:
    """Where episodes and packed data go by default: ``KNONIK_LAKE``, ``DAGSTER_HOME/lake``, or beside the cards."""
    chosen = os.environ.get("KNONIK_LAKE")
    if chosen:
        place = Place.of(chosen, "KNONIK_LAKE")
        return place if place.is_remote else Place(str(place.path.resolve()))
    home = os.environ.get("DAGSTER_HOME")
    return Place(str((Path(home).expanduser().resolve() if home else folder.resolve().parent) / "lake"))


def load_card(path: str | Path) -> DatasetCard:
    """Read and check one card.

    Raises:
        ConfigError: with the file and line, the key, what is wrong with it and the nearest known key.
    """
    path = Path(path).resolve()
    data = load_yaml(path)
    try:
        return _checked(data, path)
    except ConfigError as error:
        raise ConfigError(with_line(str(error), path)) from error


def _checked(data: Any, path: Path) -> DatasetCard:  # noqa: ANN401 - raw YAML
    where = str(path)
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must hold the keys of a dataset card, such as 'raw' and 'ingest'.")
    known = [key for key in DatasetCard.model_fields if key != "path"]
    for key in data:
        if key not in known:
            raise ConfigError(f"{where}: {unknown(key, known)}")
    data = {key: value for key, value in data.items() if value is not None}
    values: dict[str, Any] = {"name": path.stem, **data, "path": path}
    for key in ("raw", "ingest"):
        if not data.get(key):
            raise ConfigError(f"{where}: {key} is required.")
    for key in ("raw", "episodes", "packed"):
        if key in data:
            values[key] = _place(data[key], key, path)
        elif key != "raw":
            values[key] = lake_folder(path.parent) / str(values["name"]) / key
    values["pack"] = _pack_block(data.get("pack"), values["name"], where)
    card = validate(DatasetCard, values, where)
    card.ingest_config()
    check_answers(card.config, f"{where}: config")
    _check_apart(card, where)
    return card


def _check_apart(card: DatasetCard, where: str) -> None:
    """Refuse places that would have the pipeline write into what it reads."""
    raw, episodes, packed = (_resolved(place) for place in (card.raw, card.episodes, card.packed))
    for key, place in (("episodes", episodes), ("packed", packed)):
        if place == raw or place.startswith(raw.rstrip("/") + "/"):
            raise ConfigError(
                f"{where}: {key}: {place} is in the raw data, which is never written; name another folder."
            )
    if episodes == packed:
        raise ConfigError(f"{where}: packed: {card.packed} is where the episodes go too; name another folder.")


def _resolved(place: Place) -> str:
    return str(place) if place.is_remote else str(place.path.resolve())


def _place(value: Any, key: str, card: Path) -> Place:  # noqa: ANN401 - raw YAML
    if not isinstance(value, str):
        raise ConfigError(f"{card}: {key}: must be a path or URL, not {value!r}.")
    place = Place.of(value, f"{card}: {key}:")
    return place if place.is_remote else Place(str((card.parent / place.path).resolve()))


def _ingest_config(block: Any, where: str) -> IngestConfig:  # noqa: ANN401 - raw YAML
    if isinstance(block, Mapping):
        for key, instead in (("data_dir", "raw"), ("output_dir", "episodes")):
            if key in block:
                raise ConfigError(f"{where}: ingest: {key} is what the card's '{instead}' says; remove it here.")
    return load_ingest_config(block, f"{where}: ingest")


def _pack_block(block: Any, name: Any, where: str) -> dict[str, dict[str, Any]]:  # noqa: ANN401 - raw YAML
    """Profile → keywords of ``pack()``, each checked."""
    block = {} if block is None else block
    if not isinstance(block, Mapping):
        raise ConfigError(f"{where}: pack: must be a block with 'profiles' and options, not {block!r}.")
    profiles = block.get("profiles", ["compact_video"])
    if isinstance(profiles, str):
        profiles = [profiles]
    if not isinstance(profiles, list | Mapping):
        raise ConfigError(f"{where}: pack.profiles: must list profiles ({', '.join(PROFILES)}), not {profiles!r}.")
    common = {key: value for key, value in block.items() if key != "profiles"}
    wanted: dict[str, dict[str, Any]] = {}
    for profile in profiles:
        if profile not in PROFILES:
            raise ConfigError(f"{where}: pack.profiles: {unknown(str(profile), PROFILES, 'profile')}")
        own = profiles[profile] if isinstance(profiles, Mapping) else None
        if own is not None and not isinstance(own, Mapping):
            raise ConfigError(f"{where}: pack.profiles.{profile}: must be a block of options, not {own!r}.")
        wanted[profile] = _pack_options({**common, **(own or {})}, profile, str(name), where)
    if not wanted:
        _pack_options(common, "compact_video", str(name), where)
    return wanted


def _pack_options(options: dict[str, Any], profile: str, name: str, where: str) -> dict[str, Any]:
    for key in options:
        if key in _PIPELINE_KEYS:
            raise ConfigError(f"{where}: pack: {key} is decided by {_PIPELINE_KEYS[key]}; remove it here.")
        if key not in _PACK_KEYS:
            raise ConfigError(f"{where}: pack: {unknown(key, ['profiles', *_PACK_KEYS])}")
    workers = options.get("workers")
    if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 1):
        raise ConfigError(f"{where}: pack: workers must be a whole number above 0, not {workers!r}.")
    decisive = {key: value for key, value in options.items() if key != "workers"}
    validate(PackOptions, {**decisive, "dataset_name": name, "storage_profile": profile}, f"{where}: pack ({profile})")
    return options
