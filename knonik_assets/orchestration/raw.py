"""Looks at raw recordings without touching them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from knonik_assets.configs.card import DatasetCard
from knonik_assets.configs.documents import write_whole
from knonik_assets.episodes.storing import storage_errors
from knonik_assets.storage import ObjectFolder
from knonik_loader.errors import EpisodeError, SourceError, StorageError

if TYPE_CHECKING:
    from knonik_assets.sources.base import EpisodeRef, Source
    from knonik_assets.sources.guarded import GuardedSource
    from knonik_assets.sources.remote.source import RemoteSource

__all__ = ["RawFacts", "observe"]

_SEEN = ".knonik/raw_seen.json"
"""Where, beside the episodes, the last look at a remote dataset is kept."""


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

    What lies in an object store is told by its listing; as long as that stays the same, nothing is downloaded again.

    Args:
        card: of the dataset.
        fingerprints: digest every episode too; unchanged files are remembered.

    Raises:
        ConfigError: the card asks for a reader that this version doesn't have.
        StorageError: an object store cannot be asked.
    """
    from knonik_assets.sources.guarded import open_guarded, remote_source

    with closing(open_guarded(card.ingest_config(), card.raw)) as source:
        remote = remote_source(source)
        if remote is not None:
            return _observe_remote(card, source, remote)
        facts = RawFacts()
        facts.files, facts.bytes = _measure(card.raw.path)
        try:
            refs = _listed(source, facts)
            if fingerprints:
                _fingerprint(card, source, refs, facts)
            _look_inside(source, refs, facts)
        except (SourceError, StorageError) as error:
            facts.problem = str(error)
        return _summed_up(facts)


def _listed(source: GuardedSource, facts: RawFacts) -> Sequence[EpisodeRef]:
    facts.source_format = source.format
    refs = source.episodes()
    facts.episodes = {ref.source_id: "" for ref in refs}
    facts.warnings = list(source.warnings)
    return refs


def _summed_up(facts: RawFacts) -> RawFacts:
    told = facts.problem or "\n".join(f"{name} {digest}" for name, digest in facts.episodes.items())
    facts.fingerprint = hashlib.sha256(told.encode()).hexdigest()
    return facts


def _observe_remote(card: DatasetCard, source: GuardedSource, remote: RemoteSource) -> RawFacts:
    facts = RawFacts(source_format=source.format)
    try:
        files, size = remote.facts
        key = _state(card, remote)
        before = _remembered(card)
        if before is not None and before[0] == key:
            return before[1]
        facts.files, facts.bytes = files, size
        refs = _listed(source, facts)
        facts.episodes = {ref.source_id: remote.version(ref) for ref in refs}
        known = before[1].episodes if before is not None else {}
        # one that is new has to be downloaded anyway
        refs = sorted(refs, key=lambda ref: known.get(ref.source_id) == facts.episodes[ref.source_id])
        _look_inside(source, refs, facts)
    except SourceError as error:
        facts.problem = str(error)
    _summed_up(facts)
    if not facts.problem:
        _remember(card, key, facts)
    return facts


def _state(card: DatasetCard, remote: RemoteSource) -> str:
    """Digest of the listing and of the config that it is read by."""
    config = card.ingest_config().model_dump_json()
    return hashlib.sha256(f"{remote.state}\n{config}".encode()).hexdigest()


def _remembered(card: DatasetCard) -> tuple[str, RawFacts] | None:
    """What an earlier look found, with its state; nothing where that is missing or damaged."""
    from knonik_assets.episodes.view import read_beside

    try:
        found = json.loads(read_beside(card.episodes, _SEEN) or b"{}")
        return str(found["state"]), RawFacts(**found["facts"])
    except (ValueError, TypeError, KeyError):
        return None


def _remember(card: DatasetCard, state: str, facts: RawFacts) -> None:
    data = json.dumps({"state": state, "facts": asdict(facts)}).encode()
    if card.episodes.is_remote:
        ObjectFolder(card.episodes).put_bytes(_SEEN, data)
        return
    path = card.episodes.path / _SEEN
    with storage_errors("create", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)


def _fingerprint(card: DatasetCard, source: Source, refs: Sequence[EpisodeRef], facts: RawFacts) -> None:
    from knonik_assets.ingesting.fingerprints import FileDigests

    store = None  # beside remote episodes a path of this machine means nothing
    if not card.episodes.is_remote:
        store = card.episodes.path / ".knonik" / "raw_digests.json"
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
