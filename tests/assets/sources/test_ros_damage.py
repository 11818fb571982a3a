"""Recordings that were killed, cut, copied in part or changed: what is there is read and said, nothing is guessed."""

import base64
import json
import sqlite3
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mcap.writer import CompressionType, Writer

from knonik_assets.sources.base_contract import as_array
from knonik_assets.sources.ros import compression, files, mcap
from knonik_loader.errors import EpisodeError, KnonikError, SourceError
from tests.assets.sources.bags import CONTAINERS, Bag, at, bag_of
from tests.assets.sources.support import frames, jpeg, only_episode, source, stream
from tests.support.stamps import episode_arrays, read_stamp

N = 8
PICTURES = episode_arrays(6, N)["cam_0"]


def recorded(how="mcap", frames=N, packed=False) -> Bag:
    bag = bag_of(how)
    for t in range(frames):
        if packed:
            bag.compressed("/cam/compressed", at(t), jpeg(PICTURES[t]), "jpeg")
        else:
            bag.rgb("/cam/image_raw", at(t), PICTURES[t])
        bag.floats("/value", at(t), [t])
    return bag


def the_file(path: Path) -> Path:
    """A recording's one file, taken out of its folder."""
    if path.is_file():
        return path
    (one,) = [one for one in path.iterdir() if one.name != "metadata.yaml"]
    out = path.with_name(path.name + one.suffix)
    one.rename(out)
    return out


def shown(path, **keys):
    """Numbers of the pictures, those of the other topic, and the warnings."""
    with only_episode(path, "rosbag", **keys) as episode:
        pictures = [read_stamp(as_array(one))[2] for one in frames(episode, "cam")]
        return pictures, episode.numeric(stream(episode, "value"))[:, 0].tolist(), episode.facts.warnings


def test_a_cut_mcap_is_read_up_to_where_it_ends(tmp_path):
    """At every place; what is shown is right, and what is missing is said."""
    path = the_file(recorded().write2(tmp_path / "run"))
    whole, seen = path.read_bytes(), set()
    for size in np.linspace(1, len(whole) - 1, 60).astype(int):
        path.write_bytes(whole[:size])
        try:
            pictures, values, warnings = shown(path)
        except ValueError:  # nothing, or no camera, is left
            continue
        assert pictures == list(range(len(pictures)))
        assert values == [min(t, max(values)) for t in range(len(pictures))]
        assert any("cut off at byte" in text for text in warnings)
        seen.add(len(pictures))
    assert len(seen) > 3


@pytest.mark.parametrize("how", ["bag", "bag lz4"])
def test_a_cut_ros1_bag_is_read_up_to_where_it_ends(tmp_path, how):
    path = recorded(how).write(tmp_path / "run", how)
    whole, seen = path.read_bytes(), set()
    for size in np.linspace(1, len(whole) - 1, 60).astype(int):
        path.write_bytes(whole[:size])
        try:
            pictures, _, warnings = shown(path)
        except ValueError:
            continue
        assert pictures == list(range(len(pictures)))
        seen.add(len(pictures))
        if len(pictures) < N:
            assert any("cut off" in text or "not closed" in text for text in warnings)
    assert len(seen) > 3


def test_a_ros1_bag_that_was_never_closed(tmp_path):
    """Its header says that there is no index; other readers ask to have it reindexed first."""
    path = recorded("bag").write1(tmp_path / "run.bag", chunk=60_000)
    raw = bytearray(path.read_bytes())
    place = raw.index(b"index_pos=") + len(b"index_pos=")
    (index,) = struct.unpack_from("<Q", raw, place)
    raw[place : place + 8] = bytes(8)
    path.write_bytes(raw[:index])
    pictures, values, warnings = shown(path)
    assert pictures == values == list(range(N))
    assert any("not closed by its recorder" in text for text in warnings)


def test_an_mcap_without_its_summary(tmp_path):
    """The footer is there, the index isn't: not a word is needed about it."""
    path = tmp_path / "run.mcap"
    write_json(path, use_statistics=False, use_chunking=False)
    pictures, _, warnings = shown(path)
    assert pictures == list(range(N))
    assert warnings == []


def test_no_huge_allocation_for_lengths_of_garbage(tmp_path):
    """A record that claims 2^62 bytes ends the file; one within the file's bounds but absurd is refused."""
    path = the_file(recorded().write2(tmp_path / "run"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3] + b"\x05" + struct.pack("<Q", 1 << 62))
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "from tests.assets.sources.support import only_episode\n"
        "with only_episode(__import__('pathlib').Path(sys.argv[1]), 'rosbag') as episode:\n"
        "    print(episode.streams[0].length)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert 0 < int(run.stdout) < N


def test_a_compressed_chunk_that_claims_gigabytes_is_refused(tmp_path):
    path = tmp_path / "run.mcap"
    write_json(path, compression=CompressionType.ZSTD)
    raw = bytearray(path.read_bytes())
    place = raw.index(b"zstd") - 4 - 4 - 8
    struct.pack_into("<Q", raw, place, 1 << 31)
    path.write_bytes(raw)
    with pytest.raises(EpisodeError, match=r"2,147,483,648 bytes.*smaller"):
        only_episode(path, "rosbag")


def test_a_chunk_that_unpacks_to_more_than_it_says(tmp_path):
    path = tmp_path / "run.mcap"
    for how in (CompressionType.ZSTD, CompressionType.LZ4):
        write_json(path, compression=how)
        raw = bytearray(path.read_bytes())
        place = raw.index(how.name.lower().encode()) - 4 - 4 - 8
        struct.pack_into("<Q", raw, place, 1000)
        path.write_bytes(raw)
        with pytest.raises(EpisodeError, match=r"damaged.*1,000 are stated"):
            only_episode(path, "rosbag")


def test_an_uncompressed_chunk_larger_than_the_bound_is_read_message_by_message(tmp_path, monkeypatch):
    for module in (compression, files, mcap):
        monkeypatch.setattr(module, "MAX_BLOCK", 60_000)
    path = tmp_path / "run.mcap"
    write_json(path, compression=CompressionType.NONE, chunk_size=1 << 24)
    assert path.stat().st_size > 60_000
    assert shown(path)[0] == list(range(N))


def test_a_message_larger_than_the_bound_is_refused(tmp_path, monkeypatch):
    for module in (compression, files, mcap):
        monkeypatch.setattr(module, "MAX_BLOCK", 2000)
    path = tmp_path / "run.mcap"
    write_json(path, compression=CompressionType.NONE)
    with pytest.raises(EpisodeError, match="too large"):
        only_episode(path, "rosbag")


def test_a_checksum_that_does_not_fit(tmp_path):
    path = tmp_path / "run.mcap"
    write_json(path, compression=CompressionType.NONE)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"image_marker") + 3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(EpisodeError, match="checksum"):
        only_episode(path, "rosbag")


def json_messages():
    for t in range(N):
        sec, nsec = divmod(at(t), 10**9)
        stamp = {"sec": sec, "nsec": nsec}
        image = {"timestamp": stamp, "frame_id": "image_marker", "format": "jpeg"}
        image["data"] = base64.b64encode(jpeg(PICTURES[t])).decode()
        yield t, "/cam/compressed", "foxglove.CompressedImage", image
        yield t, "/value", "std_msgs/Float64MultiArray", {"data": [float(t)]}


def write_json(path, use_statistics=True, **options):
    with path.open("wb") as stream:
        writer = Writer(stream, use_statistics=use_statistics, **options)
        writer.start(profile="", library="test")
        channels = {}
        for t, topic, kind, message in json_messages():
            if topic not in channels:
                schema = writer.register_schema(kind, "jsonschema", b"{}")
                channels[topic] = writer.register_channel(topic, "json", schema)
            writer.add_message(channels[topic], at(t), json.dumps(message).encode(), at(t))
        writer.finish()


@pytest.mark.parametrize("compression", list(CompressionType))
def test_json_recordings(tmp_path, compression):
    write_json(tmp_path / "run.mcap", compression=compression)
    pictures, values, warnings = shown(tmp_path / "run.mcap")
    assert pictures == values == list(range(N))
    assert warnings == []
    _, values, warnings = shown(tmp_path / "run.mcap", time_source="header")
    assert values == list(range(N))
    assert [text for text in warnings if "/cam" in text] == []


def protobuf_schema():
    """``foxglove.CompressedImage``, ``RawImage`` and their time, as a set of descriptors."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    kinds = {"bytes": 12, "string": 9, "fixed32": 7}
    members = {
        "CompressedImage": {"frame_id": "string", "data": "bytes", "format": "string"},
        "RawImage": {"width": "fixed32", "height": "fixed32", "encoding": "string", "step": "fixed32", "data": "bytes"},
    }
    file = descriptor_pb2.FileDescriptorProto(name="foxglove/x.proto", package="foxglove", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    for name, fields in members.items():
        message = file.message_type.add(name=name)
        message.field.add(name="timestamp", number=1, label=1, type=11, type_name=".google.protobuf.Timestamp")
        for number, (field, kind) in enumerate(fields.items(), 2):
            message.field.add(name=field, number=number, label=1, type=kinds[kind])
    time_file = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(time_file)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(time_file)
    pool.Add(file)
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"foxglove.{name}")) for name in members
    }
    return descriptor_pb2.FileDescriptorSet(file=[file, time_file]).SerializeToString(), classes


def test_protobuf_recordings(tmp_path):
    definition, classes = protobuf_schema()
    path = tmp_path / "run.mcap"
    with path.open("wb") as out:
        writer = Writer(out)
        writer.start()
        channels = {}
        for name, topic in (("CompressedImage", "/cam/compressed"), ("RawImage", "/far/depth")):
            schema = writer.register_schema(f"foxglove.{name}", "protobuf", definition)
            channels[name] = writer.register_channel(topic, "protobuf", schema)
        for t in range(N):
            one = classes["CompressedImage"](data=jpeg(PICTURES[t]), format="jpeg")
            two = classes["RawImage"](width=3, height=2, encoding="16UC1", step=6)
            two.data = np.full(6, 100 * t + 100, np.uint16).tobytes()
            for name, message in (("CompressedImage", one), ("RawImage", two)):
                message.timestamp.FromNanoseconds(at(t))
                writer.add_message(channels[name], at(t) + 5, message.SerializeToString(), at(t))
        writer.finish()
    with only_episode(path, "mcap", time_source="header") as episode:
        assert [read_stamp(as_array(one))[2] for one in frames(episode, "cam")] == list(range(N))
        assert [float(one[0, 0]) for one in frames(episode, "far")] == [np.float32(0.1 * (t + 1)) for t in range(N)]
        np.testing.assert_array_equal(episode.facts.timestamps, [at(t) / 1e9 for t in range(N)])


@pytest.mark.parametrize(
    ("encoding", "schema", "definition", "words"),
    [
        ("protobuf", "foxglove.CompressedImage", b"\xff\xff nonsense", "damaged"),
        ("protobuf", "foxglove.CompressedImage", b"", "damaged"),
        ("flatbuffer", "foxglove.CompressedImage", b"", "not understood"),
        ("cdr", "sensor_msgs/msg/Image", b"uint8 !!", "damaged"),
    ],
)
def test_schemas_that_cannot_be_used_cost_their_topic_alone(tmp_path, encoding, schema, definition, words):
    path = tmp_path / "run.mcap"
    with path.open("wb") as out:
        writer = Writer(out)
        writer.start()
        how = "protobuf" if encoding == "protobuf" else "ros2msg"
        odd = writer.register_channel("/odd", encoding, writer.register_schema(schema, how, definition))
        good = writer.register_channel(
            "/cam/compressed", "json", writer.register_schema("foxglove.CompressedImage", "jsonschema", b"{}")
        )
        for t, topic, _, message in json_messages():
            if topic.startswith("/cam"):
                writer.add_message(good, at(t), json.dumps(message).encode(), at(t))
                writer.add_message(odd, at(t), b"\0\1\0\0x", at(t))
        writer.finish()
    with only_episode(path, "rosbag") as episode:
        assert stream(episode, "cam").length == N
        assert episode.facts.attributes["ros_skipped"] == {"/odd": N}
        assert any("/odd" in text and words in text for text in episode.facts.warnings)


def test_a_database_whose_newest_messages_are_still_in_its_log(tmp_path):
    folder = recorded("sqlite3").write2(tmp_path / "run", "sqlite3")
    path = the_file(folder)
    database = sqlite3.connect(path)
    rows = database.execute("SELECT * FROM messages ORDER BY id").fetchall()
    database.execute("DELETE FROM messages WHERE id > ?", (N,))
    database.commit()
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA wal_autocheckpoint = 0")
    marks = ",".join("?" * len(rows[0]))
    database.executemany(f"INSERT INTO messages VALUES ({marks})", rows[N:])
    database.commit()
    for ending in ("", "-wal"):
        copy = tmp_path / f"copy.db3{ending}"
        copy.write_bytes(path.with_name(path.name + ending).read_bytes())
    database.close()
    before = sorted(tmp_path.iterdir())
    copied = tmp_path / "copy.db3"
    pictures, values, warnings = shown(copied)
    assert pictures == values == list(range(N))
    assert warnings == []
    assert sorted(tmp_path.iterdir()) == before  # nothing is written beside raw data
    log = tmp_path / "copy.db3-wal"
    found = source(copied, "rosbag")
    from knonik_assets.sources.base_contract import NoCache

    with_log = found.fingerprint(found.episodes()[0], NoCache())
    log.unlink()
    assert len(shown(copied)[0]) == N // 2
    assert found.fingerprint(found.episodes()[0], NoCache()) != with_log


def test_a_damaged_database_is_refused_by_name(tmp_path):
    path = the_file(recorded("sqlite3").write2(tmp_path / "run", "sqlite3"))
    raw = bytearray(path.read_bytes())
    for page in range(2, len(raw) // 4096):
        raw[page * 4096 : page * 4096 + 16] = b"\xff" * 16
    path.write_bytes(raw)
    with pytest.raises(EpisodeError, match=r"run\.db3.*damaged"):
        shown(path)


@pytest.mark.parametrize("ending", [".bag", ".mcap", ".db3"])
@pytest.mark.parametrize(("content", "words"), [(b"", "0 bytes"), (b"something else entirely", "begins with")])
def test_what_is_no_bag(tmp_path, ending, content, words):
    (tmp_path / f"run{ending}").write_bytes(content)
    with pytest.raises(EpisodeError, match=words):
        only_episode(tmp_path / f"run{ending}", "rosbag")


def test_what_a_file_holds_counts_not_its_name(tmp_path):
    path = the_file(recorded().write2(tmp_path / "run"))
    other = path.rename(tmp_path / "run.bag")
    assert shown(other)[0] == list(range(N))


def test_counts_of_the_metadata_are_held_against_the_files(tmp_path):
    folder = recorded().write2(tmp_path / "run")
    meta = folder / "metadata.yaml"
    text = meta.read_text()
    assert f"message_count: {N}" in text
    meta.write_text(text.replace(f"message_count: {N}\n", f"message_count: {N - 1}\n"))
    pictures, _, warnings = shown(folder)
    assert pictures == list(range(N))
    assert any(f"counts {N - 1} messages" in text and f"hold {N}" in text for text in warnings)
    meta.write_text(text.replace(f"message_count: {N}\n", f"message_count: {N + 3}\n"))
    with pytest.raises(EpisodeError, match=f"counts {N + 3} messages of .*, the files hold {N}"):
        only_episode(folder, "rosbag")
    meta.unlink()
    assert shown(folder.parent)[0] == list(range(N))


@pytest.mark.parametrize(
    "text",
    ["", "a: [", "- 1", "rosbag2_bagfile_information: 7", "rosbag2_bagfile_information: {relative_file_paths: [3]}"],
)
def test_metadata_that_is_none(tmp_path, text):
    folder = recorded().write2(tmp_path / "run")
    (folder / "metadata.yaml").write_text(text)
    with pytest.raises(EpisodeError, match=r"metadata\.yaml"):
        only_episode(folder, "rosbag")


def test_paths_in_the_metadata_never_lead_out_of_the_bag(tmp_path):
    outside = the_file(recorded().write2(tmp_path / "secret"))
    folder = recorded().write2(tmp_path / "run")
    meta = folder / "metadata.yaml"
    meta.write_text(meta.read_text().replace("- run.mcap", f"- ../{outside.name}"))
    with pytest.raises(EpisodeError, match="missing"):
        only_episode(folder, "rosbag")


def test_no_bags_found(tmp_path):
    with pytest.raises(SourceError, match="No ROS bags found at"):
        source(tmp_path, "rosbag").episodes()
    with pytest.raises(SourceError, match="no such file"):
        source(tmp_path / "nowhere", "rosbag").episodes()


def test_parents_of_bags(tmp_path):
    """One a folder, else one a file; numbers count as numbers; what is left alone is said."""
    for number in (10, 9, 1):
        recorded("bag", 2).write1(tmp_path / "set" / f"episode_{number}" / "data.bag")
    recorded(frames=2).write2(tmp_path / "set" / "episode_11")
    found = source(tmp_path / "set", "rosbag")
    assert [ref.source_id for ref in found.episodes()] == ["episode_1", "episode_9", "episode_10", "episode_11"]
    recorded("bag", 2).write1(tmp_path / "set" / "loose.bag")
    assert len(found.episodes()) == 4
    assert any("loose.bag" in text for text in found.warnings)
    for number in (2, 10):
        (tmp_path / "loose").mkdir(exist_ok=True)
        the_file(recorded(frames=2).write2(tmp_path / f"m{number}")).rename(tmp_path / "loose" / f"run_{number}.mcap")
    assert [ref.source_id for ref in source(tmp_path / "loose", "rosbag").episodes()] == ["run_2", "run_10"]


def test_a_folder_of_bags_inside_the_folder_is_not_joined_to_one_episode(tmp_path):
    """Parts differ in a number at the end, those of ROS 1 in a date too; anything else is several recordings."""
    bags = tmp_path / "bags" / "monday"
    for name in ("walk.bag", "run.bag"):
        recorded("bag", 2).write1(bags / name)
    with pytest.raises(EpisodeError, match="don't look like parts"):
        only_episode(tmp_path / "bags", "rosbag")
    for old, new in (("walk", "x_2026-11-30-09-00-00_0"), ("run", "x_2026-11-30-09-01-00_1")):
        (bags / f"{old}.bag").rename(bags / f"{new}.bag")
    with only_episode(tmp_path / "bags", "rosbag") as episode:
        assert stream(episode, "cam").length == 4


def test_folders_of_one_bag_each_are_recognised_as_episodes(tmp_path):
    from knonik_assets.sources.detect import detect

    for number in range(3):
        recorded("bag", 2).write1(tmp_path / f"episode_{number:04d}" / "data.bag")
    found = detect(tmp_path)
    assert (found.dir_type, found.path, found.episodes) == ("rosbag", str(tmp_path), 3)


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), None])
def test_no_room_to_unpack_is_no_fault_of_the_output(tmp_path, monkeypatch, fault):
    """A full temporary folder is this episode's trouble: it must not be told as a full output, which ends the run."""
    path = recorded("mcap file").write(tmp_path / "run", "mcap file")
    if fault is None:
        monkeypatch.setattr(
            compression.shutil, "disk_usage", lambda folder: compression.shutil._ntuple_diskusage(9, 0, 9)
        )
    else:

        def full(*arguments):
            raise fault

        monkeypatch.setattr(compression.shutil, "copyfileobj", full)
    with pytest.raises(EpisodeError, match="unpacked to") as caught:
        only_episode(path, "rosbag")
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("how", CONTAINERS)
def test_nothing_is_left_open_or_unpacked_after_a_failure(tmp_path, how, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = recorded(how).write(tmp_path / "run", how)
    with pytest.raises(SourceError):
        only_episode(path, "rosbag", layout={"images": {"x": "nowhere"}})
    assert list((tmp_path / "temporary").iterdir()) == []
    held = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert not [one for one in held if one.startswith(str(tmp_path))]


def mutations(raw: bytes, rng) -> bytes:
    """Cut, flip, overwrite or double a piece."""
    out = bytearray(raw)
    kind, place = rng.integers(4), int(rng.integers(len(raw)))
    if kind == 0:
        del out[place:]
    elif kind == 1:
        for _ in range(int(rng.integers(1, 6))):
            out[int(rng.integers(len(out)))] ^= 1 << int(rng.integers(8))
    elif kind == 2:
        out[place : place + 8] = rng.integers(0, 256, min(8, len(out) - place), dtype=np.uint8).tobytes()
    else:
        out[place:place] = out[place : place + 200]
    return bytes(out)


@pytest.mark.parametrize("how", ["bag", "bag lz4", "mcap", "mcap storage", "sqlite3"])
def test_changed_files_give_a_typed_error_or_frames_that_can_be_read(tmp_path, how):
    """Never another exception, never a hang, never more frames than there were."""
    path = the_file(recorded(how, packed=True).write(tmp_path / "run", how))
    raw, rng = path.read_bytes(), np.random.default_rng(11)
    ended = {"read": 0, "refused": 0}
    for _ in range(25):
        path.write_bytes(mutations(raw, rng))
        began = time.monotonic()
        try:
            with only_episode(path, "rosbag") as episode:
                for spec in episode.streams:
                    assert spec.length <= 2 * N
                    if spec.kind == "numeric":
                        assert len(episode.numeric(spec)) == spec.length
                    else:
                        assert sum(1 for _ in episode.frames(spec)) == spec.length
            ended["read"] += 1
        except KnonikError:
            ended["refused"] += 1
        assert time.monotonic() - began < 60  # a hang, not a speed
    assert ended["refused"]
