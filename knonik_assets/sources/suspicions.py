"""What looks wrong in an episode that opens all the same: lengths, clocks, channels that never change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from knonik_assets.sources.base import EpisodeFacts, SourceEpisode, StreamSpec
from knonik_assets.sources.clocks import REGULAR, even_rate
from knonik_loader.errors import KnonikError

__all__ = ["suspicions"]

_GAP = 1.5
"""Usual steps of a clock behind which a frame is missing."""
_FEW = 8
_LEAST_ROWS = 8
"""Rows from which on two streams are compared."""
_FOLLOWS, _BESIDE, _MOVES = 0.2, 0.1, 0.005
"""Of a channel's range: how far it may stray from what it follows, the constant distance that is told, and the step
that is a movement."""


def suspicions(episode: SourceEpisode, name: str) -> Iterator[str]:
    """What a person should look at before the episode is ingested, in words; reads its numbers, no picture."""
    streams, facts = episode.streams, episode.facts
    if facts.nothing:
        yield f"{name}: {facts.nothing}"
    if len({spec.length for spec in streams}) > 1:
        uneven = ", ".join(f"{spec.name} {spec.length}" for spec in streams)
        yield f"{name}: streams differ in length and will be cut: {uneven}"
    if streams and all(spec.kind == "numeric" for spec in streams):
        yield "no pictures were found"
    yield from (f"{name}: {text}" for text in _clock(streams, facts))
    bound: dict[str, tuple[StreamSpec, npt.NDArray[np.float32]]] = {}
    for spec in streams:
        if spec.kind != "numeric":
            continue
        try:
            rows = episode.numeric(spec)
        except KnonikError as error:
            yield f"{name}: {spec.name}: {error}"
            continue
        yield from (f"{name}: {spec.name}: {text}" for text in _numbers(spec, rows))
        if spec.role is not None:
            bound[spec.role] = spec, rows
    if len(bound) == 2:
        yield from (f"{name}: {text}" for text in _offsets(*bound["action"], *bound["state"]))


def _clock(streams: Sequence[StreamSpec], facts: EpisodeFacts) -> Iterator[str]:
    times = facts.timestamps
    if times is None or len(times) < 3:
        return
    steps = np.diff(times)
    if not np.isfinite(times).all():
        yield f"{int((~np.isfinite(times)).sum())} time stamps are NaN or infinite"
        return
    if (back := np.flatnonzero(steps <= 0)).size:
        yield f"the clock stands still or goes backwards at {back.size} frames, first behind frame {back[0]}"
        return
    usual = float(np.median(steps))
    if (gaps := np.flatnonzero(steps > _GAP * usual)).size:
        longest = int(steps.argmax())
        yield (
            f"the clock has {gaps.size} gaps (frames lost while recording?), the longest of {steps[longest]:.3g} s "
            f"behind frame {longest}, where {usual:.3g} s is usual"
        )
    stated = next((spec.fps for spec in streams if spec.fps), None)
    shown = even_rate(times) or 1 / usual
    if stated and abs(shown / stated - 1) > REGULAR:
        yield f"the data says {stated:g} frames a second, its clock shows {shown:.4g}"
    if usual / 2 < times[0] < 60:
        yield f"the clock starts at {times[0]:.4g} s, not at 0"


def _numbers(spec: StreamSpec, rows: npt.NDArray[np.float32]) -> Iterator[str]:
    """About one numeric stream; vectors only, as flags and rewards rightly stay the same for long."""
    if not np.isfinite(rows).all():
        yield f"{int((~np.isfinite(rows)).any(1).sum())} of {len(rows)} rows hold NaN or infinity"
    if rows.shape[1] > 1 and len(rows) > 2:
        constant = np.flatnonzero((rows == rows[:1]).all(0))
        if constant.size == rows.shape[1]:
            yield "never changes"
        elif constant.size:
            yield f"{_channels(spec, constant)} never change{'s' if constant.size == 1 else ''}"


def _offsets(
    action: StreamSpec, commanded: npt.NDArray[np.float32], state: StreamSpec, measured: npt.NDArray[np.float32]
) -> Iterator[str]:
    """Channels that follow what they are told, but always so far beside it: leader and follower zeroed differently."""
    rows = min(len(commanded), len(measured))
    if commanded.shape[1] != measured.shape[1] or rows < _LEAST_ROWS:
        return
    told, seen = commanded[:rows].astype(np.float64), measured[:rows].astype(np.float64)
    usable = np.isfinite(told).all(0) & np.isfinite(seen).all(0)
    told, seen = np.where(usable, told, 0), np.where(usable, seen, 0)
    apart, moves = told - seen, np.gradient(seen, axis=0)  # (T, D)
    span = np.ptp(seen, axis=0)
    follows = (span > 1e-6) & (apart.std(0) < _FOLLOWS * span) & (np.abs(np.ptp(told, axis=0) - span) < span / 2)
    for channel in np.flatnonzero(follows)[:_FEW]:
        # a lag shows as a distance too, but of another sign on the way back; so does a gripper that cannot close
        ways = [apart[sign * moves[:, channel] > _MOVES * span[channel], channel] for sign in (1, -1)]
        if min(map(len, ways)) < _LEAST_ROWS:
            continue
        low, high = sorted((float(ways[0].mean()), float(ways[1].mean())), key=abs)
        if low * high > 0 and abs(low) > _BESIDE * span[channel]:
            yield (
                f"{action.name} lies {(low + high) / 2:+.3g} beside {state.name}, there and back, in "
                f"{_channels(state, channel[None])} ({abs(low + high) / 2 / span[channel]:.0%} of its range): are "
                "leader and follower zeroed alike?"
            )


def _channels(spec: StreamSpec, which: npt.NDArray[np.intp]) -> str:
    names = spec.channel_names
    shown = [names[place] if names and place < len(names) else str(place) for place in which[:_FEW]]
    more = f" and {which.size - _FEW} more" if which.size > _FEW else ""
    return f"channel{'' if which.size == 1 else 's'} {', '.join(shown)}{more}"
