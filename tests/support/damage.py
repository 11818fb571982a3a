"""Damaging packed datasets in known places."""

from pathlib import Path

import numpy as np

from knonik_loader.engine.dataset import PackedDataset, open_dataset
from knonik_loader.engine.storage import open_storage
from tests.support.packed import Packed


def opened(packed: Packed) -> PackedDataset:
    return open_dataset(open_storage("local"), str(packed.manifest))


def flip_byte(packed: Packed, stream: str, episode: int, frame: int) -> tuple[int, int]:
    """Flip one payload byte of a frame (of a numeric stream: of its shard's block); gives (hlp, shard)."""
    dataset = opened(packed)
    rows, inside = dataset.locate(np.array([episode]), np.array([frame]))
    hlp, shard = int(dataset.index.shards.hlp[rows[0]]), int(dataset.index.shards.shard[rows[0]])
    info = next(info for info in dataset.streams if info.key == stream)
    table = dataset.hlp_index(hlp).records(shard, info.stream_id)
    row = 0 if info.kind == "numeric" else int(inside[0])
    at = int(table.offsets[row]) + int(table.sizes[row]) // 2
    with Path(dataset.hlp_key(hlp)).open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x40]))
    return hlp, shard


def needs(packed: Packed, stream: str, episode: int, frame: int) -> set[int]:
    """The frames of an episode whose decoding needs the record of ``frame``."""
    dataset = opened(packed)
    info = next(info for info in dataset.streams if info.key == stream)
    rows, inside = dataset.locate(np.array([episode]), np.array([frame]))
    shards = dataset.index.shards
    first, count = int(shards.first_frame[rows[0]]), int(shards.frames[rows[0]])
    if info.kind == "numeric":
        return set(range(first, first + count))
    back = dataset.hlp_index(int(shards.hlp[rows[0]])).records(int(shards.shard[rows[0]]), info.stream_id).key_back
    row, found = int(inside[0]), set()
    for other in range(count):
        key = other - int(back[other])
        if other == row or key == row or (info.codec == "shdr" and key <= row <= other):
            found.add(first + other)
    return found
