"""Zarr arrays of format 3 that keep many chunks in one file: each is looked at before memory is taken for it."""

import copy
import json
import shutil
import tracemalloc

import google_crc32c
import numcodecs
import numpy as np
import pytest
import zarr

from knonik_assets.sources import arrays, zarr_arrays, zarr_guard
from knonik_assets.sources.store_files import Folder
from knonik_loader.errors import EpisodeError
from tests.assets.sources.support import frames, only_episode
from tests.support.stamps import episode_arrays, read_stamp
from tests.support.zarr_data import group, zipped


@pytest.fixture(params=["here", "zarr-python", "zarr-python, row by row"])
def decoder(request, monkeypatch):
    """Who decodes chunks: this package, or zarr-python whole shards or single chunks of them."""
    if request.param != "here":
        monkeypatch.setattr(zarr_arrays, "plain_chunks", lambda *_: None)
    if request.param == "zarr-python, row by row":
        monkeypatch.setattr(arrays, "_BLOCK_BYTES", 1)


def identities(pictures):
    return [read_stamp(picture) for picture in pictures]


def sharded(root, shards=(4, 96, 112, 3), rows=12, **options):
    store = group(root / "episode_0", 3)
    video = episode_arrays(4, rows, 1)["cam_0"]
    array = zarr.create_array(
        str(store / "cam"),
        shape=video.shape,
        dtype="u1",
        chunks=(2, 96, 112, 3),
        shards=shards,
        config={"write_empty_chunks": True},
        **options,
    )
    array[:] = video
    return store / "cam"


def shard_index(path, count, change):
    """Rewrite the table at the end of a shard: (count, 2) offsets and lengths, then its check sum."""
    data = path.read_bytes()
    table = np.frombuffer(data[-16 * count - 4 : -4], "<u8").reshape(count, 2).copy()
    change(table)
    raw = table.tobytes()
    path.write_bytes(data[: -16 * count - 4] + raw + google_crc32c.value(raw).to_bytes(4, "little"))


def point(begin, length):
    def change(table):
        table[1] = begin, length

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (point(0, 2**40), "its index puts 1099511627776 bytes at 0; the file has"),
        (point(2**63, 8), "its index puts 8 bytes at 9223372036854775808"),
        (point(2**64 - 8, 16), "its index puts 16 bytes at"),
        (point(2**64 - 1, 5), "its index puts 5 bytes at"),
        (point(0, 3), "cam"),
        (point(2**64 - 1, 2**64 - 1), "1 of 6 chunks are missing"),
    ],
)
def test_a_shard_whose_index_lies(tmp_path, change, message, decoder):
    shard_index(sharded(tmp_path) / "c/1/0/0/0", 2, change)
    with pytest.raises(EpisodeError, match=message), only_episode(tmp_path, data_type="zarr") as opened:
        frames(opened, "cam")


def test_chunks_of_a_shard_that_claim_more_than_they_hold_take_no_memory(tmp_path, decoder):
    path = sharded(tmp_path) / "c/1/0/0/0"
    bomb = numcodecs.Zstd().encode(np.zeros(256 << 20, np.uint8))
    data = path.read_bytes()
    path.write_bytes(bomb + data)

    def change(table):
        table[0] = 0, len(bomb)
        table[1, 0] += len(bomb)

    shard_index(path, 2, change)
    with only_episode(tmp_path, data_type="zarr") as opened:
        tracemalloc.start()
        with pytest.raises(EpisodeError, match="it claims 268435456 bytes, a chunk has"):
            frames(opened, "cam")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
        tracemalloc.stop()


@pytest.mark.parametrize("cut", [1, 10, 10**6])
def test_a_shard_that_is_cut_off(tmp_path, cut):
    path = sharded(tmp_path) / "c/2/0/0/0"
    data = path.read_bytes()
    path.write_bytes(data[: max(0, len(data) - cut)])
    with pytest.raises(EpisodeError, match="cam"), only_episode(tmp_path, data_type="zarr") as opened:
        frames(opened, "cam")


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize("zipped_up", [False, True])
def test_shards_of_every_kind(tmp_path, place, zipped_up, decoder):
    store = sharded(tmp_path, (8, 96, 112, 3), 11).parent
    shutil.rmtree(store / "cam")
    codec = zarr.codecs.ShardingCodec(
        chunk_shape=(2, 96, 112, 3), codecs=[zarr.codecs.BytesCodec(), zarr.codecs.GzipCodec()], index_location=place
    )
    video = episode_arrays(4, 11, 1)["cam_0"]
    array = zarr.create(
        store=str(store / "cam"), shape=video.shape, dtype="u1", chunks=(8, 96, 112, 3), codecs=[codec], zarr_format=3
    )
    array[:] = video
    if zipped_up:
        zipped(store, tmp_path / "episode_0.zip")
    with only_episode(tmp_path, data_type="zarr") as opened:
        assert identities(frames(opened, "cam")) == [(0, 4, frame) for frame in range(11)]


def rewritten(path, change):
    described = json.loads((path / "zarr.json").read_text())
    change(described["codecs"][0]["configuration"])
    (path / "zarr.json").write_text(json.dumps(described))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda how: how["codecs"].append({"name": "numcodecs.pickle"}), "runs code"),
        (lambda how: how["codecs"].insert(1, {"name": "gzip", "configuration": {"level": 1}}), "is not the last"),
        (
            lambda how: how["index_codecs"].append({"name": "gzip", "configuration": {"level": 1}}),
            "index of its shards",
        ),
        (lambda how: how.update(index_codecs="bytes"), "index of its shards"),
        (lambda how: how.update(chunk_shape=[1, 1, 1, 1]), "129024 chunks|at most"),
        (lambda how: how.update(chunk_shape=[0, 96, 112, 3]), "cam"),
        (lambda how: how.update(chunk_shape=[3, 96, 112, 3]), "cam"),
        (lambda how: how.update(chunk_shape=[2, 96]), "cam"),
        (
            lambda how: how["codecs"].__setitem__(0, {"name": "sharding_indexed", "configuration": copy.deepcopy(how)}),
            "one level",
        ),
    ],
)
def test_shards_that_cannot_be_checked_are_refused(tmp_path, change, message, monkeypatch):
    monkeypatch.setattr(zarr_guard, "_MOST_INNER", 1000)
    rewritten(sharded(tmp_path), change)
    with pytest.raises(EpisodeError, match=message), only_episode(tmp_path, data_type="zarr") as opened:
        frames(opened, "cam")


@pytest.mark.parametrize("zipped_up", [False, True])
def test_a_shard_is_not_read_whole_where_its_chunks_can_be_read_alone(tmp_path, zipped_up, monkeypatch):
    monkeypatch.setattr(zarr_arrays, "_READ_BYTES", 1)
    store = sharded(tmp_path, (8, 96, 112, 3), 19)
    whole = max(path.stat().st_size for path in (store / "c").rglob("*") if path.is_file())
    if zipped_up:
        zipped(store.parent, tmp_path / "episode_0.zip")
    taken = []

    def noted(self, name, start, stop, real=Folder.part):
        data = real(self, name, start, stop)
        taken.append(len(data or b"") if "/c/" in name else 0)
        return data

    monkeypatch.setattr(Folder, "part", noted)
    with only_episode(tmp_path, data_type="zarr") as opened:
        found = frames(opened, "cam")
    assert identities(found) == identities(episode_arrays(4, 19, 1)["cam_0"])
    assert zipped_up is (not any(taken))
    assert max(taken, default=0) < whole / 3
