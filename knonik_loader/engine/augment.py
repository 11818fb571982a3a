"""The user's function on every sample: where it runs, and what its mistakes look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from knonik_loader.engine.caught import Caught
from knonik_loader.errors import ConfigError

__all__ = ["AugmentFn", "RemoteError", "augment_sample"]

AugmentFn = Callable[[dict[str, Any]], Mapping[str, Any]]


class RemoteError(Exception):
    """What went wrong in a worker process, in words; never seen but as the cause of an error of the loader."""


def augment_sample(function: AugmentFn, sample: dict[str, Any], step: int, position: int) -> Mapping[str, Any]:
    """Call the user's function with one sample and check what it returns.

    Raises:
        ConfigError: the function raised, or returned no sample; the message names the sample, the cause is chained.
    """
    where = (
        f"augment_fn, batch {step}, sample {position} (episode {sample['episode_id']!r}, frame {sample['frame_index']})"
    )
    result: object = None
    with Caught() as caught:
        result = function(sample)
    error = caught.error
    if error is not None:
        if not isinstance(error, Exception):
            raise error  # Ctrl-C and the like
        # Wrapped whatever it is: a StopIteration of the user's would otherwise end the epoch in silence.
        said = str(error) if isinstance(error, RemoteError) else f"{type(error).__name__}: {error}"
        try:
            raise ConfigError(f"{where}: {said}") from error
        finally:
            caught.error = error = None  # else this frame and the error's trace hold each other
    if not isinstance(result, Mapping) or not isinstance(result.get("streams"), Mapping) or not result["streams"]:
        raise ConfigError(f"{where}: returned {_describe(result)}; return the sample, a dict with its 'streams'.")
    if not isinstance(result.get("valid_masks", {}), Mapping):
        masks = type(result["valid_masks"]).__name__
        raise ConfigError(f"{where}: returned a {masks} as 'valid_masks'; return those of the sample, or none.")
    return result


def _describe(result: object) -> str:
    if isinstance(result, Mapping):
        return f"a mapping with keys {', '.join(map(str, result)) or 'none'}"
    return f"a {type(result).__name__}"
