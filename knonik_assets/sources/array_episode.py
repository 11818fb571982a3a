"""An open episode that is a tree of arrays."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import av
import numpy as np
import numpy.typing as npt

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.array_facts import Attributes, read_clock, stated_language, stated_rate
from knonik_assets.sources.array_layout import Planned, clock_array, plan_streams
from knonik_assets.sources.array_streams import read_numbers, read_rows
from knonik_assets.sources.arrays import Tree
from knonik_assets.sources.base import EncodedImage, EpisodeFacts, Frame, Language, StreamSpec
from knonik_assets.sources.images import Turner, decode_depth, depth_to_m, to_rgb, turn
from knonik_assets.sources.naming import renamed
from knonik_assets.sources.roles import Role, with_roles
from knonik_loader.errors import EpisodeError

__all__ = ["ArrayEpisode", "Traits"]


class Traits:
    """What a format knows of its episodes beside their arrays.

    Args:
        attributes: levels at which rate and language may be stated, the nearest first.
        fps: the format's own rate, where it has one.
        language: what the format says the robot was told, stronger than attributes.
        roles: of numeric streams that the format defines, by their path in the source with dots.
        channel_names: likewise.
        chunk_lens: rows a chunk in the output, likewise.
    """

    def __init__(
        self,
        attributes: Sequence[Attributes] = (),
        *,
        fps: float | None = None,
        language: Language | None = None,
        roles: Mapping[str, Role] | None = None,
        channel_names: Mapping[str, tuple[str, ...]] | None = None,
        chunk_lens: Mapping[str, int] | None = None,
    ) -> None:
        self.fps = fps or stated_rate(attributes)
        self.language = language or stated_language(attributes)
        self.roles = roles or {}
        self.channel_names = channel_names or {}
        self.chunk_lens = chunk_lens or {}

    def applied(self, spec: StreamSpec) -> StreamSpec:
        """A numeric stream with the names of its channels and the length of its chunks."""
        if spec.kind != "numeric":
            return spec
        names = self.channel_names.get(spec.source)
        if names is not None and len(names) != spec.shape[0]:
            names = None
        return replace(spec, channel_names=names, chunk_len=self.chunk_lens.get(spec.source))


class ArrayEpisode:
    """One open episode over a tree of arrays.

    Args:
        config: its layout decides what is read.
        tree: the arrays.
        traits: what else is known.
        where: file (and place in it), for messages.
        close: lets go of whatever the arrays read from; called once.

    Raises:
        SourceError: the layout names what isn't there.
        EpisodeError: damaged, or without any stream.
    """

    def __init__(
        self,
        config: IngestConfig,
        tree: Tree,
        traits: Traits,
        where: str,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._config, self._where = config, where
        self._lock = threading.Lock()
        self._close: Callable[[], None] | None = close
        self.facts = EpisodeFacts(language=traits.language)
        try:
            self._plan(tree, traits)
        except BaseException:
            self.close()
            raise

    def _plan(self, tree: Tree, traits: Traits) -> None:
        config, warnings = self._config, self.facts.warnings
        planned = plan_streams(tree, config, traits.fps, self._where, warnings)
        specs = with_roles([traits.applied(one.spec) for one in planned], config, traits.roles)
        planned = [replace(one, spec=spec) for one, spec in zip(planned, specs, strict=True)]
        self._planned: dict[tuple[str, str], Planned] = {(one.spec.kind, one.spec.name): one for one in planned}
        self.streams: Sequence[StreamSpec] = tuple(one.spec for one in planned)
        self._clock = clock_array(tree, config, self._where)
        if self._clock is not None:
            explicit = config.layout.timestamps is not None
            rate = self.streams[0].fps
            self.facts.timestamps = read_clock(self._clock[1], rate, explicit, warnings)
        names = renamed({spec.source: spec.name for spec in self.streams}) if no_layout(config) else {}
        if names:
            self.facts.attributes["renamed_streams"] = names
        colour = self.colour
        if config.jpeg_channel_order == "bgr" and colour and all(one.content.kind != "encoded" for one in colour):
            warnings.append(f"{self._where}: jpeg_channel_order has no effect: no picture in it is encoded")

    @property
    def colour(self) -> list[Planned]:
        """Colour streams and how they are read."""
        return [one for one in self._planned.values() if one.spec.kind == "rgb"]

    @property
    def depth(self) -> list[Planned]:
        """Depth streams and how they are read."""
        return [one for one in self._planned.values() if one.spec.kind == "depth"]

    def _of(self, spec: StreamSpec) -> Planned:
        one = self._planned.get((spec.kind, spec.name))
        if one is None:
            raise EpisodeError(f"{self._where}: has no {spec.kind} stream {spec.name!r}.")
        if self._close is None:
            raise EpisodeError(f"{self._where}: the episode is closed.")
        return one

    def frames(self, spec: StreamSpec) -> Iterator[Frame]:
        """See `SourceEpisode.frames`."""
        one = self._of(spec)
        return self._colour(one) if spec.kind == "rgb" else self._depth(one)

    def _colour(self, one: Planned) -> Iterator[Frame]:
        turner = Turner(self._config)
        for index, row in enumerate(read_rows(one.array, one.content)):
            place = f"{one.array.where}, row {index}"
            if isinstance(row, EncodedImage):
                yield turner.encoded(row, one.spec, place)
            else:
                yield turn(to_rgb(row, place, scale=one.scale), self._config.orientation)

    def _depth(self, one: Planned) -> Iterator[Frame]:
        for index, row in enumerate(read_rows(one.array, one.content)):
            place = f"{one.array.where}, row {index}"
            raw = decode_depth(row.data, place) if isinstance(row, EncodedImage) else row
            metres = depth_to_m(raw, one.unit_m, place)
            if metres.shape != one.spec.shape:
                raise EpisodeError(f"{place}: {metres.shape} pixels, the first has {one.spec.shape}.")
            yield turn(metres, self._config.orientation)

    def numeric(self, spec: StreamSpec) -> npt.NDArray[np.float32]:
        """See `SourceEpisode.numeric`."""
        one = self._of(spec)
        rows, lost = read_numbers(one.array, spec.shape[0])
        with self._lock:
            self.facts.warnings += lost
        return rows

    def stream_times(self, spec: StreamSpec) -> npt.NDArray[np.float64] | None:
        """None: everything in such an episode is sampled on one clock."""
        self._of(spec)
        return None

    def packets(self, spec: StreamSpec) -> tuple[av.VideoStream, Iterator[av.Packet[av.VideoStream]]] | None:
        """None: arrays hold pictures, not video."""
        self._of(spec)
        return None

    def digest(self) -> str:
        """Hex digest of this episode's streams, clock, rate, language and further metadata."""
        digest = hashlib.sha256()
        arrays = {one.path: one.array for one in self._planned.values()}
        if self._clock is not None:
            arrays[self._clock[0]] = self._clock[1]
        for path, array in sorted(arrays.items()):
            digest.update("/".join(path).encode())
            array.hash_into(digest)
        said = self.facts.language
        rates = [spec.fps for spec in self.streams]
        digest.update(repr((said, rates, sorted(self.facts.attributes.items()))).encode())
        return digest.hexdigest()

    def close(self) -> None:
        """Let go of every file; idempotent."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def no_layout(config: IngestConfig) -> bool:
    """Whether everything that is found is taken."""
    layout = config.layout
    return layout.images is None and layout.depths is None and layout.numeric is None
