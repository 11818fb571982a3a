"""Looks at raw recordings without touching them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from knonik_assets.configs.card import DatasetCard
from knonik_loader.errors import EpisodeError, SourceError, StorageError

if TYPE_CHECKING:
    from knonik_assets.sources.base import EpisodeRef, Source

__all__ = ["RawFacts", "observe"]


@dataclass
class RawFacts:
    """What is known about a raw dataset."""

    source_format: str = ""
    files: int = 0
    bytes: int = 0
    fingerprint: str = ""
    """Digest over every episode's name and content; of the problem where nothing can be read."""
    episodes: dict[str, str] = field(default_factory=dict)
    """Source id → digest of its content; the reason where it cannot be read."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Source id → why it has no fingerprint."""
    streams: list[dict[str, str]] = field(default_factory=list)
    """Streams that the layout finds in the first episode that opens."""
    problem: str = ""
    """Why the dataset as a whole cannot be read."""
    layout_problem: str = ""
    """What the layout names and the source lacks."""
    warnings: list[str] = field(default_factory=list)


def observe(card: DatasetCard, *, fingerprints: bool = True) -> RawFacts:
    """Look at a card's raw data: what it is, how much, and whether the layout fits.

    Args:
        card: of the dataset.
        fingerprints: digest every episode too; unchanged files are remembered.

    Raises:
        ConfigError: the card asks for a reader that this version doesn't have.
    """
    from knonik_assets.sources.guarded import open_guarded

    facts = RawFacts()
    facts.files, facts.bytes = _measure(card.raw)
    source = open_guarded(card.ingest_config(), card.raw)
    facts.source_format = source.format
    try:
        refs = source.episodes()
        facts.episodes = {ref.source_id: "" for ref in refs}
        facts.warnings = list(source.warnings)
        if fingerprints:
            _fingerprint(card, source, refs, facts)
        _look_inside(source, refs, facts)
    except (SourceError, StorageError) as error:
        facts.problem = str(error)
    told = facts.problem or "\n".join(f"{name} {digest}" for name, digest in facts.episodes.items())
    facts.fingerprint = hashlib.sha256(told.encode()).hexdigest()
    return facts


def _fingerprint(card: DatasetCard, source: Source, refs: Sequence[EpisodeRef], facts: RawFacts) -> None:
    from knonik_assets.ingesting.fingerprints import FileDigests

    store = card.episodes / ".knonik" / "raw_digests.json"
    store.parent.mkdir(parents=True, exist_ok=True)
    cache = FileDigests(store)
    for ref in refs:
        try:
            facts.episodes[ref.source_id] = source.fingerprint(ref, cache)
        except EpisodeError as error:
            facts.episodes[ref.source_id] = f"unreadable: {error}"
            facts.unreadable[ref.source_id] = str(error)
    cache.save()


def _look_inside(source: Source, refs: Sequence[EpisodeRef], facts: RawFacts) -> None:
    """Open the first episode that opens, to see whether the layout's names are there."""
    reasons = []
    for ref in refs:
        try:
            facts.streams = _streams(source, ref)
        except SourceError as error:
            facts.layout_problem = str(error)
            return
        except EpisodeError as error:
            reasons.append(str(error))
        else:
            return
    if reasons:
        facts.problem = f"no episode can be opened; the first: {reasons[0]}"


def _streams(source: Source, ref: EpisodeRef) -> list[dict[str, str]]:
    with source.open(ref) as episode:
        return [
            {
                "stream": spec.name,
                "kind": spec.kind,
                "source": spec.source,
                "shape": " x ".join(map(str, spec.shape)),
                "encoding": spec.encoding,
            }
            for spec in episode.streams
        ]


def _measure(root: Path) -> tuple[int, int]:
    """Files and their bytes."""
    if root.is_file():
        return 1, root.stat().st_size
    files = size = 0
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_file():
                files, size = files + 1, size + path.stat().st_size
    return files, size
