"""A raw dataset in an object store as a `Source`: the readers of local files over staged copies."""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import av
import numpy as np
import numpy.typing as npt

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.base import EpisodeRef, FingerprintCache, Frame, Source, SourceEpisode, StreamSpec
from knonik_assets.sources.remote.listing import Listing, list_raw, state_of
from knonik_assets.sources.remote.memory import ObjectMemory
from knonik_assets.sources.remote.mirror import Mirror, OwnMirror
from knonik_assets.sources.remote.needs import Local, Names, needs_of
from knonik_assets.storage import ObjectInfo, Place, Room, Scratch
from knonik_loader.errors import EpisodeError, KnonikError, reworded

__all__ = ["Held", "RemoteSource", "forget_mirrors"]

Reader = Callable[[IngestConfig, Path], Source]

_kept: dict[tuple[str, str], OwnMirror] = {}
"""In a worker on another machine than the driver's: (URL, state of what episodes share) → mirror, one at most."""


def forget_mirrors() -> None:
    """Remove what a worker on another machine keeps from one episode to the next; it goes with the process, too."""
    while _kept:
        _kept.popitem()[1].close()


atexit.register(forget_mirrors)


@dataclass(frozen=True, slots=True)
class Held:
    """Locator of a remote episode: where a process on any machine finds it."""

    inner: EpisodeRef
    """The reader's own reference, into the mirror at ``base``."""
    base: str
    """The mirror of the process that listed the episodes."""
    root: str
    """Key of the dataset below it."""
    index: str
    """State of the objects that episodes share."""
    said: str
    """Digest of what those say of this episode."""
    own: tuple[ObjectInfo, ...]
    """Objects that this episode is read from, beside those."""
    staying: frozenset[str]
    """Keys of those that the listing needs as well."""

    @property
    def state(self) -> str:
        """Digest that changes when anything does that the episode is read from."""
        return hashlib.sha256(f"{self.said} {state_of(self.own)}".encode()).hexdigest()

    @property
    def passing(self) -> tuple[ObjectInfo, ...]:
        """Objects that are in scratch only while the episode is worked on."""
        return tuple(one for one in self.own if one.key not in self.staying)


class RemoteSource:
    """See the module. Not thread-safe; episodes that it opened are as those of its reader.

    Args:
        config: of the ingest.
        place: of the dataset.
        reader: of such datasets on local disks.
    """

    def __init__(self, config: IngestConfig, place: Place, reader: Reader) -> None:
        self.config = config
        self.place = place
        self.warnings: list[str] = []
        self.memory: ObjectMemory | None = None
        """Set by whoever keeps one; an unchanged dataset then costs a listing and nothing else."""
        self._reader = reader
        self.format = reader(config, Path("/") / place.name).format
        self._listing: Listing | None = None
        self._mirror: Mirror | None = None
        self._inner: Source | None = None
        self._staged: Held | None = None
        self._room: Room | None = None
        self._lent: Room | None = None
        self._keeping = False

    def episodes(self) -> Sequence[EpisodeRef]:
        """See `Source.episodes`. Those of an unchanged dataset come from memory, without locators: see `look`."""
        listing = self._listed()
        known = self.memory.order(listing.state) if self.memory is not None else ()
        if self.memory is not None and known:
            self.warnings = list(self.memory.warnings)
            return [EpisodeRef(name) for name in known]
        return self.look()

    def look(self) -> Sequence[EpisodeRef]:
        """The episodes as the reader finds them.

        Raises:
            SourceError: see `Source.episodes`; also where what episodes share doesn't fit into scratch.
        """
        listing = self._listed()
        mirror, inner = self._made()
        with self.told():
            refs = inner.episodes()
        self.warnings = [self._retold(text) for text in inner.warnings]
        own, local = mirror.needs.own, Local(mirror.base)
        said = mirror.needs.shared(mirror.base) if mirror.needs.shared is not None else None
        found = []
        for ref in refs:
            objects = mirror.objects(own(ref.locator, local, mirror.names)) if own is not None else ()
            held = Held(
                inner=ref,
                base=str(mirror.base),
                root=listing.root,
                index=mirror.index_state,
                said=said(ref.locator) if said is not None else mirror.index_state,
                own=objects,
                staying=mirror.index & {one.key for one in objects},
            )
            found.append(EpisodeRef(self._retold(ref.source_id), held))
        if self.memory is not None:
            self.memory.found(listing.state, [ref.source_id for ref in found], self.warnings)
        return found

    @property
    def facts(self) -> tuple[int, int]:
        """Objects of the dataset, and their bytes."""
        listing = self._listed()
        return len(listing.objects), listing.bytes

    @property
    def state(self) -> str:
        """Digest of the dataset's listing."""
        return self._listed().state

    def recall(self, ref: EpisodeRef) -> str | None:
        """An episode's fingerprint as far as it is known without reading the episode."""
        if self.memory is None:
            return None
        state = ref.locator.state if ref.locator is not None else self.memory.state(ref.source_id)
        return self.memory.fingerprint(ref.source_id, state)

    def version(self, ref: EpisodeRef) -> str:
        """State of an episode's objects: changes whenever its content does, and is known from the listing."""
        if ref.locator is None:
            return self.memory.state(ref.source_id) if self.memory is not None else ""
        state: str = ref.locator.state
        return state

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """See `Source.fingerprint`: of the content, so that it is the same as for a local copy."""
        del cache  # remembers paths, which in scratch mean nothing
        found = self.recall(ref)
        if found is None:
            inner, moved = self._stage(ref.locator)
            with self.told():
                found = inner.fingerprint(moved, _Digests())
        return found

    def open(self, ref: EpisodeRef) -> SourceEpisode:
        """See `Source.open`. The episode's objects leave scratch when it is closed."""
        inner, moved = self._stage(ref.locator)
        with self.told():
            return _RemoteEpisode(inner.open(moved), self)

    def needed(self, ref: EpisodeRef) -> int:
        """Bytes of scratch space that the episode takes while it is worked on."""
        held: Held = ref.locator
        return sum(one.size for one in held.passing)

    def lend(self, room: Room) -> None:
        """Stage within a room that the caller took, of `needed` bytes at least, rather than in one of its own."""
        self._lent = room

    def release(self) -> None:
        """Take the objects of the episode that was read last out of scratch."""
        held, self._staged = self._staged, None
        if held is not None and self._mirror is not None and not self._keeping:
            self._mirror.release(held.passing)
        room, self._room = self._room, None
        if room is not None:
            room.__exit__(None, None, None)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """What is opened inside of the block stays in scratch for whoever works on it next."""
        self._keeping = True
        try:
            yield
        finally:
            self._keeping = False

    def close(self) -> None:
        """Let go of scratch space; idempotent."""
        self.release()
        self._inner = None
        mirror, self._mirror = self._mirror, None
        if mirror is not None and mirror not in _kept.values():
            mirror.close()

    def _listed(self) -> Listing:
        if self._listing is None:
            self._listing = list_raw(self.place, ("videos",) if self.config.dir_type == "zarr" else ())
        return self._listing

    def _made(self) -> tuple[OwnMirror, Source]:
        """The mirror that this process made, and the reader over it."""
        if not isinstance(self._mirror, OwnMirror) or self._inner is None:
            listing = self._listed()
            mirror = OwnMirror(listing, needs_of(self.config, Names(one.key for one in listing.objects)))
            self._mirror, self._inner = mirror, self._reader(self.config, mirror.root)
        return self._mirror, self._inner

    def _attached(self, held: Held) -> tuple[Mirror, Source]:
        """The mirror that an episode was found in if it is on this machine, else one of our own."""
        if self._mirror is None or self._inner is None:
            if Path(held.base).is_dir():
                self._mirror = Mirror(Path(held.base), self._base(held), held.root)
                self._inner = self._reader(self.config, self._mirror.root)
            else:
                self._mirror = self._elsewhere(held)
                self._inner = self._reader(self.config, self._mirror.root)
        assert self._mirror is not None
        assert self._inner is not None
        return self._mirror, self._inner

    def _elsewhere(self, held: Held) -> Mirror:
        """The mirror of this process, on a machine that has not the driver's; the next episode finds it as well."""
        key = (str(self.place), held.index)
        if key not in _kept:
            forget_mirrors()
            listing = self._listed()
            mirror = OwnMirror(listing, needs_of(self.config, Names(one.key for one in listing.objects)))
            if mirror.index_state != held.index:
                mirror.close()
                raise EpisodeError(
                    f"{self.place}: objects that its episodes share changed while it was ingested; run ingest again."
                )
            _kept[key] = mirror
        return _kept[key]

    def _base(self, held: Held) -> Place:
        return self.place.parent if held.root else self.place

    def _stage(self, held: Held) -> tuple[Source, EpisodeRef]:
        mirror, inner = self._attached(held)
        if self._staged != held:
            self.release()
            size = sum(one.size for one in held.passing)
            if size and self._lent is None:
                room = Scratch().room(size, f"{self.place}, {held.inner.source_id},")
                self._room = room.__enter__()
            self._staged = held
            mirror.stage(held.own)
        moved: EpisodeRef = _moved(held.inner, held.base, str(mirror.base))
        return inner, moved

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors inside of the block name the URL, not the place in scratch."""
        try:
            yield
        except KnonikError as error:
            text = self._retold(str(error))
            if text == str(error):
                raise
            raise reworded(error, text) from error

    def _retold(self, text: str) -> str:
        return self._mirror.retold(text) if self._mirror is not None else text


class _RemoteEpisode:
    """An open episode whose files are staged."""

    def __init__(self, inner: SourceEpisode, source: RemoteSource) -> None:
        self._inner, self._source = inner, source
        self.streams = inner.streams
        self.facts = inner.facts
        self.facts.warnings[:] = [source._retold(text) for text in inner.facts.warnings]
        self.facts.nothing = source._retold(inner.facts.nothing)

    def frames(self, spec: StreamSpec) -> Iterator[Frame]:
        """See `SourceEpisode.frames`."""
        with self._source.told():
            yield from self._inner.frames(spec)

    def numeric(self, spec: StreamSpec) -> npt.NDArray[np.float32]:
        """See `SourceEpisode.numeric`."""
        with self._source.told():
            return self._inner.numeric(spec)

    def stream_times(self, spec: StreamSpec) -> npt.NDArray[np.float64] | None:
        """See `SourceEpisode.stream_times`."""
        with self._source.told():
            return self._inner.stream_times(spec)

    def packets(self, spec: StreamSpec) -> tuple[av.VideoStream, Iterator[av.Packet[av.VideoStream]]] | None:
        """See `SourceEpisode.packets`."""
        with self._source.told():
            return self._inner.packets(spec)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._inner.__exit__(kind, error, trace)
        finally:
            self._source.release()


class _Digests:
    """Digests of staged files, each of which is read once and gone afterwards."""

    def file_digest(self, path: Path) -> str:
        """See `FingerprintCache.file_digest`."""
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise EpisodeError(f"{path} cannot be read: {error.strerror or error}.") from error


def _moved(value: Any, old: str, new: str) -> Any:  # noqa: ANN401 - locators of any reader
    """The value with its paths below ``old`` leading below ``new``."""
    if old == new:
        return value
    if isinstance(value, str):
        return new + value[len(old) :] if value == old or value.startswith(f"{old}/") else value
    if isinstance(value, Path):
        return Path(_moved(str(value), old, new))
    if isinstance(value, tuple):
        return tuple(_moved(part, old, new) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _moved(getattr(value, field.name), old, new) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value
