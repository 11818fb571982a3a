"""What is written is read back, with as few reads as promised, and a file appears whole or not at all."""

import dataclasses
import errno
import io
import os
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from knonik_loader.engine.storage import open_storage
from knonik_loader.errors import ChecksumError, FormatError, PackError, StorageError, TruncatedError
from knonik_loader.khlp import reader as reader_module
from knonik_loader.khlp import writer as writer_module
from knonik_loader.khlp.reader import HlpIndex, check_payload, open_index
from knonik_loader.khlp.types import Record, StreamInfo
from knonik_loader.khlp.writer import PARTIAL_SUFFIX, HlpWriter, ShardInput, write_hlp
from tests.loader.khlp.samples import HLP_ID, PROFILES, add, build, decode_all, episode, reader, shards, streams

NUMERIC = StreamInfo(0, "numeric", "x", "numeric", (2,), "float32", 10.0)


def numeric_shard(episode_id: str = "e0", first: int = 0, frames: int = 3) -> ShardInput:
    block = np.arange(frames * 2, dtype="<f4").tobytes()
    return ShardInput(episode_id, "s", bytes(32), first, np.arange(frames) / 10, {0: [Record(block)]})


def write(sink: io.BytesIO, infos, inputs, hlp_id: bytes = HLP_ID):
    writer = HlpWriter(sink, profile="training_fast", streams=infos, hlp_id=hlp_id)
    for shard in inputs:
        add(writer, shard)
    return writer.finish()


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_comes_back(profile):
    sample = build(profile)
    index = sample.index()
    assert (index.profile, index.streams, index.hlp_id) == (profile, sample.streams, HLP_ID)
    assert (index.num_shards, index.num_frames, index.file_length) == (3, 10, len(sample.data))
    assert sample.summary.crc32c == crc32c(sample.data)
    assert sample.summary.bytes == len(sample.data)
    for number, shard in enumerate(sample.shards):
        entry = index.shard(number)
        assert (entry.episode_id, entry.first_frame, entry.frames) == (
            shard.episode_id,
            shard.first_frame,
            len(shard.times),
        )
        assert entry.data_offset % 64 == 0
        assert index.episode(number).source_id == shard.source_id
        np.testing.assert_array_equal(index.times(number), shard.times)
    for name in ("episode_0", "episode_1"):
        np.testing.assert_array_equal(decode_all(index, sample.data)[name, "state"], episode(name)["state"])


def test_index_columns_are_views_of_the_tail():
    sample = build("training_fast")
    tail = bytearray(sample.data[sample.summary.metadata_offset :])
    index = HlpIndex.from_tail(tail, sample.summary.metadata_offset, len(sample.data))
    for column in (index.times(1), index.records(1, 0).sizes, index.records(1, 0).crcs, index.records(1, 0).key_back):
        assert not column.flags.owndata
        assert np.shares_memory(column, np.frombuffer(tail, np.uint8))


def test_one_read_with_the_manifest_and_at_most_two_without(monkeypatch):
    sample = build("training_fast")
    data, meta = sample.data, sample.summary.metadata_offset
    log: list[tuple[int, int]] = []
    open_index(reader(data, log), len(data), meta)
    assert log == [(meta, len(data) - meta)]
    log.clear()
    open_index(reader(data, log), len(data), None)
    assert log == [(0, len(data))]
    log.clear()
    monkeypatch.setattr(reader_module, "TAIL_GUESS", 100)
    index = open_index(reader(data, log), len(data), None)
    assert log == [(len(data) - 100, 100), (meta, len(data) - meta)]
    assert index.metadata_offset == meta


def test_a_manifest_that_means_another_file_is_noticed():
    sample = build("training_fast")
    data, meta = sample.data, sample.summary.metadata_offset
    for wrong in (meta - 8, meta + 8, 64):
        with pytest.raises(FormatError, match="the file"):
            open_index(reader(data), len(data), wrong, "the file")
    for wrong in (-1, 0, len(data), 2**60):
        with pytest.raises(TruncatedError, match="the file"):
            open_index(reader(data), len(data), wrong, "the file")


def test_payload_checks():
    check_payload(b"abc", 3, crc32c(b"abc"), "here")
    with pytest.raises(TruncatedError, match="here"):
        check_payload(b"ab", 3, crc32c(b"abc"), "here")
    with pytest.raises(ChecksumError, match="here"):
        check_payload(b"abX", 3, crc32c(b"abc"), "here")


@st.composite
def files(draw):
    """Streams of all kinds with payloads of any bytes and any legal key_back."""
    kinds = draw(st.lists(st.sampled_from(["kimg", "depth", "numeric"]), min_size=1, max_size=4))
    infos = []
    for number, codec in enumerate(kinds):
        kind = {"kimg": "rgb"}.get(codec, codec)
        shape = {"kimg": (2, 2, 3), "depth": (2, 2), "numeric": (draw(st.integers(1, 3)),)}[codec]
        dtype = "uint8" if codec == "kimg" else "float32"
        fps = draw(st.floats(0.1, 1000))
        infos.append(StreamInfo(number, kind, f"s{number}", codec, shape, dtype, fps))
    inputs = []
    for _ in range(draw(st.integers(1, 4))):
        frames = draw(st.integers(1, 6))
        records = {}
        for info in infos:
            if info.kind == "numeric":
                records[info.stream_id] = [
                    Record(draw(st.binary(min_size=(n := frames * info.shape[0] * 4), max_size=n)))
                ]
                continue
            keys = [True, *draw(st.lists(st.booleans(), min_size=frames - 1, max_size=frames - 1))]
            last, rows = 0, []
            for row, is_key in enumerate(keys):
                last = row if is_key else last
                rows.append(Record(draw(st.binary(max_size=20)), row - last, draw(st.booleans())))
            records[info.stream_id] = rows
        name = draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5))
        times = np.array(draw(st.lists(st.floats(-1e9, 1e9), min_size=frames, max_size=frames)))
        digest = name.encode().ljust(32, b"\0")[:32]
        inputs.append(ShardInput(name, f"source {name}", digest, draw(st.integers(0, 1000)), times, records))
    return infos, inputs


@settings(max_examples=60, deadline=None)
@given(files())
def test_round_trip(file):
    infos, inputs = file
    sink = io.BytesIO()
    summary = write(sink, infos, inputs)
    data = sink.getvalue()
    index = open_index(reader(data), len(data), summary.metadata_offset)
    assert index.streams == tuple(infos)
    for number, shard in enumerate(inputs):
        entry, row = index.shard(number), index.episode(number)
        assert (entry.episode_id, entry.first_frame) == (shard.episode_id, shard.first_frame)
        assert (row.source_id, row.digest) == (shard.source_id, shard.episode_digest)
        np.testing.assert_array_equal(index.times(number), shard.times)
        for info in infos:
            table = index.records(number, info.stream_id)
            found = [
                Record(data[offset : offset + size], back, bool(flags))
                for offset, size, back, flags in zip(
                    table.offsets.tolist(),
                    table.sizes.tolist(),
                    table.key_back.tolist(),
                    table.flags.tolist(),
                    strict=True,
                )
            ]
            assert found == list(shard.records[info.stream_id])
            assert table.crcs.tolist() == [crc32c(record.data) for record in found]
            assert (table.offsets % 8 == 0).all()


class OneWay(io.RawIOBase):
    """A sink that, like a pipe, can only be written to."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data) -> int:
        self.parts.append(bytes(data))
        return len(data)

    def seekable(self) -> bool:
        return False

    def seek(self, *_args):
        raise io.UnsupportedOperation("seek")

    tell = seek


def test_the_writer_only_appends():
    sink, other = OneWay(), io.BytesIO()
    write(sink, [NUMERIC], [numeric_shard()])
    write(other, [NUMERIC], [numeric_shard()])
    assert b"".join(sink.parts) == other.getvalue()


class Sip(OneWay):
    """A sink that takes no more than 1000 bytes at once, as unbuffered ones may."""

    def write(self, data) -> int:
        return super().write(bytes(data[:1000]))


def test_sinks_may_take_a_part_at_a_time():
    sample, sink = build("training_fast"), Sip()
    summary = write(sink, sample.streams, sample.shards)
    assert b"".join(sink.parts) == sample.data
    assert summary == sample.summary


def test_a_sink_that_takes_nothing_is_an_error_and_no_endless_loop():
    class Full(io.RawIOBase):
        def write(self, _data) -> None:
            return None

    with pytest.raises(StorageError, match="takes nothing more"):
        HlpWriter(Full(), profile="training_fast", streams=[NUMERIC], hlp_id=HLP_ID)


def test_a_pipe_that_does_not_wait_is_an_error():
    """Unbuffered files are written by the system itself, which says it in another way."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb", buffering=0) as sink:
        assert type(sink) is io.FileIO
        writer = HlpWriter(sink, profile="training_fast", streams=[NUMERIC], hlp_id=HLP_ID)
        with pytest.raises(StorageError, match="takes nothing more"):
            add(writer, numeric_shard(frames=50_000))


def test_a_file_that_looks_at_what_is_written_sees_all_of_it(tmp_path):
    class Noting(io.FileIO):
        def write(self, data) -> int:
            seen.append(bytes(data))
            return super().write(data)

    seen: list[bytes] = []
    with Noting(tmp_path / "a.hlp", "w") as sink:
        write(sink, [NUMERIC], [numeric_shard()])
    assert b"".join(seen) == (tmp_path / "a.hlp").read_bytes()


@pytest.mark.parametrize("frames", [1, 300])
def test_records_of_numbers_are_refused(frames):
    """Their length counts numbers: places would be wrong, and so would what is read there."""
    stream = StreamInfo(0, "rgb", "top", "kimg", (16, 16, 3), "uint8", 10.0)
    records = [Record(b"jpeg")] * (frames - 1) + [Record(memoryview(np.arange(10, dtype="<f4")))]
    shard = ShardInput("e0", "s", bytes(32), 0, np.arange(frames) / 10, {0: records})
    with pytest.raises(PackError, match=f"record {frames - 1} of 'rgb_top' is given as numbers"):
        write(io.BytesIO(), [stream], [shard])


def test_a_real_pipe_is_a_sink():
    """Unbuffered, and larger than what a pipe holds: the writer waits for whoever reads."""
    inputs = [numeric_shard(first=frame, frames=5000) for frame in range(0, 100_000, 5000)]
    whole = io.BytesIO()
    write(whole, [NUMERIC], inputs)
    assert len(whole.getvalue()) > 1 << 20
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as cat:
        assert not cat.stdin.seekable()
        with ThreadPoolExecutor(1) as pool:
            got = pool.submit(cat.stdout.read)
            summary = write(cat.stdin, [NUMERIC], inputs)
            cat.stdin.close()
            data = got.result()
    assert data == whole.getvalue()
    assert open_index(reader(data), len(data), summary.metadata_offset).num_frames == 100_000


def test_a_multipart_upload_is_a_sink(monkeypatch):
    """Straight onto an object store, of which nothing can be taken back, and read from there."""
    obstore = pytest.importorskip("obstore")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        urllib.request.urlopen(urllib.request.Request(f"{url}/bkt", method="PUT"), timeout=30).close()
        store = obstore.store.S3Store("bkt", endpoint=url, region="us-east-1", client_options={"allow_http": True})
        # blocks of 100 numbers a frame: more than one part of the upload
        stream = dataclasses.replace(NUMERIC, shape=(100,))
        block = np.arange(16_000 * 100, dtype="<f4").tobytes()
        shard = ShardInput("e0", "s", bytes(32), 0, np.arange(16_000) / 10, {0: [Record(block)]})
        with obstore.open_writer(store, "a.khlp", buffer_size=5 << 20) as sink:
            summary = write(sink, [stream], [shard])
        storage = open_storage("s3", {"bucket": "bkt", "region": "us-east-1", "endpoint_url": url})
        key = storage.resolve("a.khlp")
        assert storage.size(key) == summary.bytes > 6_000_000
        assert crc32c(storage.read_all(key)) == summary.crc32c
        index = open_index(
            lambda offset, length: storage.read(key, offset, length), summary.bytes, summary.metadata_offset, key
        )
        assert index.num_frames == 16_000
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"times": s.times[:-1]}, "records of 'rgb_top'"),
        (lambda s: {"times": np.array([0, np.nan, 1])}, "finite"),
        (lambda s: {"times": np.empty(0)}, "finite"),
        (lambda s: {"first_frame": -1}, "32 bits"),
        (lambda s: {"first_frame": 2**32 - 2}, "32 bits"),
        (lambda s: {"episode_digest": b"short"}, "5 bytes"),
        (lambda s: {"episode_id": ""}, "1 to 65535 bytes"),
        (lambda s: {"source_id": "ä" * 32_768}, "1 to 65535 bytes"),
        (lambda s: {"source_id": "raw/\udcff.hdf5"}, "not Unicode text"),
        (lambda s: {"records": {k: v for k, v in s.records.items() if k}}, "has streams"),
        (lambda s: {"records": {**s.records, 2: [Record(b"1234")]}}, "one block"),
        (lambda s: {"records": {**s.records, 0: [Record(b"a", 1), *s.records[0][1:]]}}, "no key is"),
        (lambda s: {"records": {**s.records, 0: [Record(b""), Record(b"", 1), Record(b"", 1)]}}, "no key is"),
    ],
)
def test_shards_that_do_not_fit_are_refused(change, message):
    shard = shards("training_compressed")[0]
    with pytest.raises(PackError, match=message):
        write(io.BytesIO(), streams("training_compressed"), [dataclasses.replace(shard, **change(shard))])


def test_frames_are_counted_with_32_bits(monkeypatch):
    monkeypatch.setattr(writer_module, "MAX_U32", 7)
    with pytest.raises(PackError, match="at most 7 frames; give a smaller window_size"):
        write(io.BytesIO(), [NUMERIC], [numeric_shard(), numeric_shard(first=3), numeric_shard("e1")])


def test_an_episode_has_one_source():
    with pytest.raises(PackError, match="another source"):
        write(io.BytesIO(), [NUMERIC], [numeric_shard(), dataclasses.replace(numeric_shard(), source_id="t")])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stream_id": 1}, "number 1"),
        ({"name": "a/b"}, "leading dot"),
        ({"name": ".a"}, "leading dot"),
        ({"name": "a" * 129}, "128"),
        ({"shape": (0,)}, "positive"),
        ({"shape": (2, 2)}, "limits"),
        ({"dtype": "float64"}, "float32"),
        ({"fps": float("nan")}, "fps"),
        ({"kind": "audio"}, "unknown kind"),
        ({"channel_names": ("a",)}, "1 channel names"),
    ],
)
def test_streams_that_do_not_fit_are_refused(change, message):
    info = dataclasses.replace(NUMERIC, **change)
    with pytest.raises(PackError, match=message):
        HlpWriter(io.BytesIO(), profile="training_fast", streams=[info], hlp_id=HLP_ID)


def test_empty_files_and_wrong_ids_are_refused():
    for infos in ([], [NUMERIC, dataclasses.replace(NUMERIC, stream_id=1)]):
        with pytest.raises(PackError, match="each batch key once"):
            HlpWriter(io.BytesIO(), profile="training_fast", streams=infos, hlp_id=HLP_ID)
    with pytest.raises(PackError, match="not 16"):
        HlpWriter(io.BytesIO(), profile="training_fast", streams=[NUMERIC], hlp_id=b"x")
    with pytest.raises(PackError, match="at least one shard"):
        write(io.BytesIO(), [NUMERIC], [])


def make(path: Path, inputs=None):
    inputs = [numeric_shard()] if inputs is None else inputs
    return write_hlp(path, profile="training_fast", streams=[NUMERIC], hlp_id=HLP_ID, shards=inputs)


def test_a_file_is_written_whole(tmp_path):
    summary = make(tmp_path / "a.khlp")
    data = (tmp_path / "a.khlp").read_bytes()
    assert (summary.bytes, summary.crc32c) == (len(data), crc32c(data))
    assert [path.name for path in tmp_path.iterdir()] == ["a.khlp"]


def test_a_file_is_never_replaced(tmp_path, monkeypatch):
    (tmp_path / "a.khlp").write_bytes(b"mine")
    with pytest.raises(PackError, match="never replaced"):
        make(tmp_path / "a.khlp")

    def late():
        (tmp_path / "b.khlp").write_bytes(b"theirs")
        yield numeric_shard()

    with pytest.raises(PackError, match="meanwhile"):
        make(tmp_path / "b.khlp", late())
    # where there are no hard links, the same
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here")))
    (tmp_path / "b.khlp").unlink()
    with pytest.raises(PackError, match="meanwhile"):
        make(tmp_path / "b.khlp", late())
    assert (tmp_path / "b.khlp").read_bytes() == b"theirs"
    make(tmp_path / "c.khlp")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.khlp", "b.khlp", "c.khlp"]


def test_a_failure_leaves_nothing(tmp_path):
    def broken():
        yield numeric_shard()
        raise ValueError("source went away")

    with pytest.raises(ValueError, match="went away"):
        make(tmp_path / "a.khlp", broken())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageError, match="cannot write"):
        make(tmp_path / "missing" / "a.khlp")


def test_what_the_disk_changed_is_noticed_before_the_file_appears(tmp_path, monkeypatch):
    real = os.fsync

    def lying(handle: int) -> None:
        real(handle)
        name = f"/proc/self/fd/{handle}"
        if Path(name).resolve().is_file():
            with Path(name).resolve().open("r+b") as file:
                file.seek(-70, os.SEEK_END)
                file.write(b"\xaa\xaa")

    monkeypatch.setattr(writer_module.os, "fsync", lying)
    with pytest.raises(StorageError, match="cannot be read back"):
        make(tmp_path / "a.khlp")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_leaves_only_a_partial_file(tmp_path):
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from tests.loader.khlp.test_container import make, numeric_shard\n"
        "def die():\n    yield numeric_shard()\n    os._exit(9)\n"
        "make(Path(sys.argv[1]) / 'a.khlp', die())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".a.khlp.")
    assert left.name.endswith(PARTIAL_SUFFIX)
    make(tmp_path / "a.khlp")


@pytest.mark.parametrize("profile", PROFILES)
def test_another_process_writes_the_same_bytes(profile):
    code = (
        "import sys, hashlib\nfrom tests.loader.khlp.samples import build\n"
        "sys.stdout.write(hashlib.sha256(build(sys.argv[1]).data).hexdigest())"
    )
    digests = set()
    for seed in ("0", "12345"):
        done = subprocess.run(
            [sys.executable, "-c", code, profile],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": f"UTC+{len(digests)}"},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_files_are_flushed_while_they_are_written(tmp_path, monkeypatch):
    flushed, real = [], os.fdatasync
    monkeypatch.setattr(writer_module, "_FLUSH", 1000)
    monkeypatch.setattr(writer_module.os, "fdatasync", lambda handle: (real(handle), flushed.append(handle)))
    shards = [numeric_shard(first=first, frames=500) for first in range(0, 5000, 500)]
    summary = make(tmp_path / "a.khlp", shards)
    assert flushed
    data = (tmp_path / "a.khlp").read_bytes()
    assert (summary.bytes, summary.crc32c) == (len(data), crc32c(data))
    monkeypatch.undo()
    make(tmp_path / "b.khlp", shards)
    assert (tmp_path / "b.khlp").read_bytes() == data


def test_a_flush_that_fails_in_between_is_an_error(tmp_path, monkeypatch):
    """The kernel tells of a failed write once: the fsync at the end would succeed."""

    def fails(_handle):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(writer_module, "_FLUSH", 1000)
    monkeypatch.setattr(writer_module.os, "fdatasync", fails)
    with pytest.raises(StorageError, match=r"cannot write .*a\.khlp"):
        make(tmp_path / "a.khlp", [numeric_shard(first=first, frames=500) for first in range(0, 5000, 500)])
    assert list(tmp_path.iterdir()) == []
