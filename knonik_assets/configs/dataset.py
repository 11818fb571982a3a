"""The dataset config, ``config.json``: what a training job must know about the episodes beside it.

What ingest can prove is filled in. What nobody has said yet stands as ``<FILL:what, and an example>``; answers, from a
dataset card or by hand, take its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from knonik_assets.configs.documents import load_document, write_json
from knonik_assets.configs.validation import unknown, validate
from knonik_loader.errors import ConfigError, EpisodeError

__all__ = [
    "CONFIG",
    "ArmConfig",
    "DatasetConfig",
    "DepthConfig",
    "LanguageConfig",
    "NumericConfig",
    "RgbConfig",
    "RolesConfig",
    "StreamsConfig",
    "TimestampsConfig",
    "build_dataset_config",
    "check_semantics",
    "dataset_config_schema",
    "load_dataset_config",
    "placeholders",
    "write_dataset_config",
]

CONFIG = "config.json"
FILL = "<FILL:"
_READ = (
    "dataset",
    "robot_type",
    "episode_id",
    "fps",
    "rgb_streams",
    "depth_streams",
    "numeric_streams",
    "stream_params",
    "stream_roles",
    "channel_names",
)
"""Keys of an episode's metadata that the config is made from."""
Semantics = Literal["joint_position", "joint_velocity", "ee_pose", "ee_delta", "mixed"]


def _fill(what: str) -> str:
    return f"{FILL}{what}>"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TimestampsConfig(_Strict):
    """The clock of the episodes."""

    unit: Literal["s"] = "s"
    clock: Literal["frame_time"] = "frame_time"
    """The array of each episode that holds it."""
    origin: Literal["source", "frame_index"] = "source"
    """``frame_index``: the source had no clock, so time is frame index / fps."""


class RgbConfig(_Strict):
    """A colour stream."""

    width: int
    height: int
    codec: str
    fps: float


class DepthConfig(_Strict):
    """A depth stream."""

    width: int
    height: int
    fps: float
    quantization_mm: float


class NumericConfig(_Strict):
    """A numeric stream."""

    dim: int
    channel_names: list[str] | None = None


class StreamsConfig(_Strict):
    """Every stream by its name."""

    rgb: dict[str, RgbConfig] = Field(default_factory=dict)
    depth: dict[str, DepthConfig] = Field(default_factory=dict)
    numeric: dict[str, NumericConfig] = Field(default_factory=dict)


class RolesConfig(_Strict):
    """Which numeric streams are the action and the state."""

    action: str = _fill("the numeric stream that commands the robot, e.g. action")
    state: str = _fill("the numeric stream that measures the robot, e.g. qpos")


class ArmConfig(_Strict):
    """One arm: which numbers of state and action are its own."""

    name: str = _fill("a name, e.g. left")
    indices: list[int] | str = _fill("positions in state and action, e.g. [0, 1, 2, 3, 4, 5, 6]")
    gripper: int | str | None = _fill("the gripper's position, e.g. 6, or null")


class LanguageConfig(_Strict):
    """What the robot was told."""

    instructions: list[str] = Field(default_factory=list)
    """Every distinct instruction of the episodes, sorted."""


class DatasetConfig(_Strict):
    """The whole dataset config. Strings that begin with ``<FILL:`` wait for an answer."""

    dataset: str
    robot_type: str = _fill("the robot, e.g. aloha")
    fps: float
    timestamps: TimestampsConfig = TimestampsConfig()
    streams: StreamsConfig
    roles: RolesConfig = RolesConfig()
    action_semantics: Semantics | str = _fill("one of joint_position, joint_velocity, ee_pose, ee_delta, mixed")
    arms: list[ArmConfig] = Field(default_factory=lambda: [ArmConfig()])
    language: LanguageConfig = LanguageConfig()

    @model_validator(mode="after")
    def _consistent(self) -> DatasetConfig:
        check_semantics(self.action_semantics)
        for role, name in (("action", self.roles.action), ("state", self.roles.state)):
            if not name.startswith(FILL) and name not in self.streams.numeric:
                raise ValueError(f"roles.{role}: {unknown(name, self.streams.numeric, 'numeric stream')}")
        for name, numeric in self.streams.numeric.items():
            if numeric.channel_names is not None and len(numeric.channel_names) != numeric.dim:
                raise ValueError(
                    f"streams.numeric.{name}: {len(numeric.channel_names)} channel_names for {numeric.dim} channels"
                )
        self._check_arms()
        return self

    def _check_arms(self) -> None:
        """Positions must exist in every role that is bound."""
        dims = {
            role: self.streams.numeric[name].dim
            for role, name in (("action", self.roles.action), ("state", self.roles.state))
            if name in self.streams.numeric
        }
        for arm in self.arms:
            numbers = [*(arm.indices if isinstance(arm.indices, list) else ()), arm.gripper]
            for number in numbers:
                if isinstance(number, int) and not all(0 <= number < dim for dim in dims.values()):
                    listed = " and ".join(f"{role} has {dim}" for role, dim in dims.items())
                    raise ValueError(f"arms: {arm.name!r} names position {number}, but {listed} numbers")


def check_semantics(value: str) -> str:
    """What the numbers of the action mean, or a placeholder for it.

    Raises:
        ValueError: it is neither.
    """
    known = get_args(Semantics)
    if value not in known and not value.startswith(FILL):
        raise ValueError(unknown(value, known, "action_semantics"))
    return value


def dataset_config_schema() -> dict[str, Any]:
    """The JSON schema of ``config.json``, for editors."""
    return DatasetConfig.model_json_schema()


def load_dataset_config(path: str | Path) -> DatasetConfig:
    """Read and check a ``config.json``.

    Raises:
        ConfigError: it is missing, unreadable or not valid.
    """
    return validate(DatasetConfig, load_document(path), str(path))


def placeholders(config: DatasetConfig) -> list[str]:
    """Dotted places that nobody has filled in yet."""
    return [place for place, value in _leaves(config.model_dump()) if isinstance(value, str) and value.startswith(FILL)]


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any JSON value
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(entry, f"{place}.{key}" if place else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, entry in enumerate(value):
            yield from _leaves(entry, f"{place}[{index}]")
    else:
        yield place, value


def build_dataset_config(
    out: Path, answers: Mapping[str, Any] | None = None, exclude: Collection[str] = ()
) -> DatasetConfig:
    """Describe the episodes of ``out``, but for the excluded ones, with ``answers`` laid over what they say.

    Raises:
        EpisodeError: there are no episodes, one is none, or they differ in streams, sizes or channel names.
        ConfigError: an answer names something that a dataset config doesn't have, or has the wrong type.
    """
    found = [path for path in sorted(out.glob("episode_*/metadata.json")) if path.parent.name not in exclude]
    described = [(path.parent.name, _described(document), document) for path in found for document in [_read(path)]]
    if not described:
        raise EpisodeError(f"{out} holds no ingested episodes to describe.")
    first_name, first, metadata = described[0]
    for name, other, _ in described[1:]:
        if other != first:
            raise EpisodeError(
                f"{out}: {first_name} and {name} differ in {_difference(first, other)}; ingest such recordings into "
                "different outputs, or name the common streams in the layout."
            )
    documents = [document for _, _, document in described]
    origins = {document.get("timestamps_origin", "source") for document in documents}
    built: dict[str, Any] = {
        "dataset": metadata["dataset"],
        "fps": metadata["fps"],
        "timestamps": {"origin": "source" if "source" in origins else "frame_index"},
        "streams": first,
        "roles": {role: name for role, name in metadata["stream_roles"].items() if role in ("action", "state")},
        "language": {"instructions": sorted({text for name, _, _ in described if (text := _instruction(out / name))})},
    }
    if metadata["robot_type"] not in ("", "unknown"):
        built["robot_type"] = metadata["robot_type"]
    for document in documents:
        if document["fps"] != metadata["fps"]:
            raise EpisodeError(
                f"{out}: {metadata['episode_id']} has {metadata['fps']:g} frames a second and {document['episode_id']} "
                f"{document['fps']:g}; set one fps in the ingest config, or ingest them into different outputs."
            )
    where = f"answers for {out / CONFIG}" if answers else str(out / CONFIG)
    _refuse_contradictions(built, answers or {}, where)
    return validate(DatasetConfig, _laid_over(built, answers or {}), where)


def write_dataset_config(out: Path, config: DatasetConfig) -> Path:
    """Write ``config.json``, whole or not at all, and return its path.

    Raises:
        StorageError: the disk refuses.
    """
    return write_json(out / CONFIG, config.model_dump(mode="json"))


def _read(path: Path) -> Mapping[str, Any]:
    found = load_document(path)
    metadata: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    missing = [key for key in _READ if key not in metadata]
    if missing:
        raise EpisodeError(
            f"{path} is no ingested episode's, or damaged: it lacks {missing[0]!r}; move {path.parent.name} away if "
            "another tool put it there, else ingest it again."
        )
    return metadata


def _described(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The streams of one episode in the form of `StreamsConfig`."""
    params, names = metadata["stream_params"], metadata["channel_names"]
    return {
        "rgb": {
            name: {key: params[f"rgb_{name}"][key] for key in ("width", "height", "codec", "fps")}
            for name in metadata["rgb_streams"]
        },
        "depth": {
            name: {key: params[f"depth_{name}"][key] for key in ("width", "height", "fps", "quantization_mm")}
            for name in metadata["depth_streams"]
        },
        "numeric": {
            name: {"dim": params[name]["dim"], "channel_names": names.get(name)} for name in metadata["numeric_streams"]
        },
    }


def _difference(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    a, b = dict(_leaves(first)), dict(_leaves(other))
    places = sorted(place for place in a.keys() | b.keys() if a.get(place) != b.get(place))
    place = places[0]
    return f"streams.{place} ({a.get(place, 'absent')!r} and {b.get(place, 'absent')!r})"


def _instruction(episode: Path) -> str | None:
    path = episode / "annotations" / "language" / "episode.yaml"
    if not path.exists():
        return None
    document = load_document(path)
    if not isinstance(document, Mapping):
        raise ConfigError(f"{path} must hold a block of keys and values.")
    return str(document.get("instruction") or "") or None


def _refuse_contradictions(built: Mapping[str, Any], answers: Mapping[str, Any], where: str) -> None:
    """An answer says what the episodes leave open; what they prove cannot be answered otherwise."""
    proven = dict(_leaves({key: built[key] for key in ("fps", "timestamps", "streams")}))
    for place, value in _leaves(answers):
        if proven.get(place) not in (None, value):
            raise ConfigError(
                f"{where}: {place} is {proven[place]!r} in the episodes, not {value!r}; remove the answer."
            )
    streams = answers.get("streams")
    for kind, known in built["streams"].items():
        said = streams.get(kind) if isinstance(streams, Mapping) else None
        for name in said if isinstance(said, Mapping) else ():
            if name not in known:
                raise ConfigError(f"{where}: streams.{kind}: {unknown(name, known, 'stream')}")


def _laid_over(base: Mapping[str, Any], answers: Mapping[str, Any]) -> dict[str, Any]:
    """``answers`` over ``base``, block by block; lists and values replace."""
    out = dict(base)
    for key, value in answers.items():
        below = out.get(key)
        out[key] = _laid_over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return out
