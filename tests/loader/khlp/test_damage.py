"""Whatever happens to a file's bytes: a typed error that names the file, never a wrong frame, a hang or a crash."""

import resource
import struct
import tracemalloc

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from knonik_loader.errors import (
    BadMagicError,
    ChecksumError,
    DecodeError,
    FormatError,
    TruncatedError,
    UnsupportedFeatureError,
)
from knonik_loader.khlp import layout
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.layout import FOOTER_SIZE
from knonik_loader.khlp.reader import HlpIndex, open_index
from knonik_loader.khlp.verify import verify_file, verify_hlp
from tests.loader.khlp.fuzzing import STREAMS, payloads, resign
from tests.loader.khlp.make_golden import index_sample
from tests.loader.khlp.samples import PROFILES, Sample, build, decode_all, reader, shards

ENTRY = 48


@pytest.fixture(scope="module")
def sample() -> Sample:
    return build("training_compressed")


@pytest.fixture(scope="module")
def sidecar() -> bytes:
    return index_sample().to_bytes()


def flip(data: bytes, at: int, mask: int = 0xFF) -> bytes:
    return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def open_tail(data: bytes, offset: int) -> HlpIndex:
    return open_index(reader(data), len(data), offset, "the file")


def opened(call, where: str):
    """What opens, or None where a typed error that names the file says why not."""
    problem = ""
    try:
        return call()
    except FormatError as error:
        problem = str(error)
    assert where in problem
    return None


@pytest.mark.parametrize("profile", PROFILES)
def test_a_whole_file_has_no_damage(profile, tmp_path):
    data = build(profile).data
    (tmp_path / "a.khlp").write_bytes(data)
    assert verify_file(tmp_path / "a.khlp") == []


def test_every_flipped_byte_of_header_and_tail_is_an_error(sample):
    data, meta = sample.data, sample.summary.metadata_offset
    for at in [*range(64), *range(meta, len(data))]:
        for mask in (0xFF, 1):
            damaged = flip(data, at, mask)
            with pytest.raises(FormatError, match="the file"):
                open_index(reader(damaged), len(damaged), None, "the file")
            if at >= meta:
                with pytest.raises(FormatError, match="the file"):
                    open_tail(damaged, meta)
            assert verify_hlp(reader(damaged), len(damaged), meta, "the file")


def test_every_flipped_byte_of_the_data_is_found_by_verifying(sample):
    data = sample.data
    index = sample.index()
    places = np.random.default_rng(0).choice(np.arange(64, index.metadata_offset), 300, replace=False).tolist()
    # padding is easily overlooked: all of it, found as what no record covers
    covered = np.zeros(index.metadata_offset, bool)
    for shard in range(index.num_shards):
        for stream in index.streams:
            table = index.records(shard, stream.stream_id)
            for offset, size in zip(table.offsets.tolist(), table.sizes.tolist(), strict=True):
                covered[offset : offset + size] = True
    places += np.flatnonzero(~covered[64:]).tolist()[:200]
    for at in (int(place) for place in places):
        found = verify_hlp(reader(flip(data, at)), len(data), None, "the file")
        assert len(found) == 1, at
        assert found[0].message.startswith("the file")
        assert found[0].kind in {"ChecksumError", "FormatError"}


def test_a_flipped_payload_names_its_episode_stream_and_record(sample):
    index = sample.index()
    table = index.records(1, 0)
    at = int(table.offsets[2]) + 9
    (found,) = verify_hlp(reader(flip(sample.data, at)), len(sample.data), None, "the file")
    assert found.kind == "ChecksumError"
    assert "shard 1 (episode 'episode_0'), rgb_top, record 2" in found.message
    with pytest.raises(ChecksumError):
        decode_all(index, flip(sample.data, at))


def test_truncation_at_boundaries_and_anywhere(sample):
    data, meta = sample.data, sample.summary.metadata_offset
    index = sample.index()
    cuts = {0, 1, 63, 64, 65, 127, 128, meta, len(data) - 1, len(data) - 8, len(data) - 64, len(data) - 65}
    cuts |= {index.shard(i).data_offset for i in range(index.num_shards)}
    directory = struct.unpack_from("<Q", data, len(data) - 56)[0]
    for at in range(directory, len(data) - FOOTER_SIZE, ENTRY):
        offset, stored = struct.unpack_from("<QQ", data, at + 16)
        cuts |= {at, offset, offset + stored}
    cuts |= set(np.random.default_rng(1).integers(0, len(data), 500).tolist())
    for cut in cuts:
        short = data[:cut]
        for offset in (None, meta):
            with pytest.raises(FormatError, match="the file"):
                open_index(reader(short), cut, offset, "the file")
        # the manifest's length, the object store's fewer bytes
        with pytest.raises(TruncatedError, match="the file"):
            open_index(reader(short), len(data), meta, "the file")
        assert verify_hlp(reader(short), cut, None, "the file")


def test_something_appended_or_in_front_is_an_error(sample):
    for damaged in (sample.data + b"\0", sample.data * 2, b"\0" + sample.data, b"\0" * 64 + sample.data):
        with pytest.raises(FormatError, match="the file"):
            open_index(reader(damaged), len(damaged), None, "the file")


@pytest.mark.parametrize("profile", PROFILES)
def test_text_mode_transfers_are_refused(profile):
    data = build(profile).data
    for damaged in (
        data.replace(b"\r\n", b"\n"),
        data.replace(b"\n", b"\r\n"),
        data.replace(b"\r", b"\n"),
        data.split(b"\x1a")[0],
        bytes(c & 127 for c in data),
        data.decode("latin-1").encode(),
        data.decode("utf-8", "replace").encode(),
    ):
        assert damaged != data
        with pytest.raises(FormatError, match="the file"):
            open_index(reader(damaged), len(damaged), None, "the file")
        found = verify_hlp(reader(damaged), len(damaged), None, "the file")
        assert found
        assert all(damage.message.startswith("the file") for damage in found)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("rows", [2**32 - 1, 2**31, 10**6])
def test_counts_that_nothing_backs_allocate_nothing(profile, rows):
    good = build(profile)
    directory = struct.unpack_from("<Q", good.data, len(good.data) - 56)[0]
    for at in range(directory, len(good.data) - FOOTER_SIZE, ENTRY):
        out = bytearray(good.data)
        struct.pack_into("<I", out, at + 12, rows)
        damaged = resign(bytes(out))
        tracemalloc.start()
        try:
            with pytest.raises(FormatError, match="the file"):
                open_tail(damaged, good.summary.metadata_offset)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 200_000


def test_pictures_that_claim_to_be_huge_allocate_nothing():
    """What a payload says of its size is held against the stream's before memory is taken for it."""
    size = (65_500).to_bytes(2, "big") * 2
    jpeg = payloads("kimg")[0]
    frame = jpeg.index(b"\xff\xc0") + 5
    delta = payloads("kdlt")[1]
    strip = delta.index(b"\xff\xc0") + 5
    # a zstd frame that states eight bytes of content size, of a single segment
    bomb = payloads("depth")[0][:4] + b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little") + bytes(20)
    for name, records, row in (
        ("kimg", {0: jpeg[:frame] + size + jpeg[frame + 4 :]}, 0),
        ("kdlt", {0: jpeg[:frame] + size + jpeg[frame + 4 :]}, 0),
        ("kdlt", {0: payloads("kdlt")[0], 1: delta[:strip] + size + delta[strip + 4 :]}, 1),
        ("depth", {0: bomb}, 0),
    ):
        info = STREAMS[name]
        out = {row: np.empty(info.shape, info.dtype)}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(DecodeError, match=info.key):
            make_codec(info).decode({key: memoryview(data) for key, data in records.items()}, [row], out)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 100_000  # KB; the picture that they claim to be has 12 GB


def test_tails_of_two_files_swapped_are_found(sample):
    from tests.loader.khlp import samples

    other = samples.build("training_fast")
    # the tail of another file behind these data: the lengths differ
    mixed = sample.data[: sample.summary.metadata_offset] + other.data[other.summary.metadata_offset :]
    with pytest.raises(FormatError):
        open_index(reader(mixed), len(mixed), None)
    # two files of equal length that differ in content and id: only ids and checksums can tell
    twin = _twin(sample)
    assert len(twin) == len(sample.data)
    meta = sample.summary.metadata_offset
    mixed = sample.data[:meta] + twin[meta:]
    with pytest.raises(FormatError, match="different files"):
        open_index(reader(mixed), len(mixed), None)
    found = verify_hlp(reader(mixed), len(mixed), meta)
    assert found
    with pytest.raises(ChecksumError):
        decode_all(open_tail(mixed, meta), mixed)


def _twin(sample: Sample) -> bytes:
    """A file like the sample whose numeric values are others."""
    import dataclasses
    import io

    from knonik_loader.khlp.types import Record
    from knonik_loader.khlp.writer import HlpWriter
    from tests.loader.khlp.samples import add

    sink = io.BytesIO()
    writer = HlpWriter(sink, profile="training_compressed", streams=sample.streams, hlp_id=bytes(range(16, 32)))
    for shard in shards("training_compressed"):
        block = np.frombuffer(shard.records[2][0].data, "<f4") + np.float32(1)
        add(writer, dataclasses.replace(shard, records={**shard.records, 2: [Record(block.tobytes())]}))
    writer.finish()
    return sink.getvalue()


@pytest.mark.parametrize(
    ("at_from_end", "code", "value", "kind", "message"),
    [
        (40, "<Q", 1 << 1, UnsupportedFeatureError, r"ENCRYPTED \(bit 1\)"),
        (40, "<Q", 1 << 40 | 1, UnsupportedFeatureError, r"REORDERED \(bit 0\), unknown \(bit 40\)"),
        (16, "<H", 2, UnsupportedFeatureError, "version 2"),
        (24, "<I", 10**6, FormatError, "sections"),
        (64, "<Q", 2**63, FormatError, "does not fit"),
        (56, "<Q", 2**64 - 1, FormatError, "does not fit"),
        (48, "<Q", 1, TruncatedError, "written with 1"),
        (8, "<Q", 0, BadMagicError, "does not end"),
    ],
)
def test_footers_that_ask_for_too_much(sample, at_from_end, code, value, kind, message):
    out = bytearray(sample.data)
    struct.pack_into(code, out, len(out) - at_from_end, value)
    struct.pack_into("<I", out, len(out) - 12, crc32c(out[-FOOTER_SIZE:-12]))
    if kind is BadMagicError:
        struct.pack_into(code, out, len(out) - at_from_end, value)
    with pytest.raises(kind, match=message):
        open_index(reader(bytes(out)), len(out), sample.summary.metadata_offset, "the file")


def test_unknown_sections_are_skipped_or_refused_by_their_flag(sample):
    def renamed(flags: int) -> bytes:
        out = bytearray(sample.data)
        directory = struct.unpack_from("<Q", out, len(out) - 56)[0]
        # the last entry is the numeric stream's FIDX
        struct.pack_into("<4sHH", out, len(out) - FOOTER_SIZE - ENTRY, b"NEWS", 1, flags)
        assert directory < len(out)
        return resign(bytes(out))

    with pytest.raises(UnsupportedFeatureError, match="NEWS"):
        open_tail(renamed(1), sample.summary.metadata_offset)
    # skipped; what is then missing is the section that it replaced
    with pytest.raises(FormatError, match="no FIDX section of stream 2"):
        open_tail(renamed(0), sample.summary.metadata_offset)
    with pytest.raises(UnsupportedFeatureError, match="encoding 1"):
        open_tail(renamed(0b11), sample.summary.metadata_offset)


def test_a_file_of_a_later_minor_version_reads(sample, monkeypatch):
    """Another minor version, compatible bits that nobody knows yet, and a further section that may be skipped."""
    tail = layout.parse_tail(layout.KHLP, sample.data, 0, len(sample.data), "the file")
    meta = sample.summary.metadata_offset

    def later(section: layout.Section) -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(layout, "MINOR", 7)
            made = layout.build_header(layout.KHLP, sample.index().hlp_id) + sample.data[64:meta]
            made += layout.build_tail(layout.KHLP, [*tail.sections.values(), section], meta, sample.index().hlp_id)
        out = bytearray(made)
        struct.pack_into("<Q", out, 24, 1 << 50 | 1)
        return resign(bytes(out))

    data = later(layout.Section(b"xnew", b"of tomorrow", 3, must_understand=False))
    assert data[10:12] == b"\x07\x00"
    assert verify_hlp(reader(data), len(data), meta, "the file") == []
    for offset in (None, meta):
        frames = decode_all(open_tail(data, offset), data)
        for key, stack in decode_all(sample.index(), sample.data).items():
            np.testing.assert_array_equal(frames[key], stack)
    data = later(layout.Section(b"NEWS", b"of tomorrow", 3))
    with pytest.raises(UnsupportedFeatureError, match=r"the file: needs section\(s\) NEWS; upgrade knonik"):
        open_tail(data, meta)


# Where the interesting numbers of the metadata are is not for this test to know: it hits all of it, in all widths.
@settings(max_examples=400, deadline=None)
@given(
    place=st.floats(0, 1, exclude_max=True),
    value=st.one_of(st.integers(0, 255), st.sampled_from([2**16 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])),
)
@pytest.mark.parametrize("profile", ["training_compressed"])
def test_metadata_with_right_checksums_and_wrong_content(sample, profile, place, value):
    meta = sample.summary.metadata_offset
    out = bytearray(sample.data)
    at = meta + int(place * (len(out) - meta))
    width = 1 if value < 256 else 2 if value < 2**16 else 4 if value < 2**32 else 8
    out[at : at + width] = value.to_bytes(8, "little")[: min(width, len(out) - at)]
    damaged = resign(bytes(out))
    index = opened(lambda: open_tail(damaged, meta), "the file")
    if index is None:
        return
    # what opens can be walked, and every record lies in the data
    for shard in range(index.num_shards):
        index.shard(shard)
        index.times(shard)
        for stream in index.streams:
            table = index.records(shard, stream.stream_id)
            ends = table.offsets + table.sizes
            assert (table.offsets >= 64).all()
            assert (ends <= index.metadata_offset).all()


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=400), place=st.integers(0, 1 << 30))
def test_bytes_of_any_kind_are_errors(sample, data, place):
    for junk in (data, sample.data[: place % 200] + data + sample.data[-(place % 300) - 1 :]):
        with pytest.raises(FormatError):
            open_index(reader(junk), len(junk), None)
        with pytest.raises(FormatError):
            open_index(reader(junk), len(junk), place)
        with pytest.raises(FormatError):
            DatasetIndex.from_bytes(junk)
        assert verify_hlp(reader(junk), len(junk))


def test_every_flipped_byte_of_the_sidecar_is_an_error(sidecar):
    for at in range(len(sidecar)):
        for mask in (0xFF, 1):
            with pytest.raises(FormatError, match="the index"):
                DatasetIndex.from_bytes(flip(sidecar, at, mask), "the index")
    for cut in range(len(sidecar)):
        with pytest.raises(FormatError, match="the index"):
            DatasetIndex.from_bytes(sidecar[:cut], "the index")


@settings(max_examples=300, deadline=None)
@given(
    place=st.floats(0, 1, exclude_max=True),
    value=st.one_of(st.integers(0, 255), st.sampled_from([2**32 - 1, 2**63, 2**64 - 1])),
)
def test_sidecars_with_right_checksums_and_wrong_content(sidecar, place, value):
    out = bytearray(sidecar)
    at = 64 + int(place * (len(out) - 64))
    width = 1 if value < 256 else 4 if value < 2**32 else 8
    out[at : at + width] = value.to_bytes(8, "little")[: min(width, len(out) - at)]
    index = opened(lambda: DatasetIndex.from_bytes(resign(bytes(out)), "the index"), "the index")
    if index is not None:
        assert index.num_frames == int(index.shards.frames.sum())
