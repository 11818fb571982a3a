"""Files of released versions stay readable, their containers stay as they are, and FORMAT.md tells the truth."""

import hashlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

import knonik_loader.khlp
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.reader import open_index
from knonik_loader.khlp.sections import FLAG_INTRA
from knonik_loader.khlp.types import Record, StreamInfo
from knonik_loader.khlp.verify import verify_file
from knonik_loader.khlp.writer import HlpWriter
from tests.loader.khlp.make_golden import GOLDEN, index_sample
from tests.loader.khlp.samples import FRAMES, PROFILES, SHARDS, decode_all, episode, reader
from tests.loader.khlp.struct_reader import read_khli, read_khlp
from tests.support.stamps import read_stamp

pytestmark = pytest.mark.parametrize("profile", PROFILES)


def load(profile: str):
    data = (GOLDEN / f"{profile}.khlp").read_bytes()
    return data, open_index(reader(data), len(data), None, profile)


def test_golden_files_are_small_and_whole(profile):
    path = GOLDEN / f"{profile}.khlp"
    assert path.stat().st_size < 50_000
    assert verify_file(path) == []


def test_frames_are_those_of_the_day_the_file_was_written(profile):
    data, index = load(profile)
    pins = json.loads((GOLDEN / "frames.json").read_text())[profile]
    frames = decode_all(index, data)
    assert {f"{name} {key}" for name, key in frames} == set(pins)
    for (name, key), stack in frames.items():
        pinned = pins[f"{name} {key}"]
        if isinstance(pinned, str):
            assert hashlib.sha256(np.ascontiguousarray(stack).tobytes()).hexdigest() == pinned, (name, key)
        else:
            np.testing.assert_allclose(stack.astype(float).mean((1, 2)), pinned, atol=1)


def test_frames_are_the_right_ones(profile):
    data, index = load(profile)
    frames = decode_all(index, data)
    for name, count in FRAMES.items():
        assert [read_stamp(image) for image in frames[name, "rgb_top"]] == [(3, int(name[-1]), t) for t in range(count)]
        truth = episode(name)
        np.testing.assert_array_equal(frames[name, "state"], truth["state"])
        np.testing.assert_array_equal(frames[name, "depth_top"], truth["depth"] * np.float32(0.001))


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


def test_the_golden_sidecar_reads_and_is_written_alike(profile):
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


def test_the_worked_example_is_what_the_writer_writes(profile):
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
