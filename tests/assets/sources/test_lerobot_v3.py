"""LeRobot v3 as it is published: metadata that is stale, missing or wrong, and never a frame of another moment."""

import io
import json
import math

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from knonik_assets.sources.base_contract import NoCache, as_array
from knonik_loader.errors import EpisodeError, SourceError
from tests.assets.sources.support import V3, encode_video, frames, jpeg, png, source, stream
from tests.support.stamps import episode_arrays, read_stamp

LENGTHS = [8, 11, 6, 9, 7]
EVERY = range(len(LENGTHS))
ROLLS = {"left": [1, 2, 2], "right": [3, 2]}


@pytest.fixture
def dataset(tmp_path):
    """Two cameras whose files roll at different episodes, and data files that roll at yet another."""
    return V3(tmp_path / "set", LENGTHS, ROLLS, [2, 3])


def opened(root, episode, **keys):
    found = source(root, "lerobot_v3", **keys)
    (ref,) = [ref for ref in found.episodes() if ref.source_id == str(episode)]
    return found.open(ref)


def check(root, episodes=EVERY, cameras=("left", "right"), lengths=LENGTHS, **keys):
    """Every frame of these episodes is its own; returns the warnings."""
    warnings = []
    for number in episodes:
        with opened(root, number, **keys) as episode:
            for place, camera in enumerate(cameras):
                found = [read_stamp(frame) for frame in frames(episode, camera)]
                assert found == [(place, number, row) for row in range(lengths[number])]
            state = episode.numeric(stream(episode, "state"))
            np.testing.assert_array_equal(state, episode_arrays(number, lengths[number])["state"])
            warnings += episode.facts.warnings
    return warnings


@pytest.mark.parametrize("data_rolls", [[2, 3], [5], [1, 1, 1, 1, 1]])
def test_cameras_and_data_that_roll_on_their_own(tmp_path, data_rolls):
    assert check(V3(tmp_path / "set", LENGTHS, ROLLS, data_rolls).write()) == []


def test_without_any_episode_metadata(dataset):
    root = dataset.write()
    (root / "meta/episodes/chunk-000/file-000.parquet").unlink()
    warnings = check(root)
    assert all("counting frames" in warning for warning in warnings)
    assert len(warnings) == 10


def test_unreadable_episode_metadata(dataset):
    root = dataset.write()
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    found = source(root, "lerobot_v3")
    found.episodes()
    assert any("file-000.parquet" in warning and "unreadable" in warning for warning in found.warnings)
    check(root)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("file_index", None),
        ("file_index", float("nan")),
        ("file_index", 0),
        ("file_index", 1),
        ("file_index", -1),
        ("file_index", 7),
        ("chunk_index", 3),
        ("chunk_index", None),
        ("chunk_index", float("nan")),
        ("from_timestamp", None),
        ("from_timestamp", float("nan")),
        ("from_timestamp", 0.0),
        ("from_timestamp", 0.1),
        ("from_timestamp", 8 / 30),
        ("from_timestamp", 1e6),
        ("from_timestamp", -4.0),
    ],
)
@pytest.mark.parametrize("episode", [1, 2, 4])
def test_one_wrong_cell(dataset, episode, column, value):
    """The episode named and its neighbours all keep their own frames."""
    right = dataset.meta[episode][f"videos/observation.images.left/{column}"]
    for row in dataset.meta:  # whole columns have one type
        if isinstance(value, float) and column.endswith("index"):
            row[f"videos/observation.images.left/{column}"] *= 1.0
    dataset.cell(episode, "left", column, value)
    warnings = check(dataset.write())
    same = value is not None and not math.isnan(value) and value == right
    assert bool(warnings) != same
    assert all("left" in warning for warning in warnings)


@pytest.mark.parametrize("make", [lambda index: [index], lambda index: float(index)])
def test_indices_stored_as_lists_or_floats(dataset, make):
    for row in dataset.meta:
        for key in row:
            if key.endswith(("chunk_index", "file_index")):
                row[key] = make(row[key])
    assert check(dataset.write()) == []


@pytest.mark.parametrize("value", [float("nan"), None, -1, 7])
def test_a_data_file_that_the_metadata_cannot_name(dataset, value):
    for row in dataset.meta:
        row["data/chunk_index"] *= 1.0
        row["data/file_index"] *= 1.0
    dataset.meta[2]["data/chunk_index"] = dataset.meta[3]["data/file_index"] = value
    assert check(dataset.write()) == []


def test_scrambled_row_ranges_are_not_looked_at(dataset):
    for row in dataset.meta:
        row["dataset_from_index"], row["dataset_to_index"] = 3, 1
        row["data/file_index"] = 1 - row["data/file_index"]
    assert check(dataset.write()) == []


def test_metadata_rows_out_of_order(dataset):
    dataset.meta.reverse()
    assert check(dataset.write()) == []


def test_times_summed_in_float32_drift_but_frames_do_not(tmp_path):
    """Many short episodes in one file: the summed times end up nearer to the neighbour's frames."""
    lengths = [7 + episode % 11 for episode in range(50)]
    dataset = V3(tmp_path / "set", lengths, {"left": [50]}, size=(80, 80), gop=50)
    at = np.float32(0)
    for row, length in zip(dataset.meta, lengths, strict=True):
        row["videos/observation.images.left/from_timestamp"] = float(at)
        at = np.float32(at + np.float32(length) / np.float32(29.97))
    warnings = check(dataset.write(), range(50), ["left"], lengths)
    assert any("from_timestamp" in warning for warning in warnings)


def test_every_time_wrong_by_a_frame(dataset):
    for row in dataset.meta:
        for camera in ROLLS:
            row[f"videos/observation.images.{camera}/from_timestamp"] += 1 / 30
    assert all("from_timestamp" in warning for warning in check(dataset.write()))


def test_episodes_of_one_length_in_another_order_within_their_file(tmp_path):
    """Times that fit the file are believed, whatever the order of episodes."""
    dataset = V3(tmp_path / "set", [6, 6, 6], {"left": [3]})
    dataset.write()
    dataset.write_video("left", 0, 0, [2, 0, 1])
    for episode, place in ((2, 0), (0, 1), (1, 2)):
        dataset.cell(episode, "left", "from_timestamp", place * 6 / 30)
        dataset.cell(episode, "left", "to_timestamp", (place + 1) * 6 / 30)
    dataset.write_meta()
    assert check(dataset.root, range(3), ["left"], [6, 6, 6]) == []


@pytest.mark.parametrize("video", [{"b_frames": 3, "gop": 12}, {"gop": 1}, {"gop": 250}])
def test_any_order_of_frames_in_the_file(tmp_path, video):
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [5]}, **video)
    assert check(dataset.write(), cameras=["left"]) == []


def test_first_frame_later_than_zero(tmp_path):
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [5]})
    dataset.write()
    pictures = [picture for arrays in dataset.episodes for picture in arrays["cam_0"]]
    encode_video(dataset.video_path("left", 0), pictures, pts=[1000 * (place + 2) for place in range(len(pictures))])
    with av.open(str(dataset.video_path("left", 0))) as container:
        assert next(container.decode(video=0)).pts > 0 or container.streams.video[0].start_time
    check(dataset.root, cameras=["left"])


def test_uneven_frame_times(tmp_path):
    """Rows and frames both jitter; the nearest frame to a nominal time would sometimes be the neighbour."""
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [5]})
    rng = np.random.default_rng(4)
    total = sum(LENGTHS)
    times = np.cumsum(rng.uniform(400, 1600, total)).astype(int)
    times -= times[0]

    def rows(episode):
        start = sum(LENGTHS[:episode])
        own = times[start : start + LENGTHS[episode]] / 30_000
        return dataset.rows(episode) | {"timestamp": pa.array(own - own[0], pa.float32())}

    for episode in range(len(LENGTHS)):
        dataset.cell(episode, "left", "from_timestamp", float(times[sum(LENGTHS[:episode])] / 30_000))
    root = dataset.write(rows)
    pictures = [picture for arrays in dataset.episodes for picture in arrays["cam_0"]]
    encode_video(dataset.video_path("left", 0), pictures, pts=times.tolist())
    assert check(root, cameras=["left"]) == []


def test_a_video_with_fewer_frames_than_rows_is_refused(dataset):
    dataset.write()
    pictures = [picture for episode in (1, 2) for picture in dataset.episodes[episode]["cam_0"]]
    encode_video(dataset.video_path("left", 1), pictures[:5] + pictures[7:])
    for episode in (1, 2):
        with pytest.raises(EpisodeError, match=r"file-001\.mp4 .*15 frames"):
            opened(dataset.root, episode)
    check(dataset.root, [0, 3, 4])


def test_the_metadata_may_tell_which_episode_is_short(dataset):
    dataset.write()
    pictures = [*dataset.episodes[1]["cam_0"][:9], *dataset.episodes[2]["cam_0"]]
    encode_video(dataset.video_path("left", 1), pictures)
    dataset.cell(1, "left", "to_timestamp", 9 / 30)
    dataset.cell(2, "left", "from_timestamp", 9 / 30)
    dataset.cell(2, "left", "to_timestamp", 15 / 30)
    dataset.write_meta()
    with pytest.raises(EpisodeError, match="9 frames for its 11 rows"):
        opened(dataset.root, 1)
    check(dataset.root, [0, 2, 3, 4])


def test_frames_too_many_are_flagged(dataset):
    dataset.write()
    pictures = [picture for episode in (3, 4) for picture in dataset.episodes[episode]["cam_0"]]
    encode_video(dataset.video_path("left", 2), [*pictures, *pictures[:3]])
    warnings = check(dataset.root, [3, 4])
    assert all("3 frames of" in warning and "belong to no episode" in warning for warning in warnings)
    assert len(warnings) == 2


def test_a_truncated_video_fails_by_name(dataset):
    dataset.write()
    path = dataset.video_path("right", 1)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for episode in (3, 4):
        with pytest.raises(EpisodeError, match=r"right/chunk-000/file-001\.mp4"):
            opened(dataset.root, episode)
    check(dataset.root, [0, 1, 2])


def test_a_missing_video_fails_by_name_and_alone(dataset):
    dataset.write()
    dataset.video_path("left", 2).unlink()
    found = source(dataset.root, "lerobot_v3")
    refs = found.episodes()
    assert any("left" in warning and "file-002.mp4" in warning for warning in found.warnings)
    for ref in refs[3:]:
        with pytest.raises(EpisodeError, match=r"left/chunk-000/file-002\.mp4 is missing"):
            found.fingerprint(ref, NoCache())
    check(dataset.root, [0, 1, 2])
    with opened(dataset.root, 4, layout={"images": {"right": "right"}}) as episode:
        assert len(frames(episode, "right")) == LENGTHS[4]


@pytest.mark.parametrize("victim", [0, 3, 6])
def test_a_damaged_picture_inside_a_video_fails(dataset, victim):
    root = dataset.write()
    path = dataset.video_path("left", 0)
    with av.open(str(path)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    start, size = places[victim]
    data[start + size // 4 : start + size // 2] = bytes(b ^ 0x5A for b in data[start + size // 4 : start + size // 2])
    path.write_bytes(bytes(data))
    with opened(root, 0) as episode, pytest.raises(EpisodeError, match=r"file-000\.mp4"):
        frames(episode, "left")


def test_another_row_rate_than_the_video_is_refused(tmp_path):
    """Rows at 20 a second over video at 30: every count fits, the times don't."""
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [5]})

    def rows(episode):
        return dataset.rows(episode) | {"timestamp": pa.array(np.arange(LENGTHS[episode]) / 20, pa.float32())}

    root = dataset.write(rows)
    with pytest.raises(EpisodeError, match="more than half a frame"):
        opened(root, 1)


def test_packets_can_be_copied_from_a_keyframe_on(tmp_path):
    dataset = V3(tmp_path / "set", [10, 10, 7], {"left": [3]}, gop=10)
    root = dataset.write()
    for number, count in enumerate(dataset.lengths):
        with opened(root, number) as episode:
            found, packets = episode.packets(stream(episode, "left"))
            decoder = av.CodecContext.create(found.codec_context.name, "r")
            decoder.extradata = found.codec_context.extradata
            seen = [frame for packet in packets for frame in decoder.decode(packet)] + decoder.decode(None)
            stamps = [read_stamp(frame.to_ndarray(format="rgb24")) for frame in seen]
            assert stamps == [(0, number, row) for row in range(count)]


@pytest.mark.parametrize("keys", [{}, {"orientation": "flip_vertical"}])
def test_packets_that_cannot_stand_alone_are_not_offered(tmp_path, keys):
    dataset = V3(tmp_path / "set", [10, 9], {"left": [2]}, gop=7 if not keys else 10)
    with opened(dataset.write(), 1, **keys) as episode:
        assert episode.packets(stream(episode, "left")) is None
        assert episode.packets(stream(episode, "state")) is None
        assert stream(episode, "left").encoding == ("raw" if keys else "video")


def test_turned_videos(tmp_path):
    dataset = V3(tmp_path / "set", [5], {"left": [1]})
    dataset.write()
    encode_video(dataset.video_path("left", 0), [picture[::-1, ::-1] for picture in dataset.episodes[0]["cam_0"]])
    check(dataset.root, [0], ["left"], [5], orientation="rotate_180")


def test_rows_that_nobody_sorted(tmp_path):
    """Episodes scattered over a file, rows out of order, another order of columns in each file."""
    lengths = [6, 8, 5]
    dataset = V3(tmp_path / "set", lengths, {"left": [3]}, [3])
    dataset.write()
    table = pq.read_table(dataset.data_path(0))
    order = np.random.default_rng(1).permutation(table.num_rows)
    shuffled = table.take(pa.array(order))
    pq.write_table(shuffled.slice(0, 9), dataset.data_path(0), row_group_size=2)
    rest = shuffled.slice(9)
    pq.write_table(rest.select(rest.column_names[::-1]), dataset.data_path(1))
    check(dataset.root, range(3), ["left"], lengths)


def test_pictures_in_rows_that_nobody_sorted(tmp_path):
    dataset = V3(tmp_path / "set", [6], {})
    video = episode_arrays(0, 6)["cam_0"]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

    def rows(episode):
        cells = [{"bytes": jpeg(picture), "path": None} for picture in video]
        return dataset.rows(episode) | {"observation.images.top": pa.array(cells, kind)}

    root = dataset.write(rows)
    table = pq.read_table(dataset.data_path(0))
    pq.write_table(table.take(pa.array([3, 0, 5, 1, 4, 2])), dataset.data_path(0), row_group_size=2)
    with opened(root, 0) as episode:
        assert stream(episode, "top").encoding == "jpeg"
        assert [one.data for one in frames(episode, "top")] == [jpeg(picture) for picture in video]


def test_a_row_that_is_there_twice_is_refused(dataset):
    root = dataset.write()
    table = pq.read_table(dataset.data_path(0))
    pq.write_table(pa.concat_tables([table, table.slice(3, 1)]), dataset.data_path(0))
    with pytest.raises(EpisodeError, match="frame_index 3 stands in more than one row"):
        opened(root, 0)


def test_a_wrong_length_in_the_metadata_is_warned_of(dataset):
    dataset.meta[2]["length"] = 99
    warnings = check(dataset.write())
    assert ["99 rows" in warning for warning in warnings] == [True]


def test_a_truncated_data_file_costs_its_episodes_only(dataset):
    root = dataset.write()
    path = dataset.data_path(1)
    path.write_bytes(path.read_bytes()[:-100])
    found = source(root, "lerobot_v3")
    refs = found.episodes()
    assert [ref.source_id for ref in refs] == ["0", "1", "2", "3", "4"]
    assert any("file-001.parquet" in warning for warning in found.warnings)
    for ref in refs[2:]:
        with pytest.raises(EpisodeError, match=r"file-001\.parquet"):
            found.open(ref)
    check(root, [0, 1])


def test_data_that_was_not_downloaded_is_named(dataset):
    root = dataset.write()
    dataset.data_path(1).unlink()
    with pytest.raises(EpisodeError, match=r"data/chunk-000/file-001\.parquet"):
        opened(root, 3)
    dataset.data_path(0).unlink()
    with pytest.raises(SourceError, match="no data file"):
        source(root, "lerobot_v3").episodes()


def test_tasks_by_value_and_changes_of_task(tmp_path):
    dataset = V3(tmp_path / "set", [6, 6, 6], {})

    def rows(episode):
        numbers = {0: [1] * 6, 1: [0, 0, 1, 1, 1, 0], 2: [5] * 6}[episode]
        return dataset.rows(episode) | {"task_index": pa.array(numbers, pa.int64())}

    root = dataset.write(rows)
    with opened(root, 0) as episode:
        assert (episode.facts.language.instruction, episode.facts.language.segments) == ("task 1", ())
    with opened(root, 1) as episode:
        language = episode.facts.language
        assert language.instruction == "task 0"
        assert [text for _, _, text in language.segments] == ["task 0", "task 1", "task 0"]
        np.testing.assert_allclose(
            [part[:2] for part in language.segments], [(0, 2 / 30), (2 / 30, 5 / 30), (5 / 30,) * 2]
        )
    with opened(root, 2) as episode:
        assert episode.facts.language.instruction == "task 0"  # what the metadata says of the episode
        assert any("task_index 5" in warning for warning in episode.facts.warnings)


def test_tasks_of_the_older_kind(tmp_path):
    root = V3(tmp_path / "set", [4, 4], {}).write()
    (root / "meta/tasks.parquet").unlink()
    lines = [{"task_index": 1, "task": "second"}, {"task_index": 0, "task": "first"}]
    (root / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with opened(root, 1) as episode:
        assert episode.facts.language.instruction == "second"


def test_numbers_of_every_shape(tmp_path):
    dataset = V3(tmp_path / "set", [4], {})

    def rows(episode):
        return dataset.rows(episode) | {
            "next.reward": pa.array(np.arange(4), pa.float64()),
            "next.done": pa.array([False, False, False, True]),
            "observation.pose": pa.array(np.arange(24.0).reshape(4, 2, 3).tolist()),
            "observation.gaps": pa.array([1.0, None, 3.0, 4.0]),
            "note": pa.array(["a"] * 4),
            "language_events": pa.array([[{"role": "user", "content": "hi"}]] * 4),
        }

    dataset.info["features"] |= {"observation.pose": {"dtype": "float32", "names": ["pose"]}}
    with opened(dataset.write(rows), 0) as episode:
        found = {spec.name: spec for spec in episode.streams}
        assert set(found) == {"state", "action", "next.reward", "next.done", "observation.pose", "observation.gaps"}
        assert {name: spec.role for name, spec in found.items() if spec.role} == {"state": "state", "action": "action"}
        assert found["action"].channel_names == ("x", "y", "z", "w")
        assert found["observation.pose"].channel_names == tuple(f"observation.pose_{i}" for i in range(6))
        read = {name: episode.numeric(spec) for name, spec in found.items()}
        np.testing.assert_array_equal(read["next.reward"], np.arange(4)[:, None])
        np.testing.assert_array_equal(read["next.done"][:, 0], [0, 0, 0, 1])
        np.testing.assert_array_equal(read["observation.pose"], np.arange(24).reshape(4, 6))
        np.testing.assert_array_equal(np.isnan(read["observation.gaps"][:, 0]), [False, True, False, False])
        assert all(value.dtype == np.float32 for value in read.values())
        warnings = " ".join(episode.facts.warnings)
        assert "no numbers: note" in warnings
        assert len(episode.facts.attributes["language_events"]) == 4
        assert "flattened to 6" in warnings


def test_rows_of_different_lengths_are_refused(tmp_path):
    dataset = V3(tmp_path / "set", [3], {})

    def rows(episode):
        return dataset.rows(episode) | {"points": pa.array([[1.0], [1.0, 2.0], [1.0]])}

    with pytest.raises(EpisodeError, match="points: rows have between 1 and 2 numbers"):
        opened(dataset.write(rows), 0)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["a", "b", "c", "d"], ("a", "b", "c", "d")),
        ({"motors": ["a", "b", "c", "d"]}, ("a", "b", "c", "d")),
        ({"arm": ["a", "b", "c"], "hand": ["d"]}, ("a", "b", "c", "d")),
        ({"d": 3, "c": 2, "a": 0, "b": 1}, ("a", "b", "c", "d")),
        ([["a", "b"], ["c", "d"]], ("a", "b", "c", "d")),
        (["joints"], ("state_0", "state_1", "state_2", "state_3")),
        (None, None),
    ],
)
def test_channel_names_in_every_spelling(tmp_path, names, wanted):
    dataset = V3(tmp_path / "set", [3], {})
    dataset.info["features"]["observation.state"]["names"] = names
    with opened(dataset.write(), 0) as episode:
        assert stream(episode, "state").channel_names == wanted


def test_layout_takes_bare_and_full_names(dataset):
    layout = {
        "images": {"a": "left", "b": {"key": "observation.images.right", "fps": 25}},
        "numeric": {"s": "state", "t": "observation.state", "u": "action"},
    }
    with opened(dataset.write(), 1, layout=layout) as episode:
        assert [(spec.name, spec.source, spec.fps, spec.role) for spec in episode.streams] == [
            ("a", "observation.images.left", 30, None),
            ("b", "observation.images.right", 25, None),
            ("s", "observation.state", 30, "state"),
            ("t", "observation.state", 30, "state"),
            ("u", "action", 30, "action"),
        ]


def test_names_that_the_source_lacks_are_warned_of_and_refused_under_strict(dataset):
    layout = {"images": {"l": "left", "x": "cam_hihg"}, "numeric": {"s": "state", "y": "efort"}}
    root = dataset.write()
    with opened(root, 0, layout=layout) as episode:
        assert [spec.name for spec in episode.streams] == ["l", "s"]
        warnings = "\n".join(episode.facts.warnings)
        assert "layout.images.x names 'cam_hihg'" in warnings
        assert "it has: left, right; left out" in warnings
        assert "layout.numeric.y names 'efort'" in warnings
        assert "it has: action, state" in warnings
    with pytest.raises(SourceError, match=r"layout\.images\.x"):
        source(root, "lerobot_v3", layout=layout, strict=True).episodes()
    with pytest.raises(SourceError, match="no stream of the layout"):
        source(root, "lerobot_v3", layout={"images": {"x": "y"}, "numeric": {}}).episodes()
    for layout in ({"images": {"x": "y"}}, {"depths": {"x": "y"}}, {"numeric": {"x": "y"}}):
        with pytest.raises(SourceError, match="no stream of the layout"):
            source(root, "lerobot_v3", layout=layout).episodes()
    with opened(root, 0, layout={"images": {}}) as episode:
        assert [spec.kind for spec in episode.streams] == ["numeric", "numeric"]


def test_wrong_info_is_survived(dataset):
    dataset.info |= {
        "data_path": "data/{episode_chunk}/{nonsense}.parquet",
        "video_path": None,
        "total_episodes": 77,
        "unknown": {"a": 1},
        "robot_type": None,
        "chunks_size": "x",
    }
    dataset.info["features"]["observation.images.ghost"] = {"dtype": "video", "shape": [1, 1, 3]}
    dataset.info["features"]["observation.state"] = {"dtype": "int8", "shape": [99]}
    root = dataset.write()
    found = source(root, "lerobot_v3")
    found.episodes()
    assert any("ghost" in warning for warning in found.warnings)
    assert any("data_path" in warning for warning in found.warnings)
    check(root)


@pytest.mark.parametrize(
    "path",
    ["/etc/{chunk_index}/{file_index}.parquet", "../{chunk_index}/{file_index}.parquet", "data/../../{file_index}"],
)
def test_path_templates_stay_inside(dataset, path):
    dataset.info["data_path"] = path
    with pytest.raises(SourceError, match="leads out of the dataset"):
        source(dataset.write(), "lerobot_v3").episodes()


@pytest.mark.parametrize("inside", [True, False])
def test_pictures_named_by_path(tmp_path, inside):
    dataset = V3(tmp_path / "set", [3], {})
    video = episode_arrays(0, 3)["cam_0"]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    folder = tmp_path / "set/images/top/episode-000000" if inside else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    for row, picture in enumerate(video):
        (folder / f"frame-{row:06d}.png").write_bytes(png(picture))
    prefix = "images/top/episode-000000" if inside else "../"

    def rows(episode):
        cells = [{"bytes": None, "path": f"{prefix}/frame-{row:06d}.png"} for row in range(3)]
        return dataset.rows(episode) | {"observation.images.top": pa.array(cells, kind)}

    root = dataset.write(rows)
    if not inside:
        with pytest.raises(EpisodeError, match="outside the dataset"):
            opened(root, 0)
        return
    with opened(root, 0) as episode:
        assert [read_stamp(as_array(one)) for one in frames(episode, "top")] == [(0, 0, row) for row in range(3)]


def test_pictures_in_parquet_obey_channel_order_and_orientation(tmp_path):
    dataset = V3(tmp_path / "set", [3], {})
    video = episode_arrays(0, 3)["cam_0"]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

    def rows(episode):
        cells = [{"bytes": jpeg(picture[::-1], colorspace="BGR"), "path": None} for picture in video]
        return dataset.rows(episode) | {"observation.images.top": pa.array(cells, kind)}

    root = dataset.write(rows)
    with opened(root, 0, jpeg_channel_order="bgr", orientation="flip_vertical") as episode:
        assert stream(episode, "top").encoding == "raw"
        assert [read_stamp(one) for one in frames(episode, "top")] == [(0, 0, row) for row in range(3)]


def test_channel_order_of_a_video_is_warned_of(dataset):
    with opened(dataset.write(), 0, jpeg_channel_order="bgr") as episode:
        assert any("no effect" in warning for warning in episode.facts.warnings)


@pytest.mark.parametrize(("unit", "scale"), [("mm", 0.001), (None, 0.001), ("m", 1.0)])
def test_depth_pictures_in_parquet(tmp_path, unit, scale):
    dataset = V3(tmp_path / "set", [3], {})
    depth = (np.arange(3 * 20 * 30).reshape(3, 20, 30) * 3).astype(np.uint16)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

    def tiff(picture):
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "TIFF")
        return buffer.getvalue()

    def rows(episode):
        cells = [{"bytes": tiff(picture), "path": None} for picture in depth]
        return dataset.rows(episode) | {"observation.images.deep": pa.array(cells, kind)}

    dataset.info["features"]["observation.images.deep"] = {
        "dtype": "image",
        "info": {"is_depth_map": True, "depth_unit": unit},
    }
    root = dataset.write(rows)
    with opened(root, 0) as episode:
        spec = stream(episode, "deep", "depth")
        assert spec.shape == (20, 30)
        np.testing.assert_allclose(np.stack(frames(episode, "deep")), depth * scale, rtol=1e-6)
    with pytest.raises(SourceError, match="list it under 'depths'"):
        opened(root, 0, layout={"images": {"deep": "deep"}})


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("marked", ["info", "video_info"])
def test_depth_video(tmp_path, log, marked):
    """12-bit codes in lossless HEVC; what is no reading or out of range was clipped, as LeRobot's recorder does."""
    metres = np.linspace(0.02, 9.9, 4 * 32 * 48).reshape(4, 32, 48)
    metres[:, 0], metres[:, 1], metres[:, -1] = 0, np.nan, 20
    low, high, shift = 0.01, 10.0, 3.5
    if log:
        share = (np.log(metres + shift) - np.log(low + shift)) / (np.log(high + shift) - np.log(low + shift))
    else:
        share = (metres - low) / (high - low)
    with np.errstate(invalid="ignore"):
        codes = np.rint(share * 4095).clip(0, 4095).astype(np.uint16)
    dataset = V3(tmp_path / "set", [4], {})
    key = "observation.images.deep"
    prefix = "" if marked == "info" else "video."
    stated = {f"{prefix}is_depth_map": True} | ({} if log else {"video.use_log": False})
    dataset.info["features"][key] = {"dtype": "video", marked: stated}
    path = dataset.root / f"videos/{key}/chunk-000/file-000.mp4"
    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx265", rate=30)
        video.height, video.width, video.pix_fmt = 32, 48, "gray12le"
        video.options = {"x265-params": "lossless=1:log-level=none"}
        for picture in codes:
            frame = av.VideoFrame(48, 32, "gray12le")
            plane = np.zeros((32, frame.planes[0].line_size // 2), np.uint16)
            plane[:, :48] = picture
            frame.planes[0].update(plane.tobytes())
            container.mux(video.encode(frame))
        container.mux(video.encode())
    with opened(dataset.write(), 0) as episode:
        found = np.stack(frames(episode, "deep", "depth"))
        assert (found[:, :2] == 0).all()
        assert (found[:, -1] == 0).all()
        np.testing.assert_allclose(found[:, 2:-1], metres[:, 2:-1], atol=0.004)
        assert episode.packets(stream(episode, "deep")) is None


@pytest.mark.parametrize("stated", [True, False])
def test_the_clock_is_what_float32_rounded(tmp_path, stated):
    dataset = V3(tmp_path / "set", [400], {}, fps=50)
    dataset.info |= {} if stated else {"fps": None}
    with opened(dataset.write(), 0) as episode:
        np.testing.assert_array_equal(episode.facts.timestamps, np.arange(400) / 50)


def test_a_recorded_clock_is_kept(tmp_path):
    dataset = V3(tmp_path / "set", [4], {})
    own = np.array([0.05, 0.09, 0.13, 0.16])

    def rows(episode):
        return dataset.rows(episode) | {"timestamp": pa.array(own, pa.float64())}

    with opened(dataset.write(rows), 0) as episode:
        np.testing.assert_array_equal(episode.facts.timestamps, own)


def test_a_version_2_dataset_is_told_apart(tmp_path):
    root = V3(tmp_path / "set", [3], {}).write()
    for path in (root / "meta/episodes").rglob("*.parquet"):
        path.unlink()
    (root / "meta/episodes/chunk-000").rmdir()
    (root / "meta/episodes").rmdir()
    (root / "meta/episodes.jsonl").write_text("{}")
    with pytest.raises(SourceError, match="lerobot_v2"):
        source(root, "lerobot_v3").episodes()


def test_real_dataset_whose_cameras_roll(real_data):
    root = real_data / "lerobot/oracle_v3_many_files"
    found = source(root, "lerobot_v3")
    refs = found.episodes()
    assert found.warnings == []
    table = pq.read_table(root / "data/chunk-000/file-000.parquet", columns=["episode_index", "observation.state"])
    owners = table["episode_index"].to_numpy()
    states = np.array(table["observation.state"].to_pylist(), np.float32)
    for ref in refs:
        number = int(ref.source_id)
        with found.open(ref) as episode:
            assert episode.facts.warnings == []
            np.testing.assert_array_equal(episode.numeric(stream(episode, "state")), states[owners == number])
            for camera in (0, 1):
                stamps = [read_stamp(frame) for frame in frames(episode, f"cam_{camera}")]
                assert stamps == [(camera, number, row) for row in range(int((owners == number).sum()))]


def test_real_dataset_of_the_walkthrough(real_data):
    root = real_data / "lerobot/bimanual_sample_v3"
    found = source(root, "lerobot_v3")
    assert found.warnings == []
    lengths = []
    for ref in found.episodes():
        with found.open(ref) as episode:
            assert [spec.name for spec in episode.streams] == [
                *("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist"),
                *("state", "action"),
            ]
            lengths.append(episode.streams[0].length)
            assert stream(episode, "state").channel_names[0] == "left_waist"
            assert episode.facts.attributes["robot_type"] == "aloha_sim"
    assert lengths == [70, 55, 64, 80]
    with found.open(found.episodes()[2]) as episode:
        got = frames(episode, "cam_low")
    with av.open(str(root / "videos/observation.images.cam_low/chunk-000/file-000.mp4")) as container:
        whole = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert np.abs(np.stack(got).astype(int) - np.stack(whole[125:189])).mean() < 1.0


def test_real_dataset_with_pictures_in_parquet(real_data):
    root = real_data / "lerobot/aloha_sim_v3_images"
    table = pq.read_table(root / "data/chunk-000/file-000.parquet", columns=["observation.images.top"])
    cells = table["observation.images.top"].to_pylist()
    with opened(root, 1) as episode:
        assert [one.data for one in frames(episode, "top")] == [cell["bytes"] for cell in cells[30:]]


def test_real_download_without_its_videos(real_data):
    root = real_data / "lerobot/record-test_v3_videos_missing"
    found = source(root, "lerobot_v3")
    refs = found.episodes()
    assert len(refs) == 4
    for camera in ("front", "top"):
        assert any(f"videos/observation.images.{camera}/chunk-000/file-000.mp4" in text for text in found.warnings)
    with pytest.raises(EpisodeError, match=r"observation\.images\.front/chunk-000/file-000\.mp4 is missing"):
        found.open(refs[0])
    with opened(root, 3, layout={"images": {}}) as episode:
        assert [(spec.name, spec.length) for spec in episode.streams] == [("action", 373), ("state", 373)]
