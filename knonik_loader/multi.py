"""The loader of a weighted mix of packed datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knonik_loader import access
from knonik_loader.base import DataLoader
from knonik_loader.config import MIX_WIDE, LoaderConfig, load_loader_config
from knonik_loader.errors import ConfigError
from knonik_loader.opening import Part, align, finish, naming, open_one
from knonik_loader.plan.mix import MixedDataset, MixSampler
from knonik_loader.plan.mixing import exact_weights
from knonik_loader.validation import nearest, plain

__all__ = ["MultiShardedDataLoader"]

_BLOCKS = ("loader", "streams")


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
        opened = [open_one(name, merged[name], block["streams"], mix=True) for name, block in blocks.items()]
        parts, streams = finish(*align(opened), mix=True)
        plans = []
        for part, weight in zip(parts, exact_weights(shares), strict=True):
            with naming(part.name):
                share = weight * part.config.batch_size
                plans.append(MixedDataset(part.name, part.dataset.index, part.present, part.config, share))
        config = _common(parts, merged)
        sampler = MixSampler(plans, shares, config)
        arguments = (list(blocks.items()), list(shares), dict(shared))
        super().__init__("+".join(blocks), config, parts, streams, sampler, arguments)


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
    with naming(name):
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


def _common(parts: Sequence[Part], merged: Mapping[str, Mapping[str, Any]]) -> LoaderConfig:
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
