"""The config that `knonik_assets.sources.detect` proposes, as YAML with a word beside every key."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import yaml

__all__ = ["DEFAULT_FPS", "Comments", "Found", "config_lines", "config_yaml", "rate_of"]

DEFAULT_FPS = 30
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_KINDS = {"images": "rgb", "depths": "depth", "numeric": "numeric", "rgb": "rgb", "depth": "depth"}
_CHOICES = {
    "jpeg_channel_order": (
        ("bgr",),
        "red and blue are probably exchanged: look at a frame, then say bgr, or rgb if it is right",
    ),
    "orientation": (
        ("flip_vertical", "rotate_180"),
        "pictures are stored upside down: look at a frame, then say what turns it upright, or as_stored",
    ),
}
"""Keys that a warning asks to be settled: values to choose from, and why. Never set unasked: both change pictures."""


@dataclass(slots=True)
class Comments:
    """What the data cannot say in a key."""

    fps: str = ""
    """Where the rate is from."""


class Found(Protocol):
    """The part of a `Detection` that is told beside its config."""

    family: str
    version: str | None
    episodes: int | None
    language: str | None
    streams: list[dict[str, Any]]
    warnings: list[str]
    config: dict[str, Any]
    comments: Comments


def config_yaml(found: Found) -> str:
    """The whole file: what was found, what looks suspicious, then the config."""
    version = f" ({found.version})" if found.version else ""
    count = f"{found.episodes} episode{'' if found.episodes == 1 else 's'}"
    lines = [
        _comment(f"{found.family}{version}, {count}. Ingest: knonik ingest --config FILE --output OUT"),
        *(_comment(f"Look at this: {warning}") for warning in found.warnings),
        *config_lines(found, found.config),
    ]
    return "\n".join(lines) + "\n"


def config_lines(found: Found, config: Mapping[str, Any]) -> Iterator[str]:
    """The config's lines with their comments.

    Args:
        found: what the comments say.
        config: its config, or one like it.
    """
    frames = found.streams[0]["frames"] if found.streams else 0
    lengths = f"; of {frames} frame{'' if frames == 1 else 's'} in the first episode" if found.streams else ""
    for key, value in config.items():
        if key == "fps":
            yield _beside(f"fps: {value}", found.comments.fps)
            yield from _choices(found)
        elif key in ("layout", "streams"):
            yield _beside(f"{key}:", f"output name, then where it is in the source{lengths}")
            yield from _blocks(found.streams, value)
        elif key == "metadata":
            yield "metadata:"
            yield from (f"  {_scalar(name)}: {_flow(entry)}" for name, entry in value.items())
            if "robot_type" not in value:
                yield "  # robot_type: the data doesn't say"
        else:
            yield f"{key}: {_flow(value)}"
    if "layout" not in config and "streams" not in config:
        yield _comment("layout: none, so every stream of each episode is taken under its own name")
    if found.language is None:
        yield "# language: {instruction: the data holds none; what was the robot told?}"
    else:
        yield _comment(f"language: from the data, in one episode: {found.language}")
    yield "# preset: medium  # ultra_low, low, medium, high"


def _choices(found: Found) -> Iterator[str]:
    for key, (values, why) in _CHOICES.items():
        if any(key in warning for warning in found.warnings):
            yield _comment(why)
            yield from (f"# {key}: {value}" for value in values)


def _blocks(streams: Sequence[Mapping[str, Any]], blocks: Mapping[str, Any]) -> Iterator[str]:
    known = {(stream["kind"], stream["name"]): stream for stream in streams}
    for block, entries in blocks.items():
        if not isinstance(entries, Mapping):
            yield f"  {_scalar(block)}: {_flow(entries)}"
            continue
        yield f"  {block}:"
        for name, entry in entries.items():
            stream = known.get((_KINDS.get(block, block), name))
            yield _beside(f"    {_scalar(name)}: {_flow(entry)}", "" if stream is None else described(stream))
    if "numeric" not in blocks and any(stream["kind"] == "numeric" for stream in streams):
        yield "  # numeric topics are all taken, under their own names:"
        yield from (
            _comment(f"  {stream['name']}: {stream['source']}, {described(stream)}", "  ")
            for stream in streams
            if stream["kind"] == "numeric"
        )


def rate_of(stream: Mapping[str, Any]) -> str:
    """At which samples were recorded, else that of frames as the source states it; nothing where neither is known."""
    if stream["recorded_fps"]:
        return f"{stream['recorded_fps']:g} {'Hz' if stream['kind'] == 'numeric' else 'fps'}"
    return f"{stream['fps']:g} fps" if stream["fps"] else ""


def described(stream: Mapping[str, Any]) -> str:
    """Shape, encoding, rate, role and channels of a stream in a few words."""
    words = [" x ".join(map(str, stream["shape"]))]
    if stream["kind"] != "numeric":
        words.append(stream["encoding"])
    if rate := rate_of(stream):
        words.append(rate)
    if stream["role"]:
        words.append(f"role {stream['role']}")
    if names := stream["channel_names"]:
        words.append(" ".join(names[:8]) + (" …" if len(names) > 8 else ""))
    return ", ".join(words)


def _comment(text: str, indent: str = "") -> str:
    kept = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return f"{indent}# {kept}"


def _beside(line: str, comment: str) -> str:
    return f"{line}  {_comment(comment)}" if comment else line


def _scalar(value: Any) -> str:  # noqa: ANN401 - any scalar of a config
    """One value on one line, quoted wherever a reader could take it for something else."""
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
            return value
        quoted: str = yaml.safe_dump(value, default_style='"', width=sys.maxsize, allow_unicode=True)
        return quoted.rstrip("\n")
    dumped: str = yaml.safe_dump(value, width=sys.maxsize)
    return dumped.removesuffix("...\n").rstrip("\n")


def _flow(value: Any) -> str:  # noqa: ANN401 - any value of a config
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)
