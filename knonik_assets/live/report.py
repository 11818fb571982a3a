"""What a live session did: ``OUT/ingest_report.json``."""

from __future__ import annotations

from pydantic import Field

from knonik_assets.ingesting.report import EpisodeOutcome, IngestReport

__all__ = ["LiveOutcome", "LiveReport"]


class LiveOutcome(EpisodeOutcome):
    """What became of one captured episode."""

    blocked_seconds: float = 0.0
    """How long the producer's calls waited, in all, because the encoders could not keep up."""
    longest_block_seconds: float = 0.0
    """The longest of these waits."""


class LiveReport(IngestReport):
    """A session of `knonik_assets.live.session.live_session`."""

    episodes: list[LiveOutcome] = Field(default_factory=list)  # type: ignore[assignment]
    """In the order of capture."""
    blocked_seconds: float = 0.0
    """How long the producer's calls waited in all episodes together."""
