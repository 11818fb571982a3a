"""Reading an ingested episode: exact frames by rank, rows, clock and annotations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes import depth as depth_files
from knonik_assets.episodes import video_read
from knonik_assets.episodes.language import read_language
from knonik_assets.episodes.metadata import METADATA, EpisodeMetadata, read_metadata
from knonik_assets.episodes.numeric import read_array
from knonik_assets.episodes.storing import digest_file, storage_errors
from knonik_assets.episodes.video import PacketTable, scan, suffix
from knonik_assets.sources.base import EncodedImage, Language
from knonik_assets.sources.images import decode_image
from knonik_assets.sources.naming import natural_key
from knonik_loader.errors import EpisodeError
from knonik_loader.khlp.colour import Converter

__all__ = ["EpisodeReader", "RgbInfo", "list_episodes"]


@dataclass(frozen=True, slots=True)
class RgbInfo:
    """What a colour stream is."""

    height: int
    width: int
    codec: str
    """``vp9``, ``av1``, ``h264``, ``jpeg``, or the source's own codec where its packets were copied."""
    fps: float
    params: dict[str, Any] = field(default_factory=dict)
    """The whole entry of ``stream_params``."""


class EpisodeReader:
    """One ingested episode. Cheap to make; every call opens and closes what it reads, so nothing is held.

    Calls from several threads are fine, each iterator in one of them.

    Args:
        path: The episode's directory.
        decode_threads: Threads of a video decoder; pictures don't depend on it.

    Raises:
        EpisodeError: ``metadata.json`` is missing or not valid.
        StorageError: it cannot be read.
    """

    def __init__(self, path: Path, decode_threads: int = 1) -> None:
        self.path = Path(path)
        self.metadata: EpisodeMetadata = read_metadata(self.path)
        self.length = self.metadata.episode_length
        self._threads = decode_threads
        self._tables: dict[str, PacketTable] = {}

    def __repr__(self) -> str:
        meta = self.metadata
        streams = ", ".join((*meta.rgb_streams, *meta.depth_streams, *meta.numeric_streams))
        return f"EpisodeReader({str(self.path)!r}, {self.length} frames of {streams})"

    def frame_time(self) -> npt.NDArray[np.float64]:
        """(T,) seconds, the episode's clock."""
        return np.asarray(read_array(self.path / "frame_time", (self.length,)), np.float64)

    def numeric(self, name: str) -> npt.NDArray[np.float32]:
        """(T, D) rows of a numeric stream.

        Raises:
            EpisodeError: no such stream, or its files are damaged.
        """
        self._known(name, self.metadata.numeric_streams, "numeric")
        return np.asarray(read_array(self.path / name, (self.length, None)), np.float32)

    def numeric_time(self, name: str) -> npt.NDArray[np.float64]:
        """(T,) seconds at which a numeric stream's rows were sampled.

        Raises:
            EpisodeError: no such stream, or its files are damaged.
        """
        self._known(name, self.metadata.numeric_streams, "numeric")
        return np.asarray(read_array(self.path / f"{name}_time", (self.length,)), np.float64)

    def rgb_info(self, name: str) -> RgbInfo:
        """True size, codec and settings of a colour stream.

        Raises:
            EpisodeError: no such stream, or metadata.json doesn't describe it.
        """
        params = self._params(f"rgb_{self._known(name, self.metadata.rgb_streams, 'colour')}")
        try:
            return RgbInfo(int(params["height"]), int(params["width"]), params["codec"], float(params["fps"]), params)
        except KeyError as error:
            raise EpisodeError(f"{self.path / METADATA}: stream_params of 'rgb_{name}' lacks {error}") from error

    def rgb(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[npt.NDArray[np.uint8]]:
        """(H, W, 3) uint8 RGB frames ``start`` to ``stop``, whatever was read before: a frame is its rank.

        Raises:
            EpisodeError: no such stream or frames, or the file is damaged.
            StorageError: the file cannot be read.
        """
        info = self.rgb_info(name)
        start, stop = self._range(start, stop)
        if info.codec == "jpeg":
            return self._decoded_jpegs(name, start, stop)
        return self._decoded_video(name, info, start, stop)

    def rgb_jpegs(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[bytes] | None:
        """The stored JPEGs of frames ``start`` to ``stop``; None where the stream isn't stored as JPEGs.

        Raises:
            EpisodeError: no such stream or frames, or the file is damaged.
            StorageError: the file cannot be read.
        """
        if self.rgb_info(name).codec != "jpeg":
            return None
        start, stop = self._range(start, stop)
        if name not in self._tables and 0 == start < stop == self.length:
            return video_read.whole_jpegs(self._video(name), self.length, partial(self._tables.__setitem__, name))
        path, table = self._table(name)
        return video_read.jpegs(path, table, start, stop)

    def rgb_packets(self, name: str, start: int = 0, stop: int | None = None) -> list[tuple[bytes, bool]] | None:
        """The stored video packets of frames ``start`` to ``stop``, each with whether it is a keyframe.

        None where they are no segment that decodes alone and in order, or the stream isn't stored as video.

        Raises:
            EpisodeError: no such stream or frames, or the file is damaged.
            StorageError: the file cannot be read.
        """
        if self.rgb_info(name).codec == "jpeg":
            return None
        start, stop = self._range(start, stop)
        path, table = self._table(name)
        return video_read.packets(path, table, start, stop)

    def depth(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[npt.NDArray[np.uint16]]:
        """(H, W) uint16 frames ``start`` to ``stop``, multiples of `depth_quantization_mm`, 0 for "no reading".

        Raises:
            EpisodeError: no such stream or frames, or the file is damaged.
            StorageError: the file cannot be read.
        """
        self._known(name, self.metadata.depth_streams, "depth")
        return depth_files.frames(self.path / f"depth_{name}.hdf5", *self._range(start, stop))

    def depth_quantization_mm(self, name: str) -> float:
        """Millimetres of one step of a depth stream."""
        return self._depth_facts(name)[2]

    def depth_shape(self, name: str) -> tuple[int, int]:
        """(H, W) of a depth stream."""
        return self._depth_facts(name)[1]

    def language(self) -> Language | None:
        """What the robot was told; None where the episode has no annotations."""
        return read_language(self.path)

    def verify(self) -> list[str]:
        """Compare every file with the size and digest recorded for it; returns what is wrong, nothing when all is well.

        Raises:
            StorageError: a file is there and cannot be read.
        """
        problems = []
        for relative, entry in self.metadata.files.items():
            path = self.path / relative
            if not path.is_file():
                problems.append(f"{relative} is missing")
                continue
            with storage_errors("read", path):
                size, digest = digest_file(path)
            if size != entry.bytes:
                problems.append(f"{relative} has {size} bytes instead of {entry.bytes}")
            elif digest != entry.sha256:
                problems.append(f"{relative} differs from its checksum")
        return problems

    def _known(self, name: str, names: list[str], kind: str) -> str:
        if name not in names:
            raise EpisodeError(f"{self.path} has no {kind} stream {name!r}; it has {', '.join(names) or 'none'}")
        return name

    def _params(self, key: str) -> dict[str, Any]:
        return self.metadata.stream_params.get(key, {})

    def _range(self, start: int, stop: int | None) -> tuple[int, int]:
        stop = self.length if stop is None else stop
        if not 0 <= start <= stop <= self.length:
            raise EpisodeError(f"frames {start} to {stop} are not within the {self.length} frames of {self.path}")
        return start, stop

    def _video(self, name: str) -> Path:
        return self.path / f"rgb_{name}{suffix(self.rgb_info(name).codec)}"

    def _table(self, name: str) -> tuple[Path, PacketTable]:
        """A colour stream's file and its packets, read once."""
        path = self._video(name)
        if name not in self._tables:
            table = scan(path)
            if len(table.pts) != self.length:
                raise EpisodeError(f"{path} holds {len(table.pts)} frames instead of {self.length}; ingest it again")
            self._tables[name] = table
        return path, self._tables[name]

    def _depth_facts(self, name: str) -> tuple[int, tuple[int, int], float]:
        self._known(name, self.metadata.depth_streams, "depth")
        return depth_files.read_facts(self.path / f"depth_{name}.hdf5")

    def _decoded_video(self, name: str, info: RgbInfo, start: int, stop: int) -> Iterator[npt.NDArray[np.uint8]]:
        path, table = self._table(name)
        converter = Converter()
        for frame in video_read.frames(path, table, start, stop, self._threads):
            yield np.ascontiguousarray(converter.to_rgb(frame, info.height, info.width))

    def _decoded_jpegs(self, name: str, start: int, stop: int) -> Iterator[npt.NDArray[np.uint8]]:
        path, table = self._table(name)
        for index, data in enumerate(video_read.jpegs(path, table, start, stop), start):
            yield decode_image(EncodedImage(data, "jpeg"), f"{path}, frame {index}")


def list_episodes(out: Path) -> list[Path]:
    """The episodes of an output directory in natural order: its folders that hold a ``metadata.json``.

    Raises:
        EpisodeError: there is no such directory.
        StorageError: it cannot be read.
    """
    out = Path(out)
    if not out.is_dir():
        raise EpisodeError(f"{out} is no directory of ingested episodes")
    with storage_errors("read", out):
        found = [path for path in out.iterdir() if not path.name.startswith(".") and (path / METADATA).is_file()]
    return sorted(found, key=lambda path: natural_key(path.name))
