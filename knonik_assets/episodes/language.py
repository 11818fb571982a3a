"""What the robot was told: ``annotations/language/`` of an episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from knonik_assets.episodes.storing import storage_errors
from knonik_assets.sources.base import Language
from knonik_loader.errors import EpisodeError

__all__ = ["FOLDER", "read_language", "write_language"]

FOLDER = "annotations/language"


def write_language(folder: Path, language: Language, origin: str) -> None:
    """Write ``episode.yaml``, ``rephrased.yaml`` and ``timestamps.yaml`` below ``folder / FOLDER``.

    Args:
        folder: The episode.
        language: Instruction, rephrases and segments.
        origin: Where it comes from: ``config``, ``source`` or ``metadata``.

    Raises:
        StorageError: the disk refuses.
    """
    segments = [{"start": float(start), "end": float(end), "text": str(text)} for start, end, text in language.segments]
    contents: dict[str, Any] = {
        "episode.yaml": {"instruction": str(language.instruction), "source": origin},
        "rephrased.yaml": [str(text) for text in language.rephrases],
        "timestamps.yaml": segments,
    }
    target = folder / FOLDER
    with storage_errors("write", target):
        target.mkdir(parents=True)
        for name, content in contents.items():
            text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False, width=1000)
            (target / name).write_text(text, encoding="utf-8", newline="\n")


def read_language(folder: Path) -> Language | None:
    """What `write_language` wrote; None where the episode has no annotations.

    Raises:
        EpisodeError: a file is missing or not what it should be.
        StorageError: a file cannot be read.
    """
    target = folder / FOLDER
    if not target.is_dir():
        return None
    try:
        episode, rephrased, segments = (
            yaml.safe_load((target / name).read_text(encoding="utf-8"))
            for name in ("episode.yaml", "rephrased.yaml", "timestamps.yaml")
        )
        return Language(
            instruction=str(episode["instruction"]),
            rephrases=tuple(str(text) for text in rephrased),
            segments=tuple((float(one["start"]), float(one["end"]), str(one["text"])) for one in segments),
        )
    except (yaml.YAMLError, KeyError, TypeError, ValueError, FileNotFoundError) as error:
        reason = " ".join(str(error).split())  # of YAML over several lines
        raise EpisodeError(f"{target} is damaged: {reason}; mend it, or ingest the episode again") from error
