"""Chunks that are decoded without zarr-python come out as zarr-python decodes them, or as an error."""

import itertools
import os
import threading

import numcodecs
import numpy as np
import pytest
import zarr

from knonik_assets.sources import zarr_arrays
from knonik_assets.sources.read_ahead import read_ahead
from knonik_assets.sources.zarr_arrays import ZarrArray, scan
from knonik_assets.sources.zarr_files import open_files
from knonik_loader.errors import EpisodeError
from tests.support.zarr_data import zipped

ROWS = 11
CODECS = {
    2: [None, numcodecs.Blosc(), numcodecs.GZip(), numcodecs.LZ4(), numcodecs.Zlib(), numcodecs.Zstd()],
    3: [None, zarr.codecs.BloscCodec(), zarr.codecs.GzipCodec(), zarr.codecs.ZstdCodec()],
}


def values(dtype="u1", rows=ROWS, frame=(3, 5)):
    return (np.arange(rows * int(np.prod(frame))).reshape(rows, *frame) % 251).astype(dtype)


def stored(root, content, chunk=4, version=2, **options):
    options.setdefault("config", {"write_empty_chunks": True})
    array = zarr.create_array(
        str(root / "store" / "a"),
        shape=content.shape,
        dtype=content.dtype,
        chunks=(chunk, *content.shape[1:]),
        zarr_format=version,
        **options,
    )
    array[:] = content
    return root / "store"


def opened(store) -> ZarrArray:
    return scan(open_files(store), "store")[("a",)]


def compared(store):
    """Every run of rows, streamed and not, against zarr-python reading the folder itself."""
    array = opened(store)
    wanted = zarr.open_array(str(store / "a"), mode="r")[:]
    for start, stop in itertools.combinations_with_replacement(range(len(wanted) + 1), 2):
        np.testing.assert_array_equal(array.rows(start, stop), wanted[start:stop], strict=True)
        rows = list(array.stream_rows(start, stop))
        assert len(rows) == stop - start
        assert all(
            np.array_equal(row, one) and row.dtype == one.dtype
            for row, one in zip(rows, wanted[start:stop], strict=True)
        )
    return array


@pytest.mark.parametrize(("version", "codec"), [(version, codec) for version in CODECS for codec in CODECS[version]])
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "f8", "?"])
def test_usual_chunks_are_decoded_here(tmp_path, version, codec, dtype):
    array = compared(stored(tmp_path, values(dtype), version=version, compressors=codec))
    assert array._plain is not None


@pytest.mark.parametrize(
    ("version", "options"),
    [
        (2, {"order": "F"}),
        (2, {"filters": [numcodecs.Delta("u1")]}),
        (2, {"chunks": (4, 2, 5)}),
        (3, {"filters": [zarr.codecs.TransposeCodec(order=(2, 0, 1))]}),
        (3, {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]}),
        (3, {"shards": (8, 4, 5), "chunks": (4, 2, 5)}),
    ],
)
def test_unusual_chunks_are_left_to_zarr(tmp_path, version, options):
    content = values(frame=(4, 5)) if "shards" in options else values()
    made = {"chunks": (4, *content.shape[1:]), "config": {"write_empty_chunks": True}} | options
    array = zarr.create_array(
        str(tmp_path / "store" / "a"), shape=content.shape, dtype="u1", zarr_format=version, **made
    )
    array[:] = content
    assert compared(tmp_path / "store")._plain is None


@pytest.mark.parametrize("dtype", [">i2", ">f4"])
@pytest.mark.parametrize("version", [2, 3])
def test_the_other_byte_order_is_left_to_zarr(tmp_path, dtype, version):
    options = {"serializer": zarr.codecs.BytesCodec(endian="big")} if version == 3 else {}
    kind = dtype[1:] if version == 3 else dtype
    assert compared(stored(tmp_path, values(kind), version=version, **options))._plain is None


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("separator", [".", "/"])
def test_names_of_chunks(tmp_path, version, separator):
    encoding = {"name": "v2" if version == 2 else "default", "separator": separator}
    assert compared(stored(tmp_path, values(), version=version, chunk_key_encoding=encoding))._plain is not None


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("packed", [True, False])
def test_shards(tmp_path, place, checked, endian, packed):
    sharding = zarr.codecs.ShardingCodec(
        chunk_shape=(2, 3, 5),
        codecs=[zarr.codecs.BytesCodec(), zarr.codecs.ZstdCodec()],
        index_codecs=[zarr.codecs.BytesCodec(endian=endian), *([zarr.codecs.Crc32cCodec()] if checked else [])],
        index_location=place,
    )
    store = tmp_path / "store"
    content = values()
    array = zarr.create(
        store=str(store / "a"), shape=content.shape, dtype="u1", chunks=(4, 3, 5), codecs=[sharding], zarr_format=3
    )
    array[:] = content
    if not packed:
        assert compared(store)._plain is not None
        return
    found = opened(zipped(store, tmp_path / "store.zip"))
    assert found._plain is not None
    np.testing.assert_array_equal(list(found.stream()), content)
    np.testing.assert_array_equal(found.rows(3, 9), content[3:9])


@pytest.mark.parametrize(("version", "shards"), [(2, None), (3, None), (3, (8, 3, 5))])
def test_a_chunk_that_is_not_there_is_what_zarr_says(tmp_path, version, shards):
    content = values()
    content[4:8] = 9
    options = {"shards": shards} if shards else {}
    store = stored(tmp_path, content, version=version, fill_value=9, config={"write_empty_chunks": False}, **options)
    assert compared(store)._plain is not None


@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw + b"0", lambda raw: b""])
def test_a_chunk_of_another_size_is_damaged(tmp_path, change):
    store = stored(tmp_path, values(), compressors=numcodecs.Zstd())
    raw = values()[4:8].tobytes()
    (store / "a" / "1.0.0").write_bytes(numcodecs.Zstd().encode(change(raw)) if change(raw) else b"")
    array = opened(store)
    rows = array.stream()
    with pytest.raises(EpisodeError, match=r"store.*(a chunk has 60|damaged)"):
        list(rows)
    with pytest.raises(EpisodeError, match=r"store.*(a chunk has 60|damaged)"):
        array.rows(4, 5)


def test_rows_before_a_damaged_chunk_come_first(tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_arrays, "_CALL_BYTES", 1)
    store = stored(tmp_path, values())
    (store / "a" / "1.0.0").write_bytes(b"no chunk at all")
    got = []
    with pytest.raises(EpisodeError, match="rows from 4"):
        got.extend(opened(store).stream())
    np.testing.assert_array_equal(got, values()[:4])


def test_a_spoilt_index_fails_its_check_sum(tmp_path):
    store = stored(tmp_path, values(), chunk=2, version=3, shards=(4, 3, 5))
    path = store / "a/c/1/0/0"
    data = bytearray(path.read_bytes())
    data[-4 - 16 * 2] ^= 1  # the first chunk's offset
    path.write_bytes(data)
    with pytest.raises(EpisodeError, match="check sum"):
        list(opened(store).stream())


def test_a_pipe_in_place_of_a_chunk_is_not_waited_for(tmp_path):
    store = stored(tmp_path, values())
    (store / "a" / "1.0.0").unlink()
    os.mkfifo(store / "a" / "1.0.0")
    with pytest.raises(EpisodeError, match="no regular file"):
        list(opened(store).stream())


def test_calls_ahead_keep_their_order_and_number():
    begun, most = [], 0
    gate = threading.Event()

    def call(index):
        begun.append(index)
        gate.wait(10)
        return index

    results = read_ahead((lambda index=index: call(index) for index in range(20)), 4)
    gate.set()
    for taken, result in enumerate(results):
        assert result == taken
        most = max(most, max(begun) - taken)
    assert most < 4


@pytest.mark.parametrize("held", [1, 3])
def test_an_error_comes_behind_the_results_before_it_and_ends_the_calls(held):
    def call(index):
        if index == 5:
            raise EpisodeError("five")
        return index

    got, asked = [], []

    def calls():
        for index in range(100):
            asked.append(index)
            yield lambda index=index: call(index)

    with pytest.raises(EpisodeError, match="five"):
        got.extend(read_ahead(calls(), held))
    assert got == [0, 1, 2, 3, 4]
    assert len(asked) <= 5 + held


def test_a_reader_that_stops_leaves_no_threads():
    before = threading.active_count()
    results = read_ahead((lambda: 1 for _ in range(100)), 4)
    assert next(results) == 1
    results.close()
    assert threading.active_count() == before
