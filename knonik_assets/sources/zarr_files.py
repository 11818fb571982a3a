"""Zarr's view of the files of a store, in a folder or a zip archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from knonik_assets.sources.store_files import Files, Folder
from knonik_assets.sources.zarr_guard import Guard, ShardGuard
from knonik_assets.sources.zip_archive import ZipArchive
from knonik_loader.errors import EpisodeError

__all__ = ["FilesStore", "open_files"]

_NOTHING: tuple[str, ...] = ()


def open_files(path: Path) -> Files:
    """The files of the store at a path.

    Raises:
        EpisodeError: missing, or neither a folder nor a zip archive.
    """
    if path.is_dir():
        return Folder(path)
    return ZipArchive(path)


class FilesStore(Store):  # type: ignore[misc]  # zarr is not checked here
    """Zarr's view of some files; read-only.

    Args:
        files: the files.
    """

    def __init__(self, files: Files) -> None:
        super().__init__(read_only=True)
        self._files = files
        self.guards: dict[str, Guard | ShardGuard] = {}
        """What is checked of every chunk, by the folder of its array."""

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    @property
    def supports_writes(self) -> bool:
        """Never."""
        return False

    @property
    def supports_deletes(self) -> bool:
        """Never."""
        return False

    @property
    def supports_listing(self) -> bool:
        """Not needed: what is read is known by name."""
        return False

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """A file's content or a part of it."""
        guard = next((guard for folder, guard in self.guards.items() if key.startswith(folder)), None)
        data = await asyncio.to_thread(self._read, key, guard, byte_range)
        return None if data is None else (prototype or default_buffer_prototype()).buffer.from_bytes(data)

    def _read(self, key: str, guard: Guard | ShardGuard | None, byte_range: ByteRequest | None) -> bytes | None:
        where = f"{self._files.where}/{key}"
        if byte_range is not None and isinstance(guard, ShardGuard):
            size = self._files.size(key)
            if size is None:
                return None
            start, stop = _bounds(byte_range, size)
            part = self._files.part(key, start, stop)
            if part is not None:
                guard.check_part(part, start, size, where)
            return part
        data = self._files.read(key)
        if data is None:
            return None
        if guard is not None:
            guard.check(data, where)
        return data if byte_range is None else data[slice(*_bounds(byte_range, len(data)))]

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> Sequence[Buffer | None]:
        """Several at once."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        """Whether there is such a file."""
        return self._files.size(key) is not None

    async def set(self, key: str, value: Buffer) -> None:
        """Refused."""
        raise EpisodeError(f"{self._files.where}: raw data is never written.")

    async def delete(self, key: str) -> None:
        """Refused."""
        raise EpisodeError(f"{self._files.where}: raw data is never written.")

    async def list(self) -> AsyncIterator[str]:
        """Nothing: see `supports_listing`."""
        for name in _NOTHING:
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Nothing: see `supports_listing`."""
        for name in _NOTHING:
            yield name

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Nothing: see `supports_listing`."""
        for name in _NOTHING:
            yield name


def _bounds(byte_range: ByteRequest, size: int) -> tuple[int, int]:
    if isinstance(byte_range, RangeByteRequest):
        return byte_range.start, byte_range.end
    if isinstance(byte_range, OffsetByteRequest):
        return byte_range.offset, size
    assert isinstance(byte_range, SuffixByteRequest)
    return max(0, size - byte_range.suffix), size
