"""What a run did: ``OUT/ingest_report.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from knonik_assets.configs.documents import write_json

__all__ = ["REPORT", "EpisodeOutcome", "IngestReport"]

REPORT = "ingest_report.json"

Status = Literal["written", "skipped", "failed", "empty", "discarded"]


class EpisodeOutcome(BaseModel):
    """What became of one episode."""

    model_config = ConfigDict(extra="forbid")

    episode_id: str
    source_id: str
    status: Status
    """``skipped``: unchanged since it was ingested; ``empty``: the source has no frame of it;
    ``discarded``: its live capture was aborted by the producer."""
    reason: str = ""
    """Why it failed or is empty."""
    frames: int = 0
    bytes: int = 0
    seconds: float = 0.0
    warnings: list[str] = Field(default_factory=list)
    details: str = ""
    """Traceback, where the error is one that nobody foresaw."""


class IngestReport(BaseModel):
    """A run of `knonik_assets.ingest.run`."""

    model_config = ConfigDict(extra="forbid")

    output: str
    source_format: str
    config_fingerprint: str
    episodes: list[EpisodeOutcome] = Field(default_factory=list)
    """In the order of the source."""
    pruned: list[str] = Field(default_factory=list)
    """Ids of episodes that had left the source and were removed."""
    not_reached: list[str] = Field(default_factory=list)
    """Ids of episodes that a run which stopped early did not get to."""
    warnings: list[str] = Field(default_factory=list)
    """About the dataset as a whole."""
    seconds: float = 0.0

    @property
    def written(self) -> list[EpisodeOutcome]:
        """Episodes that are new or replaced."""
        return self._with("written")

    @property
    def skipped(self) -> list[EpisodeOutcome]:
        """Episodes that were there already, unchanged."""
        return self._with("skipped")

    @property
    def failed(self) -> list[EpisodeOutcome]:
        """Episodes that could not be ingested, with the reason."""
        return self._with("failed")

    @property
    def empty(self) -> list[EpisodeOutcome]:
        """Episodes without a frame, with the reason."""
        return self._with("empty")

    @property
    def frames(self) -> int:
        """Frames written by this run."""
        return sum(outcome.frames for outcome in self.written)

    @property
    def bytes(self) -> int:
        """Bytes written by this run."""
        return sum(outcome.bytes for outcome in self.written)

    @property
    def ok(self) -> bool:
        """Whether nothing failed and everything was reached."""
        return not self.failed and not self.not_reached

    def _with(self, status: Status) -> list[EpisodeOutcome]:
        return [outcome for outcome in self.episodes if outcome.status == status]

    def write(self, out: Path) -> Path:
        """Write it to ``out / ingest_report.json``.

        Raises:
            StorageError: the disk refuses.
        """
        return write_json(out / REPORT, self.model_dump(mode="json"))
