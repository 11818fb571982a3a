"""One recording as an episode: the camera with most messages is the clock, all else is sampled at its frames."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import av
import numpy as np
import numpy.typing as npt

from knonik_assets.configs.ingest import DepthEntry, ImageEntry, IngestConfig
from knonik_assets.sources.base import EpisodeFacts, Frame, StreamSpec
from knonik_assets.sources.images import Turner
from knonik_assets.sources.naming import check_streams, safe_stream_name
from knonik_assets.sources.naming import nearest as nearest_name
from knonik_assets.sources.ros.cameras import Camera, find_cameras, frames_of
from knonik_assets.sources.ros.clock import Stamped, clocks_agree, header_fault, nearest, nominal_rate
from knonik_assets.sources.ros.gather import Gathered, gather
from knonik_assets.sources.ros.recording import BagRef, Recording
from knonik_assets.sources.ros.topics import camera_name, numeric_name
from knonik_assets.sources.ros.types import Types
from knonik_loader.errors import EpisodeError, SourceError

__all__ = ["RosEpisode"]

Ns = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Stream:
    spec: StreamSpec
    times: Stamped
    """Of its samples, in order."""
    camera: Camera | None = None
    unit_m: float | None = None
    rows: npt.NDArray[np.float64] | None = None
    ns: Ns | None = None
    """(N,) the times that count."""
    chosen: Ns | None = None
    """(T,) place of the sample of every frame."""


class RosEpisode:
    """An open recording: places of messages and rows of numbers are in memory, pictures are read when asked for."""

    def __init__(self, config: IngestConfig, ref: BagRef) -> None:
        self._config, self._name = config, ref.name
        self._closed = False
        self._lock = threading.Lock()
        self.facts = EpisodeFacts()
        self.streams: Sequence[StreamSpec] = ()
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._recording = Recording(ref)
        try:
            types = Types(Path(config.msg_path) if config.msg_path is not None else None, self._recording.distro)
            found = gather(self._recording, types)
            cameras = find_cameras(self._recording, found)
            chosen = [*self._pictures(cameras, found), *self._numerics(found)]
            self._align(chosen, found, ref.limit)
            self._note(found, ref)
        except BaseException:
            self.close()
            raise

    def _pictures(self, cameras: list[Camera], found: Gathered) -> list[_Stream]:
        layout = self._config.layout
        if layout.images is None and layout.depths is None:
            for fault in found.damaged.values():
                raise EpisodeError(f"{fault} To do without it, list the cameras that you want in the layout.")
            return [self._picture(camera, safe_stream_name(camera.name), None) for camera in cameras]
        out: list[_Stream] = []
        blocks: list[tuple[str, str, dict[str, Any]]] = [
            ("rgb", "images", dict(layout.images or {})),
            ("depth", "depths", dict(layout.depths or {})),
        ]
        for kind, block, entries in blocks:
            for name, entry in entries.items():
                fitting = [one for one in cameras if entry.key in (one.topic.name, one.name)]
                for topic, fault in found.damaged.items():
                    if entry.key == topic or (entry.key == camera_name(topic) and not fitting):
                        raise EpisodeError(fault)
                same = [one for one in fitting if one.kind == kind]
                if fitting and not same:
                    other = "depths" if kind == "rgb" else "images"
                    raise SourceError(f"{self._name}: layout.{block}.{name}: {entry.key} belongs under {other!r}.")
                if len(same) > 1:
                    topics = ", ".join(one.topic.name for one in same)
                    raise SourceError(
                        f"{self._name}: layout.{block}.{name}: {entry.key!r} may be {topics}; name the topic."
                    )
                if same:
                    out.append(self._picture(same[0], safe_stream_name(name), entry))
                else:
                    known = [one.name for one in cameras if one.kind == kind]
                    self._missing(f"layout.{block}.{name} names {entry.key!r}", nearest_name(entry.key, known), found)
        if not out and (layout.images or layout.depths):
            known = [one.name for one in cameras]
            raise SourceError(f"{self._name}: no stream of the layout is in it; {nearest_name('', known)}.")
        return out

    def _missing(self, what: str, known: str, found: Gathered) -> None:
        text = f"{self._name}: {what}, which isn't there; {known}"
        if self._config.strict:
            raise SourceError(text + ".")
        found.warnings.append(text)

    def _picture(self, camera: Camera, name: str, entry: ImageEntry | None) -> _Stream:
        usable = camera.usable()
        log, header = camera.topic.log_ns[usable], camera.topic.stamp_ns[usable]
        turned = camera.encoding in ("jpeg", "png") and Turner(self._config).turns_encoded
        spec = StreamSpec(
            kind=camera.kind,
            name=name,
            source=camera.topic.name,
            length=len(usable),
            shape=camera.shape,
            fps=entry.fps if entry is not None else None,
            encoding=camera.encoding if camera.encoding in ("jpeg", "png") and not turned else "raw",
        )
        has = any(decoder.stamp is not None for _, decoder in camera.topic.sources)
        unit = entry.unit_m if isinstance(entry, DepthEntry) else None
        return _Stream(spec, Stamped(log, header if has else None), camera, unit)

    def _numerics(self, found: Gathered) -> list[_Stream]:
        out = []
        for name, topic in found.numeric.items():
            rows = found.rows[name, topic.kind]
            found.warnings += rows.warnings(name)
            if not rows.width:
                found.leave_out(name, len(topic), "none of its messages holds a number")
                continue
            kept = np.frombuffer(rows.kept, np.int64)
            log = topic.log_ns[kept]
            order = np.argsort(log, kind="stable")
            values = rows.array()
            has = any(decoder.stamp is not None for _, decoder in topic.sources)
            names = tuple(rows.names) if rows.names is not None else None
            spec = StreamSpec("numeric", numeric_name(name), name, len(kept), (rows.width,), channel_names=names)
            header = topic.stamp_ns[kept][order] if has else None
            out.append(_Stream(spec, Stamped(log[order], header), rows=values[order]))
        return out

    def _align(self, streams: list[_Stream], found: Gathered, limit: int | None) -> None:
        """Choose the clock and, for each of its frames, the sample of every stream."""
        pictures = [one for one in streams if one.camera is not None]
        if not pictures:
            self.facts.nothing = self._why_nothing(streams, found)
            return
        colour = [one for one in pictures if one.spec.kind == "rgb"]
        leader = max(colour or pictures, key=lambda one: one.spec.length)
        self._choose_times(streams, leader, found)
        assert leader.ns is not None
        clock = leader.ns[:limit]
        if limit is not None and limit < leader.spec.length:
            found.warnings.append(
                f"{self._name}: KNONIK_ROSBAG_MAX_FRAMES keeps the first {limit} of {leader.spec.length} frames"
            )
        rate = self._config.fps or nominal_rate(clock)
        for one in streams:
            assert one.ns is not None
            one.chosen = np.arange(len(clock)) if one is leader else nearest(clock, one.ns)
            if one is not leader:
                self._warn_far(one, clock, found)
            fps = one.spec.fps or (rate if one.camera is not None else None)
            recorded = nominal_rate(one.ns)
            one.spec = replace(one.spec, length=len(clock), fps=fps, recorded_fps=recorded)
        self.streams = tuple(one.spec for one in streams)
        check_streams(self.streams, self._name)
        self._streams = {(one.spec.kind, one.spec.name): one for one in streams}
        self.facts.timestamps = clock / 1e9
        self._clock_name = leader.spec.source

    @staticmethod
    def _why_nothing(streams: list[_Stream], found: Gathered) -> str:
        """Why no frame comes of the recording."""
        told = [text.rstrip(".") for text in found.warnings if not found.counts or "left out" in text]
        why = f" ({'; '.join(told)})" if told else ""
        if not found.counts:
            return f"no message can be read from the bag{why}" if told else "the bag holds no message"
        alone = ", ".join(one.spec.name for one in streams)
        alone = f", and frames need one; numbers alone: {alone}" if alone else ""
        return f"the bag has no camera that can be decoded{why}{alone}"

    def _choose_times(self, streams: list[_Stream], leader: _Stream, found: Gathered) -> None:
        header = self._config.time_source == "header"
        agreed = (
            header
            and all(one.times.header is not None for one in streams)
            and clocks_agree([one.times for one in streams])
        )
        for one in streams:
            one.ns = one.times.log
            fault = None if agreed else header_fault(one.times)
            if header and fault is None and one.times.header is not None:
                one.ns = one.times.header
            elif header:
                found.warnings.append(f"{one.spec.source}: {fault}; its time of recording is used instead")
            one.ns = self._ordered(one, found)
        assert leader.ns is not None
        if len(leader.ns) > 1 and leader.ns[0] == leader.ns[-1]:
            other = "header" if not header else "log"
            raise EpisodeError(
                f"{self._name}: all {len(leader.ns)} messages of {leader.spec.source} have the same time, so nothing "
                f"can be paired with its frames; try time_source: {other}."
            )
        if not header:
            self._warn_headers(streams, leader, found)

    def _ordered(self, one: _Stream, found: Gathered) -> Ns:
        """A stream's times, never going back: a video's pictures come in order of presentation, so must their times."""
        assert one.ns is not None
        steps = np.diff(one.ns)
        if (steps < 0).any():
            found.warnings.append(
                f"{one.spec.source}: its times are not in order of presentation; its pictures are given them in order"
            )
            return np.sort(one.ns)
        if (steps == 0).any() and one.camera is not None:
            found.warnings.append(
                f"{one.spec.source}: {int((steps == 0).sum())} of its pictures have the time of another"
            )
        return one.ns

    def _warn_far(self, one: _Stream, clock: Ns, found: Gathered) -> None:
        """Say where frames had to be paired with samples of another moment."""
        assert one.ns is not None
        assert one.chosen is not None
        away = np.abs(one.ns[one.chosen] - clock)
        period = max(
            float(np.median(np.diff(one.ns))) if len(one.ns) > 1 else 0.0,
            float(np.median(np.diff(clock))) if len(clock) > 1 else 0.0,
        )
        far = away > 2 * max(period, 1e6)
        if far.any() and len(one.ns) > 1:
            found.warnings.append(
                f"{one.spec.source}: {int(far.sum())} of {len(clock)} frames have no sample of it near (up to "
                f"{away.max() / 1e9:.3f} s away); the nearest is taken"
            )

    def _warn_headers(self, streams: list[_Stream], leader: _Stream, found: Gathered) -> None:
        """Say where header stamps would pair frames otherwise."""
        if header_fault(leader.times) is not None or leader.ns is None or len(leader.ns) < 2:
            return
        stamps = leader.times.header
        assert stamps is not None
        half = float(np.median(np.diff(leader.ns))) / 2
        for one in streams:
            if one is leader or header_fault(one.times) is not None:
                continue
            own, log = one.times.header, one.ns
            assert own is not None
            assert log is not None
            away = np.abs(own[nearest(leader.ns, log)] - own[nearest(stamps, own)])
            count = int((away > half).sum())
            if count:
                found.warnings.append(
                    f"{one.spec.source}: by header stamps, {count} of {len(stamps)} frames would be paired with a "
                    f"sample more than half a frame away from the one taken (up to {away.max() / 1e9:.3f} s); see "
                    "time_source"
                )

    def _note(self, found: Gathered, ref: BagRef) -> None:
        streams = list(self._streams.values())
        layout = self._config.layout
        for key, what in ((layout.numeric, "numeric"), (layout.timestamps, "timestamps")):
            if key is not None:
                found.warnings.append(
                    f"layout.{what} has no effect: a bag's numeric topics are all taken, with their own names and times"
                )
        colour = [one.camera.encoding for one in streams if one.camera is not None and one.spec.kind == "rgb"]
        if self._config.jpeg_channel_order == "bgr" and colour and not {"jpeg", "png"} & {*colour}:
            found.warnings.append(f"{self._name}: jpeg_channel_order has no effect: no picture in it is encoded")
        attributes: dict[str, Any] = {
            "source_bag": ref.path.name if ref.path.is_file() else ref.name,
            "ros_cameras": [one.spec.name for one in streams if one.spec.kind == "rgb"],
            "ros_depth_streams": [one.spec.name for one in streams if one.spec.kind == "depth"],
            "ros_numeric_streams": {one.spec.name: one.spec.shape[0] for one in streams if one.spec.kind == "numeric"},
            "ros_topics": {
                (one.spec.name if one.spec.kind == "numeric" else f"{one.spec.kind}_{one.spec.name}"): one.spec.source
                for one in streams
            },
            "ros_skipped": dict(sorted(found.skipped.items())),
        }
        if streams:
            attributes["ros_clock"] = self._clock_name
        if found.camera_info:
            attributes["camera_info"] = {
                topic: {**about, "camera": camera_name(topic.rsplit("/", 1)[0] or topic)}
                for topic, about in sorted(found.camera_info.items())
            }
        if found.urdf_joints:
            attributes["urdf_joints"] = found.urdf_joints
        self.facts.attributes = attributes
        self.facts.warnings = list(dict.fromkeys(found.warnings))

    def _of(self, spec: StreamSpec) -> _Stream:
        one = self._streams.get((spec.kind, spec.name))
        if one is None:
            raise EpisodeError(f"{self._name}: has no {spec.kind} stream {spec.name!r}.")
        if self._closed:
            raise EpisodeError(f"{self._name}: the recording is closed.")
        return one

    def frames(self, spec: StreamSpec) -> Iterator[Frame]:
        """See `SourceEpisode.frames`."""
        one = self._of(spec)
        if one.camera is None or one.chosen is None:
            raise EpisodeError(f"{self._name}: {spec.name} holds no pictures.")
        return frames_of(one.camera, self._recording, one.spec, one.chosen, self._config, one.unit_m)

    def numeric(self, spec: StreamSpec) -> npt.NDArray[np.float32]:
        """See `SourceEpisode.numeric`."""
        one = self._of(spec)
        if one.rows is None or one.chosen is None:
            raise EpisodeError(f"{self._name}: {spec.name} holds no numbers.")
        return np.ascontiguousarray(one.rows[one.chosen], np.float32)

    def stream_times(self, spec: StreamSpec) -> npt.NDArray[np.float64] | None:
        """See `SourceEpisode.stream_times`: of the sample that each frame has."""
        one = self._of(spec)
        if one.ns is None or one.chosen is None:
            return None
        return np.asarray(one.ns[one.chosen] / 1e9, np.float64)

    def packets(self, spec: StreamSpec) -> tuple[av.VideoStream, Iterator[av.Packet[av.VideoStream]]] | None:
        """None: a bag's pictures stand alone or are no file of video."""
        self._of(spec)
        return None

    def close(self) -> None:
        """Let go of every file; idempotent."""
        with self._lock:
            self._closed = True
        self._recording.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
