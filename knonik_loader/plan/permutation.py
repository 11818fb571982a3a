"""A shuffle of [0, n) that is computed, not stored: any position of any epoch is reachable at once."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from knonik_loader.plan.hashing import derive_key, hash64, mix64

__all__ = ["MAX_LENGTH", "Permutation"]

IntArray = npt.NDArray[np.int64]

MAX_LENGTH = 1 << 40
_ROUNDS = 8
# Below this length a stored order is small (0.5 MB) and exactly uniform; a cipher over so few bits shows patterns.
_STORED = 1 << 16


class Permutation:
    """A bijection of [0, length) chosen by a key, in memory that doesn't grow with the length.

    Long ones are a Feistel network over the next power of two, whose outputs beyond the length are encrypted again
    until they fall inside: at most two rounds of it on average.

    Args:
        length: from 0 to 2**40.
        key: any integer; equal keys and lengths give equal permutations everywhere.
    """

    def __init__(self, length: int, key: int) -> None:
        if not 0 <= length <= MAX_LENGTH:
            raise ValueError(f"a permutation has a length from 0 to 2**40, got {length}")
        self.length = length
        self._key = derive_key("permutation", key)
        bits = max(2, (length - 1).bit_length()) if length else 2
        self._left_bits = np.uint64(bits // 2)
        self._right_bits = np.uint64(bits - bits // 2)
        self._left_mask = np.uint64((1 << (bits // 2)) - 1)
        self._right_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        self._round_keys = [np.uint64(derive_key(self._key, index)) for index in range(_ROUNDS)]

    def __repr__(self) -> str:
        return f"Permutation(length={self.length})"

    def __call__(self, positions: IntArray) -> IntArray:
        """(n,) positions in [0, length) → (n,) values in [0, length); IndexError beyond."""
        positions = np.asarray(positions, np.int64)
        if positions.size and not (positions.min() >= 0 and positions.max() < self.length):
            raise IndexError(f"positions of a permutation of {self.length} lie in [0, {self.length})")
        if self.length <= _STORED:
            return _stored_order(self.length, self._key)[positions]
        return self._walk(positions.astype(np.uint64)).astype(np.int64)

    def _walk(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        limit = np.uint64(self.length)
        result = self._encrypt(values)
        outside = np.flatnonzero(result >= limit)
        while outside.size:
            result[outside] = self._encrypt(result[outside])
            outside = outside[result[outside] >= limit]
        return result

    def _encrypt(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        # The halves may differ by a bit: alternate rounds change one half by a function of the other, each undoable.
        left, right = values >> self._right_bits, values & self._right_mask
        for index, key in enumerate(self._round_keys):
            if index % 2:
                right = right ^ (mix64(left + key) & self._right_mask)
            else:
                left = left ^ (mix64(right + key) & self._left_mask)
        return (left << self._right_bits) | right


@functools.lru_cache(maxsize=8)
def _stored_order(length: int, key: int) -> IntArray:
    order: IntArray = np.argsort(hash64(key, np.arange(length, dtype=np.int64)), kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order
