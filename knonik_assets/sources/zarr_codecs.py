"""What Zarr arrays are encoded by: which codecs are refused, and what is looked at before a chunk is decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numcodecs
import zarr

from knonik_assets.sources.zarr_guard import Guard, ShardGuard
from knonik_loader.errors import EpisodeError

__all__ = ["check_codecs", "chunk_guard", "sharding_of"]

_SHARDING = "sharding_indexed"
_COMPRESSORS = frozenset(("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"))


def check_codecs(meta: Mapping[str, Any], version: int, where: str) -> None:
    """Refuse codecs that run code from the data, and name those that aren't installed.

    Raises:
        EpisodeError: either.
    """
    names: list[str] = []
    chain = _chain(meta, version)
    if version == 3 and (sharding := sharding_of(meta)) is not None:
        _check_sharding(sharding, chain, where)
        chain = [*chain, *_chain(sharding, version)]
    for codec in chain:
        name = codec.get("name" if version == 3 else "id") if isinstance(codec, dict) else None
        if not isinstance(name, str):
            raise EpisodeError(f"{where}: damaged metadata: a codec is {str(codec)[:80]}.")
        if "pickle" in name:
            raise EpisodeError(
                f"{where}: is stored with the codec {name!r}, which runs code from the data when it is read; store it "
                "as numbers or text."
            )
        if version == 2 and not _is_known(name):
            raise EpisodeError(f"{where}: needs the codec {name!r}, which is not installed.")
        names.append(name.rsplit(".", 1)[-1])
    for name in names[:-1]:
        if name in _COMPRESSORS:  # only what compressed last can be looked at before it is decoded
            raise EpisodeError(
                f"{where}: {name!r} is not the last of its codecs; store it with one compressor, the last."
            )


def _chain(meta: Mapping[str, Any], version: int) -> list[Any]:
    """What a chunk goes through when it is written, but for a check sum behind it."""
    if version == 2:
        filters = meta.get("filters")
        chain = [*(filters if isinstance(filters, list) else []), meta.get("compressor")]
        return [codec for codec in chain if codec is not None]
    codecs = meta.get("codecs")
    chain = list(codecs) if isinstance(codecs, list) else []
    while chain and isinstance(chain[-1], dict) and chain[-1].get("name") == "crc32c":
        chain.pop()
    return chain


def _is_known(name: str) -> bool:
    from numcodecs.registry import codec_registry, entries

    return name in codec_registry or name in entries or hasattr(numcodecs, name)


def _last_codec(chain: list[Any], version: int) -> str:
    """What a chunk's bytes as stored were made by last."""
    last = chain[-1] if chain else {}
    return str(last.get("name" if version == 3 else "id")).rsplit(".", 1)[-1] if isinstance(last, dict) else ""


def sharding_of(meta: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How an array of format 3 keeps many chunks in one file; None where it doesn't."""
    codecs = meta.get("codecs")
    for codec in codecs if isinstance(codecs, list) else ():
        if isinstance(codec, dict) and codec.get("name") == _SHARDING:
            found = codec.get("configuration")
            return found if isinstance(found, dict) else {}
    return None


def _check_sharding(sharding: Mapping[str, Any], chain: list[Any], where: str) -> None:
    """Refuse what cannot be checked before it is decoded: a shard or its index compressed as a whole, or nested ones.

    Raises:
        EpisodeError: either.
    """
    if len(chain) != 1 or sharding_of(sharding) is not None:
        raise EpisodeError(
            f"{where}: its shards are encoded once more, or hold shards; store it with one level of them."
        )
    codecs = sharding.get("index_codecs")
    names = (
        [codec.get("name") if isinstance(codec, dict) else codec for codec in codecs]
        if isinstance(codecs, list)
        else codecs
    )
    if names not in (["bytes"], ["bytes", "crc32c"]):
        raise EpisodeError(f"{where}: the index of its shards is stored by {names}; wanted bytes and crc32c.")


def chunk_guard(array: zarr.Array, meta: Mapping[str, Any], version: int, most: int, where: str) -> Guard | ShardGuard:
    """What is looked at in the files of an array's chunks.

    Args:
        array: the opened array.
        meta: its metadata.
        version: of the format.
        most: bytes that a decoded chunk may have, the inner ones of shards.
        where: for messages.

    Raises:
        EpisodeError: an absurd number of chunks in a shard.
    """
    sharding = sharding_of(meta) if version == 3 else None
    if sharding is None or array.shards is None:
        return Guard(_last_codec(_chain(meta, version), version), most)
    inner = Guard(_last_codec(_chain(sharding, version), version), most)
    index = sharding["index_codecs"]
    endian = (index[0].get("configuration") or {}).get("endian", "little")
    return ShardGuard(
        inner,
        tuple(outer // own for outer, own in zip(array.shards, array.chunks, strict=True)),
        checksum=len(index) > 1,
        first=sharding.get("index_location") == "start",
        order=">" if endian == "big" else "<",
        where=where,
    )
