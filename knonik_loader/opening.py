"""From what a user gives to opened datasets whose streams go together: one, or those of a mix."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from knonik_loader.config import LoaderConfig, load_loader_config, load_stream_config, select_streams
from knonik_loader.config_streams import LoadedStream, bind_streams
from knonik_loader.engine.dataset import PackedDataset, Source, open_dataset
from knonik_loader.engine.options import check_shard_size, reopened
from knonik_loader.engine.storage import open_storage
from knonik_loader.errors import ConfigError, KnonikError, reworded
from knonik_loader.khlp.types import StreamInfo

__all__ = ["Opened", "Part", "align", "finish", "naming", "open_one"]


@dataclass(frozen=True, slots=True)
class Opened:
    """One dataset, and what it has for a batch."""

    name: str | None
    """As batches call it; None: as its manifest does."""
    cfg: Mapping[str, Any]
    """Its ``loader_cfg``, all keys."""
    dataset: PackedDataset
    bound: list[LoadedStream]

    @property
    def title(self) -> str:
        """What batches call it."""
        return self.name if self.name is not None else self.dataset.manifest.dataset


@dataclass(frozen=True, slots=True)
class Part:
    """One dataset of a loader, ready to be planned and read."""

    name: str
    config: LoaderConfig
    dataset: PackedDataset
    bound: tuple[LoadedStream, ...]
    """In the order of the batch's streams."""

    @property
    def present(self) -> list[StreamInfo]:
        """Streams of the batch that the dataset has."""
        return [stream.batch for stream in self.bound if stream.stored is not None]

    @property
    def stored(self) -> list[StreamInfo]:
        """The same as the dataset stores them."""
        return [stream.stored for stream in self.bound if stream.stored is not None]

    def source(self) -> Source:
        """The dataset for an engine, over a storage of its own."""
        return Source.of(self.name, reopened(self.config, self.dataset), self.bound)


def open_one(name: str | None, cfg: Mapping[str, Any], stream_cfg: Mapping[str, Any], *, mix: bool = False) -> Opened:
    """Read a dataset's manifest and tables, and say what it has for each stream of its ``stream_cfg``.

    Raises:
        KnonikError: see the loaders.
    """
    with naming(name if mix else None):
        config = load_loader_config(cfg, mix=mix)
        dataset = open_dataset(open_storage(config.fs_type, config.fs_params), config.hlp_manifest)
        options = load_stream_config(stream_cfg, dataset.streams)
        return Opened(name, cfg, dataset, bind_streams(options, dataset.streams, dataset.manifest.stats))


def align(opened: Sequence[Opened]) -> tuple[list[Opened], list[StreamInfo]]:
    """Streams that any of the datasets has or may lack, by one name for all, in the first dataset's order.

    Returns:
        The datasets with names completed, and each stream as the first dataset that has it says.
    """
    having = [stream.batch for one in opened for stream in one.bound if stream.stored is not None]
    known = {stream.key for stream in having}
    result = []
    for one in opened:
        bound = []
        for stream in one.bound:
            # A bare name of a stream that is lacking here means the one that others have.
            named = [other for other in having if other.name == stream.key]
            if stream.stored is None and stream.key not in known and named:
                info = dataclasses.replace(stream.batch, kind=named[0].kind, name=named[0].name)
                stream = dataclasses.replace(stream, batch=info)
            bound.append(stream)
        result.append(dataclasses.replace(one, bound=bound))
    anywhere = [stream.batch for one in result for stream in one.bound]
    infos = {stream.key: stream for stream in (*reversed(anywhere), *reversed(having))}  # the last one stays
    keys = dict.fromkeys(stream.key for one in result for stream in one.bound)
    return result, [infos[key] for key in keys]


def finish(
    opened: Sequence[Opened], streams: Sequence[StreamInfo], *, mix: bool = False
) -> tuple[list[Part], list[StreamInfo]]:
    """Check all keys against the streams, choose those that are loaded, and line each dataset's up with them.

    Args:
        opened: of `align`.
        streams: of `align`.
        mix: whether the loader is one of a mix.

    Returns:
        The datasets, and the streams of the batch.

    Raises:
        ConfigError: a key that doesn't fit the streams, or datasets whose streams don't go together.
    """
    parts = []
    chosen: list[StreamInfo] = []
    for one in opened:
        with naming(one.name if mix else None):
            config = _configured(one, streams, mix=mix)
            chosen = select_streams(config, {}, streams)
        own = {stream.key: stream for stream in one.bound}
        bound = tuple(own.get(stream.key) or _lacking(stream, one, opened) for stream in chosen)
        parts.append(Part(one.title, config, one.dataset, bound))
    chosen = [_of_one_shape(stream, parts) for stream in chosen]
    for number, part in enumerate(parts):
        bound = tuple(
            loaded if loaded.stored is not None else dataclasses.replace(loaded, batch=stream)
            for loaded, stream in zip(part.bound, chosen, strict=True)
        )
        parts[number] = dataclasses.replace(part, bound=bound)
        with naming(part.name if mix else None):
            check_shard_size(part.config, part.dataset, tuple(part.stored))
    return parts, chosen


@contextmanager
def naming(name: str | None) -> Iterator[None]:
    """Say which dataset of a mix a mistake is about; None: there is but one."""
    try:
        yield
    except KnonikError as error:
        if name is None:
            raise
        raise reworded(error, f"dataset {name!r}: {error}") from error


def _configured(one: Opened, streams: Sequence[StreamInfo], *, mix: bool) -> LoaderConfig:
    """The dataset's configuration, with the names of streams resolved."""
    # What a dataset has but stream_cfg leaves out is known by name; under zerocopy only what is loaded needs shapes.
    used = {stream.key for stream in streams}
    zerocopy = load_loader_config(one.cfg, mix=mix).zerocopy
    rest = [] if zerocopy else [stream for stream in one.dataset.streams if stream.key not in used]
    profile = one.dataset.manifest.storage_profile
    return load_loader_config(one.cfg, profile=profile, streams=[*streams, *rest], mix=mix)


def _lacking(stream: StreamInfo, one: Opened, opened: Sequence[Opened]) -> LoadedStream:
    """A stream that only other datasets of a mix name.

    Raises:
        ConfigError: none of them calls it optional.
    """
    others = [(other, loaded) for other in opened for loaded in other.bound if loaded.key == stream.key]
    if any(loaded.optional for _, loaded in others):
        return LoadedStream(stream, None, optional=True)
    raise ConfigError(
        f"stream {stream.key!r} is in {others[0][0].title!r} but not in {one.title!r}; name the streams that both have "
        "in 'streams', map one with 'source', or say 'optional' of it"
    )


def _of_one_shape(stream: StreamInfo, parts: Sequence[Part]) -> StreamInfo:
    """The stream, which is equal in all datasets that have it.

    Raises:
        ConfigError: it isn't, or nobody says what its shape is.
    """
    having = [(part, loaded.batch) for part in parts for loaded in part.bound]
    having = [(part, info) for part, info in having if info.key == stream.key and info.stream_id >= 0]
    for part, info in having[1:]:
        first, reference = having[0]
        if (info.kind, info.shape, info.dtype) != (reference.kind, reference.shape, reference.dtype):
            raise ConfigError(
                f"stream {stream.key!r} is {_facts(reference)} in {first.name!r} and {_facts(info)} in {part.name!r}; "
                f"a batch has one: {_remedy(info, reference)}"
            )
    if not having and not stream.shape:
        needed = "pad_to (its width)" if stream.kind == "numeric" else "resize ([H, W])"
        raise ConfigError(
            f"stream_cfg.{stream.key}: it is optional and not there, and nothing says its shape; give {needed}, or "
            "leave the stream out"
        )
    return stream


def _facts(info: StreamInfo) -> str:
    return f"{info.kind} {info.dtype} {list(info.shape)}"


def _remedy(one: StreamInfo, other: StreamInfo) -> str:
    if one.kind != other.kind:
        return "map another stream to it with 'source'"
    if one.dtype != other.dtype:
        return "give both one 'dtype'"
    return "give both one 'pad_to'" if one.kind == "numeric" else "give both one 'resize'"
