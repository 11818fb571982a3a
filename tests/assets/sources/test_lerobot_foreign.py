"""LeRobot datasets as other people's tools leave them: trimmed, annotated, half recorded."""

import json
import shutil

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from av.stream import Disposition

from knonik_assets.sources.families import recognise
from knonik_assets.sources.images import decode_image
from knonik_loader.errors import EpisodeError
from tests.assets.sources.support import V2, V3, frames, source, stream
from tests.support.stamps import episode_arrays, read_stamp

BOTH = pytest.mark.parametrize("reader", ["lerobot_v2", "lerobot_v3"])


def make(root, reader="lerobot_v2", lengths=(12, 8), **keys):
    return V2(root, lengths, **keys) if reader == "lerobot_v2" else V3(root, lengths, {"left": [len(lengths)]}, **keys)


def kept(dataset, rows_of, **columns):
    """A method for some of an episode's rows; ``columns`` are replaced by what functions of their number make."""

    def rows(episode):
        chosen = list(rows_of(dataset.lengths[episode]))
        found = {name: column.take(pa.array(chosen)) for name, column in type(dataset).rows(dataset, episode).items()}
        return found | {name: make_column(len(chosen)) for name, make_column in columns.items()}

    return rows


def opened(root, reader, number=0, **keys):
    found = source(root, reader, **keys)
    return found.open(found.episodes()[number])


def shown(episode, camera="left"):
    pictures = episode.frames(stream(episode, camera))
    return [read_stamp(picture if isinstance(picture, np.ndarray) else decode_image(picture)) for picture in pictures]


@pytest.mark.parametrize("renumbered", [False, True])
def test_rows_cut_at_the_front_keep_their_frames(tmp_path, renumbered):
    """The video still holds every frame, and the rows' times tell which are theirs."""
    columns = {"frame_index": lambda n: pa.array(range(n), pa.int64())} if renumbered else {}
    dataset = make(tmp_path)
    dataset.write(kept(dataset, lambda n: range(5, n), **columns))
    with opened(tmp_path, "lerobot_v2") as episode:
        assert shown(episode) == [(0, 0, frame) for frame in range(5, 12)]
        assert episode.numeric(stream(episode, "state"))[:, 1].tolist() == list(range(5, 12))
        assert any("5 frames" in text and "belong to no row" in text for text in episode.facts.warnings)


def test_frames_too_many_and_a_time_that_none_of_them_has_are_refused(tmp_path):
    dataset = make(tmp_path)
    late = {"timestamp": lambda n: pa.array(100 + np.arange(n) / 30, pa.float64())}
    dataset.write(kept(dataset, lambda n: range(n - 1), **late))
    with pytest.raises(EpisodeError, match=r"12 frames for 11 rows, none at the first row's time of 100\.0000 s"):
        opened(tmp_path, "lerobot_v2")


def test_frames_too_many_where_times_can_be_read_in_two_ways_are_refused(tmp_path):
    """The video's first frame is shown at 0.1 s: rows that begin at 0.1 s mean it, or the one 0.1 s behind it."""
    dataset = make(tmp_path, pts=[1000 * (frame + 3) for frame in range(12)], lengths=(12,))
    begins = {"timestamp": lambda n: pa.array((np.arange(n) + 3) / 30, pa.float64())}
    dataset.write(kept(dataset, lambda n: range(n - 4), **begins))
    with pytest.raises(EpisodeError, match="more than one frame at the first row's time"):
        opened(tmp_path, "lerobot_v2")


@BOTH
@pytest.mark.parametrize(
    "values",
    [
        lambda n: pa.array([[1]] * n, pa.list_(pa.int64())),
        lambda n: pa.array([[1]] * n, pa.list_(pa.int64(), 1)),
        lambda n: pa.array([1.0] * (n - 2) + [float("nan"), None], pa.float64()),
    ],
)
def test_task_numbers_of_every_type(tmp_path, reader, values):
    dataset = make(tmp_path, reader)
    dataset.write(kept(dataset, range, task_index=values))
    found = source(tmp_path, reader)
    found.fingerprint(found.episodes()[0], Cache())
    with opened(tmp_path, reader) as episode:
        assert episode.facts.language.instruction == "task 1"


def test_a_text_with_other_line_ends_in_it_is_one_line(tmp_path):
    dataset = make(tmp_path)
    dataset.write()
    lines = [{"task_index": 0, "task": "put\u2028it\x85down\x0bthere"}, {"task_index": 1, "task": "other"}]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (tmp_path / "meta/tasks.jsonl").write_text(text, encoding="utf-8")
    for number, line in enumerate(lines):
        with opened(tmp_path, "lerobot_v2", number) as episode:
            assert episode.facts.language.instruction == line["task"]


def test_a_broken_line_costs_its_task_alone(tmp_path):
    dataset = make(tmp_path)
    dataset.write()
    text = '{"task_index": 0, "task": "one"}\n{"task_ind\n{"task_index": 1, "task": "two"}\n'
    (tmp_path / "meta/tasks.jsonl").write_text(text)
    found = source(tmp_path, "lerobot_v2")
    with found.open(found.episodes()[1]) as episode:
        assert episode.facts.language.instruction == "two"
    assert any("tasks.jsonl, line 2: unreadable" in text for text in found.warnings)


@BOTH
def test_json_that_begins_with_a_byte_order_mark(tmp_path, reader):
    dataset = make(tmp_path, reader)
    dataset.write()
    path = tmp_path / "meta/info.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    (found,) = recognise(tmp_path)
    assert found.dir_type == reader
    assert found.version == dataset.info["codebase_version"]
    with opened(tmp_path, reader) as episode:
        assert len(frames(episode, "left")) == 12


@BOTH
def test_subtasks_are_segments(tmp_path, reader):
    dataset = make(tmp_path, reader, lengths=(12,))
    dataset.write(kept(dataset, range, subtask_index=lambda n: pa.array([row // 6 for row in range(n)], pa.int64())))
    table = pa.table({"subtask": ["grasp", "reach"], "subtask_index": [1, 0]})
    pq.write_table(table, tmp_path / "meta/subtasks.parquet")
    found = source(tmp_path, reader)
    before = found.fingerprint(found.episodes()[0], Cache())
    with found.open(found.episodes()[0]) as episode:
        said = episode.facts.language
        assert said.instruction == "task 0"
        assert said.segments == ((0.0, 0.2, "reach"), (0.2, pytest.approx(11 / 30), "grasp"))
    pq.write_table(table.set_column(0, "subtask", pa.array(["hold", "reach"])), tmp_path / "meta/subtasks.parquet")
    found = source(tmp_path, reader)
    assert found.fingerprint(found.episodes()[0], Cache()) != before


@BOTH
def test_annotations_go_into_the_metadata(tmp_path, reader):
    dataset = make(tmp_path, reader, lengths=(12,))
    plan = {"role": "assistant", "content": "reach", "style": "subtask", "timestamp": 0.1, "tool_calls": None}
    event = {"role": "user", "content": "stop", "camera": None}
    columns = {
        "language_persistent": lambda n: pa.array([[plan]] * n),
        "language_events": lambda n: pa.array([[event] if row == 3 else [] for row in range(n)]),
    }
    dataset.write(kept(dataset, range, **columns))
    with opened(tmp_path, reader) as episode:
        assert episode.facts.attributes["language_persistent"] == [plan]
        assert episode.facts.attributes["language_events"] == [{"time": 0.1, **event}]
        assert not any("language" in text for text in episode.facts.warnings)
        assert {spec.name for spec in episode.streams if spec.kind == "numeric"} == {"state", "action"}


@BOTH
def test_numbers_that_float32_cannot_tell_apart_are_told(tmp_path, reader):
    dataset = make(tmp_path, reader)
    columns = {
        "stamp": lambda n: pa.array(1.7e9 + np.arange(n) / 30, pa.float64()),
        "ticks": lambda n: pa.array(2**40 + np.arange(n)),
        "fine": lambda n: pa.array([2.0**40] * n, pa.float64()),
        "small": lambda n: pa.array(np.arange(n) / 3, pa.float64()),
    }
    dataset.write(kept(dataset, range, **columns))
    with opened(tmp_path, reader) as episode:
        for spec in episode.streams:
            if spec.kind == "numeric":
                episode.numeric(spec)
        told = [text for text in episode.facts.warnings if "lose their last digits" in text]
    assert [text.split(": ")[1] for text in told] == ["stamp", "ticks"]


def test_a_recording_whose_videos_were_never_made_is_refused(tmp_path):
    """No file and no episode has them: the cameras are missing, not left-overs of the list of features."""
    dataset = make(tmp_path, "lerobot_v3")
    dataset.meta = [{key: value for key, value in row.items() if "videos/" not in key} for row in dataset.meta]
    dataset.write()
    for path in tmp_path.rglob("*.mp4"):
        path.unlink()
    with pytest.raises(EpisodeError, match=r"there is no video of observation\.images\.left; list only"):
        opened(tmp_path, "lerobot_v3")
    with opened(tmp_path, "lerobot_v3", layout={"images": {}, "numeric": {"state": "state"}}) as episode:
        assert [spec.name for spec in episode.streams] == ["state"]


class Cache:
    """Digests of files without any memory."""

    def file_digest(self, path):
        return str(path.stat().st_size)


def with_video(root, pictures, **stream_keys):
    """One episode whose only camera is a video of another kind."""
    dataset = make(root, cameras=("left",), lengths=(len(pictures),))
    dataset.write()
    foreign_video(dataset.video_path("left", 0), pictures, **stream_keys)
    return dataset.video_path("left", 0)


def foreign_video(path, pictures, codec="libx264", fmt="yuv420p", degrees=0, cover=False, second=False):
    with av.open(str(path), "w") as container:
        video = container.add_stream(codec, rate=30)
        video.height, video.width = pictures[0].shape[:2]
        video.pix_fmt = fmt
        if degrees:
            video.set_display_rotation(degrees)
        other = None
        if second or cover:
            other = container.add_stream("mjpeg", rate=30)
            other.height, other.width, other.pix_fmt = 48, 64, "yuvj420p"
            if cover:
                other.disposition = Disposition.attached_pic
        for picture in pictures:
            kind = "rgb24" if picture.ndim == 3 else "gray16le"
            container.mux(video.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format=kind)))
        if other is not None:
            frame = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            container.mux(other.encode(frame.reformat(format="yuvj420p")))
            container.mux(other.encode())
        container.mux(video.encode())


def test_a_video_that_asks_to_be_shown_turned_is_taken_as_it_is_stored_and_that_is_told(tmp_path):
    with_video(tmp_path, episode_arrays(0, 5, height=96, width=112)["cam_0"], degrees=90)
    with opened(tmp_path, "lerobot_v2") as episode:
        assert shown(episode) == [(0, 0, frame) for frame in range(5)]
        (told,) = [text for text in episode.facts.warnings if "turned by 90 degrees" in text]
        assert "as they are stored" in told


def test_several_tracks_of_pictures_are_refused(tmp_path):
    with_video(tmp_path, episode_arrays(0, 5, height=96, width=112)["cam_0"], second=True)
    with pytest.raises(EpisodeError, match="2 video tracks are in it; wanted one"):
        opened(tmp_path, "lerobot_v2")


def test_a_deep_grey_video_is_no_colour(tmp_path):
    """Eight of its bits would be left, of what is most likely depth."""
    with_video(tmp_path, [np.full((96, 112), 500 * row, np.uint16) for row in range(5)], codec="ffv1", fmt="gray16le")
    with (
        opened(tmp_path, "lerobot_v2") as episode,
        pytest.raises(EpisodeError, match=r"a gray16le video is no colour picture\. If it is depth"),
    ):
        shown(episode)


def test_depth_of_more_than_12_bits_is_refused(tmp_path):
    dataset = make(tmp_path, cameras=("left",), lengths=(5,))
    dataset.info["features"][dataset.key("left")]["info"] = {"is_depth_map": True}
    dataset.write()
    pictures = [np.full((96, 112), 2000 * row, np.uint16) for row in range(5)]
    foreign_video(dataset.video_path("left", 0), pictures, codec="ffv1", fmt="gray16le")
    with opened(tmp_path, "lerobot_v2") as episode, pytest.raises(EpisodeError, match="depth of up to 6000"):
        list(episode.frames(stream(episode, "left")))


def test_a_cover_picture_beside_the_video_is_no_track(tmp_path):
    path = with_video(tmp_path, episode_arrays(0, 5, height=96, width=112)["cam_0"], cover=True)
    with av.open(str(path)) as container:
        assert len(container.streams.video) == 2
    with opened(tmp_path, "lerobot_v2") as episode:
        assert shown(episode) == [(0, 0, frame) for frame in range(5)]


def test_a_camera_that_was_taken_out_leaves_only_its_places_behind(tmp_path):
    dataset = V3(tmp_path, (12, 8), {"left": [2], "right": [1, 1]})
    dataset.write()
    del dataset.info["features"][dataset.key("right")]
    (tmp_path / "meta/info.json").write_text(json.dumps(dataset.info))
    shutil.rmtree(tmp_path / "videos" / dataset.key("right"))
    found = source(tmp_path, "lerobot_v3")
    with found.open(found.episodes()[1]) as episode:
        assert [spec.name for spec in episode.streams if spec.kind == "rgb"] == ["left"]
        assert shown(episode) == [(0, 1, frame) for frame in range(8)]
    assert any(f"episodes name {dataset.key('right')}, which info.json doesn't list" in text for text in found.warnings)


@pytest.mark.parametrize("codec", ["libx264", "libx265", "libvpx-vp9"])
def test_what_is_stored_behind_an_episode_does_not_cost_it_a_frame(tmp_path, codec):
    """Files that were joined hold packets of another codec, or damaged ones, behind its own."""
    dataset = V3(tmp_path, (12, 20), {"left": [2]}, gop=4, codec=codec, b_frames=0 if codec == "libvpx-vp9" else 2)
    dataset.write()
    path = dataset.video_path("left", 0)
    with av.open(str(path)) as container:
        (video,) = container.streams.video
        packets = [packet for packet in container.demux(video) if packet.size]
        cut = min(packet.pos for packet in packets[12:])
    data = bytearray(path.read_bytes())
    size = sum(packet.size for packet in packets[12:])
    data[cut : cut + size] = b"\xff" * size
    path.write_bytes(data)
    with opened(tmp_path, "lerobot_v3") as episode:
        assert shown(episode) == [(0, 0, frame) for frame in range(12)]
    with (
        opened(tmp_path, "lerobot_v3", 1) as episode,
        pytest.raises(EpisodeError, match=r"cannot be decoded|is damaged"),
    ):
        shown(episode)


def depth_codes(root, **stated):
    """One episode whose camera is a video of the codes 0, 1, 1000, 4094 and 4095."""
    dataset = make(root, cameras=("left",), lengths=(5,))
    dataset.info["features"][dataset.key("left")]["info"] = {"is_depth_map": True, **stated}
    dataset.write()
    with av.open(str(dataset.video_path("left", 0)), "w") as container:
        video = container.add_stream("libx265", rate=30)
        video.height, video.width, video.pix_fmt = 96, 112, "gray12le"
        video.options = {"x265-params": "lossless=1:log-level=none"}
        for code in (0, 1, 1000, 4094, 4095):
            frame = av.VideoFrame(112, 96, "gray12le")
            frame.planes[0].update(np.full((96, frame.planes[0].line_size // 2), code, np.uint16))
            container.mux(video.encode(frame))
        container.mux(video.encode())


@pytest.mark.parametrize("low", [0, 0.0, 0.5])
def test_the_nearest_depth_may_be_zero(tmp_path, low):
    high = low + 4.095
    stated = {"video.depth_min": low, "video.depth_max": high, "video.shift": 0.0, "video.use_log": False}
    depth_codes(tmp_path, **stated)
    with opened(tmp_path, "lerobot_v2") as episode:
        found = [frame[0, 0] for frame in episode.frames(stream(episode, "left"))]
    np.testing.assert_allclose(found, [0, low + 0.001, low + 1, low + 4.094, 0], atol=1e-6)


@pytest.mark.parametrize(
    "stated",
    [
        {"depth_min": 5, "depth_max": 1},
        {"depth_min": 0, "shift": 0},
        {"depth_max": "far"},
        {"shift": "near"},
        {"shift": -1.0},
    ],
)
def test_depth_ranges_that_make_no_sense_are_refused(tmp_path, stated):
    depth_codes(tmp_path, **stated)
    with opened(tmp_path, "lerobot_v2") as episode, pytest.raises(EpisodeError, match="make no sense together"):
        list(episode.frames(stream(episode, "left")))


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ({"motors": {"w": 3, "x": 0, "y": 1, "z": 2}}, ("x", "y", "z", "w")),
        ({"w": 3.0, "x": 0.0, "y": 1.0, "z": 2.0}, ("x", "y", "z", "w")),
        ({"left": {"x": 0, "y": 1}, "right": {"x": 0, "y": 1}}, ("x", "y", "x", "y")),
        ([{"motors": ["a", "b"]}, "c", "d"], ("a", "b", "c", "d")),
    ],
)
def test_channel_names_in_nested_objects(tmp_path, names, wanted):
    dataset = make(tmp_path, lengths=(3,))
    dataset.info["features"]["action"]["names"] = names
    dataset.write()
    with opened(tmp_path, "lerobot_v2") as episode:
        assert stream(episode, "action").channel_names == wanted


@BOTH
def test_pictures_as_lists_of_numbers_are_left_out_and_that_is_told(tmp_path, reader):
    """They would become a row of thousands of numbers each, all of them in memory at once."""
    dataset = make(tmp_path, reader, lengths=(5,))
    dataset.info["features"] |= {
        "observation.images.raw": {"dtype": "uint8", "shape": [40, 48, 3]},
        "observation.grid": {"dtype": "float32", "shape": [8, 8]},
    }
    columns = {
        "observation.images.raw": lambda n: pa.array(np.zeros((n, 40, 48, 3), np.uint8).tolist()),
        "observation.grid": lambda n: pa.array(np.ones((n, 8, 8), np.float32).tolist()),
    }
    dataset.write(kept(dataset, range, **columns))
    with opened(tmp_path, reader) as episode:
        found = {spec.source: spec.shape for spec in episode.streams if spec.kind == "numeric"}
        assert found == {"observation.state": (4,), "action": (4,), "observation.grid": (64,)}
        assert any("not read: observation.images.raw; store them" in text for text in episode.facts.warnings)
