"""Which arrays of one episode become streams: by the layout, or everything that is recognised."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from knonik_assets.configs.ingest import DepthEntry, ImageEntry, IngestConfig
from knonik_assets.sources.array_streams import Content, called_depth, classify, first_shape, float_scale, is_map
from knonik_assets.sources.arrays import Array, Tree
from knonik_assets.sources.base import StreamSpec
from knonik_assets.sources.images import picture_layout
from knonik_assets.sources.naming import check_streams, name_paths, nearest, safe_stream_name
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["CLOCK_NAMES", "Planned", "clock_array", "plan_streams"]

CLOCK_NAMES = ("timestamps", "timestamp", "frame_time", "time_stamp")
"""Datasets that are the episode's clock where the layout names none."""
_NEVER = frozenset({"next_obs", "compress_len"})
_CLOCKS = frozenset(CLOCK_NAMES)
_COLOUR = ("encoded", "picture")
_DEPTH = ("depth", "encoded_depth")
_DEMO = re.compile(r"(?:demo|demonstration|episode|ep|traj|trajectory)[_-]?\d+", re.IGNORECASE)
_STEP = re.compile(r"(?:step|timestep|frame|t)?[_-]?\d+(?:\.\d+)?", re.IGNORECASE)
_MOST_DEMOS, _MOST_STEPS = 1, 9
"""Groups that are called like demos or steps and hold the same; a robot may have numbered arms and cameras."""
_FEW = 16
Found = tuple[tuple[str, ...], Content, Array]


@dataclass(frozen=True, slots=True)
class Planned:
    """A stream and how to read it."""

    spec: StreamSpec
    path: tuple[str, ...]
    content: Content
    array: Array
    unit_m: float | None = None
    scale: float | None = None
    """What floats of a colour stream are multiplied by."""


def plan_streams(tree: Tree, config: IngestConfig, fps: float | None, where: str, warnings: list[str]) -> list[Planned]:
    """The streams of one episode.

    Args:
        tree: the episode's arrays.
        config: its layout decides; without images, depths and numeric in it, everything found is taken.
        fps: what the source itself says.
        where: file (and demo), for messages.
        warnings: added to.

    Raises:
        SourceError: the layout names what isn't there or is of another kind; or two streams share a name.
        EpisodeError: damaged, or without any stream.
    """
    layout = config.layout
    if layout.images is None and layout.depths is None and layout.numeric is None:
        planned = _everything(tree, where, warnings)
    else:
        planned = _by_layout(tree, config, where, warnings)
    planned = [_completed(one, config, fps, warnings) for one in planned]
    if not planned:
        raise EpisodeError(f"{where}: no stream was found in it.")
    if layout.numeric is None and all(one.spec.kind == "numeric" for one in planned):
        warnings.append(f"{where}: no pictures, only numbers (a raw simulator recording without observations?)")
    check_streams([one.spec for one in planned], where)
    return planned


def clock_array(tree: Tree, config: IngestConfig, where: str) -> tuple[tuple[str, ...], Array] | None:
    """The array of time stamps: the layout's, else one at the episode's root that is called so.

    Raises:
        SourceError: the layout names one that isn't there.
    """
    key = config.layout.timestamps
    if key is not None:
        found = tree.find(key)
        if found is None and _missing_is_error(config):
            raise SourceError(f"{where}: layout.timestamps is {key!r}, which isn't there; {_nearest(tree, key)}.")
        return found
    for name in CLOCK_NAMES:
        found = tree.find(name)
        if found is not None and _may_be_clock(found[1]):
            return found
    return None


def _may_be_clock(array: Array) -> bool:
    return bool(array.ndim and math.prod(array.shape[1:]) == 1 and array.dtype.kind in "iuf")


def _missing_is_error(config: IngestConfig) -> bool:
    return config.strict or config.dir_type in ("episodic", "npy_separate")


def _nearest(tree: Tree, key: str) -> str:
    return nearest(key, (".".join(path) for path, _ in tree.walk()))


def _by_layout(tree: Tree, config: IngestConfig, where: str, warnings: list[str]) -> list[Planned]:
    layout = config.layout
    wanted: list[tuple[str, str, ImageEntry]] = [
        *(("rgb", name, entry) for name, entry in (layout.images or {}).items()),
        *(("depth", name, entry) for name, entry in (layout.depths or {}).items()),
        *(("numeric", name, ImageEntry(key=key, fps=None)) for name, key in (layout.numeric or {}).items()),
    ]
    planned: list[Planned] = []
    for kind, name, entry in wanted:
        found = tree.find(entry.key)
        if found is None:
            block = {"rgb": "images", "depth": "depths", "numeric": "numeric"}[kind]
            text = f"{where}: layout.{block}.{name} names {entry.key!r}, which isn't there; "
            text += _nearest(tree, entry.key)
            if _missing_is_error(config):
                raise SourceError(text + ".")
            warnings.append(text)
            continue
        path, array = found
        content = _as(kind, classify(array, path), array, f"{where}: {entry.key}")
        spec = _spec(kind, safe_stream_name(name), path, content, fps=entry.fps)
        planned.append(Planned(spec, path, content, array, entry.unit_m if isinstance(entry, DepthEntry) else None))
    if not planned:
        raise SourceError(f"{where}: no stream of the layout is in it; {_nearest(tree, '')}.")
    return planned


def _as(kind: str, content: Content, array: Array, where: str) -> Content:
    """The content read the way the layout asks for, where it can be."""
    described = f"holds {array.dtype} of shape {array.shape}"
    if kind == "rgb":
        if content.kind in ("depth", "numeric") and array.dtype.kind == "f" and is_map(content.shape):
            return replace(content, kind="picture")  # grey floats: the layout knows better than the shape
        if content.kind not in _COLOUR:
            raise SourceError(f"{where} is listed as an image but {described}.")
    elif kind == "depth":
        if content.kind in ("picture", "numeric") and array.dtype.kind != "b" and is_map(content.shape):
            return replace(content, kind="depth")
        if content.kind not in (*_DEPTH, "encoded"):
            raise SourceError(f"{where} is listed as depth but {described}.")
    elif content.kind in ("encoded", "encoded_depth", "other") or (
        content.kind != "numeric" and len(content.shape) > 1 and max(content.shape) > 64
    ):
        raise SourceError(f"{where} is listed as numeric but {described}.")
    else:
        return replace(content, kind="numeric")
    return content


def _everything(tree: Tree, where: str, warnings: list[str]) -> list[Planned]:
    found: list[Found] = []
    unread: list[tuple[str, Array]] = []
    for path, array in tree.walk():
        if not _NEVER.isdisjoint(path) or (len(path) == 1 and path[0] in CLOCK_NAMES and _may_be_clock(array)):
            continue
        content = classify(array, path)
        if content.kind == "other" or not _CLOCKS.isdisjoint(path):
            unread.append((".".join(path), array))
        else:
            found.append((path, content, array))
    _refuse_parts(found, where)
    kept, left_out = _of_this_episode(found)
    if left_out:
        more = f", … ({len(left_out)} in all)" if len(left_out) > _FEW else ""
        listed = ", ".join(left_out[:_FEW]) + more
        warnings.append(f"{where}: left out, as their first axis isn't time: {listed}")
    lengths = {content.length for _, content, _ in kept}
    unread = [(name, array) for name, array in unread if array.shape and array.shape[0] in lengths]
    if unread:
        listed = ", ".join(f"{name} ({array.dtype} {array.shape})" for name, array in unread[:8])
        warnings.append(f"{where}: left out, neither pictures, depth, rows of numbers nor the clock: {listed}")
    warnings += _doubts(kept, where)
    names = name_paths([path for path, _, _ in kept])
    return [
        Planned(_spec(_kind(content), names[path], path, content), path, content, array)
        for path, content, array in kept
    ]


def _is_one_picture(content: Content, array: Array) -> bool:
    return (
        content.kind == "numeric"
        and array.dtype == np.uint8
        and array.ndim == 3
        and picture_layout(array.shape) is not None
    )


def _refuse_parts(found: list[Found], where: str) -> None:
    """Refuse what holds many demos, or a group for every step: its arrays would be taken for streams side by side.

    Numbered groups whose arrays are as long as one outside of them are things in the scene, or joints: no steps.

    Raises:
        EpisodeError: it does.
    """
    for pattern, most, what in (
        (_DEMO, _MOST_DEMOS, "many demos and not one; name their groups by demos (HDF5), or write a file for each"),
        (_STEP, _MOST_STEPS, "a group for every step; write an array over time for each stream"),
    ):
        alike: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
        over_time = {content.length for path, content, _ in found if not any(map(pattern.fullmatch, path[:-1]))}
        for path, content, _ in found:
            for place, part in enumerate(path[:-1]):
                if pattern.fullmatch(part) and (pattern is _DEMO or content.length not in over_time):
                    alike[path[:place], path[place + 1 :]] += 1
        for (before, behind), count in alike.most_common(1):
            if count > most:
                raise EpisodeError(
                    f"{where}: {count} groups like {'.'.join((*before, '*', *behind))}: it holds {what}."
                )


def _doubts(kept: list[Found], where: str) -> Iterator[str]:
    """What was taken for something that nothing calls so, in words."""
    maps = [".".join(path) for path, content, _ in kept if content.kind == "depth" and not called_depth(path)]
    if maps:
        yield (
            f"{where}: maps of one channel are taken as depth though nothing calls them so (list them in the layout if "
            f"they are not): {', '.join(maps[:8])}"
        )
    eight = [".".join(path) for path, content, _ in kept if content.kind in _COLOUR and called_depth(path[-1:])]
    if eight:
        yield (
            f"{where}: colour pictures, or encoded ones of 8 bits, stay pictures though they are called depth, as no "
            f"distance can be read from them: {', '.join(eight[:8])}"
        )
    labels = [".".join(path) for path, content, _ in kept if content.kind == "picture" and _holds_labels(path, content)]
    if labels:
        yield f"{where}: labels are encoded like pictures, and change where that is not exact: {', '.join(labels[:8])}"


def _holds_labels(path: tuple[str, ...], content: Content) -> bool:
    return is_map(content.shape) and any(word in path[-1].lower() for word in ("mask", "segm", "label"))


def _of_this_episode(
    found: list[Found],
) -> tuple[list[Found], list[str]]:
    """Separate streams from tables: numbers are about as long as most of what is there, pictures more than one."""
    # (H, W, 3) bytes are one picture rather than H rows of numbers, and say nothing of the episode's length
    single = {path for path, content, array in found if _is_one_picture(content, array)}
    lengths = Counter(content.length for path, content, _ in found if path not in single or len(single) == len(found))
    usual = max(lengths, key=lambda length: (lengths[length], length), default=0)
    kept, left_out = [], []
    for path, content, array in found:
        if content.kind == "numeric":
            of_it = content.length == usual if path in single else usual / 2 <= content.length <= usual * 2
        else:
            of_it = content.length != 1 or usual == 1  # one picture, of the goal say, beside an episode of many
        if of_it:
            kept.append((path, content, array))
        else:
            left_out.append(".".join(path))
    return kept, left_out


def _kind(content: Content) -> str:
    return "rgb" if content.kind in _COLOUR else "depth" if content.kind in _DEPTH else "numeric"


def _spec(kind: str, name: str, path: tuple[str, ...], content: Content, fps: float | None = None) -> StreamSpec:
    """A stream's description as far as it is known without reading a picture."""
    assert kind in ("rgb", "depth", "numeric")
    return StreamSpec(
        kind=kind,  # type: ignore[arg-type]
        name=name,
        source=".".join(path),
        length=content.length,
        shape=content.shape,
        fps=fps,
    )


def _completed(one: Planned, config: IngestConfig, fps: float | None, warnings: list[str]) -> Planned:
    """Fill in what needs a look into the data: picture size, encoding, the scale of floats."""
    array, where = one.array, one.array.where
    rate = one.spec.fps or config.fps or fps
    doubt = array.check_complete(numeric=one.spec.kind == "numeric")
    if doubt is not None:
        warnings.append(doubt)
    if one.spec.kind == "numeric":
        width = 1
        for side in one.content.shape:
            width *= side
        if len(one.content.shape) > 1:
            warnings.append(f"{where}: rows of shape {one.content.shape} are flattened to {width} numbers")
        return replace(one, spec=replace(one.spec, shape=(width,), fps=rate))
    height, width = first_shape(array, one.content)
    scale = None
    encoding = "raw"
    if one.content.kind == "depth" and array.dtype == np.uint8 and one.unit_m is None:
        warnings.append(f"{where}: depth of 8 bits is taken as millimetres, 255 at most; say unit_m if 1 means more")
    if one.spec.kind == "rgb":
        if one.content.kind == "picture":
            scale = float_scale(array)
            if scale == 1.0:
                warnings.append(f"{where}: floats above 1, taken as 0..255")
        elif config.orientation == "as_stored" and config.jpeg_channel_order == "rgb":
            encoding = one.content.format or "raw"
    shape = (height, width, 3) if one.spec.kind == "rgb" else (height, width)
    spec = replace(one.spec, shape=shape, fps=rate, encoding=encoding)  # type: ignore[arg-type]
    return replace(one, spec=spec, scale=scale)
