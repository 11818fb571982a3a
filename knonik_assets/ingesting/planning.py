"""Which episodes are to be done, which are there already unchanged, which have left the source."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from knonik_assets.episodes.metadata import EpisodeMetadata, read_metadata
from knonik_assets.episodes.reader import list_episodes
from knonik_assets.episodes.storing import storage_errors, sync, workspaces
from knonik_assets.ingesting.fingerprints import FileDigests
from knonik_assets.ingesting.numbering import episode_name
from knonik_assets.sources.base import EpisodeRef, Source
from knonik_assets.sources.guarded import remote_source
from knonik_loader.errors import EpisodeError, KnonikError, StorageError

if TYPE_CHECKING:
    from knonik_assets.ingesting.output import Output

__all__ = ["Planned", "departed", "plan", "refuse_strangers", "remove"]


@dataclass(frozen=True, slots=True)
class Planned:
    """One episode of the source and what is to become of it."""

    ref: EpisodeRef
    episode_id: str
    unchanged: EpisodeMetadata | None
    """The episode in OUT, where it is whole and nothing changed since it was ingested: nothing is to be done."""
    fingerprint: str | None
    """Of the source's episode, where it had to be known for that."""
    error: KnonikError | None
    """Why it cannot even be looked at."""
    standing: EpisodeMetadata | None = None
    """The episode in OUT, whole and of this config, where only reading the source tells whether that changed."""


def plan(
    source: Source,
    refs: Sequence[EpisodeRef],
    output: Output,
    numbers: Mapping[str, int],
    config_fingerprint: str,
    digests: FileDigests,
) -> list[Planned]:
    """Compare every episode with what stands in OUT; only those that look done are read for their fingerprint.

    Those of a remote source are not: what nobody remembers of them, their workers find out.
    """
    planned = []
    remote = remote_source(source)
    for ref in refs:
        episode_id = episode_name(numbers[ref.source_id])
        there = output.whole(episode_id)
        fingerprint: str | None = None
        error: KnonikError | None = None
        if there is not None and (there.source_id, there.config_fingerprint) != (ref.source_id, config_fingerprint):
            there = None
        if remote is not None:
            fingerprint = remote.recall(ref)
            if fingerprint is None:
                planned.append(Planned(ref, episode_id, None, None, None, standing=there))
                continue
        if there is not None:
            try:
                fingerprint = fingerprint or source.fingerprint(ref, digests)
            except KnonikError as found:
                error = found
            except OSError as found:
                error = EpisodeError(f"{found.filename or ref.source_id}: {found.strerror or found}.")
            if fingerprint != there.source_fingerprint:
                there = None
        planned.append(Planned(ref, episode_id, there, fingerprint, error))
    return planned


def refuse_strangers(output: Output, numbers: Mapping[str, int], source_ids: Iterable[str]) -> None:
    """Leave alone what stands where an episode belongs and was not put there by an ingest.

    Raises:
        StorageError: something else is in the way.
    """
    for source_id in source_ids:
        episode_id = episode_name(numbers[source_id])
        said = output.stranger(episode_id)
        if said:
            raise StorageError(f"{output.where}/{episode_id} stands where {source_id} belongs and {said}")


def departed(out: Path, source_ids: Collection[str], numbers: Mapping[str, int]) -> list[str]:
    """Ids of the episodes in OUT that the source no longer has, in natural order.

    What was captured live came from no source, so none can have lost it.
    """
    names = {episode_name(number): source_id for source_id, number in numbers.items()}
    found = []
    for path in list_episodes(out):
        try:
            metadata = read_metadata(path)
            if metadata.source_format == "live":
                continue
            source_id = metadata.source_id
        except EpisodeError:
            if path.name not in names:
                continue  # nothing says that it ever was one
            source_id = names[path.name]
        if source_id not in source_ids:
            found.append(path.name)
    return found


def remove(out: Path, episode_id: str) -> None:
    """Take an episode out of OUT: first out of sight, then away.

    Raises:
        StorageError: the disk refuses.
    """
    aside = workspaces(out) / f"{episode_id}.pruned"
    with storage_errors("remove", out / episode_id):
        aside.parent.mkdir(parents=True, exist_ok=True)
        (out / episode_id).rename(aside)
        sync(out)
        shutil.rmtree(aside)
