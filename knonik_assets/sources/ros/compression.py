"""Unpacking within bounds: blocks and messages in memory, whole files on disk."""

from __future__ import annotations

import bz2
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import zstandard

from knonik_assets.sources.ros.files import MAX_BLOCK
from knonik_loader.errors import EpisodeError

__all__ = ["copied", "decompress", "is_packed", "recover", "temporary_folder", "unpacked", "unzstd"]

_BUFFER = 1 << 20
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def _lz4(data: memoryview, size: int) -> bytes:
    return bytes(lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=size + 1))


def _zstd(data: memoryview, size: int) -> bytes:
    if zstandard.frame_content_size(data) == size:  # which is within bounds, so it can be done in one go
        return zstandard.ZstdDecompressor().decompress(data)
    return _zstd_stream(data, size)


def _zstd_stream(data: memoryview, size: int) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 30).stream_reader(data)
    return bytes(reader.read(size + 1))


def _bz2(data: memoryview, size: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, max_length=size + 1)


_WAYS: dict[str, Callable[[memoryview, int], bytes]] = {"lz4": _lz4, "zstd": _zstd, "bz2": _bz2}
_FAULTS: tuple[type[Exception], ...] = (RuntimeError, OSError, ValueError, EOFError, zstandard.ZstdError)


def decompress(data: memoryview, how: str, size: int, where: str) -> bytes:
    """A block's content, which has to be of just the stated size.

    Raises:
        EpisodeError: an unknown compression, a size beyond `MAX_BLOCK`, or damaged data.
    """
    way = _WAYS.get(how)
    if way is None:
        raise EpisodeError(f"{where}: compressed by {how!r}, which is none of {', '.join(_WAYS)}.")
    if size > MAX_BLOCK or len(data) > MAX_BLOCK:
        raise EpisodeError(
            f"{where}: a compressed block of {size:,} bytes; up to {MAX_BLOCK:,} are read. Rewrite it in smaller "
            "chunks."
        )
    try:
        out = way(data, size)
    except _FAULTS as error:
        raise EpisodeError(f"{where}: damaged {how} block: {error}.") from error
    if len(out) != size:
        raise EpisodeError(f"{where}: damaged {how} block: {len(out):,} bytes came out of it, {size:,} are stated.")
    return out


def recover(data: memoryview, how: str, size: int) -> bytes:
    """As much of a block's content as comes out of the beginning of it; nothing where nothing does."""
    way = _zstd_stream if how == "zstd" else _WAYS.get(how)
    if way is None or size > MAX_BLOCK or len(data) > MAX_BLOCK:
        return b""
    try:
        return way(data, size)[:size]
    except _FAULTS:
        return b""


def is_packed(data: memoryview) -> bool:
    """Whether a CDR message, whose first bytes say its byte order, is a zstd frame instead."""
    return bytes(data[:4]) == _ZSTD_MAGIC


def unpacked(data: memoryview, where: str) -> memoryview:
    """The content of a message that its recorder compressed.

    Raises:
        EpisodeError: damaged, or too large.
    """
    try:
        size = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise EpisodeError(f"{where}: damaged zstd message: {error}.") from error
    if size < 0:
        return memoryview(_zstd_stream(data, MAX_BLOCK))
    return memoryview(decompress(data, "zstd", size, where))


def temporary_folder(path: Path, size: int) -> Path:
    """A folder for a file that has to be unpacked or copied before it can be read.

    Raises:
        EpisodeError: there is no room for that many bytes.
    """
    folder = Path(tempfile.mkdtemp(prefix="knonik-bag-"))
    free = shutil.disk_usage(folder).free
    if size > free:
        folder.rmdir()
        raise EpisodeError(f"{path}: {size:,} bytes have to be unpacked to {folder.parent}, which has {free:,} left.")
    return folder


def copied(source: Path, target: Path) -> Path:
    """Copy a file.

    Raises:
        EpisodeError: it cannot be read, or there is no room for it.
    """
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise _no_room(source, target, error) from None
    return target


def unzstd(source: Path, target: Path) -> Path:
    """Decompress a file that a recorder compressed as a whole.

    Raises:
        EpisodeError: it is damaged, or there is no room for it.
    """
    try:
        with source.open("rb") as packed, target.open("wb") as plain:
            reader = zstandard.ZstdDecompressor(max_window_size=1 << 30).stream_reader(packed, read_across_frames=True)
            shutil.copyfileobj(reader, plain, _BUFFER)
    except zstandard.ZstdError as error:
        raise EpisodeError(f"{source}: damaged zstd file: {error}.") from error
    except OSError as error:
        raise _no_room(source, target, error) from None
    return target


def _no_room(source: Path, target: Path, error: OSError) -> EpisodeError:
    """Without the error as its cause: it is not the output's disk that is full."""
    return EpisodeError(
        f"{source}: cannot be unpacked to {target.parent} ({error.strerror}); TMPDIR names the folder for that."
    )
