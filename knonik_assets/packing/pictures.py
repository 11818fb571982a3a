"""Single frames as PNG files: every camera of one moment side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.configs.validation import unknown
from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import EpisodeReader, list_episodes
from knonik_assets.episodes.storing import storage_errors
from knonik_assets.packing.existing import read_manifest
from knonik_assets.packing.stored import open_packed
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.manifest import MANIFEST_NAME

__all__ = ["save_frames"]

Image = npt.NDArray[np.uint8]
_WANTED = re.compile(r"(.+):([0-9]+)")


def save_frames(path: str | Path, frames: Sequence[str], out_dir: str | Path) -> list[Path]:
    """Save frames of a packed dataset, a KHLP file or episodes.

    Args:
        path: what `knonik_assets.packing.inspect.inspect_path` takes, raw data excepted.
        frames: ``EP:N``, frame N of an episode, which is called by its name or its number.
        out_dir: where ``<episode>_<frame>.png`` goes; made if it isn't there.

    Returns:
        The files, in the order of ``frames``.

    Raises:
        ConfigError: a frame that is not there, or is not written ``EP:N``; nothing to see in it, or raw data.
        DecodeError: the frame is damaged.
    """
    path, out = Path(path).expanduser(), Path(out_dir).expanduser()
    saved = []
    for text in frames:
        match = _WANTED.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"--frames takes EP:N, an episode and a frame of it such as episode_000003:17, not {text!r}."
            )
        name, pictures = _pictures(path, match[1], int(match[2]))
        if not pictures:
            raise ConfigError(f"{path} has no camera, so that there is no picture of {text}.")
        with storage_errors("write to", out):
            out.mkdir(parents=True, exist_ok=True)
            # a packed file may come from anywhere: its names must not lead out of the folder
            saved.append(out / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}_{int(match[2]):06d}.png")
            _save(pictures, saved[-1])
    return saved


def _pictures(path: Path, episode: str, frame: int) -> tuple[str, list[Image]]:
    """The episode's name and its cameras' pictures."""
    if path.is_file() and path.suffix == ".khlp":
        return _of_files([path], episode, frame)
    manifest = path if path.is_file() else path / MANIFEST_NAME
    if manifest.is_file() and manifest.name.startswith("hlp_manifest"):
        return _of_files([manifest.parent / entry.uri for entry in read_manifest(manifest).hlps], episode, frame)
    folders = [path] if (path / METADATA).is_file() else list_episodes(path) if path.is_dir() else []
    if not folders:
        raise ConfigError(f"{path} holds neither episodes nor packed files; frames are saved of these.")
    name = _find(episode, [folder.name for folder in folders])
    return name, _of_episode(EpisodeReader(next(folder for folder in folders if folder.name == name)), frame)


def _of_files(files: Sequence[Path], episode: str, frame: int) -> tuple[str, list[Image]]:
    lengths: dict[str, int] = {}
    places: dict[tuple[str, int], tuple[Path, int]] = {}
    for file in files:
        with open_packed(file) as packed:
            for number in range(packed.index.num_shards):
                shard = packed.index.shard(number)
                end = shard.first_frame + shard.frames
                lengths[shard.episode_id] = max(end, lengths.get(shard.episode_id, 0))
                if shard.first_frame <= frame < end:
                    places[shard.episode_id, frame] = (file, number)
    name = _find(episode, list(lengths))
    if (name, frame) not in places:
        raise ConfigError(f"frame {frame} of {name} is not there; what is ends before frame {lengths[name]}.")
    file, number = places[name, frame]
    with open_packed(file) as packed:
        row = frame - packed.index.shard(number).first_frame
        streams = [stream for stream in packed.index.streams if stream.kind != "numeric"]
        return name, [_visible(packed.frames(number, stream, [row])[row]) for stream in streams]


def _of_episode(reader: EpisodeReader, frame: int) -> list[Image]:
    if frame >= reader.length:
        raise ConfigError(f"frame {frame} of {reader.path.name} is not there; it has {reader.length}.")
    images: list[npt.NDArray[Any]] = [next(reader.rgb(name, frame, frame + 1)) for name in reader.metadata.rgb_streams]
    images += [next(reader.depth(name, frame, frame + 1)) for name in reader.metadata.depth_streams]
    return [_visible(image) for image in images]


def _find(episode: str, names: Sequence[str]) -> str:
    """An episode by its name, or by the number that its name ends in."""
    if episode in names:
        return episode
    if episode.isdigit():
        for name in names:
            digits = re.search(r"([0-9]+)$", name)
            if digits and int(digits[1]) == int(episode):
                return name
    raise ConfigError(f"--frames: {unknown(episode, names, 'episode')}")


def _visible(image: npt.NDArray[Any]) -> Image:
    """(H, W, 3) uint8; of depth, near is bright, and no reading is black."""
    if image.ndim == 3:
        return image.astype(np.uint8)
    depth = image.astype(np.float64)
    known = depth[depth > 0]
    near, far = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    grey = np.where(depth > 0, 255 - 200 * (depth - near) / max(far - near, 1e-9), 0)
    return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)


def _save(pictures: Sequence[Image], path: Path) -> None:
    from PIL import Image as Pillow

    height = max(len(picture) for picture in pictures)
    padded = [np.pad(picture, ((0, height - len(picture)), (0, 0), (0, 0))) for picture in pictures]
    Pillow.fromarray(np.concatenate(padded, axis=1)).save(path)
