"""``stream_cfg``: which packed stream each stream of the batch is made from, and how it is changed on the way."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from knonik_loader.config_models import StreamOptions
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.manifest import StreamStats
from knonik_loader.khlp.types import StreamInfo, StreamKind
from knonik_loader.normalize import Scale, scale_of
from knonik_loader.validation import nearest, plain, validate

__all__ = ["LoadedStream", "bind_streams", "load_stream_config", "masked_streams", "resolve_stream"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_PICTURES = ("rgb", "depth")
_DTYPES = {
    "rgb": ("uint8", "float16", "float32", "float64"),
    "depth": ("float16", "float32", "float64"),
    "numeric": ("float16", "float32", "float64"),
}


@dataclass(frozen=True, slots=True)
class LoadedStream:
    """One stream of a batch, and what one dataset has for it."""

    batch: StreamInfo
    """As the batch has it: name, shape of a frame, dtype. ``()`` as shape: the dataset lacks it and doesn't say."""
    stored: StreamInfo | None
    """As the dataset stores it; None: the dataset lacks it."""
    resize: tuple[int, int] | None = None
    scale: Scale | None = None
    optional: bool = False
    method: str | None = None
    """Of ``normalize``, by name."""

    @property
    def key(self) -> str:
        """The stream's key in the batch."""
        return self.batch.key

    @property
    def made_of(self) -> str:
        """The stored stream and what is done to it, in words."""
        if self.stored is None:
            return "absent"
        parts = [f"{self.stored.key}, {self.batch.dtype} {list(self.batch.shape)}"]
        parts += [f"resized to {list(self.resize)}"] if self.resize else []
        parts += [f"normalized by {self.method}"] if self.method else []
        return ", ".join(parts)

    @property
    def changed(self) -> bool:
        """Whether frames differ from those that the codec decodes to."""
        stored = self.stored
        same = stored is not None and (stored.shape, stored.dtype) == (self.batch.shape, self.batch.dtype)
        return not same or self.scale is not None


def load_stream_config(stream_cfg: Mapping[str, Any], streams: Sequence[StreamInfo]) -> dict[str, StreamOptions]:
    """Check a ``stream_cfg``: batch key → options, in the order given; empty means every stream.

    Raises:
        ConfigError: an unknown stream or option, or a name that can't be the source's.
    """
    if not isinstance(stream_cfg, Mapping):
        raise ConfigError(f"stream_cfg is a mapping of streams to options, got {type(stream_cfg).__name__}")
    result: dict[str, StreamOptions] = {}
    for name, value in plain(stream_cfg).items():
        where = f"stream_cfg.{name}"
        if not isinstance(value, dict | None):
            raise ConfigError(f"{where}: options are a mapping, got {value!r}; {{}} takes the stream as it is")
        given = {key: option for key, option in (value or {}).items() if option is not None}
        options = validate(StreamOptions, given, where)
        stored = _stored(str(name), options, streams)
        key = _key_of(str(name), options, stored)
        if key in result:
            raise ConfigError(
                f"stream_cfg: {name!r} names the stream {key!r}, which is there already; keep one of them"
            )
        result[key] = options
    return result


def bind_streams(
    options: Mapping[str, StreamOptions], streams: Sequence[StreamInfo], stats: Mapping[str, StreamStats]
) -> list[LoadedStream]:
    """What a batch gets from one dataset, in the dataset's order; streams that it lacks come last.

    Args:
        options: of `load_stream_config`; empty takes every stream as it is.
        streams: of the dataset.
        stats: of the dataset's numeric streams.

    Raises:
        ConfigError: an option that the stream can't have.
    """
    if not options:
        return [LoadedStream(stream, stream) for stream in streams]
    bound = [_bind(key, chosen, streams, stats) for key, chosen in options.items()]
    last = len(streams)
    return sorted(bound, key=lambda stream: stream.stored.stream_id if stream.stored is not None else last)


def masked_streams(bound: Iterable[LoadedStream], pad_missing: bool) -> set[str]:
    """Streams whose masks are in a batch: all under ``pad_missing``, always those that a dataset may lack."""
    return {stream.key for stream in bound if pad_missing or stream.optional}


def resolve_stream(
    name: str, streams: Sequence[StreamInfo], *, where: str = "loader_cfg", kind: str | None = None
) -> str:
    """The batch key that a stream's name means; names come with or without their ``rgb_`` or ``depth_``.

    Args:
        name: as the user gave it.
        streams: of the dataset.
        where: the place it was given, for messages.
        kind: only streams of this kind are meant; None: any.

    Raises:
        ConfigError: no such stream, or several.
    """
    candidates = [stream for stream in streams if kind is None or stream.kind == kind]
    found = _named(name, candidates)
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{where}: {name!r} can mean {' or '.join(map(repr, found))}; write the one you mean")
    known = [stream.key for stream in candidates]
    what = f"{kind} stream" if kind else "stream"
    hint = nearest(name, known + [stream.name for stream in candidates])
    listed = ", ".join(known) or "none"
    raise ConfigError(f"{where}: the dataset has no {what} {name!r}{hint}; it has {listed}")


def _named(name: str, streams: Sequence[StreamInfo]) -> list[str]:
    exact = [stream.key for stream in streams if stream.key == name]
    return exact or [stream.key for stream in streams if stream.name == name]


def _stored(name: str, options: StreamOptions, streams: Sequence[StreamInfo]) -> StreamInfo | None:
    """The packed stream that an entry means; None where the dataset lacks it and may."""
    wanted = options.source or name
    if options.optional and not _named(wanted, streams):
        return None
    key = resolve_stream(wanted, streams, where=f"stream_cfg.{name}.source" if options.source else "stream_cfg")
    return next(stream for stream in streams if stream.key == key)


def _split(name: str) -> tuple[StreamKind | None, str]:
    """The kind that a key's prefix says, and the name without it."""
    for kind in ("rgb", "depth"):
        if name.startswith(f"{kind}_") and name != f"{kind}_":
            return ("rgb" if kind == "rgb" else "depth"), name.removeprefix(f"{kind}_")
    return None, name


def _key_of(name: str, options: StreamOptions, stored: StreamInfo | None) -> str:
    """The batch key of an entry."""
    if stored is not None and not options.source:
        return stored.key
    kind, bare = _split(name)
    if not _NAME.fullmatch(name) or name.endswith("_valid_mask"):
        raise ConfigError(
            f"stream_cfg: {name!r} can't be a stream's name: letters, digits, '_', '.' and '-', beginning with a "
            "letter or digit, and not ending in '_valid_mask'"
        )
    if stored is None:
        return name
    if kind is not None and kind != stored.kind:
        raise ConfigError(
            f"stream_cfg.{name}.source: {stored.key!r} is a {stored.kind} stream, whose name can't begin with "
            f"'{kind}_'; call it {bare!r}, or take a {kind} stream"
        )
    return name if stored.kind == "numeric" else f"{stored.kind}_{bare}"


def _bind(
    key: str, options: StreamOptions, streams: Sequence[StreamInfo], stats: Mapping[str, StreamStats]
) -> LoadedStream:
    stored = _stored(key, options, streams)
    prefix, bare = _split(key)
    kind: StreamKind = stored.kind if stored is not None else prefix or "numeric"
    name = bare if kind == prefix else key
    _check_kind(key, kind, options)
    dtype = options.dtype or ("uint8" if kind == "rgb" else "float32")
    shape = _shape(key, kind, options, stored)
    scale = _scale(key, options, stored, stats) if options.normalize else None
    if stored is None:
        info = StreamInfo(-1, kind, name, "", shape, dtype, 0.0)
    else:
        info = dataclasses.replace(stored, name=name, shape=shape, dtype=dtype)
    return LoadedStream(info, stored, options.resize, scale, options.optional, options.normalize if scale else None)


def _check_kind(key: str, kind: StreamKind, options: StreamOptions) -> None:
    """Refuse options that a kind of stream can't have."""
    where = f"stream_cfg.{key}"
    if kind in _PICTURES and options.normalize:
        change = "dtype='float32' gives values in [0, 1]" if kind == "rgb" else "leave it out"
        raise ConfigError(f"{where}.normalize: only numeric streams have statistics, this one is {kind}; {change}")
    if kind == "numeric" and options.resize:
        raise ConfigError(f"{where}.resize: is about pictures, and {key!r} is numeric; pad_to widens it")
    if options.dtype and options.dtype not in _DTYPES[kind]:
        allowed = ", ".join(map(repr, _DTYPES[kind]))
        raise ConfigError(f"{where}.dtype: {options.dtype!r} can't hold a {kind} stream; use {allowed}")
    if options.pad_to is not None and isinstance(options.pad_to, int) == (kind in _PICTURES):
        wanted = "[H, W] for pictures" if kind in _PICTURES else "a width for a numeric stream"
        raise ConfigError(f"{where}.pad_to: must be {wanted}, got {options.pad_to!r}")


def _shape(key: str, kind: StreamKind, options: StreamOptions, stored: StreamInfo | None) -> tuple[int, ...]:
    """Of a frame in the batch; empty where neither the dataset nor the options say."""
    given = options.pad_to
    pad: tuple[int, ...] | None = (given,) if isinstance(given, int) else given
    size: tuple[int, ...] = options.resize or ()
    if not size and stored is not None:
        size = stored.shape if kind == "numeric" else stored.shape[:2]
    if pad is not None and size and any(one < other for one, other in zip(pad, size, strict=True)):
        is_now = list(size) if kind in _PICTURES else size[0]
        least = "pad_to only adds" + (", resize makes pictures smaller" if kind in _PICTURES else "")
        raise ConfigError(f"stream_cfg.{key}.pad_to: {options.pad_to!r} is less than the stream has, {is_now}; {least}")
    shape = pad or size
    return (*shape, 3) if kind == "rgb" and shape else shape


def _scale(
    key: str, options: StreamOptions, stored: StreamInfo | None, stats: Mapping[str, StreamStats]
) -> Scale | None:
    if stored is None or options.normalize is None:
        return None
    found = stats.get(stored.key)
    if found is None:
        known = ", ".join(stats) or "none"
        raise ConfigError(
            f"stream_cfg.{key}.normalize: the manifest has no statistics of {stored.key!r} (it has: {known}); pack the "
            "dataset again, or leave it out"
        )
    return scale_of(found, options.normalize)
