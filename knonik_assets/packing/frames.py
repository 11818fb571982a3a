"""Frames of an episode for the encoders: decoded forwards once, resized where asked, JPEGs untouched where possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.packing.packets import may_pass, passed_records
from knonik_assets.sources.images import cut_encoded
from knonik_loader.errors import EpisodeError
from knonik_loader.khlp.codecs.kimg import check_jpeg
from knonik_loader.khlp.types import Codec, FrameInput, Record, StreamInfo

__all__ = ["FrameFeed", "check_passing", "fit", "rgb_frames"]

_JPEG_END = b"\xff\xd9"


def fit(image: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """An (H, W, 3) picture at another size, every new pixel the mean of the area it covers."""
    if image.shape[:2] == (height, width):
        return image
    from PIL import Image

    return np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize((width, height), Image.Resampling.BOX))


def rgb_frames(reader: EpisodeReader, stream: StreamInfo, start: int, stop: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Decoded frames ``start`` to ``stop`` of a colour stream, at the packed size."""
    height, width = stream.shape[:2]
    for image in reader.rgb(stream.name, start, stop):
        yield fit(image, height, width)


def check_passing(stream: StreamInfo, data: bytes, frame: int) -> bytes:
    """Refuse a JPEG that may not pass untouched because no training could decode it, or not to the stream's size.

    The header is read, and a picture that doesn't end with its end marker is walked to it, so that none that was cut
    off passes. Ingest has decoded every one, and the episode's checksums say that nothing happened to them since;
    `knonik_assets.packing.fidelity` decodes samples again.

    Raises:
        EpisodeError, PackError: naming stream and frame.
    """
    check_jpeg(stream, data, frame)
    if not data.endswith(_JPEG_END):
        cut_encoded(data, f"stream {stream.key!r}, frame {frame}")
    return data


class FrameFeed:
    """Hands out one stream's frames shard by shard.

    Shards that follow each other without a gap share one pass of the decoder: seeking costs up to a whole group of
    pictures each time.
    """

    def __init__(
        self, reader: EpisodeReader, stream: StreamInfo, spans: Sequence[tuple[int, int]], *, reencode: bool
    ) -> None:
        """Prepare for the (start, stop) spans that will be taken, in order."""
        self._reader = reader
        self._stream = stream
        self._reencode = reencode
        self._ends = _run_ends(spans)
        self._frames: Iterator[FrameInput] = iter(())
        self._next = -1
        self._numeric: npt.NDArray[np.float32] | None = None
        self._packets_pass = bool(stream.params.get("passes")) and may_pass(
            reader.rgb_info(stream.name), stream.shape, stream.params
        )

    def records(self, codec: Codec, start: int, stop: int) -> list[Record]:
        """The frames from ``start`` to ``stop`` as records: the episode's own packets where they may and do fit.

        Raises:
            EpisodeError: the stream ends early or cannot be decoded.
            PackError: a frame does not suit the stream.
        """
        passed = passed_records(self._reader, self._stream, codec, start, stop) if self._packets_pass else None
        return codec.encode(self.take(start, stop)) if passed is None else passed

    def take(self, start: int, stop: int) -> Iterator[FrameInput]:
        """The frames from ``start`` to ``stop``; all must be used before the next call.

        Raises:
            EpisodeError: the stream ends early or cannot be decoded.
        """
        if start != self._next:
            self._frames = self._open(start, self._ends[start])
        self._next = stop
        count = 0
        for frame in islice(self._frames, stop - start):
            count += 1
            yield frame
        if count < stop - start:
            raise EpisodeError(
                f"{self._reader.path}: stream {self._stream.key!r} ends at frame {start + count} of "
                f"{self._reader.length}; ingest the episode again."
            )

    def _open(self, start: int, stop: int) -> Iterator[FrameInput]:
        reader, stream = self._reader, self._stream
        if stream.kind == "depth":
            return reader.depth(stream.name, start, stop)
        if stream.kind == "numeric":
            if self._numeric is None:
                self._numeric = reader.numeric(stream.name)
            return iter(self._numeric[start:stop])
        if stream.codec in ("kimg", "kdlt") and not self._reencode:
            info = reader.rgb_info(stream.name)
            if (info.height, info.width) == tuple(stream.shape[:2]):
                jpegs = reader.rgb_jpegs(stream.name, start, stop)
                if jpegs is not None:
                    return (check_passing(stream, data, frame) for frame, data in enumerate(jpegs, start))
        return rgb_frames(reader, stream, start, stop)


def _run_ends(spans: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Start of each span → end of the unbroken run of spans that it begins or belongs to."""
    ends: dict[int, int] = {}
    following: tuple[int, int] | None = None
    for start, stop in reversed(spans):
        ends[start] = ends[following[0]] if following is not None and following[0] == stop else stop
        following = (start, stop)
    return ends
