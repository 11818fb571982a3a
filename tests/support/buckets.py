"""Folders in buckets, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from knonik_assets.storage import ObjectFolder, ObjectInfo, Place

__all__ = ["bucket_tree", "downloaded_keys", "folder_at", "upload_tree"]


def folder_at(url: str) -> ObjectFolder:
    return ObjectFolder(Place.of(url, "url"))


def upload_tree(local: Path, url: str) -> str:
    """Upload a file or everything below a folder; returns the URL."""
    if local.is_file():
        place = Place.of(url, "url")
        ObjectFolder(place.parent).put_bytes(place.name, local.read_bytes())
        return url
    folder = folder_at(url)
    for path in sorted(local.rglob("*")):
        if path.is_file():
            folder.put_bytes(path.relative_to(local).as_posix(), path.read_bytes())
    return url


def bucket_tree(url: str) -> dict[str, bytes]:
    """Key → content of everything below a URL."""
    folder = folder_at(url)
    return {one.key: folder.read_bytes(one.key) for one in folder.objects()}


def downloaded_keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by the key of each object that this process downloads from now on."""
    seen: list[str] = []
    download = ObjectFolder.download

    def spy(self: ObjectFolder, key: str, path: Path, expected: ObjectInfo | None = None) -> ObjectInfo:
        seen.append(key)
        return download(self, key, path, expected)

    monkeypatch.setattr(ObjectFolder, "download", spy)
    return seen
