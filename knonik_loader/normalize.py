"""From statistics to scaled values and back: one rule for the loaders, the datasets and a policy's own outputs.

Every way of scaling is ``(value - centre) / scale`` for each channel:

    mean_std   centre: mean            scale: standard deviation
    min_max    centre: (min + max) / 2 scale: (max - min) / 2, so that values lie in [-1, 1]
    quantile   centre: (q01 + q99) / 2 scale: (q99 - q01) / 2; outliers lie beyond [-1, 1] and are not clipped

A channel whose scale is below `SMALLEST` (absolutely, or relative to its centre) is constant but for noise. Its scale
is 1: it comes out as 0 (or the noise), never as noise blown up, and goes back to where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import ConfigError
from knonik_loader.khlp.manifest import StreamStats
from knonik_loader.validation import nearest

__all__ = ["SMALLEST", "Normalization", "Normalize", "Scale", "Unnormalize", "scale_of"]

Normalization = Literal["mean_std", "min_max", "quantile"]
Float64 = npt.NDArray[np.float64]

SMALLEST = 1e-6
"""Scales below this, or below this share of the centre's size, belong to constant channels."""


@dataclass(frozen=True, slots=True)
class Scale:
    """``(value - centre) / scale`` for the channels of one stream."""

    centre: Float64
    """(D,)."""
    scale: Float64
    """(D,), never 0."""
    constant: npt.NDArray[np.bool_]
    """(D,) channels that hold one value but for noise; their scale is 1."""

    def normalize(self, values: Any) -> Any:  # noqa: ANN401 - array or tensor
        """(..., D) array or tensor → the same, scaled; floating types stay, others become float32."""
        values, centre, scale = self._alike(values)
        return (values - centre) / scale

    def unnormalize(self, values: Any) -> Any:  # noqa: ANN401 - array or tensor
        """(..., D) scaled array or tensor → the same in the stream's own unit."""
        values, centre, scale = self._alike(values)
        return values * scale + centre

    def _alike(self, values: Any) -> tuple[Any, Any, Any]:  # noqa: ANN401 - array or tensor
        """The values in a floating type, and centre and scale as arrays of the same kind, type and device."""
        if values.shape[-1:] != self.centre.shape:
            raise ConfigError(
                f"values of shape {tuple(values.shape)} do not fit statistics of {len(self.centre)} channels; the last "
                "axis holds the channels."
            )
        if isinstance(values, np.ndarray | np.generic):
            kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float32)
            return values.astype(kind, copy=False), self.centre.astype(kind), self.scale.astype(kind)
        if not values.is_floating_point():
            values = values.float()
        return values, values.new_tensor(self.centre.tolist()), values.new_tensor(self.scale.tolist())


def scale_of(stats: StreamStats, how: Normalization) -> Scale:
    """The scale that statistics give.

    Args:
        stats: of one numeric stream.
        how: see the module.

    Raises:
        ConfigError: another word for ``how``.
    """
    ends: Mapping[str, tuple[list[float], list[float]]] = {
        "min_max": (stats.min, stats.max),
        "quantile": (stats.q01, stats.q99),
    }
    if how == "mean_std":
        centre, scale = np.array(stats.mean, np.float64), np.array(stats.std, np.float64)
    elif how in ends:
        low, high = (np.array(values, np.float64) for values in ends[how])
        centre, scale = (low + high) / 2, (high - low) / 2
    else:
        known = ["mean_std", *ends]
        raise ConfigError(f"normalize: {how!r} is not one of {', '.join(known)}{nearest(str(how), known)}")
    constant = scale < SMALLEST * np.maximum(1.0, np.abs(centre))
    return Scale(centre, np.where(constant, 1.0, scale), constant)


class _Scaling:
    """Scales of several streams; a plain object that pickles, with no memory of the data."""

    def __init__(
        self, stats: Mapping[str, StreamStats], how: Normalization | Mapping[str, Normalization] = "mean_std"
    ) -> None:
        wanted = dict.fromkeys(stats, how) if isinstance(how, str) else dict(how)
        for key in wanted:
            if key not in stats:
                raise ConfigError(
                    f"{type(self).__name__}: there are no statistics of {key!r}{nearest(key, stats)}; there are of "
                    f"{', '.join(stats) or 'nothing'}."
                )
        self.scales = {key: scale_of(stats[key], mode) for key, mode in wanted.items()}

    def __repr__(self) -> str:
        streams = ", ".join(f"{key} ({len(scale.centre)})" for key, scale in self.scales.items())
        return f"{type(self).__name__}({streams})"

    def _apply(self, batch: Mapping[str, Any], change: Callable[[Scale, Any], Any]) -> dict[str, Any]:
        result = dict(batch)
        for key, scale in self.scales.items():
            if key not in batch:
                raise ConfigError(
                    f"{type(self).__name__}: the batch has no {key!r}{nearest(key, batch)}; name the streams to scale "
                    "in the second argument, {'action': 'mean_std'} for example."
                )
            result[key] = change(scale, batch[key])
        return result


class Normalize(_Scaling):
    """Scales numeric streams of a sample or batch.

    Args:
        stats: stream → statistics, as `normalization_stats` gives.
        how: one way for all streams of ``stats``, or stream → way; other streams stay as they are.

    Raises:
        ConfigError: a stream without statistics, or an unknown way.
    """

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A new mapping with the scaled streams; ConfigError where one of them is missing."""
        return self._apply(batch, Scale.normalize)


class Unnormalize(_Scaling):
    """The way back of `Normalize`, for whole batches, or for what a policy gave."""

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A new mapping with the streams in their own unit; ConfigError where one of them is missing."""
        return self._apply(batch, Scale.unnormalize)

    def stream(self, key: str, values: Any) -> Any:  # noqa: ANN401 - array or tensor
        """(..., D) scaled values of one stream, an action chunk for example, in the stream's own unit."""
        if key not in self.scales:
            raise ConfigError(f"Unnormalize: {key!r} is not scaled here{nearest(key, self.scales)}.")
        return self.scales[key].unnormalize(values)
