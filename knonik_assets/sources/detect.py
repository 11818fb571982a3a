"""Say what a raw dataset is: its family, its episodes and streams, what looks wrong, and a config that ingests it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from knonik_assets.configs.load import load_ingest_config
from knonik_assets.sources.base import EpisodeFacts, EpisodeRef, Source, StreamSpec
from knonik_assets.sources.clocks import even_rate, usual_rate
from knonik_assets.sources.detect_config import DEFAULT_FPS, Comments, config_yaml
from knonik_assets.sources.families import Family, recognise
from knonik_assets.sources.guarded import GuardedSource, open_guarded
from knonik_assets.sources.naming import dataset_name
from knonik_assets.sources.suspicions import suspicions
from knonik_assets.storage import Place
from knonik_loader.errors import KnonikError, SourceError

__all__ = ["Detection", "config_text", "datasets_in", "describe", "detect"]

_MOST_TRIED = 8
"""Episodes opened in search of one that can be."""
_NAMED = 6


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
    """Whether an episode with a stream could be opened, so that it can be ingested."""
    episodes: int | None = None
    streams: list[dict[str, Any]] = field(default_factory=list)
    """kind, name, source, shape, fps, recorded_fps, encoding, frames, role, channel_names: of the first episode that
    can be opened.
    """
    fps: float | None = None
    """As the data states it, else as an even clock shows it; None where neither does."""
    language: str | None = None
    warnings: list[str] = field(default_factory=list)
    """What looks suspicious."""
    config: dict[str, Any] = field(default_factory=dict)
    """An ingest config that works as it is."""
    comments: Comments = field(default_factory=Comments)
    """What the config as YAML says beside its keys."""

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {key: value for key, value in asdict(self).items() if key != "comments"}


def datasets_in(root: str | Path) -> list[Family]:
    """The families of the raw datasets at ``root`` or up to four folders below it; at least one.

    Raises:
        SourceError: nothing is there, or nothing of it is known.
    """
    place = Place.of(root, "path")
    if place.is_remote:
        from knonik_assets.sources.remote.recognise import recognise_remote

        return _some(recognise_remote(place), place)
    try:
        return _some(_local(place.path), place)
    except OSError as error:
        if isinstance(error, KnonikError):
            raise
        raise SourceError(f"{error.filename or root} cannot be read: {error.strerror or error}.") from error


def _local(root: Path) -> list[Family]:
    """Of a local path; `datasets_in` says what is raised."""
    if not root.exists():
        raise SourceError(f"{root}: there is no such file or folder.")
    if not root.is_dir() and not root.is_file():
        raise SourceError(f"{root} is neither a file nor a folder but a device or the like; name a dataset.")
    if (root / "hlp_manifest.json").exists():
        raise SourceError(f"{root} is a packed dataset, not raw data; look at it with 'knonik inspect'.")
    if any(root.glob("episode_*/metadata.json")):
        raise SourceError(f"{root} holds ingested episodes, not raw data; look at them with 'knonik inspect'.")
    return recognise(root)


def _some(found: list[Family], root: Place) -> list[Family]:
    if not found:
        raise SourceError(
            f"{root}: no known dataset; looked for HDF5, NPZ and Zarr episodes, LeRobot (meta/info.json), ROS bags, "
            "RLDS (features.json), CALVIN, D3IL and staged NPY streams, here and four folders down."
        )
    return found


def detect(root: str | Path) -> Detection:
    """Recognise a raw dataset.

    Raises:
        SourceError: nothing is there, nothing of it is known, or there are several datasets to choose from.
    """
    families = datasets_in(root)
    if len(families) > 1:
        names = ", ".join(family.where for family in families[:_NAMED])
        more = f", … ({len(families)} in all)" if len(families) > _NAMED else ""
        raise SourceError(f"{root} holds {len(families)} datasets; name one of them: {names}{more}.")
    return describe(families[0], root)


def describe(family: Family, asked: str | Path | None = None) -> Detection:
    """What `detect` says of a dataset whose family is known already."""
    found = Detection(family.where, family.name, family.dir_type, family.data_type, family.version)
    found.episodes = family.episodes
    if asked is not None and family.where != str(Place.of(asked, "path")):
        found.warnings.append(f"the dataset is in {family.where}")
    if family.note is not None:
        found.warnings.append(family.note)
    _details(found, family)
    found.warnings = list(dict.fromkeys(found.warnings))
    return found


def _details(found: Detection, family: Family) -> None:
    base: dict[str, Any] = {"dir_type": family.dir_type, "data_dir": family.url or str(family.root.absolute())}
    if family.data_type is not None:
        base["data_type"] = family.data_type
    if family.demos is not None:
        base["demos"] = family.demos
    base |= family.extra or {}
    try:
        source = open_guarded(load_ingest_config(base), family.where)
    except KnonikError as error:
        found.warnings.append(str(error))
        return
    with closing(source):
        _look_into(found, family, base, source)


def _look_into(found: Detection, family: Family, base: dict[str, Any], source: GuardedSource) -> None:
    try:
        refs = source.episodes()
    except KnonikError as error:
        found.warnings.append(str(error))
        return
    found.episodes = len(refs)
    found.warnings += source.warnings
    opened = _sample(source, refs, found.warnings)
    found.config, found.readable = base, any(streams for streams, _, _ in opened)
    if not found.readable:
        tried = min(len(refs), _MOST_TRIED)
        what = "has a stream" if opened else "can be opened"
        which = "its one episode has no stream" if opened else "its one episode cannot be opened"
        found.warnings.append(which if tried == 1 else f"none of the {tried} episodes tried {what}")
        return
    streams, facts, _ = next(each for each in opened if each[0])
    found.streams = [_described(spec) for spec in streams]
    found.language = facts.language.instruction if facts.language else None
    _rate(found, base, streams, facts)
    _streams(found, family, base, opened)
    name = family.root.resolve().parent.name if family.dir_type == "rlds" else dataset_name(family.root)
    base["metadata"] = {"dataset": facts.attributes.get("dataset") or name}
    if "robot_type" in facts.attributes:
        base["metadata"]["robot_type"] = facts.attributes["robot_type"]


def _rate(found: Detection, base: dict[str, Any], streams: Sequence[StreamSpec], facts: EpisodeFacts) -> None:
    """The rate in the config, with a word about where it is from."""
    stated = next((spec.fps for spec in streams if spec.fps), None)
    even = even_rate(facts.timestamps)
    found.fps = float(stated) if stated else even or usual_rate(facts.timestamps)
    if found.fps is None and facts.timestamps is None:
        found.warnings.append(f"no frame rate and no clock in the data: set fps ({DEFAULT_FPS} is assumed)")
        found.comments.fps = "ASSUMED: nothing in the data states a rate; correct it"
    elif found.fps is None:
        found.comments.fps = "a label only: the clock ticks unevenly, and says when each frame was"
    elif not stated and even is None:
        found.comments.fps = "what most steps of the data's uneven clock show; correct it if it is another"
    else:
        found.comments.fps = "as the data states it" if stated else "as the clock of the data shows it"
    fps = found.fps or DEFAULT_FPS
    base["fps"] = int(fps) if fps == int(fps) else fps


Opened = tuple[Sequence[StreamSpec], EpisodeFacts, EpisodeRef]


def _streams(found: Detection, family: Family, base: dict[str, Any], opened: Sequence[Opened]) -> None:
    """The layout that all opened episodes share, or none."""
    if family.dir_type == "npy_separate":
        return  # its streams block is its layout
    layouts = [_layout(streams) for streams, _, _ in opened if streams]
    if family.dir_type in ("rosbag", "mcap"):  # whose numeric topics are all taken, whatever a layout says
        layouts = [{block: names for block, names in layout.items() if block != "numeric"} for layout in layouts]
    if all(one == other for one, other in pairwise(layouts)) and len(layouts) == len(opened):
        if layouts[0]:
            base["layout"] = layouts[0]
        return
    names = ", ".join(ref.source_id for _, _, ref in opened)
    found.warnings.append(f"episodes {names} have different streams; the config takes whatever each has")


def _sample(source: Source, refs: Sequence[EpisodeRef], warnings: list[str]) -> list[Opened]:
    """The first, the middle and the last episode, as far as they open; others where none of these does."""
    opened: list[Opened] = []
    alike: dict[str, list[str]] = {}  # an error without its episode's number → that error of each episode
    chosen = sorted({0, len(refs) // 2, len(refs) - 1}) if refs else []
    others = [place for place in range(len(refs)) if place not in chosen]
    for tried, place in enumerate([*chosen, *others][:_MOST_TRIED]):
        if tried >= len(chosen) and any(streams for streams, _, _ in opened):
            break
        try:
            with source.open(refs[place]) as episode:
                name = refs[place].source_id
                name = f"episode {name}" if name.isdecimal() else name
                if not opened:
                    warnings += [*episode.facts.warnings, *suspicions(episode, name)]
                elif episode.facts.nothing:
                    warnings.append(f"{name}: {episode.facts.nothing}")
                opened.append((tuple(episode.streams), episode.facts, refs[place]))
        except KnonikError as error:
            alike.setdefault(str(error).replace(f"episode {refs[place].source_id}: ", "", 1), []).append(str(error))
    for first, *others_alike in alike.values():
        more = len(others_alike)
        warnings.append(first + (f" The same of {more} more episode{'s' * (more > 1)}." if more else ""))
    return opened


def _described(spec: StreamSpec) -> dict[str, Any]:
    return {
        "kind": spec.kind,
        "name": spec.name,
        "source": spec.source,
        "shape": list(spec.shape),
        "fps": spec.fps,
        "recorded_fps": spec.recorded_fps,
        "encoding": spec.encoding,
        "frames": spec.length,
        "role": spec.role,
        "channel_names": list(spec.channel_names) if spec.channel_names else None,
    }


def _layout(streams: Sequence[StreamSpec]) -> dict[str, Any]:
    blocks: dict[str, Any] = {}
    names = {"rgb": "images", "depth": "depths", "numeric": "numeric"}
    for spec in streams:
        entry = spec.source if spec.kind == "numeric" else {"key": spec.source}
        blocks.setdefault(names[spec.kind], {})[spec.name] = entry
    return blocks


def config_text(found: Detection, as_json: bool = False) -> str:
    """The config as commented YAML, or as JSON.

    Raises:
        SourceError: no episode with a stream can be opened, so that no config would ingest it.
    """
    if not found.readable:
        reasons = "; ".join(warning.rstrip(".") for warning in found.warnings[-3:]) or "no episode of it can be opened"
        raise SourceError(f"{found.path}: there is no config that would ingest it: {reasons}")
    if as_json:
        return json.dumps(found.config, indent=2, ensure_ascii=False) + "\n"
    return config_yaml(found)
