"""Files of released versions stay readable, their containers stay as they are, and FORMAT.md tells the truth."""

import io
import json
import re
from pathlib import Path

import av
import numpy as np
import pytest
import simplejpeg
from crc32c import crc32c

import knonik_loader.khlp
from knonik_loader import ShardedDataLoader
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.manifest import load_manifest
from knonik_loader.khlp.reader import open_index
from knonik_loader.khlp.sections import FLAG_INTRA
from knonik_loader.khlp.types import Record, StreamInfo
from knonik_loader.khlp.verify import verify_file
from knonik_loader.khlp.writer import HlpSummary, HlpWriter
from tests.loader.khlp.make_golden import GOLDEN, golden_manifest, index_sample, pin, tiles
from tests.loader.khlp.samples import FRAMES, PROFILES, SHARDS, Sample, build, decode_all, episode, reader
from tests.loader.khlp.struct_reader import depth, kdlt, read_khli, read_khlp, read_manifest
from tests.support.stamps import read_stamp

every_profile = pytest.mark.parametrize("profile", PROFILES)


def load(profile: str):
    data = (GOLDEN / f"{profile}.khlp").read_bytes()
    return data, open_index(reader(data), len(data), None, profile)


@every_profile
def test_golden_files_are_small_and_whole(profile):
    path = GOLDEN / f"{profile}.khlp"
    assert path.stat().st_size < 50_000
    assert verify_file(path) == []


@every_profile
def test_frames_are_those_of_the_day_the_file_was_written(profile):
    """Payloads and exact frames to the bit; pictures as far as decoders of one standard agree."""
    data, index = load(profile)
    pins = json.loads((GOLDEN / "frames.json").read_text())[profile]
    found = pin(Sample(data, HlpSummary(len(data), 0, 0, index.metadata_offset, 0), index.streams, ()))
    assert set(found) == set(pins)
    for name, value in found.items():
        if isinstance(value, str):
            assert value == pins[name], name
        else:
            np.testing.assert_allclose(value, pins[name], atol=2, err_msg=name)


@every_profile
def test_frames_are_the_right_ones(profile):
    data, index = load(profile)
    frames = decode_all(index, data)
    for name, count in FRAMES.items():
        assert [read_stamp(image) for image in frames[name, "rgb_top"]] == [(3, int(name[-1]), t) for t in range(count)]
        truth = episode(name)
        np.testing.assert_array_equal(frames[name, "state"], truth["state"])
        np.testing.assert_array_equal(frames[name, "depth_top"], truth["depth"] * np.float32(0.0005))


@every_profile
def test_the_container_is_rebuilt_byte_for_byte_from_its_payloads(profile):
    data, index = load(profile)
    sink = io.BytesIO()
    writer = HlpWriter(sink, profile=index.profile, streams=index.streams, hlp_id=index.hlp_id)
    for number in range(index.num_shards):
        entry, row = index.shard(number), index.episode(number)
        records = {}
        for stream in index.streams:
            table = index.records(number, stream.stream_id)
            records[stream.stream_id] = [
                Record(data[offset : offset + size], back, bool(flags & FLAG_INTRA))
                for offset, size, back, flags in zip(
                    table.offsets.tolist(),
                    table.sizes.tolist(),
                    table.key_back.tolist(),
                    table.flags.tolist(),
                    strict=True,
                )
            ]
        writer.add_shard(
            episode_id=row.episode_id,
            source_id=row.source_id,
            episode_digest=row.digest,
            first_frame=entry.first_frame,
            times=index.times(number),
            records=records,
        )
    summary = writer.finish()
    assert sink.getvalue() == data
    assert (summary.bytes, summary.metadata_offset) == (len(data), index.metadata_offset)


@every_profile
def test_a_reader_written_from_the_page_alone_agrees(profile):
    data, index = load(profile)
    found = read_khlp(data)
    assert found["profile"] == index.profile == profile
    assert [shard["episode"] for shard in found["shards"]] == [name for name, _, _ in SHARDS]
    for number, shard in enumerate(found["shards"]):
        entry = index.shard(number)
        assert (shard["first"], len(shard["times"])) == (entry.first_frame, entry.frames)
        assert shard["times"] == index.times(number).tolist()
        assert shard["source"] == index.episode(number).source_id
        assert shard["digest"] == index.episode(number).digest
        for stream in index.streams:
            table = index.records(number, stream.stream_id)
            mine = [
                (data[offset : offset + size], back, flags)
                for offset, size, back, flags in zip(
                    table.offsets.tolist(),
                    table.sizes.tolist(),
                    table.key_back.tolist(),
                    table.flags.tolist(),
                    strict=True,
                )
            ]
            assert shard["records"][stream.key] == mine


def picture_of(codec, records, row, shape):
    """Pixels of one frame of a stream, by the rules of the page."""
    height, width = shape[:2]
    record, back, _ = records[row]
    if codec == "kimg":
        return simplejpeg.decode_jpeg(record, "RGB", fastdct=False, fastupsample=False).tobytes()
    key = None if back == 0 else kdlt(records[row - back][0], None, height, width)
    return kdlt(record, key, height, width)


@pytest.mark.parametrize("profile", ["training_fast", "training_compressed"])
def test_frames_decoded_by_the_page_alone_are_the_same(profile):
    data, index = load(profile)
    frames = decode_all(index, data)
    kinds = set()
    found = read_khlp(data)
    for shard in found["shards"]:
        for stream in found["streams"]:
            key = stream["name"] if stream["kind"] == "numeric" else f"{stream['kind']}_{stream['name']}"
            mine, records = frames[shard["episode"], key], shard["records"][key]
            for row in range(len(shard["times"])):
                wanted = mine[shard["first"] + row]
                if stream["kind"] == "numeric":
                    size = 4 * stream["shape"][0]
                    assert records[0][0][size * row : size * (row + 1)] == wanted.astype("<f4").tobytes()
                elif stream["kind"] == "depth":
                    step = stream["params"].get("quantization_mm", 1)
                    assert depth(records[row][0], *stream["shape"], step) == wanted.ravel().tolist()
                else:
                    record, back, _ = records[row]
                    exposed = record[:1] == b"D" and any(record[2:6])
                    kinds.add((record[:1], back > 0, exposed))
                    assert picture_of(stream["codec"], records, row, stream["shape"]) == wanted.tobytes()
    # keys, and deltas in the light of their key and in another, were among them
    wanted = {(b"\xff", False, False), (b"D", True, False), (b"D", True, True)}
    assert wanted <= kinds or profile == "training_fast"


def test_video_decoded_by_the_page_alone_shows_the_same():
    data, index = load("compact_video")
    frames = decode_all(index, data)
    for shard in read_khlp(data)["shards"]:
        decoder = av.CodecContext.create("h264", "r")
        records = shard["records"]["rgb_top"]
        pictures = [frame for record, *_ in records for frame in decoder.decode(av.Packet(record))]
        pictures += decoder.decode(None)
        assert len(pictures) == len(records)
        for row, picture in enumerate(pictures):
            wanted = frames[shard["episode"], "rgb_top"][shard["first"] + row]
            shown = picture.to_ndarray(format="rgb24")[: wanted.shape[0], : wanted.shape[1]]
            # how chroma is upsampled is not the format's matter
            assert np.abs(tiles(shown[None]) - tiles(wanted[None])).max() <= 2
            assert read_stamp(shown) == read_stamp(wanted)


def test_the_golden_dataset_reads_as_a_whole():
    text = (GOLDEN / "hlp_manifest.json").read_text()
    index = (GOLDEN / "index.khli").read_bytes()
    sample = build("training_fast")
    manifest = load_manifest(text, "golden")
    data = (GOLDEN / "training_fast.khlp").read_bytes()
    summary = HlpSummary(len(data), crc32c(data), len(SHARDS), manifest.hlps[0].metadata_offset, 10)
    assert golden_manifest(Sample(data, summary, sample.streams, ()), index).to_json() == text
    assert read_manifest(text)["hlps"][0]["crc32c"] == crc32c(data)
    config = {"decode_mode": "sequential", "hlp_manifest": str(GOLDEN / "hlp_manifest.json"), "chunk_len": 1}
    seen = {}
    with ShardedDataLoader({**config, "batch_size": 2, "rank": 0, "world_size": 1}) as loader:
        for batch in loader:
            for row, name in enumerate(batch["_episode_ids"]):
                frame = int(batch["_frame_indices"][row])
                seen[name, frame] = batch["_timestamps"][row]
                assert read_stamp(batch["rgb_top"][row, 0]) == (3, int(name[-1]), frame)
                np.testing.assert_array_equal(batch["state"][row, 0], episode(name)["state"][frame])
    assert seen == {(name, t): episode(name)["times"][t] for name, count in FRAMES.items() for t in range(count)}


def test_the_golden_sidecar_reads_and_is_written_alike():
    data = (GOLDEN / "index.khli").read_bytes()
    index = DatasetIndex.from_bytes(data)
    assert index.to_bytes() == index_sample().to_bytes() == data
    found = read_khli(data)
    table = index.episodes
    assert [row[0] for row in found["episodes"]] == table.episode_id
    assert [row[6] for row in found["episodes"]] == table.language == ["put the grün block away", ""]
    assert [row[5] for row in found["episodes"]] == table.split
    assert [row[8] for row in found["episodes"]] == [bytes(row) for row in table.digest]
    assert found["clocks"] == {1: index.clocks[1].tolist()}
    assert found["shards"] == [(0, 2, 0, 0, 4), (0, 1, 0, 4, 3), (0, 0, 1, 0, 3)]


def test_the_worked_example_is_what_the_writer_writes():
    page = (Path(knonik_loader.khlp.__file__).parent / "FORMAT.md").read_text()
    lines = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?){1,16})  ", page, re.MULTILINE)
    assert [int(at, 16) for at, _ in lines] == list(range(0, 16 * len(lines), 16))
    sink = io.BytesIO()
    stream = StreamInfo(0, "numeric", "x", "numeric", (1,), "float32", 2.0)
    writer = HlpWriter(sink, profile="training_fast", streams=[stream], hlp_id=bytes(range(16)))
    writer.add_shard(
        episode_id="e0",
        source_id="s0",
        episode_digest=b"\xee" * 32,
        first_frame=0,
        times=np.array([0, 0.5]),
        records={0: [Record(np.array([1, -2.5], "<f4").tobytes())]},
    )
    writer.finish()
    assert bytes.fromhex("".join(hexes for _, hexes in lines)) == sink.getvalue()
