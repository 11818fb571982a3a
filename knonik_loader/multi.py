"""The loader of a weighted mix of packed datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from knonik_loader import access
from knonik_loader.base import DataLoader
from knonik_loader.config import (
    MIX_WIDE,
    LoaderConfig,
    load_loader_config,
    load_stream_config,
    select_streams,
)
from knonik_loader.engine.dataset import PackedDataset, Source, open_dataset
from knonik_loader.engine.options import check_shard_size, reopened
from knonik_loader.engine.storage import open_storage
from knonik_loader.errors import ConfigError, KnonikError
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.plan.mix import MixedDataset, MixSampler
from knonik_loader.plan.mixing import exact_weights
from knonik_loader.validation import nearest, plain

__all__ = ["MultiShardedDataLoader"]

_BLOCKS = ("loader", "streams")


@dataclass(frozen=True, slots=True)
class _Part:
    """One dataset of the mix, opened."""

    name: str
    config: LoaderConfig
    dataset: PackedDataset
    streams: tuple[StreamInfo, ...]
    """What is loaded, in the order of the batch's streams; as this dataset stores it."""


class MultiShardedDataLoader(DataLoader):
    """Training batches that mix several packed datasets by weight.

    It is used as `ShardedDataLoader` is. Under ``multi_mix: per_batch`` every batch of every rank holds the weights to
    within one sample, and so does the run up to any batch; ``per_sample`` draws each sample's dataset independently. A
    dataset that is used up begins anew with another permutation. ``multi_epoch`` says when an epoch ends: ``longest``,
    when every dataset has been seen; ``shortest``, when the first one has; ``steps``, after ``max_steps`` batches. The
    batches of a mix are always whole: with ``drop_last`` an epoch ends before the batch in which the dataset that
    decides would begin anew, else with it.

    Args:
        datasets: (name, {"loader": keys of the dataset's own, "streams": its ``stream_cfg``}) of each dataset. What
            ``loader`` says wins over ``loader_cfg``.
        weights: of the datasets, in any unit; exact as decimal numbers.
        loader_cfg: keys that hold for all.

    Raises:
        ConfigError: a mistake in the configuration, or datasets whose streams don't go together.
        StorageError: a manifest or its index can't be read.
        FormatError: they are damaged.
        PlanError: a dataset has no sample as asked for, or an epoch has no batch.
        LoginRequired: an issuer is configured and there is no valid token.
    """

    def __init__(
        self,
        datasets: Sequence[tuple[str, Mapping[str, Any]]],
        weights: Sequence[float],
        loader_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        access.require("multidataloader")
        blocks, shares = _checked(datasets, weights)
        shared = {} if loader_cfg is None else loader_cfg
        if not isinstance(shared, Mapping):
            raise ConfigError(f"loader_cfg is a mapping of keys to values, got {type(shared).__name__}")
        for key in shared:
            if key not in LoaderConfig.model_fields:
                raise ConfigError(f"loader_cfg: unknown key {key!r}{nearest(str(key), LoaderConfig.model_fields)}")
        merged = {name: {**shared, **block["loader"]} for name, block in blocks.items()}
        _check_common({name: _loaded(name, cfg) for name, cfg in merged.items()})
        parts = [_open(name, merged[name], block["streams"]) for name, block in blocks.items()]
        self._parts, streams = _aligned(parts)
        plans = []
        for part, weight in zip(self._parts, exact_weights(shares), strict=True):
            with _naming(part.name):
                share = weight * part.config.batch_size
                plans.append(MixedDataset(part.name, part.dataset.index, streams, part.config, share))
        config = _common(self._parts, merged)
        arguments = (list(blocks.items()), list(shares), dict(shared))
        super().__init__("+".join(blocks), config, streams, MixSampler(plans, shares, config), arguments)

    def _open_sources(self) -> tuple[Source, ...]:
        return tuple(Source(part.name, reopened(part.config, part.dataset), part.streams) for part in self._parts)

    def _manifests(self) -> Mapping[str, tuple[str, str]]:
        return {f"manifest.{part.name}": (part.dataset.key, part.dataset.manifest.digest()) for part in self._parts}


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say which dataset a mistake is about."""
    try:
        yield
    except KnonikError as error:
        raise type(error)(f"dataset {name!r}: {error}") from error


def _checked(datasets: object, weights: object) -> tuple[dict[str, dict[str, Any]], list[Any]]:
    """Name → its blocks, and the weights; whatever was given."""
    if not isinstance(datasets, Sequence) or isinstance(datasets, str | bytes):
        raise ConfigError(f"datasets is a list of (name, blocks), got {type(datasets).__name__}")
    blocks: dict[str, dict[str, Any]] = {}
    for position, entry in enumerate(datasets):
        where = f"datasets[{position}]"
        pair = isinstance(entry, Sequence) and not isinstance(entry, str | bytes) and len(entry) == 2
        if not pair or not isinstance(entry[0], str) or not entry[0]:
            raise ConfigError(f'{where}: must be (name, {{"loader": {{…}}, "streams": {{…}}}}), got {entry!r}')
        name, given = entry
        if name in blocks:
            raise ConfigError(f"{where}: the name {name!r} is there twice; give each dataset of a mix its own")
        if not isinstance(given, Mapping):
            raise ConfigError(f"{where} ({name!r}): blocks are a mapping with 'loader' and 'streams', got {given!r}")
        for key, block in given.items():
            if key not in _BLOCKS:
                hint = nearest(str(key), _BLOCKS) or "; it takes 'loader' and 'streams'"
                raise ConfigError(f"{where} ({name!r}): unknown key {key!r}{hint}")
            if not isinstance(block, Mapping | None):
                raise ConfigError(f"{where} ({name!r}).{key}: must be a mapping, got {block!r}")
        blocks[name] = {key: dict(given.get(key) or {}) for key in _BLOCKS}
    if not blocks:
        raise ConfigError("datasets: a mix needs at least one dataset")
    shares = plain(weights)
    if not isinstance(shares, list) or len(shares) != len(blocks):
        got = f"{len(shares)} weights" if isinstance(shares, list) else repr(weights)
        raise ConfigError(f"weights: one for each of the {len(blocks)} datasets, got {got}")
    exact_weights(shares)
    return blocks, shares


def _loaded(name: str, cfg: Mapping[str, Any]) -> LoaderConfig:
    with _naming(name):
        return load_loader_config(cfg, mix=True)


def _check_common(configs: Mapping[str, LoaderConfig]) -> None:
    """Refuse datasets that differ in what a mix has once."""
    (first, reference), *others = configs.items()
    for key in MIX_WIDE:
        for name, config in others:
            one, other = getattr(reference, key), getattr(config, key)
            if one is not other and one != other:
                raise ConfigError(
                    f"{key} is of the whole mix, but it is {one!r} for {first!r} and {other!r} for {name!r}; put it "
                    "into loader_cfg, once"
                )


def _open(name: str, cfg: Mapping[str, Any], stream_cfg: Mapping[str, Any]) -> _Part:
    with _naming(name):
        config = load_loader_config(cfg, mix=True)
        dataset = open_dataset(open_storage(config.fs_type, config.fs_params), config.hlp_manifest)
        chosen = load_stream_config(stream_cfg, dataset.streams)
        known = [stream for stream in dataset.streams if not (config.zerocopy and chosen) or stream.key in chosen]
        config = load_loader_config(cfg, profile=dataset.manifest.storage_profile, streams=known, mix=True)
        streams = tuple(select_streams(config, chosen, dataset.streams))
        check_shard_size(config, dataset, streams)
    return _Part(name, config, dataset, streams)


def _aligned(parts: Sequence[_Part]) -> tuple[list[_Part], tuple[StreamInfo, ...]]:
    """The parts with their streams in one order, and the streams of the batch.

    Raises:
        ConfigError: a dataset lacks a stream, or has it in another shape.
    """
    first = parts[0]
    result = [first]
    for part in parts[1:]:
        own = {stream.key: stream for stream in part.streams}
        keys = {stream.key for stream in first.streams}
        for key in [key for key in own if key not in keys] + [key for key in keys if key not in own]:
            has, lacks = (part, first) if key in own else (first, part)
            raise ConfigError(
                f"stream {key!r} is in {has.name!r} but not in {lacks.name!r}; name the streams that both have in the "
                "'streams' of each dataset"
            )
        for stream in first.streams:
            other = own[stream.key]
            if (stream.kind, stream.shape, stream.dtype) != (other.kind, other.shape, other.dtype):
                raise ConfigError(
                    f"stream {stream.key!r} is {stream.dtype} {stream.shape} in {first.name!r} and {other.dtype} "
                    f"{other.shape} in {part.name!r}; a batch has one shape of each stream: leave it out"
                )
        streams = tuple(own[stream.key] for stream in first.streams)
        result.append(_Part(part.name, part.config, part.dataset, streams))
    return result, first.streams


def _common(parts: Sequence[_Part], merged: Mapping[str, Mapping[str, Any]]) -> LoaderConfig:
    """The configuration of the whole mix: what all datasets share, and masks where any of them has some."""
    config = parts[0].config
    common = config.model_copy(update={"pad_missing": any(part.config.pad_missing for part in parts)})
    given = {key for keys in merged.values() for key, value in keys.items() if value is not None}
    decided = {"drop_last", "multi_epoch"} if config.max_steps is not None and config.multi_epoch != "steps" else set()
    idle = [
        key
        for key in LoaderConfig.model_fields
        if key in given
        and (
            key in decided
            # A key has an effect where it has one for any of the datasets that it was given to.
            or all(key in part.config.inactive for part in parts if merged[part.name].get(key) is not None)
        )
    ]
    common._inactive = tuple(idle)
    return common
