"""What a producer declares before it pushes: streams and their facts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from knonik_assets.episodes.storing import check_name
from knonik_assets.episodes.stream_names import check_free, check_numeric
from knonik_loader.errors import ConfigError, EpisodeError

__all__ = ["Declarations", "Declared", "Kind", "Role", "declare_numeric", "declare_pictures"]

Kind = Literal["rgb", "depth", "numeric"]
Role = Literal["action", "state"]
_RATES = (0.01, 10_000.0)
_MOST_STREAMS = 256
_WIDEST = 1 << 20
_IN_WORDS = {"rgb": "colour", "depth": "depth", "numeric": "numeric"}


@dataclass(frozen=True, slots=True)
class Declared:
    """One stream."""

    kind: Kind
    name: str
    fps: float | None = None
    """Of pictures."""
    dim: int = 0
    """Numbers a row, of numeric streams."""
    role: Role | None = None
    channel_names: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        """The stream's key in batches."""
        return self.name if self.kind == "numeric" else f"{self.kind}_{self.name}"


def declare_pictures(kind: Literal["rgb", "depth"], name: str, fps: Any) -> Declared:  # noqa: ANN401 - is checked
    """A colour or depth stream.

    Raises:
        ConfigError: the rate is no number, or absurd.
        EpisodeError: the name is not usable.
    """
    _check_text(name, f"{_IN_WORDS[kind]} stream")
    if isinstance(fps, bool) or not isinstance(fps, Real) or not math.isfinite(fps):
        raise ConfigError(f"fps of {kind}_{name} is {fps!r}; it must be a number")
    fps = float(fps)
    if not _RATES[0] <= fps <= _RATES[1]:
        raise ConfigError(f"fps of {kind}_{name} is {fps:g}; between {_RATES[0]:g} and {_RATES[1]:g} are accepted")
    return Declared(kind, name, fps=fps)


def declare_numeric(
    name: str,
    dim: Any,  # noqa: ANN401 - is checked
    role: Role | None = None,
    channel_names: Sequence[str] | None = None,
) -> Declared:
    """A numeric stream.

    Raises:
        ConfigError: dim, role or channel names are not what they should be.
        EpisodeError: the name is not usable.
    """
    _check_text(name, "numeric stream")
    if isinstance(dim, bool) or not isinstance(dim, Integral) or int(dim) > _WIDEST:
        raise ConfigError(f"dim of {name} is {dim!r}; it must be a whole number of at most {_WIDEST}")
    if role not in (None, "action", "state"):
        raise ConfigError(f"role of {name} is {role!r}; it must be 'action' or 'state'")
    if isinstance(channel_names, str):
        raise ConfigError(f"channel_names of {name} must be a list of names, not the text {channel_names!r}")
    names = tuple(str(one) for one in channel_names) if channel_names is not None else None
    return Declared("numeric", name, dim=int(dim), role=role, channel_names=names)


def _check_text(name: Any, what: str) -> None:  # noqa: ANN401 - is checked
    if not isinstance(name, str):
        raise EpisodeError(f"{what} name {name!r} is not usable: it must be a text")
    check_name(name, what)


class Declarations:
    """The streams of an episode, or of all episodes to come, in the order in which they were declared.

    Args:
        base: what is declared already.
        owner: what has the streams, for messages.
    """

    def __init__(self, owner: str, base: Declarations | None = None) -> None:
        self.owner = owner
        self._streams: dict[str, Declared] = dict(base._streams) if base is not None else {}

    def __iter__(self) -> Iterator[Declared]:
        return iter(self._streams.values())

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, one: Declared) -> bool:
        """Declare one more; the same said again changes nothing.

        Returns:
            Whether it is new.

        Raises:
            EpisodeError: it collides with another, or claims a role that is taken.
        """
        if self._streams.get(one.key) == one:
            return False
        if one.key in self._streams:
            raise EpisodeError(f"stream {one.key!r} is registered already, as something else: {self._streams[one.key]}")
        if len(self._streams) >= _MOST_STREAMS:
            raise EpisodeError(f"{self.owner} has {_MOST_STREAMS} streams already, and no more are accepted")
        if one.kind == "numeric":
            roles = {other.role: other.name for other in self if other.role is not None}
            check_numeric(one.name, one.dim, one.role, one.channel_names, {str(k): v for k, v in roles.items()})
        check_free(one.key, self._streams, self.owner)
        self._streams[one.key] = one
        return True

    def find(self, kind: Kind, name: str) -> Declared:
        """A stream by its name.

        Raises:
            EpisodeError: there is none.
        """
        key = name if kind == "numeric" else f"{kind}_{name}"
        found = self._streams.get(key)
        if found is None or found.kind != kind:
            known = ", ".join(sorted(one.name for one in self if one.kind == kind)) or "none"
            raise EpisodeError(
                f"no {_IN_WORDS[kind]} stream {name!r} is registered in {self.owner}; registered: {known}"
            )
        return found
