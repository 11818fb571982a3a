"""Say what a raw dataset is: its family, and for families with a reader its episodes, streams and what looks wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.text import Text

from knonik_assets.configs.load import load_ingest_config
from knonik_assets.sources.base import EpisodeFacts, EpisodeRef, Source, StreamSpec
from knonik_assets.sources.families import Family, recognise
from knonik_assets.sources.registry import READABLE, open_source
from knonik_loader.errors import ConfigError, KnonikError, SourceError

__all__ = ["Detection", "config_text", "detect", "render"]


@dataclass(slots=True)
class Detection:
    """What was found."""

    path: str
    """Where the dataset itself is: the folder that was asked about, or one below it."""
    family: str
    dir_type: str
    data_type: str | None = None
    version: str | None = None
    readable: bool = False
    """Whether this version can ingest it."""
    episodes: int | None = None
    streams: list[dict[str, Any]] = field(default_factory=list)
    """kind, name, source, shape, fps, encoding, frames: of the first episode that can be opened."""
    fps: float | None = None
    language: str | None = None
    warnings: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    """An ingest config that works as it is; empty where this version has no reader."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)


def detect(root: str | Path) -> Detection:
    """Recognise a raw dataset.

    Raises:
        SourceError: nothing is there, or nothing of it is known.
    """
    root = Path(root)
    if not root.exists():
        raise SourceError(f"{root}: there is no such file or folder.")
    if not root.is_dir() and not root.is_file():
        raise SourceError(f"{root} is neither a file nor a folder but a device or the like; name a dataset.")
    if (root / "hlp_manifest.json").exists():
        raise SourceError(f"{root} is a packed dataset, not raw data; look at it with 'knonik inspect'.")
    if any(root.glob("episode_*/metadata.json")):
        raise SourceError(f"{root} holds ingested episodes, not raw data; look at them with 'knonik inspect'.")
    family = recognise(root)
    if family is None:
        raise SourceError(
            f"{root}: no known dataset; looked for HDF5, NPZ and Zarr episodes, LeRobot (meta/info.json), ROS bags, "
            "RLDS (features.json), CALVIN, D3IL and staged NPY streams, here and three folders down."
        )
    found = Detection(str(family.root), family.name, family.dir_type, family.data_type, family.version)
    found.episodes = family.episodes
    if family.root != root:
        found.warnings.append(f"the dataset is in {family.root}")
    if family.note is not None:
        found.warnings.append(family.note)
    key = f"{family.dir_type} + {family.data_type}" if family.data_type else family.dir_type
    found.readable = key in READABLE
    if found.readable:
        _details(found, family)
    else:
        found.warnings.append(f"this version cannot read {key!r} yet; it reads: {', '.join(READABLE)}")
    return found


def _details(found: Detection, family: Family) -> None:
    base: dict[str, Any] = {"dir_type": family.dir_type, "data_dir": str(family.root)}
    if family.data_type is not None:
        base["data_type"] = family.data_type
    if family.demos is not None:
        base["demos"] = family.demos
    base |= family.extra or {}
    try:
        source = open_source(load_ingest_config(base), family.root)
        refs = source.episodes()
    except KnonikError as error:
        found.readable = False
        found.warnings.append(str(error))
        return
    found.episodes = len(refs)
    found.warnings += source.warnings
    opened = _sample(source, refs, found.warnings)
    if not opened:
        found.warnings.append("no episode of those tried can be opened")
        found.config = base
        return
    streams, facts, ref = opened[0]
    found.streams = [_described(spec) for spec in streams]
    found.fps = next((spec.fps for spec in streams if spec.fps), None)
    found.language = facts.language.instruction if facts.language else None
    found.warnings += [warning for warning in facts.warnings if warning not in found.warnings]
    _suspicions(found, streams, facts, ref)
    layouts = [_layout(streams) for streams, _, _ in opened]
    if family.dir_type in ("rosbag", "mcap"):  # whose numeric topics are all taken, whatever a layout says
        layouts = [{block: names for block, names in layout.items() if block != "numeric"} for layout in layouts]
    if family.dir_type == "npy_separate":
        pass  # its streams block is its layout
    elif all(layout == layouts[0] for layout in layouts):
        base["layout"] = layouts[0]
    else:
        names = ", ".join(other.source_id for _, _, other in opened)
        found.warnings.append(f"episodes {names} have different streams; the config takes whatever each has")
    if found.fps:
        base["fps"] = int(found.fps) if found.fps == int(found.fps) else found.fps
    base["metadata"] = {"dataset": family.root.stem}
    if "robot_type" in facts.attributes:
        base["metadata"]["robot_type"] = facts.attributes["robot_type"]
    found.config = base


Opened = tuple[Sequence[StreamSpec], EpisodeFacts, EpisodeRef]


def _sample(source: Source, refs: Sequence[EpisodeRef], warnings: list[str]) -> list[Opened]:
    """The first, the middle and the last episode, as far as they open."""
    opened: list[Opened] = []
    for place in sorted({0, len(refs) // 2, len(refs) - 1}):
        try:
            with source.open(refs[place]) as episode:
                opened.append((tuple(episode.streams), episode.facts, refs[place]))
        except KnonikError as error:
            warnings.append(str(error))
    return opened


def _described(spec: StreamSpec) -> dict[str, Any]:
    return {
        "kind": spec.kind,
        "name": spec.name,
        "source": spec.source,
        "shape": list(spec.shape),
        "fps": spec.fps,
        "encoding": spec.encoding,
        "frames": spec.length,
    }


def _layout(streams: Sequence[StreamSpec]) -> dict[str, Any]:
    blocks: dict[str, Any] = {}
    names = {"rgb": "images", "depth": "depths", "numeric": "numeric"}
    for spec in streams:
        entry = spec.source if spec.kind == "numeric" else {"key": spec.source}
        blocks.setdefault(names[spec.kind], {})[spec.name] = entry
    return blocks


def _suspicions(found: Detection, streams: Sequence[StreamSpec], facts: EpisodeFacts, ref: EpisodeRef) -> None:
    lengths = {spec.length for spec in streams}
    if len(lengths) > 1:
        uneven = ", ".join(f"{spec.name} {spec.length}" for spec in streams)
        found.warnings.append(f"{ref.source_id}: streams differ in length and will be cut: {uneven}")
    if not found.fps and facts.timestamps is None:
        found.warnings.append("no frame rate and no clock in the data: set fps (30 is assumed)")
    if all(spec.kind == "numeric" for spec in streams):
        found.warnings.append("no pictures were found")


def config_text(found: Detection) -> str:
    """The config as JSON, which is YAML too.

    Raises:
        ConfigError: this version has no reader for the dataset.
    """
    if not found.config:
        raise ConfigError(f"{found.path}: there is no config for {found.family}: this version cannot read it.")
    return json.dumps(found.config, indent=2) + "\n"


def render(found: Detection) -> Text:
    """The same for people."""
    version = f" ({found.version})" if found.version else ""
    lines = [f"{found.path}", f"  {found.family}{version}, dir_type {found.dir_type}"]
    if found.data_type is not None:
        lines[-1] += f", data_type {found.data_type}"
    if found.episodes is not None:
        lines.append(f"  {found.episodes} episode{'' if found.episodes == 1 else 's'}")
    if found.language is not None:
        lines.append(f"  told: {found.language}")
    for stream in found.streams:
        shape = " x ".join(map(str, stream["shape"]))
        rate = f" at {stream['fps']:g} fps" if stream["fps"] else ""
        how = f" {stream['encoding']}" if stream["kind"] != "numeric" else ""
        lines.append(
            f"  {stream['kind']:8}{stream['name']:24} {stream['frames']} x {shape}{how}{rate}  {stream['source']}"
        )
    lines += [f"  ! {warning}" for warning in found.warnings]
    return Text("\n".join(lines))
