"""What is settled before a frame is read: an episode's length, rate, clock, language and further metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.base import EpisodeFacts, Language, StreamSpec
from knonik_assets.sources.clocks import REGULAR, even_rate, usual_rate
from knonik_assets.sources.naming import dataset_name
from knonik_loader.errors import EpisodeError

__all__ = [
    "LanguageOrigin",
    "Length",
    "about",
    "clock",
    "common_length",
    "key_of",
    "language",
    "nominal_fps",
]

LanguageOrigin = Literal["config", "source", "metadata"]
_DEFAULT_FPS = 30.0


def key_of(spec: StreamSpec) -> str:
    """A stream's key in batches and in ``stream_params``."""
    return spec.name if spec.kind == "numeric" else f"{spec.kind}_{spec.name}"


@dataclass(frozen=True, slots=True)
class Length:
    """The length that all streams of an episode have in common."""

    frames: int
    shortest: str
    trimmed: dict[str, int]
    """Stream → frames that are cut from its end."""

    def warning(self) -> str | None:
        """What was cut, in words."""
        if not self.trimmed:
            return None
        cut = ", ".join(f"{name} by {frames}" for name, frames in self.trimmed.items())
        return f"trimmed to the {self.frames} frames of {self.shortest}: {cut}"


def common_length(streams: Sequence[StreamSpec], timestamps: npt.NDArray[np.float64] | None) -> Length:
    """That of the shortest stream; the source's clock counts as one."""
    lengths = {key_of(spec): spec.length for spec in streams}
    if timestamps is not None:
        lengths["timestamps"] = len(timestamps)
    shortest = min(lengths, key=lengths.__getitem__, default="")
    frames = lengths.get(shortest, 0)
    return Length(frames, shortest, {name: length - frames for name, length in lengths.items() if length > frames})


def clock(timestamps: npt.NDArray[np.float64] | None, frames: int) -> npt.NDArray[np.float64] | None:
    """(T,) seconds of the source's clock; None where it has none, and time is frame index / fps.

    Raises:
        EpisodeError: a time is NaN or infinite.
    """
    if timestamps is None:
        return None
    times = np.asarray(timestamps, np.float64)[:frames]
    bad = np.flatnonzero(~np.isfinite(times))
    if len(bad):
        raise EpisodeError(
            f"{len(bad)} of {frames} timestamps are not finite, the first at frame {bad[0]}; repair the source's clock."
        )
    return times


def nominal_fps(
    config: IngestConfig, streams: Sequence[StreamSpec], times: npt.NDArray[np.float64] | None
) -> tuple[float, str | None]:
    """The config's rate, else what the source states, else what its clock shows, else 30; and a warning or None."""
    stated = [spec.fps for spec in streams if spec.fps] if config.fps is None else [config.fps]
    measured = even_rate(times)
    if stated:
        fps = float(stated[0])
        if measured is not None and abs(measured / fps - 1) > REGULAR:
            return fps, f"fps is {fps:g}, but the clock shows {measured:g} frames a second"
        return fps, None
    if measured is not None:
        return measured, None
    if (usual := usual_rate(times)) is not None:
        return (
            usual,
            f"no frame rate in the data or the config, and an uneven clock: {usual:g} is its usual one; set fps",
        )
    if times is not None:  # the clock decides where frames are; the rate is a label
        return _DEFAULT_FPS, None
    return _DEFAULT_FPS, f"no frame rate in the data or the config: {_DEFAULT_FPS:g} is assumed; set fps"


def language(config: IngestConfig, facts: EpisodeFacts) -> tuple[Language, LanguageOrigin] | None:
    """What the robot was told and who says so: the config's block, else the source, else the config's metadata."""
    if config.language is False:
        return None
    block = config.language
    if block is not None and block.instruction is not None:
        return Language(block.instruction, tuple(block.rephrases)), "config"
    found: tuple[Language, LanguageOrigin] | None = None
    if facts.language is not None:
        found = facts.language, "source"
    elif "language_instruction" in config.metadata:
        found = Language(config.metadata["language_instruction"]), "metadata"
    if found is not None and block is not None:
        return Language(found[0].instruction, tuple(block.rephrases), found[0].segments), found[1]
    return found


def about(config: IngestConfig, facts: EpisodeFacts, root: Path) -> tuple[str, str, dict[str, Any]]:
    """Dataset, robot type and further entries of ``metadata.json``: the source's, then the config's as they are."""
    attributes = dict(facts.attributes)
    own = dict(config.metadata)
    robot_type = own.pop("robot_type", None) or attributes.pop("robot_type", None) or "unknown"
    dataset = own.pop("dataset", None) or attributes.pop("dataset", None) or dataset_name(root)
    for key in ("robot_type", "dataset"):
        attributes.pop(key, None)
    return str(dataset), str(robot_type), {**attributes, **own}
