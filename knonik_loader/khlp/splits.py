"""Which split an episode belongs to: a hash of its source's name, so that nobody moves when episodes are added."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fractions import Fraction

__all__ = ["split_of"]


def split_of(seed: int, source_id: str, fractions: Mapping[str, float]) -> str:
    """The split of one episode.

    Depends on nothing but the arguments, and not on the order in which the splits are given. Fractions hold for many
    episodes on average, not exactly for few.

    Args:
        seed: the seed of the split.
        source_id: the source's own name of the episode.
        fractions: split → share of the episodes; the shares are taken relative to their sum.

    Returns:
        A key of ``fractions``; ``""`` when there are none.
    """
    if not fractions:
        return ""
    digest = hashlib.sha256(f"split\0{seed}\0{source_id}".encode("utf-8", "surrogatepass")).digest()
    # Whole-number arithmetic: the same answer on every machine, also at the borders between two splits.
    place = Fraction(int.from_bytes(digest[:8], "big"), 1 << 64) * sum(map(Fraction, fractions.values()))
    name = ""
    for name in sorted(fractions):
        place -= Fraction(fractions[name])
        if place < 0:
            break
    return name
