"""What the ``meta`` folder of a LeRobot dataset says: features, tasks, and hints where each episode lies."""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from knonik_assets.configs.presets import RATES
from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.trees import check_inside
from knonik_loader.errors import EpisodeError, SourceError

__all__ = [
    "PATHS",
    "DepthCode",
    "EpisodeHint",
    "Feature",
    "Meta",
    "VideoHint",
    "read_meta",
    "wrong_totals",
]

PARQUET_FAULTS = (pa.ArrowException, OSError, ValueError)
"""What pyarrow raises on truncated or damaged files."""
Version = Literal[2, 3]
PATHS: Mapping[Version, tuple[str, str]] = {
    2: (
        "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    ),
    3: (
        "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    ),
}
"""Data and video files where ``info.json`` says nothing."""
_FIELDS: Mapping[Version, tuple[str, ...]] = {2: ("episode_chunk", "episode_index"), 3: ("chunk_index", "file_index")}
_DIGITS = re.compile(r"(0?\d{1,2})?d?")


@dataclass(frozen=True, slots=True)
class DepthCode:
    """How depth was turned into the 12-bit codes of a depth video. NaN stands for what is no number."""

    low_m: float = 0.01
    high_m: float = 10.0
    shift_m: float = 3.5
    log: bool = True


@dataclass(frozen=True, slots=True)
class Feature:
    """One entry of ``features`` in ``info.json``."""

    dtype: str
    shape: tuple[int, ...]
    """Of one row, where stated."""
    names: tuple[str, ...] | None
    """Of a vector's elements, in order."""
    depth: DepthCode | None
    """For depth maps."""
    depth_unit_m: float | None
    """Metres that 1 means in a depth picture, where stated."""


@dataclass(frozen=True, slots=True)
class VideoHint:
    """Where the metadata says that one camera's frames of one episode are. Any part may be missing or wrong."""

    file: tuple[int, int] | None
    """(chunk, file)"""
    start: float | None
    stop: float | None
    """Seconds inside the file."""


@dataclass(frozen=True, slots=True)
class EpisodeHint:
    """One row of ``meta/episodes``, or one line of ``meta/episodes.jsonl``."""

    length: int | None
    tasks: tuple[str, ...]
    data: tuple[int, int] | None
    videos: Mapping[str, VideoHint]


@dataclass(slots=True)
class Meta:
    """Everything under ``meta``; wrong values are kept as they are, for the readers to check."""

    root: Path
    fps: float | None
    robot_type: str | None
    features: dict[str, Feature]
    data_path: str
    video_path: str
    tasks: dict[int, str]
    subtasks: dict[int, str]
    hints: dict[int, EpisodeHint]
    info: Mapping[str, Any]
    """``info.json`` as it is."""
    warnings: list[str] = field(default_factory=list)


def read_meta(root: Path, version: Version = 3) -> Meta:
    """Read ``meta``; only ``info.json`` has to be there.

    Raises:
        SourceError: no readable ``info.json``, a dataset of the other layout, or a path template that leads out of it.
    """
    path = root / "meta" / "info.json"
    _check_links(root)
    try:
        info = json.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError as error:
        raise SourceError(f"{root}: no meta/info.json, so this is no LeRobot dataset.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{path}: unreadable: {error}.") from error
    if not isinstance(info, dict):
        raise SourceError(f"{path}: holds no JSON object.")
    _check_layout(root, str(info.get("codebase_version") or f"v{version}"), version)
    warnings: list[str] = []
    fps = _number(info.get("fps"))
    if fps is not None and not RATES[0] <= fps < RATES[1]:
        warnings.append(f"{path}: fps {fps:g} makes no sense; ignored")
        fps = None
    features = info.get("features")
    data_path, video_path = PATHS[version]
    return Meta(
        root=root,
        fps=fps,
        robot_type=info["robot_type"] if isinstance(info.get("robot_type"), str) else None,
        features={
            str(name): _feature(entry)
            for name, entry in (features if isinstance(features, dict) else {}).items()
            if isinstance(entry, dict)
        },
        data_path=_template(info.get("data_path"), data_path, "data_path", path, version, warnings),
        video_path=_template(info.get("video_path"), video_path, "video_path", path, version, warnings),
        tasks=_read_texts(root, "task", warnings),
        subtasks=_read_texts(root, "subtask", warnings),
        hints=_read_hints(root, warnings) if version == 3 else _read_hint_lines(root, warnings),
        info=info,
        warnings=warnings,
    )


def _check_links(root: Path) -> None:
    try:
        for path in (root / "meta", *sorted((root / "meta").glob("*"))):
            if path.is_symlink():
                check_inside(path, root)
    except EpisodeError as error:
        raise SourceError(str(error)) from error


def wrong_totals(meta: Meta, found: Mapping[str, int | None]) -> list[str]:
    """Where ``info.json`` counts otherwise than what is there; ``found`` holds counts by their names in it."""
    told = []
    for key, count in found.items():
        said = meta.info.get(key)
        if count is not None and isinstance(said, int) and said != count:
            told.append(f"{meta.root}: info.json says {said} {key.removeprefix('total_')}, {count} are there")
    return told


def _check_layout(root: Path, stated: str, version: Version) -> None:
    """Refuse the other layout by its files; what ``info.json`` calls itself is a hint only."""
    tables, lines = (root / "meta" / "episodes").is_dir(), (root / "meta" / "episodes.jsonl").exists()
    if version == 3 and lines and not tables:
        raise SourceError(f"{root}: a LeRobot {stated} dataset (one file an episode), not v3; use dir_type lerobot_v2.")
    if version == 2 and (tables or (root / "meta" / "tasks.parquet").exists()) and not lines:
        raise SourceError(
            f"{root}: a LeRobot {stated} dataset of many episodes a file, not v2; use dir_type lerobot_v3."
        )


def _template(
    value: Any,  # noqa: ANN401 - raw JSON
    default: str,
    key: str,
    path: Path,
    version: Version,
    warnings: list[str],
) -> str:
    if not isinstance(value, str):
        return default
    if not _is_template(value, version):
        warnings.append(f"{path}: {key} {value!r} is no v{version} template; {default!r} is used instead")
        return default
    example = value.format(video_key="camera", **dict.fromkeys(_FIELDS[version], 0))
    if posixpath.isabs(example) or posixpath.normpath(example).startswith("..") or "\\" in example:
        raise SourceError(f"{path}: {key} {value!r} leads out of the dataset.")
    return value


def _is_template(value: str, version: Version) -> bool:
    """Whether a text has fields of the version alone, padded to a few digits: what else may stand there is code."""
    try:
        parts = list(Formatter().parse(value))
    except ValueError:
        return False
    numbers = _FIELDS[version]
    return "\0" not in value and all(
        name is None
        or (not how and ((name in numbers and _DIGITS.fullmatch(spec or "")) or (name == "video_key" and not spec)))
        for _, name, spec, how in parts
    )


def _feature(entry: Mapping[str, Any]) -> Feature:
    raw = entry.get("info"), entry.get("video_info")
    blocks = [block for block in raw if isinstance(block, dict)]
    stated = {key.removeprefix("video."): value for block in reversed(blocks) for key, value in block.items()}
    depth = None
    if stated.get("is_depth_map") is True:
        default = DepthCode()
        low, high, shift = (
            other if stated.get(key) is None else math.nan if (number := _number(stated[key])) is None else number
            for key, other in (
                ("depth_min", default.low_m),
                ("depth_max", default.high_m),
                ("shift", default.shift_m),
            )
        )
        depth = DepthCode(low, high, shift, log=stated.get("use_log") is not False)
    return Feature(
        dtype=str(entry.get("dtype")),
        shape=_shape(entry.get("shape")),
        names=_names(entry.get("names")),
        depth=depth,
        depth_unit_m={"m": 1.0, "mm": 0.001}.get(str(stated.get("depth_unit"))),
    )


def _shape(value: Any) -> tuple[int, ...]:  # noqa: ANN401 - raw JSON
    sides = [index_of(side) for side in value] if isinstance(value, list) else []
    return tuple(side or 0 for side in sides)


def _names(value: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - raw JSON
    """A vector's element names out of the spellings in use: list, nested lists, dict of lists, name → index."""
    if isinstance(value, dict):
        value = _listed(value)
    if not isinstance(value, list):
        return None
    flat = tuple(_flatten(value))
    return flat or None


def _listed(value: Mapping[str, Any]) -> list[Any]:
    """Of name → index the names in order, of groups what they hold."""
    if value and all(isinstance(index, (int, float)) for index in value.values()):
        return sorted(value, key=value.__getitem__)
    return list(value.values())


def _flatten(value: list[Any]) -> Iterator[str]:
    for item in value:
        if isinstance(item, dict):
            yield from _flatten(_listed(item))
        elif isinstance(item, list):
            yield from _flatten(item)
        else:
            yield str(item)


def _number(value: Any) -> float | None:  # noqa: ANN401 - raw JSON or parquet
    """A finite number, also out of a list of one; None for anything else."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None


def index_of(value: Any) -> int | None:  # noqa: ANN401 - raw parquet
    number = _number(value)
    return int(number) if number is not None and 0 <= number < 1 << 62 and number == int(number) else None


def _read_texts(root: Path, name: str, warnings: list[str]) -> dict[int, str]:
    """Text of a task or subtask by its index: by value, whatever the order of the rows."""
    rows: list[Any] = []
    parquet, lines = root / "meta" / f"{name}s.parquet", root / "meta" / f"{name}s.jsonl"
    try:
        if parquet.exists():
            rows = pq.read_table(parquet).to_pylist()
        elif lines.exists():
            rows = list(_json_lines(lines, warnings))
    except PARQUET_FAULTS as error:
        warnings.append(f"{parquet if parquet.exists() else lines}: unreadable, so {name}s have no text: {error}")
    texts: dict[int, str] = {}
    for row in rows:
        if not isinstance(row, dict):
            warnings.append(f"{lines}: {str(row)[:40]!r} is no {name}; left out")
            continue
        index, text = index_of(row.get(f"{name}_index")), row.get(name, row.get("__index_level_0__"))
        if index is not None and isinstance(text, str):
            texts[index] = text
    return texts


def _json_lines(path: Path, warnings: list[str]) -> Iterator[Any]:
    """The values of a file of JSON lines. Only a line feed ends a line: texts may hold other line separators."""
    for number, line in enumerate(path.read_text("utf-8-sig").split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            warnings.append(f"{path}, line {number}: unreadable: {error}")
            continue
        yield value


def _read_hints(root: Path, warnings: list[str]) -> dict[int, EpisodeHint]:
    hints: dict[int, EpisodeHint] = {}
    folder = root / "meta" / "episodes"
    for path in sorted(folder.rglob("*.parquet"), key=lambda path: natural_key(path.as_posix())):
        try:
            check_inside(path, root)
            file = pq.ParquetFile(path)
            columns = [name for name in file.schema_arrow.names if not name.startswith("stats/")]
            rows = file.read(columns=columns).to_pylist()
        except (*PARQUET_FAULTS, EpisodeError) as error:
            warnings.append(f"{path}: unreadable, so its episodes are found by their data alone: {error}")
            continue
        for row in rows:
            episode = index_of(row.get("episode_index"))
            if episode is not None:
                hints[episode] = _hint(row)
    return hints


def _read_hint_lines(root: Path, warnings: list[str]) -> dict[int, EpisodeHint]:
    hints: dict[int, EpisodeHint] = {}
    path = root / "meta" / "episodes.jsonl"
    try:
        for row in _json_lines(path, warnings):
            episode = index_of(row.get("episode_index")) if isinstance(row, dict) else None
            if episode is not None:
                hints[episode] = _hint(row)
    except FileNotFoundError:
        warnings.append(f"{path} is missing: episodes are known by their files alone")
    except (OSError, ValueError) as error:
        warnings.append(f"{path}: unreadable, so episodes are known by their files alone: {error}")
    return hints


def _hint(row: Mapping[str, Any]) -> EpisodeHint:
    def place(prefix: str) -> tuple[int, int] | None:
        chunk, file = index_of(row.get(f"{prefix}/chunk_index")), index_of(row.get(f"{prefix}/file_index"))
        return None if chunk is None or file is None else (chunk, file)

    keys = {name[len("videos/") : name.rindex("/")] for name in row if name.startswith("videos/") and "/" in name[7:]}
    tasks = row.get("tasks")
    return EpisodeHint(
        length=index_of(row.get("length")),
        tasks=tuple(task for task in tasks if isinstance(task, str)) if isinstance(tasks, list) else (),
        data=place("data"),
        videos={
            key: VideoHint(
                place(f"videos/{key}"),
                _number(row.get(f"videos/{key}/from_timestamp")),
                _number(row.get(f"videos/{key}/to_timestamp")),
            )
            for key in sorted(keys)
        },
    )
