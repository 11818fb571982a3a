"""Keyed hashing: every random choice of a plan is a hash of what it is for, so that any of them can be made alone."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

__all__ = ["derive_key", "hash64", "mix64", "uniform_below"]

U64Array = npt.NDArray[np.uint64]


def derive_key(*parts: str | int) -> int:
    """A 64-bit key that depends on every part and on their order, the same in every process and on every machine."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix64(values: U64Array) -> U64Array:
    """A bijection of 64-bit words in which every input bit reaches every output bit (multiply and xor-shift)."""
    x: U64Array = values ^ (values >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = x ^ (x >> np.uint64(27))
    x = x * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def hash64(key: int, values: npt.NDArray[np.int64] | U64Array) -> U64Array:
    """(n,) integers → (n,) words that look random and differ with the key."""
    # The key goes in twice, with a mix between, so that neighbouring keys have unrelated sequences.
    words = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    result: U64Array = mix64(mix64(words) ^ np.uint64(key))
    return result


def uniform_below(key: int, values: npt.NDArray[np.int64], bound: int) -> npt.NDArray[np.int64]:
    """(n,) integers → (n,) numbers in [0, bound), uniform and independent; the bound is at most 2**32."""
    top = hash64(key, values) >> np.uint64(32)
    return ((top * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)
