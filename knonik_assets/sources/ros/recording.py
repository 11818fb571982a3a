"""One recording as a whole: which files it consists of, and their messages topic by topic."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from knonik_assets.sources.naming import natural_key
from knonik_assets.sources.ros.bag1 import MAGIC as BAG1_MAGIC
from knonik_assets.sources.ros.bag1 import Bag1
from knonik_assets.sources.ros.compression import temporary_folder, unzstd
from knonik_assets.sources.ros.files import Container, Found, Need
from knonik_assets.sources.ros.mcap import MAGIC as MCAP_MAGIC
from knonik_assets.sources.ros.mcap import Mcap
from knonik_assets.sources.ros.sqlite import Sqlite
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["METADATA", "BagRef", "Recording", "find_bags"]

METADATA = "metadata.yaml"
_ENDINGS = (".bag", ".mcap", ".db3")
_PACKED = tuple(f"{ending}.zstd" for ending in (".mcap", ".db3"))
_PART = re.compile(r"(.*?)_?(\d+)$")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}-\d{2}-\d{2}-\d{2}")
"""Of the moment when a part was begun, as ROS 1's recorder puts it into names."""
_LONGEST_METADATA = 1 << 24


@dataclass(frozen=True, slots=True)
class BagRef:
    """Where a recording is."""

    name: str
    """Its folder's name, or its file's without the ending."""
    path: Path
    """A file, or a folder that holds ``metadata.yaml`` or the files themselves."""
    limit: int | None = None
    """Frames to take at most."""


@dataclass(slots=True)
class _Metadata:
    """What ``metadata.yaml`` says."""

    files: list[str]
    counts: dict[str, int] = field(default_factory=dict)
    """Messages by topic."""
    distro: str | None = None


def is_bag_file(path: Path) -> bool:
    """Whether a file's name is that of a recording, compressed as a whole or not."""
    return path.name.endswith(_ENDINGS + _PACKED) and not path.name.startswith(".")


def _stem(path: Path) -> str:
    name = path.name.removesuffix(".zstd")
    return name[: name.rindex(".")]


def _bag_files(folder: Path) -> list[Path]:
    return sorted((path for path in folder.iterdir() if is_bag_file(path)), key=lambda path: natural_key(path.name))


def _parts_of_one(files: list[Path]) -> bool:
    """Whether names differ in a number at their end, and perhaps in a date before it."""
    matches = [_PART.match(_DATE.sub("", _stem(path))) for path in files]
    kinds = {path.name.removesuffix(".zstd").rsplit(".", 1)[-1] for path in files}
    same = {match[1] for match in matches if match is not None}
    numbers = {int(match[2]) for match in matches if match is not None}
    return len(kinds) == len(same) == 1 and len(numbers) == len(files)


def find_bags(root: Path, warnings: list[str]) -> list[BagRef]:
    """The recordings below a path: itself one, or one a folder, or one a file.

    Raises:
        SourceError: there is none.
    """
    if not root.exists():
        raise SourceError(f"{root}: there is no such file or folder.")
    if root.is_file():
        if not is_bag_file(root):
            raise SourceError(f"{root}: no ROS bag: its name ends with none of {', '.join(_ENDINGS)}.")
        return [BagRef(_stem(root), root)]
    if (root / METADATA).is_file():
        return [BagRef(root.resolve().name, root)]
    below = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    folders = [path for path in below if (path / METADATA).is_file() or _bag_files(path)]
    files = _bag_files(root)
    if folders:
        if files:
            warnings.append(
                f"{root}: {len(files)} bags lie beside its folders of bags ({files[0].name}); they are left alone"
            )
        return [BagRef(path.name, path) for path in sorted(folders, key=lambda path: natural_key(path.name))]
    if not files:
        raise SourceError(f"No ROS bags found at {root}: no .bag, .mcap or .db3 file, and no folder with one.")
    stems = [match[1] for path in files if (match := _PART.match(_stem(path)))]
    if any(_stem(path).endswith("_0") for path in files) and len(stems) > len(set(stems)):
        warnings.append(
            f"{root}: files like {files[0].name} may be parts of one recording whose metadata.yaml is missing; each is "
            "an episode of its own here. Put the parts of one recording into a folder of their own to have them joined"
        )
    return [BagRef(_stem(path), path) for path in files]


def _read_metadata(path: Path) -> _Metadata:
    try:
        if path.stat().st_size > _LONGEST_METADATA:
            raise EpisodeError(f"{path}: far too large for the metadata of a bag.")
        document = yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise EpisodeError(f"{path}: cannot be read ({error.strerror}).") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise EpisodeError(f"{path}: unreadable: {str(error).splitlines()[0]}.") from error
    about = document.get("rosbag2_bagfile_information") if isinstance(document, dict) else None
    if not isinstance(about, dict):
        raise EpisodeError(f"{path}: holds no rosbag2_bagfile_information; remove it to have the bag files read alone.")
    files = about.get("relative_file_paths")
    if not isinstance(files, list) or not all(isinstance(name, str) for name in files):
        raise EpisodeError(f"{path}: names no relative_file_paths; remove it to have the bag files read alone.")
    distro = about.get("ros_distro")
    return _Metadata([Path(name).name for name in files], _counts(about), distro if isinstance(distro, str) else None)


def _counts(about: dict[str, Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    topics = about.get("topics_with_message_count")
    for entry in topics if isinstance(topics, list) else ():
        topic = entry.get("topic_metadata") if isinstance(entry, dict) else None
        name = topic.get("name") if isinstance(topic, dict) else None
        if isinstance(name, str) and isinstance(entry.get("message_count"), int):
            counts[name] = counts.get(name, 0) + entry["message_count"]  # a topic of two types is listed twice
    return counts


class Recording:
    """An open recording. A context manager.

    Raises:
        EpisodeError: a file of it is missing or unreadable.
    """

    def __init__(self, ref: BagRef) -> None:
        self.ref = ref
        self.warnings: list[str] = []
        self.declared: dict[str, int] = {}
        """Messages by topic, as ``metadata.yaml`` counts them."""
        self.distro: str | None = None
        self.paths = self._find()
        self._containers: list[Container] = []
        self._folder: Path | None = None
        try:
            for path in self.paths:
                self._containers.append(self._open(path))
        except BaseException:
            self.close()
            raise

    @staticmethod
    def files(ref: BagRef) -> list[Path]:
        """The files of a recording, without opening them.

        Raises:
            EpisodeError: one is missing, or ``metadata.yaml`` cannot be understood.
        """
        bare = Recording.__new__(Recording)
        bare.ref, bare.warnings, bare.declared, bare.distro = ref, [], {}, None
        return bare._find()

    def _find(self) -> list[Path]:
        path = self.ref.path
        if path.is_file():
            return [path]
        if not (path / METADATA).is_file():
            files = _bag_files(path)
            if not files:
                raise EpisodeError(f"{path}: the folder holds no bag any more.")
            if len(files) > 1:
                if not _parts_of_one(files):
                    raise EpisodeError(
                        f"{path}: holds {len(files)} bags ({files[0].name}, {files[1].name}, …) that don't look like "
                        "parts of one recording; to have each of them as an episode, name this folder as the input."
                    )
                self.warnings.append(
                    f"{path}: has no {METADATA}; its {len(files)} files are taken for the parts of one recording"
                )
            return files
        metadata = _read_metadata(path / METADATA)
        self.declared, self.distro = metadata.counts, metadata.distro
        found = list(dict.fromkeys(self._listed(path, name) for name in metadata.files))
        if len(found) < len(metadata.files):
            self.warnings.append(f"{path}: {METADATA} lists a file twice; it is read once")
        if not found:
            raise EpisodeError(f"{path / METADATA}: lists no file.")
        spare = sorted({one.name for one in _bag_files(path)} - {one.name for one in found})
        spare = [name for name in spare if name.removesuffix(".zstd") not in {one.name for one in found}]
        if spare:
            self.warnings.append(f"{path}: {METADATA} doesn't list {', '.join(spare)}; left alone")
        return sorted(found, key=lambda one: natural_key(one.name))

    def _listed(self, folder: Path, name: str) -> Path:
        for spelt in (name, f"{name}.zstd", name.removesuffix(".zstd")):
            if is_bag_file(folder / spelt) and (folder / spelt).is_file():
                return folder / spelt
        raise EpisodeError(
            f"{folder}: {name}, which {METADATA} lists, is missing (a partial copy?); fetch it, or remove {METADATA} "
            "to have only the files read that are there."
        )

    def _open(self, path: Path) -> Container:
        plain = path
        if path.name.endswith(".zstd"):
            if self._folder is None:
                self._folder = temporary_folder(path, path.stat().st_size)
            plain = unzstd(path, self._folder / path.name.removesuffix(".zstd"))
        try:
            with plain.open("rb") as file:
                magic = file.read(16)
        except OSError as error:
            raise EpisodeError(f"{path}: cannot be read ({error.strerror}).") from error
        # What a file holds counts, not what it is called.
        if magic.startswith(MCAP_MAGIC):
            return Mcap(plain)
        if magic.startswith(BAG1_MAGIC[:8]):
            return Bag1(plain)
        if magic.startswith(b"SQLite format 3"):
            return Sqlite(plain)
        if plain.suffix == ".mcap":
            return Mcap(plain)
        return Bag1(plain) if plain.suffix == ".bag" else Sqlite(plain)

    def scan(self, need: Need) -> Iterator[tuple[int, Found]]:
        """Every message with the number of its file, file by file; times may go backwards from one to the next."""
        for number, container in enumerate(self._containers):
            for found in container.scan(need):
                yield number, found
        self.warnings += [warning for container in self._containers for warning in container.warnings]

    def read(self, file: int, block: int, offset: int, length: int) -> memoryview:
        """One message whole. Safe from several threads."""
        if not self._containers:
            raise EpisodeError(f"{self.ref.path}: the recording is closed.")
        return self._containers[file].read(block, offset, length)

    def close(self) -> None:
        """Let go of every file; idempotent."""
        containers, self._containers = self._containers, []
        for container in containers:
            container.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
