"""Pictures for people: film strips of episodes and batches, plots of state and action."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.storage import Place
from knonik_assets.storage.files import Location
from knonik_loader.errors import DecodeError, FormatError, StorageError

if TYPE_CHECKING:
    from PIL import Image, ImageFont

__all__ = ["draw_strip", "episode_plot", "episode_strip", "markdown_image", "packed_strip", "png"]

_PAPER, _INK, _FAINT = (255, 255, 255), (33, 37, 41), (134, 142, 150)
_PAD = 4
_MOST_CHANNELS = 16


def draw_strip(
    rows: Mapping[str, Sequence[npt.NDArray[np.uint8]]],
    columns: Sequence[str],
    *,
    title: str = "",
    width: int = 160,
) -> Image.Image:
    """Lay pictures out as a film strip.

    Args:
        rows: label → (H, W, 3) uint8 pictures, one a column; a camera a row, usually.
        columns: what stands above each column.
        title: a line above everything.
        width: of one picture, in pixels; smaller ones are enlarged to it, larger ones shrunk.
    """
    from PIL import Image, ImageDraw

    font, small = _font(14), _font(11)
    margin = int(max((small.getlength(label) for label in rows), default=0)) + 3 * _PAD
    top = (24 if title else 0) + 20
    cells = {label: [_cell(picture, width) for picture in pictures] for label, pictures in rows.items()}
    heights = {label: max((cell.height for cell in row), default=0) for label, row in cells.items()}
    size = (
        margin + len(columns) * (width + _PAD) + _PAD,
        top + sum(height + _PAD for height in heights.values()) + _PAD,
    )
    sheet = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((_PAD * 2, _PAD), title, _INK, font)
    for index, text in enumerate(columns):
        draw.text((margin + index * (width + _PAD) + width // 2, top - 4), text, _FAINT, small, anchor="ms")
    y = top
    for label, row in cells.items():
        draw.text((margin - 2 * _PAD, y + heights[label] // 2), label, _INK, small, anchor="rm")
        for index, cell in enumerate(row):
            sheet.paste(cell, (margin + index * (width + _PAD), y))
        y += heights[label] + _PAD
    return sheet


def episode_strip(reader: EpisodeReader, *, frames: int = 8, width: int = 160) -> Image.Image | None:
    """A film strip of an episode, every camera a row; None for an episode without pictures.

    Raises:
        EpisodeError: a camera's file is damaged.
    """
    meta = reader.metadata
    if not reader.length or not (meta.rgb_streams or meta.depth_streams):
        return None
    ranks = [int(rank) for rank in np.unique(np.linspace(0, reader.length - 1, frames).astype(int))]
    times = reader.frame_time()
    rows = {name: [next(reader.rgb(name, rank, rank + 1)) for rank in ranks] for name in meta.rgb_streams}
    for name in meta.depth_streams:
        rows[f"{name} (depth)"] = _depth_pictures([next(reader.depth(name, rank, rank + 1)) for rank in ranks])
    told = reader.language()
    title = f"{reader.path.name}, {reader.length} frames" + (f": {told.instruction}" if told else "")
    return draw_strip(rows, [f"{rank}  ({times[rank] - times[0]:.2f} s)" for rank in ranks], title=title, width=width)


def packed_strip(manifest: Location, title: str, *, frames: int = 6, width: int = 160) -> Image.Image | None:
    """A film strip of moments all over a packed dataset, decoded from it; None where nothing can be seen.

    Args:
        manifest: of the dataset, at a path or URL.
        title: what stands above everything.
        frames: columns at most.
        width: of one picture, in pixels.
    """
    from knonik_assets.packing.album import PackedAlbum, moments
    from knonik_assets.packing.existing import read_manifest

    try:
        folder = Place.of(manifest, "manifest").parent
        album = PackedAlbum([folder / entry.uri for entry in read_manifest(manifest).hlps])
        chosen = moments(album, frames)
        seen = [album.pictures(moment) for moment in chosen]
    except (DecodeError, FormatError, StorageError):
        return None  # the checks say what is damaged
    rows: dict[str, list[npt.NDArray[np.uint8]]] = {}
    for key in seen[0] if seen else ():
        found = [pictures[key] for pictures in seen]
        rows[key] = _depth_pictures(found) if found[0].ndim == 2 else found
    columns = [f"{moment.episode[-16:]}  {moment.frame}" for moment in chosen]
    return draw_strip(rows, columns, title=title, width=width) if rows else None


def episode_plot(reader: EpisodeReader) -> bytes | None:
    """A PNG that shows every numeric stream of an episode over time; None for an episode without any.

    Raises:
        EpisodeError: a stream's files are damaged.
    """
    names = reader.metadata.numeric_streams
    if not names or not reader.length:
        return None
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # without pyplot: nothing global is made, so that several runs in one process don't disturb each other
    times = reader.frame_time()
    times = times - times[0]
    roles = {stream: role for role, stream in reader.metadata.stream_roles.items()}
    figure = Figure(figsize=(9, 1.2 + 1.5 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, name in zip(np.atleast_1d(figure.subplots(len(names), 1, sharex=True)), names, strict=True):
        rows = reader.numeric(name)  # (T, D)
        shown = min(rows.shape[1], _MOST_CHANNELS)
        colours = mpl.colormaps["viridis"](np.linspace(0, 0.9, shown))
        labels = reader.metadata.channel_names.get(name) or [str(channel) for channel in range(shown)]
        for channel in range(shown):
            axes.plot(times, rows[:, channel], color=colours[channel], linewidth=1.1, label=labels[channel])
        more = f" (first {shown} of {rows.shape[1]})" if shown < rows.shape[1] else ""
        role = f", {roles[name]}" if roles.get(name, name) != name else ""
        axes.set_title(f"{name}{role}{more}", fontsize=10, loc="left")
        axes.tick_params(labelsize=8, colors="#495057")
        axes.grid(visible=True, color="#e9ecef", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, ncols=2, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handlelength=1)
    axes.set_xlabel("seconds", fontsize=9)
    axes.set_xlim(0, max(float(times[-1]), 1e-3))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def png(image: Image.Image) -> bytes:
    """The PNG of a picture."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def markdown_image(data: bytes | Image.Image, alt: str) -> str:
    """Markdown that shows a picture wherever no file can be linked to.

    A PNG is taken as it is; a film strip becomes a JPEG, a tenth of the size in an event log that keeps it for ever.
    """
    kind = "png"
    if not isinstance(data, bytes):
        buffer = io.BytesIO()
        data.save(buffer, format="JPEG", quality=85)
        data, kind = buffer.getvalue(), "jpeg"
    return f"![{alt}](data:image/{kind};base64,{base64.b64encode(data).decode()})"


def _cell(picture: npt.NDArray[Any], width: int) -> Image.Image:
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(picture))
    height = max(1, round(image.height * width / image.width))
    # pixels of a tiny picture stay visible as squares
    method = Image.Resampling.NEAREST if image.width * 2 <= width else Image.Resampling.LANCZOS
    return image.resize((width, height), method)


def _depth_pictures(frames: Sequence[npt.NDArray[np.uint16]]) -> list[npt.NDArray[np.uint8]]:
    """Near is bright, far is dark, no reading is blue; one scale for all frames."""
    readings = np.concatenate([frame[frame > 0] for frame in frames])
    low, high = np.percentile(readings, (1, 99)) if readings.size else (0.0, 1.0)
    pictures = []
    for frame in frames:
        grey = 255 - 215 * np.clip((frame - low) / max(high - low, 1.0), 0, 1)
        colour = np.repeat(grey.astype(np.uint8)[..., None], 3, 2)
        colour[frame == 0] = (30, 40, 90)
        pictures.append(colour)
    return pictures


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size)
