"""Statistics of numeric streams: exact, in one pass, in a fraction of the data's memory."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from knonik_loader.khlp.manifest import StreamStats

__all__ = ["RunningStats"]

Float64 = npt.NDArray[np.float64]


class RunningStats:
    """Collects one stream's rows episode by episode, or part by part in several processes that are merged.

    Values that are not finite are left out and counted. Means and deviations (of the whole population, ddof 0) are
    merged episode by episode in float64. Quantiles are exact, linear between two neighbouring values: as the number of
    rows is known beforehand, only the lowest and the highest 1 % of each channel need to be kept.
    """

    def __init__(self, dim: int, rows: int) -> None:
        """Prepare for ``rows`` rows of ``dim`` channels."""
        self._prepared = rows
        keep = rows // 100 + 2
        self.rows = 0
        self.non_finite = np.zeros(dim, np.int64)
        self._count = np.zeros(dim, np.int64)
        self._mean = np.zeros(dim)
        self._m2 = np.zeros(dim)
        self._low = [_Extremes(keep, 1.0) for _ in range(dim)]
        self._high = [_Extremes(keep, -1.0) for _ in range(dim)]

    def add(self, rows: npt.NDArray[np.floating]) -> None:
        """Add an episode's (T, D) rows."""
        self.rows += len(rows)
        for channel in range(len(self._count)):
            column = rows[:, channel].astype(np.float64)
            finite = column[np.isfinite(column)]
            self.non_finite[channel] += len(column) - len(finite)
            if len(finite):
                mean = float(finite.mean())
                self._merge(channel, len(finite), mean, float(np.square(finite - mean).sum()))
                self._low[channel].add(finite)
                self._high[channel].add(finite)

    def merge(self, other: RunningStats) -> None:
        """Add what another one collected; both must be prepared for the rows of the whole.

        Raises:
            ValueError: they were prepared for different wholes, so that quantiles of the sum would be wrong.
        """
        if (self._prepared, len(self._count)) != (other._prepared, len(other._count)):
            raise ValueError(
                f"statistics prepared for {self._prepared} rows of {len(self._count)} channels and for "
                f"{other._prepared} rows of {len(other._count)} don't merge; prepare each for the rows of the whole"
            )
        self.rows += other.rows
        self.non_finite += other.non_finite
        for channel, count in enumerate(other._count.tolist()):
            if count:
                self._merge(channel, count, float(other._mean[channel]), float(other._m2[channel]))
                self._low[channel].merge(other._low[channel])
                self._high[channel].merge(other._high[channel])

    def _merge(self, channel: int, count: int, mean: float, m2: float) -> None:
        """Chan's formula: adds a block's mean and sum of squared deviations to those of the blocks before."""
        total = int(self._count[channel]) + count
        delta = mean - float(self._mean[channel])
        self._m2[channel] += m2 + delta * delta * self._count[channel] * count / total
        self._mean[channel] += delta * count / total
        self._count[channel] = total

    def result(self) -> StreamStats:
        """The statistics; a channel without any finite value is all zeros, and its ``non_finite`` says so."""
        counts = [int(count) for count in self._count]
        some = [max(count, 1) for count in counts]
        low = [extremes.sorted() if count else np.zeros(1) for extremes, count in zip(self._low, counts, strict=True)]
        high = [extremes.sorted() if count else np.zeros(1) for extremes, count in zip(self._high, counts, strict=True)]
        return StreamStats(
            count=self.rows,
            non_finite=[int(count) for count in self.non_finite],
            min=[float(values[0]) for values in low],
            max=[float(values[0]) for values in high],
            mean=[float(mean) for mean in self._mean],
            std=[math.sqrt(m2 / count) for m2, count in zip(self._m2, some, strict=True)],
            q01=[_quantile(values, count) for values, count in zip(low, some, strict=True)],
            q99=[_quantile(values, count) for values, count in zip(high, some, strict=True)],
        )


def _quantile(outermost: Float64, count: int) -> float:
    """The value 1 % of the way in from the end that ``outermost`` begins at, linear between two neighbours."""
    place = (count - 1) / 100
    below = int(place)
    above = min(below + 1, count - 1)
    return float(outermost[below] + (outermost[above] - outermost[below]) * (place - below))


class _Extremes:
    """The ``keep`` smallest (``sign`` 1) or largest (``sign`` -1) values seen."""

    def __init__(self, keep: int, sign: float) -> None:
        self._keep = keep
        self._sign = sign
        self._blocks: list[Float64] = []
        self._held = 0

    def add(self, values: Float64) -> None:
        self._blocks.append(self._cut(values * self._sign))
        self._held += len(self._blocks[-1])
        if self._held > 4 * self._keep + 4096:
            self._compact()

    def merge(self, other: _Extremes) -> None:
        self._blocks += other._blocks
        self._held += other._held
        self._compact()

    def _cut(self, values: Float64) -> Float64:
        return np.partition(values, self._keep - 1)[: self._keep] if len(values) > self._keep else values

    def _compact(self) -> None:
        self._blocks = [self._cut(np.concatenate(self._blocks))]
        self._held = len(self._blocks[0])

    def sorted(self) -> Float64:
        """From the outermost inwards."""
        self._compact()
        return np.sort(self._blocks[0]) * self._sign
