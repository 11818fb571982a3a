"""The vocabulary that writer, reader, codecs, planner and packer share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "PAYLOAD_OF_PROFILE",
    "Codec",
    "Dependency",
    "FrameInput",
    "Record",
    "StorageProfile",
    "StreamInfo",
    "StreamKind",
    "batch_key",
]

StreamKind = Literal["rgb", "depth", "numeric"]
StorageProfile = Literal["compact_video", "training_fast", "training_compressed"]
Dependency = Literal["none", "key", "chain"]
"""What a record needs besides itself: nothing, its key record, or every record from its key record on."""

PAYLOAD_OF_PROFILE: Mapping[StorageProfile, str] = {
    "compact_video": "shdr",
    "training_fast": "kimg",
    "training_compressed": "kdelta",
}
"""The name that users give to what a profile stores (``payload`` in a loader config)."""


def batch_key(kind: StreamKind, name: str) -> str:
    """The key of a stream in a batch: ``rgb_<name>``, ``depth_<name>``, or a numeric stream's bare name."""
    return name if kind == "numeric" else f"{kind}_{name}"


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """One stream of a packed dataset, as the manifest and every KHLP file's schema describe it."""

    stream_id: int
    """Position in the schema; what the index calls the stream."""
    kind: StreamKind
    name: str
    """Without the ``rgb_`` or ``depth_`` of batch keys."""
    codec: str
    """``kimg``, ``kdlt``, ``shdr`` (rgb); ``depth``; ``numeric``."""
    shape: tuple[int, ...]
    """Of one frame as decoded: (H, W, 3), (H, W) or (D,)."""
    dtype: str
    """As decoded: ``uint8`` (rgb) or ``float32`` (depth in metres, numeric)."""
    fps: float
    channel_names: tuple[str, ...] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    """What the codec was told (quality, chroma, gop, quantization_mm, ...); JSON values only."""

    @property
    def key(self) -> str:
        """The stream's key in a batch."""
        return batch_key(self.kind, self.name)


@dataclass(frozen=True, slots=True)
class Record:
    """One payload of one stream of one shard: a frame, or for numeric streams the shard's whole block."""

    data: bytes | memoryview
    key_back: int = 0
    """How many records back the record lies that decodes alone; 0: this one does."""
    intra: bool = False
    """Decodes alone, and no other record refers to it, in a codec that has keys (a KDLT frame stored whole)."""


FrameInput = npt.NDArray[Any] | bytes
"""What an encoder is given for a frame: the decoded array, or an already encoded JPEG to pass through."""


class Codec(Protocol):
    """Turns one stream's frames of one shard into records and back.

    Instances are cheap, hold no state between calls that changes results, and are used by one thread at a time.
    Encoding is deterministic: the same frames and parameters give the same bytes in every process.
    """

    name: ClassVar[str]
    dependency: ClassVar[Dependency]

    def encode(self, frames: Iterable[FrameInput]) -> list[Record]:
        """Encode the frames of one shard, in order: one record a frame (numeric: one record in all)."""
        ...

    def decode(
        self, records: Mapping[int, memoryview], wanted: Sequence[int], out: Mapping[int, npt.NDArray[Any]]
    ) -> None:
        """Decode one group into the caller's memory.

        Args:
            records: row within the shard → payload. Exactly what the dependency asks for: the wanted row alone
                ("none"), the key row and the wanted rows ("key"), or every row from the key to the last wanted
                ("chain"). All wanted rows share one key row.
            wanted: rows to write, ascending.
            out: wanted row → C-contiguous array of the stream's shape and dtype, to be filled.

        Raises:
            DecodeError: a payload is damaged or decodes to another shape; ``out`` is then undefined.
        """
        ...


Frames = npt.NDArray[np.uint8]
