"""Frames of what lies at a path or URL: episodes and raw data in a bucket are staged, a moment's episode at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

from knonik_assets.episodes.metadata import METADATA
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.episodes.view import EpisodesView, RemoteView, view_of
from knonik_assets.packing.album import Album, EpisodesAlbum, Moment, Pictures, RawAlbum, Span, open_album, packed_kind
from knonik_assets.storage import ObjectFolder, Place
from knonik_assets.storage.files import Location
from knonik_loader.errors import EpisodeError

__all__ = ["RemoteEpisodesAlbum", "album_at"]


@contextmanager
def album_at(location: str | Location) -> Iterator[Album]:
    """The frames of a file or folder, while the block runs.

    Raises:
        ConfigError, SourceError, EpisodeError, FormatError: see `knonik_assets.packing.album.open_album`.
        StorageError: the store or scratch space fails.
    """
    place = Place.of(location, "path")
    if not place.is_remote or packed_kind(place):
        yield open_album(place)
        return
    if ObjectFolder(place).head(METADATA) is not None:
        with view_of(place.parent) as view, view.episode(place.name).local() as path:
            yield EpisodesAlbum([path])
        return
    with RemoteView(place) as view:
        if view.listed.episodes:
            yield RemoteEpisodesAlbum(view)
            return
    with closing(RawAlbum(place)) as album:
        yield album


class RemoteEpisodesAlbum:
    """Frames of a folder of episodes in a bucket; episodes without readable metadata are left out.

    Args:
        view: of the folder, entered.
    """

    def __init__(self, view: EpisodesView) -> None:
        self._view = view
        self._cameras: dict[str, tuple[str, ...]] = {}
        spans = []
        for name in view.names:
            try:
                reader = EpisodeReader(view.folder / name)
            except EpisodeError:
                continue
            kinds = {"rgb": reader.metadata.rgb_streams, "depth": reader.metadata.depth_streams}
            self._cameras[name] = tuple(f"{kind}_{stream}" for kind, streams in kinds.items() for stream in streams)
            spans.append(Span(name, 0, reader.length))
        self.spans: Sequence[Span] = spans
        self.names: Sequence[str] = list(self._cameras)

    def spans_of(self, name: str) -> Sequence[Span]:
        """See `Album.spans_of`."""
        return [span for span in self.spans if span.episode == name]

    def pictures(self, moment: Moment) -> Pictures:
        """See `Album.pictures`. Brings the episode's cameras to scratch for as long as it takes."""
        cameras = self._cameras[moment.episode]
        if not cameras:
            return {}
        with self._view.episode(moment.episode).local(*cameras) as path:
            return EpisodesAlbum([path]).pictures(moment)
