"""Which streams an episode can have side by side: names, keys in batches, roles and channel names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from knonik_assets.episodes.metadata import METADATA
from knonik_loader.errors import EpisodeError

__all__ = ["CLOCK", "check_free", "check_numeric"]

CLOCK = "frame_time"
_RESERVED = frozenset({CLOCK, "annotations", METADATA})


def check_free(key: str, keys: Iterable[str], owner: str) -> None:
    """Refuse a stream whose key in batches, or whose files, another stream has already.

    Args:
        key: the stream's key: ``rgb_<name>``, ``depth_<name>`` or a numeric stream's name.
        keys: those that are there.
        owner: what has them, for the message.

    Raises:
        EpisodeError: it is taken.
    """
    taken = {found for name in keys for found in (name, f"{name}_time")}
    if key in taken or f"{key}_time" in taken:
        raise EpisodeError(f"stream {key!r} collides with a stream that {owner} has already: rename one")


def check_numeric(
    name: str, dim: int, role: str | None, channel_names: Sequence[str] | None, roles: Mapping[str, str]
) -> None:
    """Check what is said of a numeric stream.

    Args:
        name: the stream.
        dim: numbers a row.
        role: ``action``, ``state`` or None.
        channel_names: one a number, or None.
        roles: role → stream, of those that are taken.

    Raises:
        EpisodeError: the name is reserved, a role is taken, or the channel names don't fit.
    """
    is_file = name.startswith(("rgb_", "depth_")) and name.endswith((".webm", ".mkv", ".hdf5"))
    if name in _RESERVED or is_file:
        raise EpisodeError(f"a numeric stream cannot be called {name!r}, a name with a meaning here: rename it")
    if dim < 1:
        raise EpisodeError(f"stream {name!r}: {dim} numbers a row; at least 1 is needed")
    if channel_names is not None and len(channel_names) != dim:
        raise EpisodeError(f"stream {name!r}: {len(channel_names)} channel names for {dim} numbers a row")
    if role is not None and role in roles:
        raise EpisodeError(f"both {roles[role]!r} and {name!r} claim to be the {role}")
