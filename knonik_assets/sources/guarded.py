"""A reader whose surprises are errors in words: one strange file must not end a run over many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.base import EpisodeRef, FingerprintCache, Source, SourceEpisode
from knonik_assets.sources.registry import open_source
from knonik_assets.sources.remote.source import RemoteSource
from knonik_assets.storage import Place
from knonik_loader.errors import EpisodeError, KnonikError, SourceError

__all__ = ["GuardedSource", "open_guarded", "remote_source"]


class _Told:
    """Turns what the disk or a library raises inside of the block into one kind of error that says where."""

    def __init__(self, kind: type[KnonikError], where: str) -> None:
        self._kind, self._where = kind, where

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, KnonikError):
            raise self._kind(f"{error.filename or self._where}: {error.strerror or error}.") from error
        if isinstance(error, Exception) and not isinstance(error, KnonikError):
            text = " ".join(str(error).split())[:300]
            raise self._kind(f"{self._where}: unexpected {type(error).__name__}: {text}") from error


class GuardedSource:
    """See `open_guarded`."""

    def __init__(self, source: Source, root: str) -> None:
        self._source, self._root = source, root
        self.format = source.format
        self.warnings: list[str] = source.warnings

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`."""
        with _Told(SourceError, self._root):
            found = self._source.episodes()
            self.warnings = self._source.warnings
        return found

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`."""
        with _Told(EpisodeError, ref.source_id):
            return self._source.fingerprint(ref, cache)

    def open(self, ref: EpisodeRef) -> SourceEpisode:
        """See `Source.open`."""
        with _Told(EpisodeError, ref.source_id):
            return self._source.open(ref)

    @property
    def inner(self) -> Source:
        """The reader itself."""
        return self._source

    def look(self) -> Sequence[EpisodeRef]:
        """The episodes of a remote dataset as they are now, whatever is remembered; of a local one, as ever."""
        remote = remote_source(self)
        if remote is None:
            return self.episodes()
        with _Told(SourceError, self._root):
            found = remote.look()
        self.warnings = remote.warnings
        return found

    def close(self) -> None:
        """Let go of scratch space, where a dataset is staged there; idempotent."""
        remote = remote_source(self)
        if remote is not None:
            remote.close()


def remote_source(source: Source) -> RemoteSource | None:
    """The reader of a remote dataset, if that is what a source is."""
    inner = source.inner if isinstance(source, GuardedSource) else source
    return inner if isinstance(inner, RemoteSource) else None


def open_guarded(config: IngestConfig, root: str | Path | Place) -> GuardedSource:
    """The reader for a config, for a look at a dataset as a whole.

    What no reader expected of a file becomes a `SourceError` of the dataset or an `EpisodeError` of the episode, so
    that the others go on. Where an episode is read for good, the engine does so and keeps the traceback.

    Raises:
        ConfigError: see `open_source`.
    """
    return GuardedSource(open_source(config, root), str(root))
