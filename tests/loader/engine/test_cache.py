"""``ram_cache_bytes``: decoded keys and shards are kept, used, bounded, and change no picture."""

import threading

import numpy as np
import pytest

from knonik_loader import ShardedDataLoader
from knonik_loader.engine.cache import FrameCache

PICTURE = 80 * 80 * 3


def test_the_least_recently_used_goes_first():
    cache = FrameCache(250)
    pictures = [{0: np.zeros(100, np.uint8)} for _ in range(3)]
    for number, picture in enumerate(pictures[:2]):
        cache.put((0, number, 0, 0), picture)
    assert cache.get((0, 0, 0, 0)) is pictures[0]
    cache.put((0, 2, 0, 0), pictures[2])
    assert cache.get((0, 1, 0, 0)) is None
    assert cache.get((0, 0, 0, 0)) is pictures[0]
    cache.put((0, 0, 0, 0), pictures[1])  # the same again counts once
    cache.put((0, 9, 0, 0), {0: np.zeros(251, np.uint8)})
    assert cache.counts() == {"hits": 2, "misses": 1, "dropped": 1, "bytes": 200, "limit_bytes": 250}


def test_it_never_holds_more_than_its_limit_whoever_writes():
    cache, most = FrameCache(1000), []

    def write(thread):
        for number in range(300):
            cache.put((thread, number % 17, 0, 0), {0: np.zeros(70 + number % 50, np.uint8)})
            most.append(cache.counts()["bytes"])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 700 < max(most) <= 1000


@pytest.mark.parametrize("limit", [1, 3 * PICTURE, 40 * PICTURE, 1 << 30])
@pytest.mark.parametrize("keys", [{}, {"planner_locality": "ultra_low_mem", "chunk_len": 3}])
def test_no_picture_changes(every_profile, limit, keys):
    with ShardedDataLoader(every_profile.config(pad_missing=True, **keys)) as loader:
        plain = [*loader, *loader]
    with ShardedDataLoader(every_profile.config(pad_missing=True, ram_cache_bytes=limit, **keys)) as loader:
        cached = [*loader, *loader]
        stats = loader.stats()
    for one, other in zip(cached, plain, strict=True):
        assert one["_frame_indices"].tolist() == other["_frame_indices"].tolist()
        for key in one["_stream_names"]:
            np.testing.assert_array_equal(one[key], other[key])
    assert stats["cache"]["bytes"] <= limit
    if every_profile.config()["hlp_manifest"].find("training_fast") >= 0:
        assert stats["inactive"] == ["ram_cache_bytes"]
        assert stats["cache"]["limit_bytes"] == 0
    else:
        assert stats["inactive"] == []
        assert (stats["cache"]["hits"] > 0) == (limit > 1)


@pytest.mark.parametrize("profile", ["training_compressed", "compact_video"])
def test_what_is_held_is_neither_read_nor_decoded_again(request, profile, tmp_path):
    from tests.support.packed import write_packed

    packed = write_packed(tmp_path, (61, 40, 9), profile, depth=False)
    counts = []
    for limit in (0, 1 << 30):
        with ShardedDataLoader(packed.config(ram_cache_bytes=limit, num_decoders=1), {"rgb_cam_0": {}}) as loader:
            list(loader)
            first = loader.stats()
            list(loader)
            second = loader.stats()
        counts.append({key: second[key] - first[key] for key in ("frames", "bytes_read")})
    if profile == "compact_video":
        assert counts[1] == {"frames": 0, "bytes_read": 0}
    else:
        assert 0 < counts[1]["frames"] < counts[0]["frames"]
        assert 0 < counts[1]["bytes_read"] < counts[0]["bytes_read"]
    assert second["cache"]["misses"] == first["cache"]["misses"]


def test_low_memory_halves_it(every_profile):
    with ShardedDataLoader(every_profile.config(ram_cache_bytes=1000, low_memory=True)) as loader:
        assert loader.stats()["cache"]["limit_bytes"] in {0, 500}
