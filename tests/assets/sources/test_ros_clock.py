"""Which frame goes with which sample: clocks of bags as they are found, jittering, broken, shuffled, split."""

import numpy as np
import pytest

from knonik_assets.sources.base_contract import as_array
from knonik_assets.sources.ros.clock import nearest, nominal_rate
from knonik_loader.errors import ConfigError, EpisodeError
from tests.assets.sources.bags import START, Bag, at, camera_info
from tests.assets.sources.support import frames, only_episode, source, stream
from tests.support.stamps import episode_arrays, read_stamp

N = 12
ARRAYS = episode_arrays(1, N, cameras=2)
MS = 1_000_000


def numbers(episode, name):
    return episode.numeric(stream(episode, name))[:, 0].tolist()


def warned(episode, *words):
    return [text for text in episode.facts.warnings if all(word in text for word in words)]


def test_nearest_by_every_pair():
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 17):
        times = np.sort(rng.integers(0, 40, size))
        wanted = rng.integers(-5, 45, 60)
        brute = [min(range(size), key=lambda place: (abs(times[place] - one), place)) for one in wanted]
        assert nearest(wanted, times).tolist() == brute


@pytest.mark.parametrize(("step_ms", "rate"), [(33.3, 30), (33.6, 30), (20, 50), (66.7, 15), (133.3, 7.5), (400, 2.5)])
def test_nominal_rates(step_ms, rate):
    assert nominal_rate((np.arange(9) * step_ms * MS).astype(np.int64)) == rate


def test_the_camera_with_most_messages_is_the_clock_and_all_else_is_sampled_at_it(tmp_path):
    bag = Bag()
    for t in range(N):
        bag.rgb("/slow/image_raw", at(t, 15), ARRAYS["cam_1"][t])
    for t in range(2 * N - 1):
        bag.rgb("/fast/image_raw", at(t, 30), ARRAYS["cam_0"][t // 2])
    for t in range(50):
        bag.floats("/value", at(t, 100) + MS, [t])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert {spec.length for spec in episode.streams} == {2 * N - 1}
        assert stream(episode, "fast").fps == 30
        clock = episode.facts.timestamps
        np.testing.assert_array_equal(clock, [at(t, 30) / 1e9 for t in range(2 * N - 1)])
        shown = [read_stamp(one)[2] for one in frames(episode, "slow")]
        slow = np.array([at(t, 15) for t in range(N)])
        assert shown == [int(np.abs(slow - at(t, 30)).argmin()) for t in range(2 * N - 1)]
        times = np.array([at(t, 100) + MS for t in range(50)])
        wanted = [int(np.abs(times - at(t, 30)).argmin()) for t in range(2 * N - 1)]
        assert numbers(episode, "value") == wanted
        np.testing.assert_allclose(episode.stream_times(stream(episode, "value")), times[wanted] / 1e9, atol=1e-6)
        assert episode.facts.attributes["ros_clock"] == "/fast/image_raw"


def test_colour_is_the_clock_before_depth(tmp_path):
    bag = Bag()
    for t in range(6):
        bag.image("/d/depth/image_raw", at(t), np.full(6, t, np.uint16).tobytes(), "16UC1", height=2, width=3)
    bag.rgb("/c/image_raw", at(2), ARRAYS["cam_0"][0])
    bag.rgb("/c/image_raw", at(4), ARRAYS["cam_0"][1])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert [one[0, 0] for one in frames(episode, "d")] == [np.float32(0.002), np.float32(0.004)]


def test_depth_alone_is_a_clock_too(tmp_path):
    bag = Bag()
    for t in range(6):
        bag.image("/d/depth/image_raw", at(t), np.full(6, t, np.uint16).tobytes(), "16UC1", height=2, width=3)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert stream(episode, "d").length == 6


@pytest.mark.parametrize("how", ["bag", "mcap", "sqlite3"])
def test_messages_stored_in_any_order_come_in_order_of_time(tmp_path, how):
    from tests.assets.sources.bags import bag_of

    bag = bag_of(how)
    for t in np.random.default_rng(2).permutation(N):
        bag.rgb("/cam/image_raw", at(int(t)), ARRAYS["cam_0"][t])
        bag.floats("/value", at(int(t)), [t])
    with only_episode(bag.write(tmp_path / "run", how), "rosbag") as episode:
        assert [read_stamp(one)[2] for one in frames(episode, "cam")] == list(range(N))
        assert numbers(episode, "value") == list(range(N))
        assert (np.diff(episode.facts.timestamps) > 0).all()


URDF = '<robot name="r"><joint name="hip" type="revolute"><parent link="a"/></joint></robot>'


def split(tmp_path, storage, parts, *, latched=False):
    """A bag directory of several files, each with the given times; ``latched`` messages once, in the first."""
    folder = tmp_path / "run"
    folder.mkdir()
    names = []
    for place, part in enumerate(parts):
        bag = Bag()
        if latched and not place:
            camera_info(bag, "/cam/camera_info", at(part[0]), 120)
            bag.text("/robot_description", at(part[0]), URDF)
        for t in part:
            bag.rgb("/cam/image_raw", at(t), ARRAYS["cam_0"][t])
            bag.floats("/value", at(t), [t])
        made = bag.write2(tmp_path / f"part_{place}", storage)
        (one,) = [path for path in made.iterdir() if path.name != "metadata.yaml"]
        names.append(f"run_{place}{one.suffix}")
        one.rename(folder / names[-1])
    lines = [
        "rosbag2_bagfile_information:",
        "  version: 5",
        f"  storage_identifier: {storage}",
        "  relative_file_paths:",
    ]
    (folder / "metadata.yaml").write_text("\n".join([*lines, *(f"    - {name}" for name in names)]) + "\n")
    return folder


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_times_that_go_backwards_from_one_part_to_the_next(tmp_path, storage):
    folder = split(tmp_path, storage, [[0, 1, 2, 4, 6], [3, 5, 7, 8], [9, 11, 10]])
    with only_episode(folder, "rosbag") as episode:
        assert [read_stamp(one)[2] for one in frames(episode, "cam")] == list(range(N))
        assert numbers(episode, "value") == list(range(N))


def test_ten_parts_and_more_come_in_the_order_of_their_numbers(tmp_path):
    folder = split(tmp_path, "mcap", [[t] for t in range(N)])
    assert (folder / "run_10.mcap").exists()
    (folder / "metadata.yaml").unlink()
    (tmp_path / "bags").mkdir()
    folder.rename(tmp_path / "bags" / "run")
    with only_episode(tmp_path / "bags", "rosbag") as episode:
        assert [read_stamp(one)[2] for one in frames(episode, "cam")] == list(range(N))
        assert warned(episode, "no metadata.yaml", "12 files")


def test_a_missing_part_is_named(tmp_path):
    folder = split(tmp_path, "mcap", [[0, 1], [2, 3]])
    (folder / "run_1.mcap").unlink()
    with pytest.raises(EpisodeError, match=r"run_1\.mcap.*missing"):
        only_episode(folder, "rosbag")


def test_one_part_alone_is_read(tmp_path):
    """What is sent once at the beginning of a recording is in the first part only; the frames are in each."""
    folder = split(tmp_path, "mcap", [[0, 1], [2, 3]], latched=True)
    with only_episode(folder, "rosbag") as episode:
        assert [read_stamp(one)[2] for one in frames(episode, "cam")] == [0, 1, 2, 3]
        assert list(episode.facts.attributes["camera_info"]) == ["/cam/camera_info"]
        assert episode.facts.attributes["urdf_joints"] == ["hip"]
    with only_episode(folder / "run_1.mcap", "rosbag") as episode:
        assert [read_stamp(one)[2] for one in frames(episode, "cam")] == [2, 3]
        assert numbers(episode, "value") == [2, 3]
        assert not {"camera_info", "urdf_joints"} & set(episode.facts.attributes)


def jittered(**keys):
    """Two cameras and a joint, made at the same moments and recorded up to 60 ms later, each by its own delay."""
    rng, bag = np.random.default_rng(7), Bag(**keys)
    late = np.sort(rng.uniform(0, 60 * MS, (N, 3)), axis=1).astype(int).tolist()
    for t in range(N):
        bag.rgb("/a/image_raw", at(t) + late[t][0], ARRAYS["cam_0"][t], stamp=at(t))
        bag.rgb("/b/image_raw", at(t) + late[t][2], ARRAYS["cam_1"][t], stamp=at(t))
        bag.joints("/joints", at(t) + late[t][1], [t], ["x"], stamp=at(t))
    return bag


def test_header_time_pairs_what_was_made_together(tmp_path):
    path = jittered().write2(tmp_path / "run")
    with only_episode(path, "rosbag", time_source="header") as episode:
        assert [read_stamp(one)[2] for one in frames(episode, "b")] == list(range(N))
        assert numbers(episode, "joints") == list(range(N))
        np.testing.assert_array_equal(episode.facts.timestamps, [at(t) / 1e9 for t in range(N)])
        assert not episode.facts.warnings
    with only_episode(path, "rosbag") as episode:
        pairs = [read_stamp(one)[2] for one in frames(episode, "b")]
        assert pairs != list(range(N))
        assert warned(episode, "/b/image_raw", "more than half a frame", "time_source")


def test_ros1_headers_are_read_too(tmp_path):
    path = jittered(ros=1).write1(tmp_path / "run.bag")
    with only_episode(path, "rosbag", time_source="header") as episode:
        assert [read_stamp(one)[2] for one in frames(episode, "b")] == list(range(N))


@pytest.mark.parametrize(
    ("stamp", "words"),
    [
        (lambda t: 0, "zero"),
        (lambda t: at(N - t), "backwards"),
        (lambda t: at(t) - 3_000 * 10**9, "another clock"),
        (lambda t: t * 33 * MS + 1, "another clock"),
        (lambda t: t * 33 * MS + 1 if t < 2 else at(t), "jump from one clock"),
        (lambda t: at(t) if t < 4 else at(t) + 40_000 * 10**9, "jump from one clock"),
    ],
)
def test_headers_that_cannot_be_used_fall_back_and_say_so(tmp_path, stamp, words):
    bag = Bag()
    for t in range(N):
        bag.rgb("/a/image_raw", at(t), ARRAYS["cam_0"][t], stamp=at(t) - 5 * MS)
        bag.joints("/joints", at(t), [t], ["x"], stamp=stamp(t))
        bag.floats("/value", at(t), [t])
    path = bag.write2(tmp_path / "run")
    with only_episode(path, "rosbag", time_source="header") as episode:
        assert numbers(episode, "joints") == numbers(episode, "value") == list(range(N))
        assert warned(episode, "/joints", words)
        assert warned(episode, "/value", "no header")
        assert not warned(episode, "/a/image_raw")
    with only_episode(path, "rosbag") as episode:
        assert not episode.facts.warnings


def test_stamps_that_drift_slowly_are_of_one_clock(tmp_path):
    """As of a recording that was played at half its speed into another one."""
    bag = Bag()
    for t in range(N):
        bag.rgb("/a/image_raw", at(0) + 12 * t * 10**9, ARRAYS["cam_0"][t], stamp=at(0) + 6 * t * 10**9)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag", time_source="header") as episode:
        np.testing.assert_allclose(np.diff(episode.facts.timestamps), 6)
        assert not warned(episode, "/a/image_raw", "jump")


def test_a_simulation_where_everything_has_one_other_clock(tmp_path):
    """Simulated time runs at its own pace; nothing has to fall back."""
    bag = Bag()
    for t in range(N):
        bag.rgb("/a/image_raw", at(t) + 40 * MS, ARRAYS["cam_0"][t], stamp=100 * MS * (t + 1))
        bag.joints("/joints", at(t), [t], ["x"], stamp=100 * MS * (t + 1))
    with only_episode(bag.write2(tmp_path / "run"), "rosbag", time_source="header") as episode:
        np.testing.assert_allclose(episode.facts.timestamps, np.arange(1, N + 1) / 10)
        assert numbers(episode, "joints") == list(range(N))
        assert not episode.facts.warnings


def test_a_bag_whose_recorder_knew_no_time(tmp_path):
    bag = Bag()
    for t in range(N):
        bag.rgb("/a/image_raw", 0, ARRAYS["cam_0"][t], stamp=at(t))
        bag.joints("/joints", 0, [t], ["x"], stamp=at(t))
    path = bag.write2(tmp_path / "run")
    with pytest.raises(EpisodeError, match=r"same time.*time_source: header"):
        only_episode(path, "rosbag")
    with only_episode(path, "rosbag", time_source="header") as episode:
        assert numbers(episode, "joints") == list(range(N))
        np.testing.assert_array_equal(episode.facts.timestamps, [at(t) / 1e9 for t in range(N)])


def test_samples_far_from_their_frames_are_told_of(tmp_path):
    bag = Bag()
    for t in range(N):
        bag.rgb("/cam/image_raw", at(t), ARRAYS["cam_0"][t])
        if t < 4:
            bag.floats("/value", at(t), [t])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert numbers(episode, "value") == [0, 1, 2, *[3] * (N - 3)]
        assert warned(episode, "/value", "no sample of it near", "0.267 s")


def test_pictures_that_share_a_time_are_told_of(tmp_path):
    bag = Bag()
    for t in range(N):
        bag.rgb("/cam/image_raw", at(t - t % 2), ARRAYS["cam_0"][t])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert [read_stamp(one)[2] for one in frames(episode, "cam")] == list(range(N))
        assert warned(episode, "6 of its pictures have the time of another")


def test_the_environment_caps_the_frames_of_each_episode(tmp_path, monkeypatch):
    bag = Bag()
    for t in range(N):
        bag.rgb("/cam/image_raw", at(t), ARRAYS["cam_0"][t])
        bag.floats("/value", at(t), [t])
    path = bag.write2(tmp_path / "run")
    from knonik_assets.sources.base_contract import NoCache

    whole = source(path, "rosbag")
    before = whole.fingerprint(whole.episodes()[0], NoCache())
    monkeypatch.setenv("KNONIK_ROSBAG_MAX_FRAMES", "5")
    capped = source(path, "rosbag")
    (ref,) = capped.episodes()
    assert capped.fingerprint(ref, NoCache()) != before  # a run without the cap must take the rest
    monkeypatch.delenv("KNONIK_ROSBAG_MAX_FRAMES")  # a worker elsewhere may not have it
    with capped.open(ref) as episode:
        assert {spec.length for spec in episode.streams} == {5}
        assert [read_stamp(as_array(one))[2] for one in frames(episode, "cam")] == list(range(5))
        assert warned(episode, "KNONIK_ROSBAG_MAX_FRAMES", "first 5 of 12")


@pytest.mark.parametrize("value", ["0", "-3", "many", "1.5"])
def test_a_cap_that_is_no_number_is_refused(tmp_path, monkeypatch, value):
    monkeypatch.setenv("KNONIK_ROSBAG_MAX_FRAMES", value)
    with pytest.raises(ConfigError, match="KNONIK_ROSBAG_MAX_FRAMES"):
        source(tmp_path, "rosbag")


def test_nanoseconds_of_today_survive(tmp_path):
    """Times are exact to less than a microsecond, though they count from 1970."""
    bag = Bag()
    wanted = [START + 1 + t * 33_333_333 for t in range(4)]
    for t, ns in enumerate(wanted):
        bag.rgb("/cam/image_raw", ns, ARRAYS["cam_0"][t])
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert np.abs(episode.facts.timestamps - np.array(wanted) / 1e9).max() < 3e-7
