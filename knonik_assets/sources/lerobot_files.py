"""Which files of a LeRobot dataset are where: as its path templates say, or as their names do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from knonik_assets.sources.lerobot_meta import PATHS, Meta, index_of
from knonik_assets.sources.naming import natural_key
from knonik_loader.errors import SourceError

__all__ = ["check_key", "find_episode_file", "list_files", "signature", "spell"]


def signature(root: Path, patterns: Sequence[str]) -> str:
    """Names, sizes and times of change of what a process holds an index of: another one asks for a new index."""
    lines = []
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            try:
                stat = path.stat()
            except OSError:
                continue
            lines.append(f"{path} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(lines)


def list_files(root: Path, template: str, video_key: str = "") -> dict[tuple[int, int], Path]:
    """The files on disk that a path template can name, by (chunk, file), in that order.

    Raises:
        SourceError: the camera's own name leads out of the dataset.
    """
    check_key(root, video_key)
    pattern, glob = "", ""
    for part in re.split(r"(\{[^}]*\})", template):
        if part.startswith("{chunk_index"):
            pattern, glob = pattern + (r"(?P<chunk>\d+)" if "<chunk>" not in pattern else r"\d+"), glob + "*"
        elif part.startswith("{file_index"):
            pattern, glob = pattern + (r"(?P<file>\d+)" if "<file>" not in pattern else r"\d+"), glob + "*"
        else:
            text = video_key if part.startswith("{video_key") else part
            pattern, glob = pattern + re.escape(text), glob + _globbed(text)
    found: dict[tuple[int, int], Path] = {}
    for path in sorted(root.glob(glob), key=lambda path: natural_key(path.as_posix())):
        match = re.fullmatch(pattern, path.relative_to(root).as_posix())
        if match is not None and path.is_file():
            groups = match.groupdict()
            found.setdefault((int(groups.get("chunk") or 0), int(groups.get("file") or 0)), path)
    return dict(sorted(found.items()))


def check_key(root: Path, video_key: str) -> None:
    """Refuse a camera whose name is a way out of the dataset.

    Raises:
        SourceError: it is one.
    """
    if ".." in video_key.split("/") or video_key.startswith("/"):
        raise SourceError(f"{root}: the feature name {video_key!r} leads out of the dataset.")


def spell(meta: Meta, template: str, episode: int, video_key: str = "") -> str:
    """The name that a v2 path template gives an episode's file."""
    size = index_of(meta.info.get("chunks_size")) or 1000
    return template.format(episode_chunk=episode // size, episode_index=episode, video_key=video_key)


def find_episode_file(meta: Meta, episode: int, video_key: str = "") -> Path | None:
    """The data file of one episode in the v2 layout, or the video of one camera.

    It is where the template says, where LeRobot itself would put it, or elsewhere in the tree under the same name.

    Raises:
        SourceError: the camera's own name leads out of the dataset.
    """
    root = meta.root
    check_key(root, video_key)
    stated, default = (meta.video_path, PATHS[2][1]) if video_key else (meta.data_path, PATHS[2][0])
    for candidate in dict.fromkeys((stated, default)):
        path = root / spell(meta, candidate, episode, video_key)
        if path.is_file():
            return path
        pieces = re.split(r"(\{[^}]*\})", candidate)
        spelt = "".join(
            "*"
            if piece.startswith("{episode_") and place < len(pieces) - 2
            else _globbed(spell(meta, piece, episode, video_key))
            for place, piece in enumerate(pieces)
        )
        found = sorted(path for path in root.glob(spelt) if path.is_file())
        if found:
            return found[0]
    return None


def _globbed(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)
