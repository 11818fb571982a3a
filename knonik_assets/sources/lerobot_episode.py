"""One episode of a LeRobot dataset."""

from __future__ import annotations

import hashlib
import posixpath
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import av
import numpy as np
import numpy.typing as npt

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.sources.base import EpisodeFacts, Frame, StreamSpec
from knonik_assets.sources.clocks import unrounded, usual_rate
from knonik_assets.sources.images import Turner, cut_encoded, decode_depth, depth_to_m, image_shape, turn
from knonik_assets.sources.lerobot_data import INDEX_COLUMNS, DataIndex, is_list, to_rows, whole_numbers
from knonik_assets.sources.lerobot_depth import check_colour, dequantised
from knonik_assets.sources.lerobot_language import ANNOTATIONS, instruction, read_annotations
from knonik_assets.sources.lerobot_layout import Choice, bare_name, choose
from knonik_assets.sources.lerobot_meta import DepthCode, Meta
from knonik_assets.sources.lerobot_videos import Camera, Place, file_name
from knonik_assets.sources.naming import check_streams
from knonik_assets.sources.trees import check_inside
from knonik_assets.sources.video_files import copy_packets, decode_range
from knonik_loader.errors import EpisodeError
from knonik_loader.khlp.colour import Converter

__all__ = ["LeRobotEpisode", "picture_file"]

_EXACT = 2.0**24
"""Whole numbers up to this one are exact in float32."""
Held = Literal["video", "picture"]


@dataclass(frozen=True, slots=True)
class _Stream:
    spec: StreamSpec
    choice: Choice
    place: Place | None = None
    """Of a video."""


class LeRobotEpisode:
    """An open episode: its rows are in memory, its pictures are read when asked for."""

    def __init__(
        self,
        config: IngestConfig,
        meta: Meta,
        data: DataIndex,
        cameras: Mapping[str, Held],
        maps: Mapping[str, Camera],
        episode: int,
    ) -> None:
        self._config, self._meta, self._data, self._maps = config, meta, data, maps
        self._episode = episode
        self._where = f"{meta.root}, episode {episode}"
        self._containers: list[av.container.InputContainer] = []
        self._lock = threading.Lock()
        self._closed = False
        self.facts = EpisodeFacts()
        choices = choose(config, meta, data.schema(episode), cameras, str(meta.root), self.facts.warnings)
        columns = [choice.key for choice in choices if choice.kind == "numeric"]
        said = [field.name for field in data.schema(episode) if field.name in ANNOTATIONS and is_list(field.type)]
        self._table = data.table(episode, [*INDEX_COLUMNS, *said, *columns])
        self._rows = self._table.num_rows
        self._times = self._read_times()
        self._check_rows()
        self.facts.timestamps = self._clock()
        self._say()
        streams = [self._described(choice) for choice in choices]
        self.streams: Sequence[StreamSpec] = tuple(one.spec for one in streams)
        check_streams(self.streams, self._where)
        self._streams = {(one.spec.kind, one.spec.name): one for one in streams}
        self._note(choices)

    def _check_rows(self) -> None:
        hint = self._meta.hints.get(self._episode)
        if hint is not None and hint.length is not None and hint.length != self._rows:
            if self._data.broken and hint.length > self._rows:
                path, reason = next(iter(self._data.broken.items()))
                raise EpisodeError(
                    f"{self._where}: {self._rows} of its {hint.length} rows are readable; the others may lie in "
                    f"{path}, which is not ({reason})."
                )
            self.facts.warnings.append(
                f"{self._where}: the metadata says {hint.length} rows, the data has {self._rows}; the data is believed"
            )
        if "frame_index" in self._table.column_names:
            frames = whole_numbers(self._table["frame_index"], f"{self._where}: frame_index")
            if (gaps := np.flatnonzero(np.diff(frames) != 1)).size:
                self.facts.warnings.append(f"{self._where}: rows are missing behind frame_index {frames[gaps[0]]}")

    def _read_times(self) -> npt.NDArray[np.float64] | None:
        """(T,) seconds of the rows as stored; None where there is no usable column."""
        if "timestamp" not in self._table.column_names:
            return None
        times = np.asarray(to_rows(self._table["timestamp"], self._where)[0][:, 0], np.float64)
        if not np.isfinite(times).all():
            self.facts.warnings.append(f"{self._where}: timestamps are NaN or infinite; frame_index / fps is used")
            return None
        return times

    def _clock(self) -> npt.NDArray[np.float64] | None:
        """The rows' times. LeRobot rounds i / fps to float32; where it did just that, the rounding is undone."""
        times = self._times
        rate = self._meta.fps or usual_rate(times)
        return times if times is None or not rate else unrounded(times, rate)

    def _say(self) -> None:
        """Tasks, subtasks and annotations."""
        clock = self.facts.timestamps
        if clock is None:
            clock = np.arange(self._rows) / (self._config.fps or self._meta.fps or 30.0)
        warnings = self.facts.warnings
        self.facts.language = instruction(self._meta, self._episode, self._table, clock, self._where, warnings)
        self.facts.attributes.update(read_annotations(self._table, clock, self._where, warnings))

    def _described(self, choice: Choice) -> _Stream:
        rate = choice.fps or self._config.fps or self._meta.fps
        spec = StreamSpec(choice.kind, choice.name, choice.key, self._rows, (), rate, role=choice.role)
        if choice.held == "column":
            return _Stream(self._numeric_spec(spec, choice), choice)
        if choice.held == "video":
            place = self._place(choice.key)
            size = (place.index.height, place.index.width)
            turned = self._config.orientation != "as_stored" or choice.kind == "depth"
            shape = (*size, 3) if choice.kind == "rgb" else size
            return _Stream(replace(spec, shape=shape, encoding="raw" if turned else "video"), choice, place)
        first = next(self._pictures(choice.key), None)
        if first is None:
            return _Stream(replace(spec, shape=(0, 0)), choice)
        if choice.kind == "depth":
            return _Stream(replace(spec, shape=decode_depth(first, choice.key).shape), choice)
        image = cut_encoded(first, f"{self._where}: {choice.key}, row 0")
        raw = Turner(self._config).turns_encoded
        shape = (*image_shape(image, choice.key), 3)
        return _Stream(replace(spec, shape=shape, encoding="raw" if raw else image.format), choice)

    def _numeric_spec(self, spec: StreamSpec, choice: Choice) -> StreamSpec:
        if choice.key not in self._table.column_names:
            raise EpisodeError(f"{self._where}: its data file has no column {choice.key}.")
        rows, shape = to_rows(self._table[choice.key], f"{self._where}: {choice.key}")
        width = rows.shape[1]
        if len(shape) > 1:
            self.facts.warnings.append(f"{self._where}: {choice.key} of shape {shape} is flattened to {width} numbers")
        feature = self._meta.features.get(choice.key)
        names = feature.names if feature is not None else None
        if names is not None and len(names) != width:
            names = tuple(f"{choice.name}_{i}" for i in range(width))
        return replace(spec, shape=(width,), channel_names=names)

    def _place(self, key: str) -> Place:
        camera = self._maps[key]
        try:
            place = camera.locate(self._episode)
        except EpisodeError as error:
            raise EpisodeError(f"{self._meta.root}: {error}") from error
        index, start = place.index, place.start
        if start + self._rows > len(index):
            raise EpisodeError(
                f"{self._where}: {file_name(index)} ends after {len(index)} frames; its rows need {start + self._rows}."
            )
        if place.warning is not None:
            self.facts.warnings.append(f"{self._where}: {place.warning}")
        if self._times is not None and self._rows > 1:
            shown = index.seconds[start : start + self._rows]
            away = np.abs((shown - shown[0]) - (self._times - self._times[0]))
            worst = int(away.argmax())
            if away[worst] >= index.period / 2:
                what = (
                    f"{self._where}: row {worst} of {key} is {away[worst]:.4f} s away from its frame in "
                    f"{file_name(index)}, more than half a frame"
                )
                if not place.own_file:
                    raise EpisodeError(f"{what}; frames or rows are missing.")
                self.facts.warnings.append(f"{what}; the file has just one frame a row, so their order is believed")
        return place

    def _note(self, choices: Sequence[Choice]) -> None:
        facts, config = self.facts, self._config
        if self._meta.robot_type:
            facts.attributes["robot_type"] = self._meta.robot_type
        if config.layout == type(config.layout)():
            own = {"observation.state": "state"}
            changed = {
                choice.key: choice.name
                for choice in choices
                if choice.name
                != (own.get(choice.key, choice.key) if choice.kind == "numeric" else bare_name(choice.key))
            }
            if changed:
                facts.attributes["renamed_streams"] = changed
        colour = [choice for choice in choices if choice.kind == "rgb"]
        if config.jpeg_channel_order == "bgr" and colour and all(choice.held == "video" for choice in colour):
            facts.warnings.append(f"{self._where}: jpeg_channel_order has no effect: its pictures are videos")

    def _of(self, spec: StreamSpec) -> _Stream:
        one = self._streams.get((spec.kind, spec.name))
        if one is None:
            raise EpisodeError(f"{self._where}: has no {spec.kind} stream {spec.name!r}.")
        if self._closed:
            raise EpisodeError(f"{self._where}: the episode is closed.")
        return one

    def frames(self, spec: StreamSpec) -> Iterator[Frame]:
        """See `SourceEpisode.frames`."""
        one = self._of(spec)
        return self._picture_frames(one) if one.place is None else self._video_frames(one, one.place)

    def _video_frames(self, one: _Stream, place: Place) -> Iterator[Frame]:
        orientation, converter = self._config.orientation, Converter()
        feature = self._meta.features.get(one.choice.key)
        code = feature.depth if feature is not None else None
        where = f"{self._where}: {one.choice.key}"
        told = False

        def emit(frame: av.VideoFrame) -> Frame:
            nonlocal told
            if not told:
                told = True
                self._tell_rotation(frame, where)
            if one.spec.kind == "depth":
                return turn(dequantised(frame, code or DepthCode(), where), orientation)
            check_colour(frame, where)
            return turn(converter.to_rgb(frame), orientation)

        yield from decode_range(place.index, place.start, place.start + self._rows, emit)

    def _tell_rotation(self, frame: av.VideoFrame, where: str) -> None:
        """A file may ask for its pictures to be shown turned; decoders differ in whether they do."""
        if frame.rotation:
            text = (
                f"{where}: the file asks for its pictures to be turned by {abs(frame.rotation)} degrees when they are "
                "shown; they are taken as they are stored, as the LeRobot reader takes them with PyAV"
            )
            with self._lock:
                self.facts.warnings.append(text)

    def _picture_frames(self, one: _Stream) -> Iterator[Frame]:
        turner, spec = Turner(self._config), one.spec
        feature = self._meta.features.get(one.choice.key)
        unit = one.choice.unit_m or (feature.depth_unit_m if feature is not None else None)
        count = 0
        for row, data in enumerate(self._pictures(one.choice.key)):
            where = f"{self._where}: {one.choice.key}, row {row}"
            if spec.kind == "depth":
                metres = depth_to_m(decode_depth(data, where), unit, where)
                if metres.shape != spec.shape:
                    raise EpisodeError(f"{where}: {metres.shape} pixels, the first has {spec.shape}.")
                yield turn(metres, self._config.orientation)
            else:
                yield turner.encoded(cut_encoded(data, where), spec, where)
            count += 1
        if count != spec.length:
            raise EpisodeError(f"{self._where}: {one.choice.key} has {count} pictures for {spec.length} rows.")

    def _pictures(self, key: str) -> Iterator[bytes]:
        """Encoded pictures row by row, from the column itself or the file that it names."""
        for row, (data, path) in enumerate(self._data.pictures(self._episode, key)):
            if data:
                yield data
                continue
            where = f"{self._where}: {key}, row {row}"
            if not path:
                raise EpisodeError(f"{where}: has neither bytes nor a path.")
            if posixpath.isabs(path) or ".." in path.split("/"):
                raise EpisodeError(f"{where}: the picture {path!r} lies outside the dataset; copy it into it.")
            try:
                content = picture_file(self._meta.root, self._episode, key, path).read_bytes()
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise EpisodeError(f"{where}: the picture {path[:200]!r} cannot be read ({reason}).") from error
            yield content

    def numeric(self, spec: StreamSpec) -> npt.NDArray[np.float32]:
        """See `SourceEpisode.numeric`."""
        one = self._of(spec)
        where = f"{self._where}: {one.choice.key}"
        rows, _ = to_rows(self._table[one.choice.key], where)
        with np.errstate(over="ignore"):  # said below, in words
            found = np.ascontiguousarray(rows, np.float32)
        lost = int(np.isinf(found).sum() - np.isinf(rows).sum()) if rows.dtype.kind == "f" else 0
        told = []
        if lost:
            told.append(f"{where}: {lost} values beyond what float32 holds become infinite")
        if rows.dtype.itemsize > 2 and rows.dtype.kind in "iuf":
            beyond = np.isfinite(rows) & (np.abs(found) >= _EXACT)
            if (beyond & (found.astype(rows.dtype) != rows)).any():
                told.append(f"{where}: numbers beyond 2**24 lose their last digits in float32")
        with self._lock:
            self.facts.warnings += told
        return found

    def stream_times(self, spec: StreamSpec) -> npt.NDArray[np.float64] | None:
        """None: frames and rows are one to one."""
        self._of(spec)
        return None

    def packets(self, spec: StreamSpec) -> tuple[av.VideoStream, Iterator[av.Packet[av.VideoStream]]] | None:
        """See `SourceEpisode.packets`."""
        one = self._of(spec)
        if one.place is None or one.spec.encoding != "video":
            return None
        found = copy_packets(one.place.index, one.place.start, one.place.start + self._rows)
        if found is None:
            return None
        container, stream, packets = found
        with self._lock:
            self._containers.append(container)
        return stream, packets

    def digest(self) -> str:
        """Hex digest of what the streams are made of: numbers, times, task texts, pictures and packets."""
        digest = hashlib.sha256()
        times = self.facts.timestamps
        if times is not None:
            digest.update(times.tobytes())
        said = self.facts.language
        digest.update(repr((said, [(spec.name, spec.fps, spec.channel_names) for spec in self.streams])).encode())
        noted = {name: self.facts.attributes[name] for name in ANNOTATIONS if name in self.facts.attributes}
        digest.update(repr(noted).encode() if noted else b"")
        for one in self._streams.values():
            digest.update(f"{one.spec.kind} {one.choice.key} {one.spec.shape} {one.spec.length}".encode())
            if one.place is not None:
                digest.update(one.place.index.digest(one.place.start, one.place.start + self._rows))
            elif one.choice.held == "column":
                digest.update(self.numeric(one.spec).tobytes())
            else:
                for data in self._pictures(one.choice.key):
                    digest.update(hashlib.sha256(data).digest())
        return digest.hexdigest()

    def close(self) -> None:
        """Let go of every file; idempotent."""
        self._closed = True
        with self._lock:
            containers, self._containers = self._containers, []
        for container in containers:
            container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def picture_file(root: Path, episode: int, key: str, path: str) -> Path:
    """A loose picture: where its row says, or, of a bare name, in the folder where recorders leave an episode's.

    Raises:
        EpisodeError: it would lie outside of the dataset.
    """
    found = root / path
    if not found.exists() and "/" not in path:
        found = root / "images" / key / f"episode_{episode:06d}" / path
    check_inside(found, root)
    return found
