"""A dataset of very many episodes that can be planned, but not read."""

from pathlib import Path

import numpy as np
from crc32c import crc32c

from knonik_loader.khlp.index import INDEX_NAME, DatasetIndex, EpisodeTable, ShardTable
from knonik_loader.khlp.manifest import IndexEntry, load_manifest
from tests.support.packed import write_packed


def write_huge(folder: Path, episodes: int) -> Path:
    """A manifest and index of many episodes of one frame each, whose files are not there."""
    small = write_packed(folder, [1], cameras=0, depth=False)
    rows = np.arange(episodes)
    table = EpisodeTable(
        episode_id=[f"episode_{row:06d}" for row in rows],
        source_id=[f"source_{row}" for row in rows],
        length=np.ones(episodes, np.int64),
        split=[""] * episodes,
        regular=np.ones(episodes, bool),
        t0=np.zeros(episodes),
        fps=np.full(episodes, 30.0),
        language=[""] * episodes,
        digest=np.zeros((episodes, 32), np.uint8),
    )
    zero, one = np.zeros(episodes, np.uint32), np.ones(episodes, np.uint32)
    shards = ShardTable(zero, rows.astype(np.uint32), rows.astype(np.uint32), zero, one)
    data = DatasetIndex(table, {}, shards).to_bytes()
    (folder / INDEX_NAME).write_bytes(data)
    manifest = load_manifest(small.manifest.read_bytes(), "here")
    hlps = [manifest.hlps[0].model_copy(update={"num_shards": episodes})]
    counts = {
        "num_episodes": episodes,
        "num_shards": episodes,
        "num_frames": episodes,
        "hlps": hlps,
        "window_size": episodes,
    }
    entry = IndexEntry(uri=INDEX_NAME, bytes=len(data), crc32c=crc32c(data))
    small.manifest.write_text(manifest.model_copy(update={**counts, "index": entry}).to_json())
    return small.manifest
