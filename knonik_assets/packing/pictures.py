"""Frames as PNG files: every camera of one moment side by side, or a sheet of moments from all over a dataset."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow
from PIL import ImageDraw, ImageFont

from knonik_assets.episodes.storing import storage_errors
from knonik_assets.packing.album import Album, Moment, find, moments
from knonik_assets.packing.album_remote import album_at
from knonik_loader.errors import ConfigError, DecodeError, EpisodeError, FormatError

__all__ = ["SHEET", "save_frames", "save_sheet"]

SHEET = "contact_sheet.png"

_WANTED = re.compile(r"(.+):([0-9]+)")
_COLUMNS, _WIDTH, _GAP, _TEXT = 6, 240, 4, 14
_PAPER, _INK, _RED = (24, 24, 24), (230, 230, 230), (255, 110, 110)

Image = npt.NDArray[np.uint8]


def save_frames(path: str | Path, frames: Sequence[str], out_dir: str | Path) -> list[Path]:
    """Save frames of a packed dataset, a KHLP file, episodes or raw data.

    Args:
        path: what `knonik_assets.packing.inspect.inspect_path` takes.
        frames: ``EP:N``, frame N of an episode, which is called by its name or its number.
        out_dir: where ``<episode>_<frame>.png`` goes; made if it isn't there.

    Returns:
        The files, in the order of ``frames``.

    Raises:
        ConfigError: a frame that is not there, or is not written ``EP:N``; or nothing to see in it.
        DecodeError: the frame is damaged.
    """
    if not frames:
        return []
    wanted = [(text, _WANTED.fullmatch(text)) for text in frames]
    for text, match in wanted:
        if match is None:
            raise ConfigError(
                f"--frames takes EP:N, an episode and a frame of it such as episode_000003:17, not {text!r}."
            )
    out = Path(out_dir).expanduser()
    with album_at(path) as album:
        return [_save_frame(album, match[1], int(match[2]), path, out) for _, match in wanted if match is not None]


def _save_frame(album: Album, episode: str, frame: int, path: str | Path, out: Path) -> Path:
    moment = find(album, episode, frame)
    pictures = [_visible(image) for image in album.pictures(moment).values()]
    if not pictures:
        raise ConfigError(f"{path} has no camera, so that there is no picture of {episode}:{frame}.")
    height = max(len(picture) for picture in pictures)
    padded = [np.pad(picture, ((0, height - len(picture)), (0, 0), (0, 0))) for picture in pictures]
    # a packed file may come from anywhere: its names must not lead out of the folder
    name = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', moment.episode)}_{moment.frame:06d}.png"
    return _save(Pillow.fromarray(np.concatenate(padded, axis=1)), out / name)


def save_sheet(path: str | Path, out_dir: str | Path) -> Path:
    """Save a contact sheet: a row a camera, a column a moment, moments spread evenly over all frames.

    Args:
        path: what `knonik_assets.packing.inspect.inspect_path` takes, an index excepted.
        out_dir: where `SHEET` goes; made if it isn't there.

    Raises:
        ConfigError: there is nothing to see.
    """
    with album_at(path) as album:
        columns = [(moment, _thumbnails(album.pictures, moment)) for moment in moments(album, _COLUMNS)]
    cameras = list(dict.fromkeys(name for _, found in columns if isinstance(found, dict) for name in found))
    if not cameras:
        damage = next((found for _, found in columns if isinstance(found, str)), "")
        raise ConfigError(f"{path} has no picture to show: {damage or 'it has no camera'}.")
    return _save(_sheet(columns, cameras), Path(out_dir).expanduser() / SHEET)


def _thumbnails(pictures: Any, moment: Moment) -> dict[str, Pillow.Image] | str:  # noqa: ANN401 - a bound method
    """Small pictures by camera; where they are damaged, the words for it."""
    try:
        found = pictures(moment)
    except (DecodeError, EpisodeError, FormatError) as error:
        return str(error)
    return {name: _small(_visible(image)) for name, image in found.items()}


def _small(image: Image) -> Pillow.Image:
    picture = Pillow.fromarray(image)
    width = min(_WIDTH, picture.width)
    height = max(1, round(picture.height * width / picture.width))
    return picture if width == picture.width else picture.resize((width, height), Pillow.Resampling.BOX)


def _sheet(columns: Sequence[tuple[Moment, dict[str, Pillow.Image] | str]], cameras: Sequence[str]) -> Pillow.Image:
    heights = {
        name: max(found[name].height for _, found in columns if isinstance(found, dict) and name in found)
        for name in cameras
    }
    head, line = 2 * (_TEXT + 2) + _GAP, _TEXT + 4
    size = (len(columns) * (_WIDTH + _GAP) + _GAP, head + sum(heights.values()) + len(cameras) * (line + _GAP))
    sheet = Pillow.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(_TEXT)
    for column, (moment, found) in enumerate(columns):
        x = _GAP + column * (_WIDTH + _GAP)
        draw.text((x, 2), _cut(moment.episode), _INK, font)
        draw.text((x, _TEXT + 4), f"frame {moment.frame}", _INK, font)
        y = head
        for name in cameras:
            if column == 0:
                draw.text((x, y), name, _INK, font)
            if isinstance(found, str):
                draw.text((x, y + line), "damaged", _RED, font)
            elif name in found:
                sheet.paste(found[name], (x, y + line))
            y += heights[name] + line + _GAP
    return sheet


def _cut(text: str, length: int = 30) -> str:
    return text if len(text) <= length else f"…{text[1 - length :]}"


def _visible(image: npt.NDArray[Any]) -> Image:
    """(H, W, 3) uint8; of depth, near is bright, and no reading is black."""
    if image.ndim == 3:
        return np.ascontiguousarray(image, np.uint8)
    depth = image.astype(np.float64)
    known = depth[depth > 0]
    near, far = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    grey = np.where(depth > 0, 255 - 200 * (depth - near) / max(far - near, 1e-9), 0)
    return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=2)


def _save(picture: Pillow.Image, path: Path) -> Path:
    with storage_errors("write to", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
    return path
