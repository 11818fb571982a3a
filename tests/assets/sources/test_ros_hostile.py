"""Recordings that somebody made to hurt: their topic is left out with a reason, and the camera is read all the same."""

import sqlite3
import struct

import pytest
from google.protobuf import descriptor_pb2
from mcap.writer import Writer
from rosbags.rosbag1 import Writer as Writer1

from knonik_assets.sources.base_contract import as_array
from knonik_loader.errors import EpisodeError
from tests.assets.sources.bags import Bag, at
from tests.assets.sources.support import only_episode
from tests.support.limits import little_memory
from tests.support.stamps import episode_arrays, read_stamp

N = 3
JOINTS = "sensor_msgs/msg/JointState"
CDR = b"\0\1\0\0"
EMPTY = "=" * 80 + "\nMSG: p/E\nint8 C=1\n"


def nested(*bodies):
    return "".join("=" * 80 + f"\nMSG: p/A{place}\n{body}\n" for place, body in enumerate(bodies))


def camera(ros=2, **more):
    bag = Bag(ros=ros)
    for t, picture in enumerate(episode_arrays(0, N)["cam_0"]):
        bag.rgb("/cam/image_raw", at(t), picture)
    return bag


def mcap(folder, definition, payload, kind=JOINTS, encoding="cdr", schema="ros2msg"):
    """A camera, and a topic with a definition of its own."""
    bag, path = camera(), folder / "a.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start(profile="ros2")
        text, _ = bag.store.generate_msgdef("sensor_msgs/msg/Image", ros_version=2)
        pictures = writer.register_schema("sensor_msgs/msg/Image", "ros2msg", text.encode())
        pictures = writer.register_channel("/cam/image_raw", "cdr", pictures)
        own = definition if isinstance(definition, bytes) else definition.encode()
        other = writer.register_channel("/x", encoding, writer.register_schema(kind, schema, own))
        for _, name, ns, message in bag.messages:
            writer.add_message(pictures, ns, bytes(bag.serialized(name, message)), ns)
            writer.add_message(other, ns, payload, ns)
        writer.finish()
    return path


def bag1(folder, definition, payload):
    bag, path = camera(1), folder / "a.bag"
    with Writer1(path) as writer:
        pictures = writer.add_connection("/cam/image_raw", "sensor_msgs/msg/Image", typestore=bag.store)
        other = writer.add_connection("/x", JOINTS, msgdef=definition, md5sum="0" * 32)
        for _, name, ns, message in bag.messages:
            writer.write(pictures, ns, bytes(bag.serialized(name, message)))
            writer.write(other, ns, payload)
    return path


def camera_alone(path):
    """What is said, where the camera's frames are all there and there is nothing else."""
    with little_memory(), only_episode(path, "rosbag") as episode:
        (spec,) = episode.streams
        assert [read_stamp(as_array(one)) for one in episode.frames(spec)] == [(0, 0, t) for t in range(N)]
        return " ".join(episode.facts.warnings)


@pytest.mark.parametrize("write", [mcap, bag1])
@pytest.mark.parametrize(
    ("definition", "payload", "message"),
    [
        ("sensor_msgs/JointState j\n", CDR, "circle: sensor_msgs/msg/JointState in sensor_msgs/msg/JointState"),
        ("p/A0 a\n" + nested("p/A1 b", "p/A0 a"), CDR, "circle: p/msg/A0 in p/msg/A1 in p/msg/A0"),
        ("sensor_msgs/JointState[] j\n", CDR + b"\xff" * 8, "circle"),
        ("p/A0 a\n" + nested(*(f"p/A{i + 1} a" for i in range(60)), "int8 x"), CDR, "nests messages more than 32 deep"),
        (
            "p/A0 a\n" + nested(*(f"p/A{i + 1} a\np/A{i + 1} b" for i in range(25)), "int8 x"),
            CDR,
            "more than 4096 parts",
        ),
        ("p/E[4000000000] e\n" + EMPTY, CDR, "more than 4096 parts, with sensor_msgs/msg/JointState.e"),
        ("p/E[] e\n" + EMPTY, CDR + b"\xff" * 8, "a sequence of messages without content"),
        ("string[400000000] s\n", CDR + bytes(64), "more than 4096 parts"),
        ("p/A0[100000] a\n" + nested("p/A1[100000] b", "int8[0] x"), CDR, "more than 4096 parts"),
        ("".join(f"float64 f{i}\n" for i in range(20_000)), CDR, "more than 4096 parts"),
        ("float64[400000000000] position\n", CDR + bytes(64), "left out"),
        ("string[] name\n", CDR + b"\xff" * 8, "left out"),
    ],
)
def test_definitions_that_would_take_all_memory(tmp_path, write, definition, payload, message):
    assert message in camera_alone(write(tmp_path, definition, payload))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("module a { const long X = 1 << 99999999999; };", "shifting bits"),
        ("module a { const long Y = 99999999999; const long X = 1 << Y; };", "shifting bits"),
        ("module a {" * 5000, "damaged"),
        ("module a { const long X = " + "(" * 5000 + "1" + ")" * 5000 + "; };", "damaged"),
    ],
)
def test_constants_that_nobody_could_compute(tmp_path, text, message):
    assert message in camera_alone(mcap(tmp_path, text, CDR, schema="ros2idl"))


def test_shifts_in_the_comments_of_idl_are_words(tmp_path):
    members = "".join(f"sequence<double> {name}; " for name in ("position", "velocity", "effort"))
    text = f"/* a << b */ module sensor_msgs {{ module msg {{ // c << d\nstruct JointState {{ {members}}}; }}; }};"
    payload = CDR + struct.pack("<I", 0) * 3
    assert "shifting" not in camera_alone(mcap(tmp_path, text, payload, schema="ros2idl"))


def proto(dependencies):
    files = descriptor_pb2.FileDescriptorSet()
    for name, needed in dependencies.items():
        files.file.add(name=name, package="foxglove", dependency=needed)
    message = files.file[0].message_type.add(name="CompressedImage")
    message.field.add(name="x", number=1, type=11, label=1, type_name=".foxglove.CompressedImage")
    return files.SerializeToString()


@pytest.mark.parametrize(
    "definition",
    [
        proto({"a": ["b"], "b": ["a"]}),
        proto({str(i): [str(i + 1)] for i in range(4000)} | {"4000": []}),
        proto({"a": []}),
        b"\xff" * 100,
    ],
    ids=["circle", "chain", "itself", "rubbish"],
)
def test_protobuf_schemas_that_lead_nowhere(tmp_path, definition):
    said = camera_alone(mcap(tmp_path, definition, b"", "foxglove.CompressedImage", "protobuf", "protobuf"))
    assert "/x" in said


@pytest.mark.parametrize("payload", [b"[" * 100_000, b'{"a":' * 100_000, b'{"timestamp":{"sec":' + b"9" * 5000 + b"}}"])
def test_json_without_an_end_fails_by_name(tmp_path, payload):
    path = mcap(tmp_path, "{}", payload, "foxglove.CompressedImage", "json", "jsonschema")
    with pytest.raises(EpisodeError, match=r"/x .* message 0"):
        camera_alone(path)


def database(folder, statements):
    path = camera().write2(folder / "run", "sqlite3")
    (file,) = path.glob("*.db3")
    connection = sqlite3.connect(file)
    connection.executescript(statements)
    connection.close()
    return path


ENDLESS = "AS WITH RECURSIVE c(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM c) SELECT id, 1 AS topic_id, 'x' AS name, "
ENDLESS += "'y' AS type, 'cdr' AS serialization_format, id AS timestamp, x'00' AS data FROM c"


@pytest.mark.parametrize("table", ["topics", "messages"])
def test_a_table_that_goes_on_for_ever(tmp_path, table):
    path = database(tmp_path, f"DROP TABLE {table}; CREATE VIEW {table} {ENDLESS};")
    with pytest.raises(EpisodeError, match="no table of topics or messages"):
        camera_alone(path)


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ("INSERT INTO messages (id, topic_id, timestamp, data) VALUES (99, 1, 5, zeroblob(900000000))", "900,000,000"),
        (
            "INSERT INTO messages (id, topic_id, timestamp, data) VALUES (99, 1, 5, 'abc')",
            "message 3: cannot be decoded",
        ),
        ("UPDATE messages SET timestamp = 'soon'", "has the time 'soon'"),
        ("UPDATE topics SET name = '/' || char(0) || '../../x'", "the files hold 0"),
        ("DROP TABLE messages; CREATE VIRTUAL TABLE messages USING fts5(id, topic_id, timestamp, data)", "hold 0"),
    ],
)
def test_rows_that_no_recorder_writes(tmp_path, statements, message):
    with pytest.raises(EpisodeError, match=message):
        camera_alone(database(tmp_path, statements))


def test_a_video_whose_header_promises_what_never_comes(tmp_path):
    bag = camera()
    parameters = bytes.fromhex("000000016742c01fda7fffffffffffffffff")
    for t in range(N):
        bag.video("/x", at(t), parameters + b"\0\0\0\1\x65" + b"\xff" * 500)
    assert "no picture of the h264 video can be decoded" in camera_alone(bag.write2(tmp_path / "run"))
