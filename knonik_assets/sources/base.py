"""What every raw format must offer: the `Source` protocol.

A source is opened once in the driver to list episodes and once in every worker to read them, so it pickles (or is
rebuilt from the same config) and keeps no open handle between calls. It says what is in the data and never repairs in
silence: whatever it had to survive goes to ``warnings``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import av
import numpy as np
import numpy.typing as npt

__all__ = [
    "EncodedImage",
    "EpisodeFacts",
    "EpisodeRef",
    "FingerprintCache",
    "Frame",
    "Language",
    "Source",
    "SourceEpisode",
    "StreamSpec",
]


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One picture as the source stores it, to be passed through or decoded by `knonik_assets.sources.images`."""

    data: bytes
    """Exactly the picture's bytes: padding behind the end-of-image marker is already cut off."""
    format: Literal["jpeg", "png"]


Frame = npt.NDArray[Any] | EncodedImage
"""Colour: uint8 (H, W, 3) RGB or an encoded picture. Depth: float32 (H, W) metres with 0 for "no reading"."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream of one episode, named as it will be called in the output."""

    kind: Literal["rgb", "depth", "numeric"]
    name: str
    source: str
    """Where it is in the raw data, in the source's own words."""
    length: int
    """Frames (or rows) that the source declares for this episode."""
    shape: tuple[int, ...]
    """Of one frame: (H, W, 3), (H, W) or (D,)."""
    fps: float | None = None
    """Nominal rate, where the source or the layout states one."""
    recorded_fps: float | None = None
    """Samples a second in the source, where each frame takes the one that is nearest in time."""
    channel_names: tuple[str, ...] | None = None
    role: Literal["action", "state"] | None = None
    chunk_len: int | None = None
    """Rows a chunk of a numeric stream in the output, where the config asks for it; None: the preset's."""
    encoding: Literal["raw", "jpeg", "png", "video"] = "raw"
    """How the source holds it. With "jpeg" every frame comes as an `EncodedImage` unless the config turns pictures."""


@dataclass(frozen=True, slots=True)
class EpisodeRef:
    """Names an episode and says where to find it; picklable."""

    source_id: str
    """The source's own name: file stem, episode index, ``relative/path#demo``. Unique within the source and stable."""
    locator: Any = None
    """Whatever the source needs to open it again."""


@dataclass(frozen=True, slots=True)
class Language:
    """What the source says that the robot was told."""

    instruction: str
    rephrases: tuple[str, ...] = ()
    segments: tuple[tuple[float, float, str], ...] = ()
    """(start, end, text) in seconds of the episode's clock, where the instruction changes within the episode."""


class FingerprintCache(Protocol):
    """Remembers digests of whole files by path, size and time of change, so that unchanged ones aren't read again."""

    def file_digest(self, path: Path) -> str:
        """Hex sha256 of the file's content."""
        ...


@dataclass(slots=True)
class EpisodeFacts:
    """What an opened episode knows beside its streams."""

    timestamps: npt.NDArray[np.float64] | None = None
    """(T,) seconds, the episode's clock as the source recorded it; None where it has none."""
    language: Language | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    """Extra metadata by its name in ``metadata.json``: camera_info, urdf_joints, source_bag, ros_cameras, ..."""
    warnings: list[str] = field(default_factory=list)
    nothing: str = ""
    """Why the episode has no frame at all, where it has none."""


class SourceEpisode(Protocol):
    """An open episode. A context manager; everything is read lazily and memory does not grow with its length."""

    streams: Sequence[StreamSpec]
    facts: EpisodeFacts

    def frames(self, spec: StreamSpec) -> Iterator[Frame]:
        """Exactly ``spec.length`` frames of a colour or depth stream, in order.

        Several streams may be read at once from different threads, each iterator from one.

        Raises:
            EpisodeError: the data is damaged or ends before the declared length.
        """
        ...

    def numeric(self, spec: StreamSpec) -> npt.NDArray[np.float32]:
        """(T, D) rows of a numeric stream."""
        ...

    def stream_times(self, spec: StreamSpec) -> npt.NDArray[np.float64] | None:
        """(T,) seconds at which this stream was sampled, where that differs from the episode's clock."""
        ...

    def packets(self, spec: StreamSpec) -> tuple[av.VideoStream, Iterator[av.Packet[av.VideoStream]]] | None:
        """The stream's own compressed packets for the codec ``copy``, when they start on a keyframe; else None."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Source(Protocol):
    """A raw dataset of one format."""

    format: str
    """``source_format`` in the metadata: ``hdf5``, ``lerobot_v3``, ..."""
    warnings: list[str]
    """About the dataset as a whole; filled by ``episodes()``."""

    def episodes(self) -> Sequence[EpisodeRef]:
        """Every episode in natural order (numbers inside names compare as numbers), without reading their data.

        A file that is broken is listed all the same: opening it then fails by name and the others go on.

        Raises:
            SourceError: there is no such dataset, or nothing in it looks like this format.
        """
        ...

    def fingerprint(self, ref: EpisodeRef, cache: FingerprintCache) -> str:
        """Hex digest of the episode's own content (in shared files: its rows and packets), never of paths or times."""
        ...

    def open(self, ref: EpisodeRef) -> SourceEpisode:
        """Open one episode.

        Raises:
            EpisodeError: this episode is unreadable.
            SourceError: the layout names something that no episode of this source has (where that is an error).
        """
        ...
