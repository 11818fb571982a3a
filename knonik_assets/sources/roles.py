"""Which numeric streams are the action and the state, where the config or a stream's own name says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.base import StreamSpec

__all__ = ["Role", "with_roles"]

Role = Literal["action", "state"]

_NAMED: Mapping[Role, tuple[str, ...]] = {
    "action": ("action", "actions"),
    "state": (
        "state", "qpos", "proprio", "observations.qpos", "observations.state", "observations.proprio",
        "observation.qpos", "observation.state", "observation.proprio", "obs.qpos", "obs.state", "obs.proprio",
    ),
}  # fmt: skip
"""Places of an episode that mean a role in every format that has them. Robomimic's ``states`` is none of them: it is
the simulator's own, not what the robot measures."""


def with_roles(streams: Sequence[StreamSpec], config: IngestConfig, known: Mapping[str, Role]) -> list[StreamSpec]:
    """Streams with the roles that they play. The config's own names win, then what the format knows, then places.

    A stream that ``layout.numeric`` calls ``action`` or ``state`` is declared to be it. A role that several places
    could play is left open.

    Args:
        streams: of one episode.
        config: with its layout.
        known: place in the source → role, as the format knows it.
    """
    declared = config.layout.numeric or {}
    bound: dict[Role, StreamSpec] = {}
    numeric = [spec for spec in streams if spec.kind == "numeric"]
    for role in _NAMED:
        said = [spec for spec in numeric if spec.name == role and role in declared]
        format_ = [spec for spec in numeric if known.get(spec.source) == role]
        placed = [spec for spec in numeric if spec.source in _NAMED[role] and spec.source not in known]
        found = next((specs for specs in (said, format_, placed) if specs), [])
        if len(found) == 1:
            bound[role] = found[0]
    if bound.get("action") is bound.get("state"):  # a layout that calls one source's array by the other's name
        return list(streams)
    return [replace(spec, role=next((role for role, one in bound.items() if one is spec), None)) for spec in streams]
