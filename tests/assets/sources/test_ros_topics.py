"""Which topics become streams, what these are called, and what is said of the others."""

import sqlite3

import numpy as np
import pytest
from mcap.writer import Writer
from rosbags.rosbag1 import Writer as Writer1

from knonik_assets.configs.load import load_ingest_config
from knonik_assets.sources.detect import detect
from knonik_assets.sources.ros.topics import camera_name, numeric_name, role_of
from knonik_loader.errors import ConfigError, EpisodeError, SourceError
from tests.assets.sources.bags import Bag, at, bag_of, camera_info
from tests.assets.sources.support import frames, only_episode, source, stream
from tests.support.stamps import episode_arrays, read_stamp

N = 4
ARRAYS = episode_arrays(2, N, cameras=3)
PICTURES = ARRAYS["cam_0"]
UNDEFINED = ("lab_msgs/", "control_msgs/")


def warned(episode, *words):
    return [text for text in episode.facts.warnings if all(word in text for word in words)]


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("/camera/color/image_raw", "camera"),
        ("/left_cam/rgb/image_raw", "left_cam"),
        ("/head/zed/left/image_rect_color", "head_zed_left"),
        ("/camera/depth_registered/image_rect", "camera"),
        ("/camera/color/image_raw/compressed", "camera"),
        ("/camera/aligned_depth_to_color/image_raw/compressedDepth", "camera_aligned_depth_to_color"),
        ("/image_raw", "image_raw"),
        ("wrist_cam", "wrist_cam"),
        ("/hand/msg", "hand"),
    ],
)
def test_names_of_cameras(topic, name):
    assert camera_name(topic) == name


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("/joint_states", "joint_states"),
        ("/arm_controller/command", "arm_controller_command"),
        ("/robot/gripper/target", "robot_gripper_target"),
        ("/a//b-c/", "a_b_c"),
        ("/frame_time", "topic_frame_time_"),
        ("/annotations", "topic_annotations_"),
        ("/ok_valid_mask", "topic_ok_valid_mask_"),
        ("/関節", "topic_447c3a5c"),
        ("/", "topic_79d3d2d4"),
    ],
)
def test_names_of_numbers(topic, name):
    assert numeric_name(topic) == name


def test_type_comes_before_name():
    assert role_of("/camera/image_raw", "sensor_msgs/msg/JointState") == "numeric"
    assert role_of("/joint_states", "sensor_msgs/msg/Image") == "image"
    assert role_of("/robot_description", "std_msgs/msg/String") == "urdf"
    assert role_of("/robot_description", "std_msgs/msg/Float64") == "numeric"
    assert role_of("/tf", "tf2_msgs/msg/TFMessage") == "skip"
    assert role_of("/cloud", "sensor_msgs/msg/PointCloud2") == "skip"


def with_camera(bag=None, topic="/cam/image_raw"):
    bag = bag or Bag()
    for t in range(N):
        bag.rgb(topic, at(t), PICTURES[t])
    return bag


def vector(bag, x, y, z):
    return bag.make("geometry_msgs/msg/Vector3", x=x, y=y, z=z)


def quaternion(bag, x, y, z, w):
    return bag.make("geometry_msgs/msg/Quaternion", x=x, y=y, z=z, w=w)


def pose(bag):
    point = bag.make("geometry_msgs/msg/Point", x=1.0, y=2.0, z=3.0)
    return bag.make("geometry_msgs/msg/Pose", position=point, orientation=quaternion(bag, 4.0, 5.0, 6.0, 7.0))


def twist(bag):
    return bag.make("geometry_msgs/msg/Twist", linear=vector(bag, 1.0, 2.0, 3.0), angular=vector(bag, 4.0, 5.0, 6.0))


def wrench(bag):
    return bag.make("geometry_msgs/msg/Wrench", force=vector(bag, 1.0, 2.0, 3.0), torque=vector(bag, 4.0, 5.0, 6.0))


def transform(bag):
    rotation = quaternion(bag, 4.0, 5.0, 6.0, 7.0)
    return bag.make("geometry_msgs/msg/Transform", translation=vector(bag, 1.0, 2.0, 3.0), rotation=rotation)


def imu(bag):
    nine = np.zeros(9)
    return {
        "header": bag.header(at(0)),
        "linear_acceleration": vector(bag, 1.0, 2.0, 3.0),
        "linear_acceleration_covariance": nine,
        "angular_velocity": vector(bag, 4.0, 5.0, 6.0),
        "angular_velocity_covariance": nine,
        "orientation": quaternion(bag, 7.0, 8.0, 9.0, 10.0),
        "orientation_covariance": nine,
    }


def odometry(bag):
    return {
        "header": bag.header(at(0)),
        "child_frame_id": "b",
        "pose": bag.make("geometry_msgs/msg/PoseWithCovariance", pose=pose(bag), covariance=np.zeros(36)),
        "twist": bag.make("geometry_msgs/msg/TwistWithCovariance", twist=twist(bag), covariance=np.zeros(36)),
    }


def trajectory(bag):
    empty = np.zeros(0)
    duration = bag.make("builtin_interfaces/msg/Duration", sec=0, nanosec=0)
    point = {"velocities": empty, "accelerations": empty, "effort": empty, "time_from_start": duration}
    kind = "trajectory_msgs/msg/JointTrajectoryPoint"
    points = [bag.make(kind, positions=np.array([p, p + 1.0]), **point) for p in (1.0, 30.0)]
    return {"header": bag.header(at(0)), "joint_names": ["a", "b"], "points": points}


def transform_stamped(bag):
    return {"header": bag.header(at(0)), "child_frame_id": "c", "transform": transform(bag)}


SEVEN, SIX = [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6]
MESSAGES = {
    "sensor_msgs/msg/Imu": (imu, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "linear_acceleration.x"),
    "nav_msgs/msg/Odometry": (odometry, [*SEVEN, *SIX], "position.x"),
    "geometry_msgs/msg/Pose": (lambda bag: vars(pose(bag)), SEVEN, "position.x"),
    "geometry_msgs/msg/PoseStamped": (
        lambda bag: {"header": bag.header(at(0)), "pose": pose(bag)},
        SEVEN,
        "position.x",
    ),
    "geometry_msgs/msg/Twist": (lambda bag: vars(twist(bag)), SIX, "linear.x"),
    "geometry_msgs/msg/TwistStamped": (lambda bag: {"header": bag.header(at(0)), "twist": twist(bag)}, SIX, "linear.x"),
    "geometry_msgs/msg/Wrench": (lambda bag: vars(wrench(bag)), SIX, "force.x"),
    "geometry_msgs/msg/WrenchStamped": (
        lambda bag: {"header": bag.header(at(0)), "wrench": wrench(bag)},
        SIX,
        "force.x",
    ),
    "geometry_msgs/msg/Transform": (lambda bag: vars(transform(bag)), SEVEN, "translation.x"),
    "geometry_msgs/msg/TransformStamped": (transform_stamped, SEVEN, "translation.x"),
    "trajectory_msgs/msg/JointTrajectory": (trajectory, [1, 2], "a"),
    "sensor_msgs/msg/Joy": (
        lambda bag: {
            "header": bag.header(at(0)),
            "axes": np.array([0.5, -1], np.float32),
            "buttons": np.array([0, 1], np.int32),
        },
        [0.5, -1, 0, 1],
        "axis_0",
    ),
    "std_msgs/msg/Bool": (lambda bag: {"data": True}, [1], None),
    "std_msgs/msg/Float32": (lambda bag: {"data": 2.5}, [2.5], None),
    "std_msgs/msg/Int64": (lambda bag: {"data": -7}, [-7], None),
    "std_msgs/msg/UInt8": (lambda bag: {"data": 200}, [200], None),
}


@pytest.mark.parametrize("ros", [1, 2])
@pytest.mark.parametrize("kind", MESSAGES)
def test_numbers_of_every_type(tmp_path, kind, ros):
    make, row, first = MESSAGES[kind]
    bag = with_camera(Bag(ros=ros))
    for t in range(N):
        bag.add("/some/topic", kind, at(t), **make(bag))
    path = bag.write1(tmp_path / "run.bag") if ros == 1 else bag.write2(tmp_path / "run")
    with only_episode(path, "rosbag") as episode:
        spec = stream(episode, "some_topic")
        np.testing.assert_array_equal(episode.numeric(spec), [row] * N)
        assert spec.channel_names is None if first is None else spec.channel_names[0] == first
        assert spec.channel_names is None or len(spec.channel_names) == len(row)
        assert episode.facts.attributes["ros_numeric_streams"] == {"some_topic": len(row)}


@pytest.mark.parametrize("name", ["Int8", "UInt8", "Int16", "UInt32", "Int64", "Float32", "Float64"])
def test_arrays_of_every_type(tmp_path, name):
    bag = with_camera()
    layout = bag.make("std_msgs/msg/MultiArrayLayout", dim=[], data_offset=0)
    values = np.array([1, 2, 100], name.lower())
    for t in range(N):
        bag.add("/v", f"std_msgs/msg/{name}MultiArray", at(t), layout=layout, data=values)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        np.testing.assert_array_equal(episode.numeric(stream(episode, "v")), [values] * N)


def test_joints_that_change_their_order_keep_their_columns(tmp_path):
    bag = with_camera()
    for t in range(N):
        names = ["a", "b", "c"] if t % 2 == 0 else ["c", "a", "b"]
        values = {"a": 10 + t, "b": 20 + t, "c": 30 + t}
        bag.joints("/joint_states", at(t), [values[name] for name in names], names)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        spec = stream(episode, "joint_states")
        assert spec.channel_names == ("a", "b", "c")
        np.testing.assert_array_equal(episode.numeric(spec), [[10 + t, 20 + t, 30 + t] for t in range(N)])


def test_two_publishers_of_some_joints_each_make_one_row_of_all(tmp_path):
    bag = with_camera()
    for t in range(N):
        bag.joints("/joint_states", at(t) - 1, [10 + t, 20 + t], ["a", "b"])
        bag.joints("/joint_states", at(t), [30 + t], ["grip"])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        spec = stream(episode, "joint_states")
        assert spec.channel_names == ("a", "b", "grip")
        np.testing.assert_array_equal(episode.numeric(spec), [[10 + t, 20 + t, 30 + t] for t in range(N)])
        assert warned(episode, "grip comes only in later messages")


def test_rows_of_another_width_are_cut_or_filled_and_told_of(tmp_path):
    bag = with_camera()
    for t, values in enumerate([[1, 2], [3, 4, 5], [6], []]):
        bag.floats("/value", at(t), values)
    bag.joints("/empty", at(0), [])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        got = episode.numeric(stream(episode, "value"))
        np.testing.assert_array_equal(got, np.array([[1, 2], [3, 4], [6, np.nan], [6, np.nan]], np.float32))
        assert warned(episode, "/value: 2 messages don't have the 2 numbers")
        assert warned(episode, "/value: 1 messages hold no number")
        assert warned(episode, "/empty: left out")
        assert episode.facts.attributes["ros_skipped"] == {"/empty": 1}


def test_joints_without_names(tmp_path):
    bag = with_camera()
    for t in range(N):
        bag.joints("/joint_states", at(t), [t, 2 * t], ["", ""] if t else [])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        spec = stream(episode, "joint_states")
        assert spec.channel_names is None
        np.testing.assert_array_equal(episode.numeric(spec), [[t, 2 * t] for t in range(N)])


@pytest.mark.parametrize("ros", [1, 2])
def test_what_is_said_of_cameras_and_robots(tmp_path, ros):
    bag = with_camera(Bag(ros=ros))
    for t in range(N):
        camera_info(bag, "/cam/camera_info", at(t), 120)
    joints = '<joint name="{n}" type="{k}"><parent link="a"/></joint>'
    urdf = "".join(
        joints.format(n=n, k=k) for n, k in (("hip", "revolute"), ("mount", "fixed"), ("slide", "prismatic"))
    )
    bag.text("/robot_description", at(0), f'<?xml version="1.0"?><robot name="r">{urdf}</robot>')
    bag.text("/chatter", at(1), "x")
    path = bag.write1(tmp_path / "run.bag") if ros == 1 else bag.write2(tmp_path / "run")
    with only_episode(path, "rosbag") as episode:
        said = episode.facts.attributes
        assert said["urdf_joints"] == ["hip", "slide"]
        (about,) = said["camera_info"].values()
        assert list(said["camera_info"]) == ["/cam/camera_info"]
        assert (about["camera"], about["width"], about["height"]) == ("cam", 120, 90)
        assert about["K"] == list(range(9))
        assert about["D"] == [0.1, 0.2]
        assert about["frame_id"] == "optical"
        assert said["ros_skipped"] == {"/chatter": 1}
        assert said["ros_cameras"] == ["cam"]
        assert said["ros_topics"] == {"rgb_cam": "/cam/image_raw"}
        assert said["source_bag"] == ("run.bag" if ros == 1 else "run")


@pytest.mark.parametrize("text", ["<robot", '<!DOCTYPE x [<!ENTITY a "aaaa">]><robot>&a;</robot>', ""])
def test_a_robot_description_that_is_none_or_a_trap_costs_no_frame(tmp_path, text):
    bag = with_camera()
    bag.text("/robot_description", at(0), text)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert stream(episode, "cam").length == N
        assert "urdf_joints" not in episode.facts.attributes
        assert warned(episode, "/robot_description", "left out")


def three_cameras():
    bag = Bag()
    for t in range(N):
        for camera, topic in enumerate(("/head/zed/left/image_rect_color", "/wrist_cam/image_raw", "/side/image_raw")):
            bag.rgb(topic, at(t), ARRAYS[f"cam_{camera}"][t])
        bag.image("/head/zed/depth/image", at(t), b"\1\2" * 12, "16UC1", height=3, width=4)
        bag.floats("/value", at(t), [t])
    return bag


def test_a_layout_chooses_cameras_and_numbers_come_all_the_same(tmp_path):
    layout = {
        "images": {"cam_head": {"key": "head_zed_left", "fps": 30}, "cam_wrist": "/wrist_cam/image_raw"},
        "depths": {"cam_head_depth": {"key": "head_zed"}},
        "numeric": {"nothing": "else"},
        "timestamps": "either",
    }
    with only_episode(three_cameras().write2(tmp_path / "run"), "rosbag", layout=layout) as episode:
        assert [(one.kind, one.name) for one in episode.streams] == [
            ("rgb", "cam_head"), ("rgb", "cam_wrist"), ("depth", "cam_head_depth"), ("numeric", "value"),
        ]  # fmt: skip
        assert [read_stamp(one)[0] for one in frames(episode, "cam_wrist")] == [1] * N
        assert warned(episode, "layout.numeric has no effect")
        assert warned(episode, "layout.timestamps has no effect")


def test_names_that_the_bag_lacks(tmp_path):
    path = three_cameras().write2(tmp_path / "run")
    layout = {"images": {"a": "wrist_cam", "b": "rist_cam"}}
    with only_episode(path, "rosbag", layout=layout) as episode:
        assert warned(episode, "layout.images.b", "'rist_cam'", "nearest is 'wrist_cam'")
    with pytest.raises(SourceError, match="nearest is 'wrist_cam'"):
        only_episode(path, "rosbag", layout=layout, strict=True)
    with pytest.raises(SourceError, match="no stream of the layout"):
        only_episode(path, "rosbag", layout={"images": {"b": "nowhere"}})
    with pytest.raises(SourceError, match="belongs under 'depths'"):
        only_episode(path, "rosbag", layout={"images": {"b": "/head/zed/depth/image"}})


def test_two_topics_of_one_name_have_to_be_told_apart(tmp_path):
    bag = with_camera(with_camera(topic="/cam/rgb/image_raw"), topic="/cam/color/image_raw")
    path = bag.write2(tmp_path / "run")
    with pytest.raises(SourceError, match=r"/cam/color/image_raw.*/cam/rgb/image_raw.*name them apart"):
        only_episode(path, "rosbag")
    with pytest.raises(SourceError, match="name the topic"):
        only_episode(path, "rosbag", layout={"images": {"one": "cam"}})
    layout = {"images": {"one": "/cam/rgb/image_raw", "two": "/cam/color/image_raw"}}
    with only_episode(path, "rosbag", layout=layout) as episode:
        assert [one.name for one in episode.streams] == ["one", "two"]


def test_a_bag_without_a_camera_is_empty_not_broken(tmp_path):
    from knonik.ingest import run

    bags = tmp_path / "bags"
    with_camera().write2(bags / "run_0")
    other = Bag()
    other.floats("/value", at(0), [1])
    other.write2(bags / "run_1")
    report = run({"dir_type": "mcap"}, bags, tmp_path / "out", engine="inline")
    assert [one.source_id for one in report.written] == ["run_0"]
    (empty,) = report.empty
    assert "no camera" in empty.reason
    assert "value" in empty.reason


def without_definition(bag, path, how):
    """A recording of the bag in which nothing says what messages of these packages are."""
    if how == "mcap":
        with path.with_suffix(".mcap").open("wb") as out:
            writer = Writer(out)
            writer.start(profile="ros2")
            channels = {}
            for topic, kind, ns, message in bag.messages:
                if topic not in channels:
                    text = "" if kind.startswith(UNDEFINED) else bag.store.generate_msgdef(kind)[0]
                    schema = writer.register_schema(kind, "ros2msg", text.encode())
                    channels[topic] = writer.register_channel(topic, "cdr", schema)
                writer.add_message(channels[topic], ns, bytes(bag.serialized(kind, message)), ns)
            writer.finish()
        return path.with_suffix(".mcap")
    if how == "bag":
        with Writer1(path.with_suffix(".bag")) as writer:
            connections = {}
            for topic, kind, ns, message in bag.messages:
                if topic not in connections:
                    text, digest = bag.store.generate_msgdef(kind)
                    text = "" if kind.startswith(UNDEFINED) else text
                    connections[topic] = writer.add_connection(topic, kind, msgdef=text, md5sum=digest)
                writer.write(connections[topic], ns, bag.serialized(kind, message))
        return path.with_suffix(".bag")
    bag.write2(path, "sqlite3")
    (one,) = path.glob("*.db3")
    database = sqlite3.connect(one)
    if how == "sqlite3 empty":  # as a recorder leaves it that finds no definition itself
        change = "UPDATE message_definitions SET encoding = 'unknown', encoded_message_definition = ''"
    else:
        change = "DELETE FROM message_definitions"
    database.execute(f"{change} WHERE topic_type LIKE 'lab_msgs/%' OR topic_type LIKE 'control_msgs/%'")
    database.commit()
    database.close()
    return path


@pytest.mark.parametrize("how", ["mcap", "sqlite3 empty", "sqlite3 none", "bag"])
def test_a_type_that_nobody_defined_is_skipped_with_a_warning(tmp_path, how):
    """One unknown topic must not cost the pictures beside it."""
    bag = bag_of(how, extra={"lab_msgs/msg/Odd": "float64 x\n"})
    for t in range(3):
        bag.rgb("/cam/image_raw", at(t), PICTURES[t])
        bag.add("/odd", "lab_msgs/msg/Odd", at(t), x=1.0)
        bag.text("/chatter", at(t), "hello")
    path = without_definition(bag, tmp_path / "run", how)
    with only_episode(path, "rosbag") as episode:
        assert [read_stamp(one) for one in frames(episode, "cam")] == [(0, 2, t) for t in range(3)]
        assert episode.facts.attributes["ros_skipped"] == {"/chatter": 3, "/odd": 3}
        (said,) = episode.facts.warnings
        assert "left out: /odd (lab_msgs/msg/Odd, 3 messages)" in said
        assert "chatter" not in said
    assert any("/odd (lab_msgs/msg/Odd, 3 messages)" in text for text in detect(path).warnings)


@pytest.mark.parametrize("how", ["mcap", "sqlite3 none", "bag"])
def test_numbers_that_nobody_defined_are_left_out_with_a_way_to_read_them(tmp_path, how):
    """A type that would be read, and of which neither the recording nor ROS itself has a definition."""
    jog = "std_msgs/Header header\nstring[] joint_names\nfloat64[] displacements\nfloat64[] velocities\nfloat64 duration\n"
    bag = bag_of(how, extra={"control_msgs/msg/JointJog": jog})
    rows = [np.array([t, 2.0 * t]) for t in range(3)]
    for t, row in enumerate(rows):
        bag.rgb("/cam/image_raw", at(t), PICTURES[t])
        members = {"joint_names": ["a", "b"], "displacements": row, "velocities": np.zeros(0), "duration": 1.0}
        bag.add("/jog", "control_msgs/msg/JointJog", at(t), header=bag.header(at(t)), **members)
    path = without_definition(bag, tmp_path / "run", how)
    with only_episode(path, "rosbag") as episode:
        assert [read_stamp(one)[2] for one in frames(episode, "cam")] == [0, 1, 2]
        assert [spec.name for spec in episode.streams] == ["cam"]
        assert episode.facts.attributes["ros_skipped"] == {"/jog": 3}
        assert warned(episode, "/jog", "left out", "no definition of control_msgs/msg/JointJog", "msg_path")
    folder = tmp_path / "types" / "control_msgs" / "msg"
    folder.mkdir(parents=True)
    (folder / "JointJog.msg").write_text(jog)
    with only_episode(path, "rosbag", msg_path=str(tmp_path / "types")) as episode:
        np.testing.assert_array_equal(episode.numeric(stream(episode, "jog"))[:, :2], rows)


def strip_definitions(path):
    """As databases were written before definitions were kept in them."""
    (one,) = path.glob("*.db3")
    database = sqlite3.connect(one)
    database.execute("DROP TABLE message_definitions")
    database.commit()
    database.close()
    return path


def test_definitions_that_a_bag_lacks_are_assumed_aloud(tmp_path):
    bag = with_camera()
    bag.floats("/value", at(0), [3.5])
    path = strip_definitions(bag.write2(tmp_path / "run", "sqlite3"))
    with only_episode(path, "rosbag") as episode:
        assert [read_stamp(one)[2] for one in frames(episode, "cam")] == list(range(N))
        assert warned(episode, "holds no definition of", "sensor_msgs/msg/Image", "msg_path")


def test_a_standard_type_that_the_recorder_defined_otherwise_is_read_by_its_own_definition(tmp_path):
    """Integers of eight bytes read as floats are tiny numbers that nobody notices."""
    bag = with_camera(Bag(extra={"lab_msgs/msg/Count": "int64 data\n"}))
    for t in range(N):
        bag.add("/count", "lab_msgs/msg/Count", at(t), data=1000 + t)
    path = bag.write2(tmp_path / "run", "sqlite3")
    (one,) = path.glob("*.db3")
    database = sqlite3.connect(one)
    for table, column in (("topics", "type"), ("message_definitions", "topic_type")):
        database.execute(f"UPDATE {table} SET {column} = 'std_msgs/msg/Float64' WHERE {column} = 'lab_msgs/msg/Count'")
    database.commit()
    database.close()
    meta = path / "metadata.yaml"
    meta.write_text(meta.read_text().replace("lab_msgs/msg/Count", "std_msgs/msg/Float64"))
    with only_episode(path, "rosbag") as episode:
        np.testing.assert_array_equal(episode.numeric(stream(episode, "count"))[:, 0], 1000 + np.arange(N))
    with only_episode(strip_definitions(path), "rosbag") as episode:
        assert warned(episode, "holds no definition of", "std_msgs/msg/Float64")


def test_definitions_beside_the_bag_win_over_assumed_ones(tmp_path):
    """A type of the same name with other fields would give wrong numbers in silence."""
    changed = "float64[] position\nstring[] name\nfloat64[] velocity\nfloat64[] effort\n"
    bag = with_camera()
    for t in range(N):
        bag.joints("/joint_states", at(t), [t, 10 * t], ["a", "b"])
    path = strip_definitions(bag.write2(tmp_path / "run", "sqlite3"))
    folder = tmp_path / "types" / "sensor_msgs" / "msg"
    folder.mkdir(parents=True)
    (folder / "JointState.msg").write_text(changed)
    with only_episode(path, "rosbag", msg_path=str(tmp_path / "types")) as episode:
        assert warned(episode, "/joint_states", "left out", "cannot be decoded")
        assert stream(episode, "cam").length == N
    (folder / "JointState.msg").write_text(
        "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n"
    )
    with only_episode(path, "rosbag", msg_path=str(tmp_path / "types")) as episode:
        np.testing.assert_array_equal(episode.numeric(stream(episode, "joint_states"))[:, 1], 10 * np.arange(N))
        assert not warned(episode, "sensor_msgs/msg/JointState")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "nowhere", "no folder"),
        (lambda folder: folder, "holds no .msg"),
    ],
)
def test_a_msg_path_that_leads_nowhere(tmp_path, make, words):
    path = with_camera().write2(tmp_path / "run")
    with pytest.raises(ConfigError, match=words):
        only_episode(path, "rosbag", msg_path=str(make(tmp_path)))


def test_a_msg_file_that_is_none(tmp_path):
    folder = tmp_path / "types" / "lab_msgs" / "msg"
    folder.mkdir(parents=True)
    (folder / "Odd.msg").write_text("float64 !!\n")
    path = with_camera().write2(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"Odd\.msg"):
        only_episode(path, "rosbag", msg_path=str(tmp_path / "types"))


def test_two_files_with_two_definitions_of_one_name_are_each_read_by_their_own(tmp_path):
    """The first file's type has one field more; read by the second's definition, it would give other numbers."""
    folder = tmp_path / "bags" / "run"
    folder.mkdir(parents=True)
    header = "std_msgs/Header header\n"
    texts = [
        header + "string[] joint_names\nfloat64[] displacements\nfloat64[] velocities\nfloat64 duration\n",
        header + "float64 duration\nfloat64[] velocities\nfloat64[] displacements\nstring[] joint_names\n",
    ]
    for place, text in enumerate(texts):
        bag = (
            with_camera(Bag(extra={"control_msgs/msg/JointJog": text}))
            if place == 0
            else Bag(extra={"control_msgs/msg/JointJog": text})
        )
        for t in range(2):
            ns = at(2 * place + t)
            members = {"displacements": np.array([ns % 97.0]), "velocities": np.array([5.0]), "duration": 1.0}
            bag.add("/jog", "control_msgs/msg/JointJog", ns, header=bag.header(ns), joint_names=["a"], **members)
        made = bag.write2(tmp_path / f"p{place}")
        next(made.glob("*.mcap")).rename(folder / f"run_{place}.mcap")
    with only_episode(tmp_path / "bags", "rosbag") as episode:
        wanted = [[at(t) % 97.0, 5.0] for t in range(N)]
        np.testing.assert_array_equal(episode.numeric(stream(episode, "jog")), wanted)


@pytest.mark.parametrize("name", ['x\nimport os\nos.environ["PWNED"]="1"\n#/msg/Y', "std_msgs/msg/A b", "../x/Y"])
def test_a_type_name_that_is_code_is_never_run(name):
    from knonik_assets.sources.ros.files import Channel
    from knonik_assets.sources.ros.types import Types

    for encoding, how in (("cdr", "ros2msg"), ("ros1", "ros1msg")):
        with pytest.raises(EpisodeError, match=r"no name of a type|damaged|no definition"):
            Types().decoder(Channel("/x", name, encoding, how, b"float64 x\n"))


def test_detect_writes_a_config_that_ingests_as_it_is(tmp_path):
    from knonik.ingest import run

    bag = three_cameras()
    found = detect(bag.write2(tmp_path / "run"))
    assert found.readable
    assert found.episodes == 1
    assert found.fps == 30
    assert "numeric" not in found.config["layout"]
    assert not [text for text in found.warnings if "no effect" in text]
    report = run(load_ingest_config(found.config), tmp_path / "run", tmp_path / "out", engine="inline")
    (written,) = report.written
    assert written.frames == N
    assert not written.warnings


def test_the_alias_is_the_same_reader(tmp_path):
    path = three_cameras().write2(tmp_path / "run")
    for name in ("rosbag", "mcap"):
        assert source(path, name).format == name
        with only_episode(path, name) as episode:
            assert len(episode.streams) == 5


def test_several_connections_of_one_topic_are_one_stream(tmp_path):
    """Two publishers: in a ROS 1 bag each has a connection of its own."""
    from rosbags.rosbag1 import Writer

    bag = with_camera(Bag(ros=1))
    with Writer(tmp_path / "run.bag") as writer:
        kinds = [
            [writer.add_connection(topic, kind, typestore=bag.store, callerid=f"/node_{n}") for n in range(2)]
            for topic, kind in (("/cam/image_raw", "sensor_msgs/msg/Image"), ("/value", "std_msgs/msg/Float64"))
        ]
        for t, (_, kind, ns, message) in enumerate(bag.messages):
            writer.write(kinds[0][t % 2], ns, bag.serialized(kind, message))
            value = bag.make("std_msgs/msg/Float64", data=float(t))
            writer.write(kinds[1][t // 2 % 2], ns, bag.serialized("std_msgs/msg/Float64", value))
    with only_episode(tmp_path / "run.bag", "rosbag") as episode:
        assert [read_stamp(one)[2] for one in frames(episode, "cam")] == list(range(N))
        assert episode.numeric(stream(episode, "value"))[:, 0].tolist() == list(range(N))


def test_two_types_under_one_topic(tmp_path):
    """The one with more messages is the stream; the other is counted and told of."""
    bag = with_camera()
    for t in range(N):
        bag.add("/value", "std_msgs/msg/Float64", at(t), data=float(t))
    bag.add("/value", "std_msgs/msg/Int8", at(1), data=99)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert episode.numeric(stream(episode, "value"))[:, 0].tolist() == list(range(N))
        assert episode.facts.attributes["ros_skipped"] == {"/value": 1}
        assert warned(episode, "second type, std_msgs/msg/Int8")


def test_a_message_that_does_not_fit_its_type_is_named(tmp_path, monkeypatch):
    bag = with_camera()
    for t in range(N):
        bag.joints("/joint_states", at(t), [t], ["x"])
    real = bag.serialized
    count = []

    def cut(kind, message):
        raw = bytes(real(kind, message))
        if kind.endswith("JointState"):
            count.append(kind)
            return raw[:-20] if len(count) == 3 else raw
        return raw

    monkeypatch.setattr(bag, "serialized", cut)
    path = bag.write2(tmp_path / "run")
    with pytest.raises(
        EpisodeError, match=r"/joint_states \(sensor_msgs/msg/JointState\), message 2: cannot be decoded"
    ):
        only_episode(path, "rosbag")
