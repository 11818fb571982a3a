"""What the containers of ROS recordings have in common: channels, places of messages, reading within bounds.

A container is read twice: once in a row, to learn where every message lies, and then message by message. Indexes and
footers that a file may carry are not needed for that, so files without them read the same.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from knonik_loader.errors import EpisodeError

__all__ = [
    "HEAD",
    "MAX_BLOCK",
    "BagFile",
    "BlockCache",
    "Channel",
    "Container",
    "Cursor",
    "EndOfDataError",
    "Found",
    "Need",
]

MAX_BLOCK = 1 << 29
"""A message, or a compressed block of messages, that claims more bytes is refused before anything is allocated."""
HEAD = 256
"""Bytes of a message in which its own time stamp is found."""
_CACHE_BYTES = 16 << 20
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class Channel:
    """One connection or channel of one file."""

    topic: str
    type: str
    """As the file says it."""
    encoding: str
    """Of messages: ``ros1``, ``cdr``, ``json``, ``protobuf``."""
    schema_encoding: str = ""
    """Of the definition: ``ros1msg``, ``ros2msg``, ``ros2idl``, ``protobuf``, ``jsonschema``, or nothing."""
    definition: bytes = b""


class Found(NamedTuple):
    """A message met while scanning."""

    channel: Channel
    time: int
    """When it was recorded, nanoseconds."""
    block: int
    """Where the compressed block that holds it begins; negative: it stands in the file itself."""
    offset: int
    length: int
    data: memoryview
    """The message, or as much of its beginning as was asked for."""


Need = Callable[[Channel], int | None]
"""How many bytes of a channel's messages a scan shall hand out; None: all of them."""


class Container(Protocol):
    """One file of a recording."""

    path: Path
    warnings: list[str]
    """What the scan had to survive."""

    def scan(self, need: Need) -> Iterator[Found]:
        """Every message in the order in which it is stored.

        Raises:
            EpisodeError: the file is damaged in a way that leaves doubt about what it holds.
        """
        ...

    def read(self, block: int, offset: int, length: int) -> memoryview:
        """One message whole. Safe from several threads.

        Raises:
            EpisodeError: the file has become unreadable.
        """
        ...

    def close(self) -> None:
        """Let go of the file; idempotent."""
        ...


class EndOfDataError(Exception):
    """A record claims more bytes than there are."""


class Cursor:
    """Takes bytes one after another out of a part of a file, or of a block in memory."""

    def __init__(self, source: BinaryIO | memoryview, start: int, stop: int) -> None:
        self._file = None if isinstance(source, memoryview) else source
        self._memory = source if isinstance(source, memoryview) else None
        self.pos, self.stop = start, stop
        self.crc: int | None = None
        """Set to 0 to have everything that is passed summed up (CRC-32)."""
        if self._file is not None:
            self._file.seek(start)

    @property
    def left(self) -> int:
        """Bytes not yet taken."""
        return self.stop - self.pos

    def take(self, count: int) -> memoryview:
        """The next bytes.

        Raises:
            EndOfDataError: there are fewer.
        """
        if count > self.stop - self.pos:
            raise EndOfDataError
        if self._memory is not None:
            data = self._memory[self.pos : self.pos + count]
        else:
            data = memoryview(self._file.read(count))  # type: ignore[union-attr]
            if len(data) != count:
                raise EndOfDataError
        self.pos += count
        if self.crc is not None:
            self.crc = zlib.crc32(data, self.crc)
        return data

    def head(self, count: int, wanted: int | None) -> memoryview:
        """The first ``wanted`` of the next ``count`` bytes; all of them are passed.

        Raises:
            EndOfDataError: there are fewer.
        """
        if count > self.stop - self.pos:
            raise EndOfDataError
        if wanted is None or wanted >= count or self._memory is not None or self.crc is not None:
            return self.take(count)[:wanted]
        data = self.take(wanted)
        self.skip(count - wanted)
        return data

    def skip(self, count: int) -> None:
        """Pass bytes without a look.

        Raises:
            EndOfDataError: there are fewer.
        """
        if count > self.stop - self.pos:
            raise EndOfDataError
        if self.crc is not None:
            while count:
                step = min(count, _BUFFER)
                self.take(step)
                count -= step
            return
        self.pos += count
        if self._file is not None:
            self._file.seek(self.pos)


class BlockCache:
    """The decompressed blocks of a file that were read last."""

    def __init__(self, load: Callable[[int], bytes]) -> None:
        self._load = load
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, block: int) -> bytes:
        """A block's content."""
        with self._lock:
            found = self._blocks.get(block)
            if found is not None:
                self._blocks.move_to_end(block)
                return found
        data = self._load(block)
        with self._lock:
            if block not in self._blocks:
                self._blocks[block] = data
                self._bytes += len(data)
            while self._bytes > _CACHE_BYTES and len(self._blocks) > 1:
                _, gone = self._blocks.popitem(last=False)
                self._bytes -= len(gone)
        return data

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._blocks.clear()
            self._bytes = 0


class BagFile:
    """An open file for one scan and many reads at once.

    Raises:
        EpisodeError: it cannot be opened, or is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: BinaryIO | None = path.open("rb", buffering=_BUFFER)
            self.size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise EpisodeError(f"{path}: cannot be read ({error.strerror}).") from error
        if not self.size:
            self.close()
            raise EpisodeError(f"{path}: the file is empty (0 bytes).")

    def cursor(self, start: int, stop: int) -> Cursor:
        """For a scan; there is one at a time."""
        return Cursor(self._opened(), start, min(stop, self.size))

    def nested(self, outer: Cursor, length: int) -> Cursor:
        """For a part of the file that begins where another cursor stands; the other is moved behind it by its user."""
        return Cursor(self._opened(), outer.pos, min(outer.pos + length, outer.stop))

    def read(self, offset: int, length: int) -> memoryview:
        """Bytes from anywhere, whatever a scan is doing.

        Raises:
            EpisodeError: the file cannot be read, or has become shorter.
        """
        try:
            data = os.pread(self._opened().fileno(), length, offset)
        except OSError as error:
            raise EpisodeError(f"{self.path}: cannot be read ({error.strerror}).") from error
        if len(data) != length:
            raise EpisodeError(f"{self.path}: has become shorter while it was read.")
        return memoryview(data)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise EpisodeError(f"{self.path}: the recording is closed.")
        return self._file

    def close(self) -> None:
        """Let go of the file; idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
