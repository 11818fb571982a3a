"""From the byte ranges that frames need to the reads that fetch them: near ones together, never too much at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["ReadRange", "coalesce"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReadRange:
    """One read, and which of the wanted ranges lie in it."""

    offset: int
    """First byte in the file."""
    length: int
    """Bytes."""
    members: IntArray
    """(m,) positions of the ranges it serves, in the order of their offsets."""

    @property
    def end(self) -> int:
        """The byte after the last."""
        return self.offset + self.length


def coalesce(
    offsets: IntArray, sizes: IntArray, *, max_gap: int, max_size: int, runs: IntArray | None = None
) -> list[ReadRange]:
    """Join ranges of one file whose gap costs less to read than a second request.

    Args:
        offsets: (n,) first bytes, in any order; ranges may repeat and overlap.
        sizes: (n,) bytes.
        runs: (n,) which ranges may have a gap between them: those of one number; others are joined where they touch.
            None: all may.
        max_gap: bytes between two ranges that are read for nothing rather than asked for separately.
        max_size: bytes that a joined read doesn't exceed; a range that is larger alone is one read.

    Returns:
        Reads in the order of their offsets; every range lies whole in exactly one of them.
    """
    if max_gap < 0 or max_size < 1:
        raise ValueError(f"max_gap is at least 0 and max_size at least 1, got {max_gap} and {max_size}")
    order = np.lexsort((sizes, offsets))
    starts, ends = offsets[order].tolist(), (offsets + sizes)[order].tolist()
    run = runs[order].tolist() if runs is not None else [0] * len(starts)
    result: list[ReadRange] = []
    first, reach = 0, ends[0] if ends else 0
    for at in range(1, len(starts)):
        # A range may end before an earlier one does, so gap and size count from the furthest end so far.
        joined = max(reach, ends[at])
        gap = max_gap if run[at] == run[at - 1] else 0
        if starts[at] - reach > gap or joined - starts[first] > max_size:
            result.append(ReadRange(starts[first], reach - starts[first], order[first:at]))
            first, joined = at, ends[at]
        reach = joined
    if starts:
        result.append(ReadRange(starts[first], reach - starts[first], order[first:]))
    return result
