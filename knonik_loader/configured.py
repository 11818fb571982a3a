"""A loader from a block of a configuration file: Hydra's, OmegaConf's, or a plain mapping; and the shipped groups.

Hydra itself is not needed: a composed config is a mapping like any other. That matters because Hydra pins an ANTLR
runtime that Dagster's asset selection can't work with, so the two belong in different environments.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from knonik_loader.engine.caught import Caught
from knonik_loader.errors import ConfigError
from knonik_loader.sharded import ShardedDataLoader
from knonik_loader.validation import nearest, plain

__all__ = ["GROUPS", "from_config", "group"]

GROUPS = ("shdr", "kdelta", "kimg")
"""The shipped groups, by what a manifest's payload is called."""


def from_config(
    block: Mapping[str, Any] | str,
    *,
    stream_cfg: Mapping[str, Any] | None = None,
    dataset_name: str | None = None,
    **overrides: Any,  # noqa: ANN401 - any key of a loader_cfg
) -> ShardedDataLoader:
    """Build a loader from a block of a configuration file.

    Args:
        block: keys of a ``loader_cfg``, interpolations included where the mapping resolves them (as Hydra's and
            OmegaConf's do), or the name of a shipped group. ``decode_mode`` is ``random_access`` unless it says
            otherwise.
        stream_cfg: stream → options.
        dataset_name: what batches call the dataset.
        overrides: keys that are stronger than the block's, ``hlp_manifest`` for example.

    Returns:
        The loader.

    Raises:
        ConfigError: no such group, a value that can't be resolved, or a mistake in the configuration.
        KnonikError: the dataset can't be opened, see `ShardedDataLoader`.
    """
    if isinstance(block, str):
        block = group(block)
    if not isinstance(block, Mapping):
        raise ConfigError(f"from_config: a mapping of keys, or one of {', '.join(GROUPS)}; got {type(block).__name__}")
    values: dict[str, Any] = {}
    with Caught() as caught:
        values = {str(key): plain(value) for key, value in block.items()}
    if caught.error is not None:  # an interpolation without a target, in the words of whichever library resolves it
        if not isinstance(caught.error, Exception):
            raise caught.error
        raise ConfigError(f"from_config: the block can't be resolved: {caught.error}") from caught.error
    merged = {"decode_mode": "random_access"} | {key: value for key, value in values.items() if value is not None}
    for key, value in overrides.items():
        merged[key] = value
    for key in ("hlp_manifest", "chunk_len", "batch_size"):
        if merged.get(key) is None:
            raise ConfigError(
                f"from_config: {key} is neither in the block nor given as a keyword; name it in one of them"
            )
    return ShardedDataLoader(merged, stream_cfg, dataset_name)


def group(name: str) -> dict[str, Any]:
    """The keys of a shipped group, as Hydra composes them.

    Raises:
        ConfigError: no such group, or PyYAML is not installed.
    """
    if name not in GROUPS:
        raise ConfigError(
            f"from_config: there is no group {name!r}{nearest(name, GROUPS)}; there are {', '.join(GROUPS)}"
        )
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("the shipped groups are YAML; run pip install pyyaml, or give a mapping") from error
    keys: dict[str, Any] = {}
    folder = files("knonik_loader.conf") / "knonik"
    for file in ("shared", name):
        keys |= yaml.safe_load((folder / f"{file}.yaml").read_text(encoding="utf-8"))
    del keys["defaults"]
    return keys
