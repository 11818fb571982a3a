"""Faults that people met with other tools and that no other test here provokes; see the tests of each family for more."""

import fcntl
import json
import os
import subprocess
import sys

import av
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from knonik.ingest import pack, run
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.sources.base_contract import as_array
from knonik_loader import MultiShardedDataLoader
from knonik_loader.errors import EpisodeError
from tests.assets.sources.bags import bag_of
from tests.assets.sources.support import V2, V3, encode_video, frames, jpeg, only_episode, png, source, stream
from tests.support.road import tree, write_json
from tests.support.stamps import episode_arrays, read_stamp

LENGTHS = [4, 30, 9]


def own_frames(root, name="lerobot_v3", warnings=False):
    """(episode, frame) of every picture of the camera ``left``, the episodes in their order.

    ``warnings``: whether something is to be told of them; frames that are found in another way than they should be are.
    """
    found = source(root, name)
    shown, told = [], []
    for ref in found.episodes():
        with found.open(ref) as episode:
            shown += [read_stamp(as_array(picture))[1:] for picture in frames(episode, "left")]
            told += episode.facts.warnings
    assert bool(told) == warnings, told
    return shown


WANTED = [(episode, frame) for episode, length in enumerate(LENGTHS) for frame in range(length)]


def test_times_count_from_the_start_of_each_file(tmp_path):
    """Readers that counted from the start of the dataset showed frames shifted by the files before."""
    assert own_frames(V3(tmp_path / "set", LENGTHS, {"left": [1, 1, 1]}).write()) == WANTED


@pytest.mark.parametrize("wrong", [0, 1, 5])
def test_the_metadata_names_another_data_file(tmp_path, wrong):
    """An episode at the border of two files, booked before the recorder decided to begin a new one."""
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [3]}, [1, 2])
    dataset.meta[1]["data/file_index"] = wrong
    with source(dataset.write(), "lerobot_v3").open(source(dataset.root, "lerobot_v3").episodes()[1]) as episode:
        assert episode.numeric(stream(episode, "state")).tolist() == episode_arrays(1, 30)["state"].tolist()
    assert own_frames(dataset.root) == WANTED


def test_episodes_without_a_word_about_their_videos(tmp_path):
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [2, 1]})
    for row in dataset.meta:
        for key in [key for key in row if key.startswith("videos/")]:
            del row[key]
    assert own_frames(dataset.write(), warnings=True) == WANTED


def test_videos_joined_packet_by_packet_and_times_summed_in_float32(tmp_path):
    """As a recorder joins them: every episode's packets behind the last ones, at a place summed from its own duration."""
    lengths = [7 + episode % 11 for episode in range(50)]
    dataset = V3(tmp_path / "set", lengths, {"left": [50]}, size=(80, 80), gop=50)
    dataset.write()
    at = np.float32(0)
    with av.open(str(dataset.video_path("left", 0)), "w") as joined:
        video = None
        for episode, row in enumerate(dataset.meta):
            encode_video(tmp_path / "one.mp4", dataset.episodes[episode]["cam_0"], gop=50)
            with av.open(str(tmp_path / "one.mp4")) as one:
                video = video or joined.add_stream_from_template(one.streams.video[0])
                row["videos/observation.images.left/from_timestamp"] = float(at)
                for packet in one.demux(video=0):
                    if packet.dts is None:
                        continue
                    shift = round(float(at) / packet.time_base)
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = video
                    joined.mux(packet)
            at = np.float32(at + np.float32(lengths[episode]) * np.float32(1 / 30))
            row["videos/observation.images.left/to_timestamp"] = float(at)
    dataset.write_meta()
    wanted = [(episode, frame) for episode, length in enumerate(lengths) for frame in range(length)]
    assert own_frames(dataset.root) == wanted


def test_scrambled_row_ranges_over_pictures_in_parquet(tmp_path):
    """As a converter left them that counted wrongly: which rows are an episode's, only they themselves say."""
    dataset = V3(tmp_path / "set", LENGTHS, {}, [1, 2])
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

    def rows(episode):
        cells = [{"bytes": png(picture), "path": None} for picture in dataset.episodes[episode]["cam_0"]]
        return dataset.rows(episode) | {"observation.images.left": pa.array(cells, kind)}

    dataset.episodes = [episode_arrays(number, length, cameras=1) for number, length in enumerate(LENGTHS)]
    for row in dataset.meta:
        row["dataset_from_index"], row["dataset_to_index"] = 10 * row["episode_index"], 10 * row["episode_index"] + 1
    root = dataset.write(rows)
    assert own_frames(root) == WANTED
    found = source(root, "lerobot_v3")
    for ref, length in zip(found.episodes(), LENGTHS, strict=True):
        with found.open(ref) as episode:
            assert episode.numeric(stream(episode, "state"))[:, 1].tolist() == list(range(length))
            assert episode.facts.warnings == []


def test_a_damaged_picture_costs_its_own_episode_of_a_shared_file(tmp_path):
    """Those before and behind it in the file are whole, down to the frames next to it."""
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [3]}, gop=1)
    root = dataset.write()
    path = dataset.video_path("left", 0)
    victim = LENGTHS[0] + 2  # the third frame of episode 1
    with av.open(str(path)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    start, size = places[victim]
    data[start + size // 4 : start + size // 2] = bytes(b ^ 0x5A for b in data[start + size // 4 : start + size // 2])
    path.write_bytes(bytes(data))
    report = run(
        {"dir_type": "lerobot_v3", "preset": {"rgb": {"codec": "jpeg"}}}, root, tmp_path / "out", engine="inline"
    )
    assert [one.source_id for one in report.written] == ["0", "2"]
    assert [one.source_id for one in report.failed] == ["1"]
    assert "file-000.mp4" in report.failed[0].reason
    for one in report.written:
        reader = EpisodeReader(tmp_path / "out" / one.episode_id)
        number = int(one.source_id)
        assert [read_stamp(picture) for picture in reader.rgb("left")] == [
            (0, number, t) for t in range(LENGTHS[number])
        ]


def test_times_with_a_gap_over_a_shared_video_without_one(tmp_path):
    """By their times rows behind the gap have the next frame, by their number their own: nobody can tell, so it is said."""
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [3]})

    def rows(episode):
        times = np.delete(np.arange(31), 13)[: LENGTHS[episode]] / 30
        return dataset.rows(episode) | ({"timestamp": pa.array(times, pa.float32())} if episode == 1 else {})

    report = run(
        {"dir_type": "lerobot_v3", "preset": {"rgb": {"codec": "jpeg"}}}, dataset.write(rows), tmp_path / "out"
    )
    assert [one.source_id for one in report.written] == ["0", "2"]
    (failed,) = report.failed
    assert failed.source_id == "1"
    assert "more than half a frame; frames or rows are missing" in failed.reason
    for one in report.written:
        shown = EpisodeReader(tmp_path / "out" / one.episode_id).rgb("left")
        number = int(one.source_id)
        assert [read_stamp(picture) for picture in shown] == [(0, number, t) for t in range(LENGTHS[number])]


@pytest.mark.parametrize("b_frames", [0, 3])
def test_h265_with_open_groups_of_pictures(tmp_path, b_frames):
    """x265 opens groups unless told otherwise: seeking to an episode in the middle lands behind what was asked for."""
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [3]}, codec="libx265", gop=7, b_frames=b_frames)
    assert own_frames(dataset.write()) == WANTED


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_videos_in_avi_files(tmp_path, codec):
    """The container keeps no times of presentation, and seeking in it came out as black frames or none at all."""
    dataset = V2(tmp_path / "set", LENGTHS, ["left"])
    dataset.info["video_path"] = dataset.info["video_path"].replace(".mp4", ".avi")
    dataset.write()
    for number, found in enumerate(dataset.episodes):
        old = dataset.video_path("left", number)
        with av.open(str(old.with_suffix(".avi")), "w") as container:
            video = container.add_stream(codec, rate=30)
            video.height, video.width, video.pix_fmt = *found["cam_0"].shape[1:3], "yuv420p"
            video.codec_context.max_b_frames, video.codec_context.gop_size = 0, 5
            video.bit_rate = 4_000_000
            for picture in found["cam_0"]:
                container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(video.encode())
        old.unlink()
    assert own_frames(dataset.root, "lerobot_v2") == WANTED


@pytest.mark.parametrize(
    ("ending", "codec", "b_frames"),
    [("ts", "libx264", 3), ("ts", "libx265", 3), ("avi", "mpeg4", 0), ("mkv", "libx264", 3)],
)
def test_files_of_many_episodes_in_containers_that_seek_otherwise(tmp_path, ending, codec, b_frames):
    """A transport stream has no index: looking for an episode inside it may end up behind its first frame."""
    dataset = V3(tmp_path / "set", LENGTHS, {"left": [3]})
    dataset.info["video_path"] = dataset.info["video_path"].replace(".mp4", f".{ending}")
    dataset.write()
    path = dataset.video_path("left", 0)
    with av.open(str(path.with_suffix(f".{ending}")), "w") as container:
        video = container.add_stream(codec, rate=30)
        video.height, video.width, video.pix_fmt = *dataset.episodes[0]["cam_0"].shape[1:3], "yuv420p"
        video.codec_context.max_b_frames, video.codec_context.gop_size = b_frames, 5
        video.bit_rate = 4_000_000
        video.options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
        for picture in (picture for found in dataset.episodes for picture in found["cam_0"]):
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode())
    path.unlink()
    assert own_frames(dataset.root) == WANTED


def test_a_bag_folder_that_lost_its_metadata(tmp_path):
    bag = bag_of("sqlite3")
    pictures = episode_arrays(0, 4)["cam_0"]
    for t, picture in enumerate(pictures):
        bag.rgb("/left/image_raw", (t + 30) * 33_333_333, picture)
    folder = bag.write2(tmp_path / "run", "sqlite3")
    (folder / "metadata.yaml").unlink()
    with only_episode(folder, "rosbag") as episode:
        (camera,) = [spec for spec in episode.streams if spec.kind == "rgb"]
        assert [read_stamp(as_array(picture))[2] for picture in episode.frames(camera)] == [0, 1, 2, 3]


_INGEST = "import sys; from knonik_assets.ingest import run; run(*sys.argv[1:4], engine='inline')"


def test_the_same_bytes_whatever_the_order_of_sets(tmp_path):
    """Tasks numbered in the order of a set differed from run to run."""
    raw = V3(tmp_path / "raw", [3, 4, 5], {"left": [3], "right": [1, 2]}).write()
    settings = write_json(tmp_path / "config.json", {"dir_type": "lerobot_v3", "preset": {"rgb": {"codec": "jpeg"}}})
    outputs = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", _INGEST, str(settings), str(raw), str(tmp_path / seed)]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, timeout=120)
        outputs.append(tree(tmp_path / seed))
    assert outputs[0] == outputs[1]
    texts = {json.loads(data)["source_id"] for name, data in outputs[0].items() if name.endswith("/metadata.json")}
    assert texts == {"0", "1", "2"}


def test_equal_numbers_of_tasks_in_two_datasets_keep_their_own_texts(tmp_path):
    """After a merge every frame had the first dataset's task of its number. Rows of the table are in no order, too."""
    known = {"one": ["pick", "place", "lift"], "two": ["open", "shut", "turn"]}
    for name, texts in known.items():
        dataset = V3(tmp_path / name, [3, 4, 5], {"left": [3]})
        dataset.tasks = texts

        def rows(episode, dataset=dataset):
            return dataset.rows(episode) | {"task_index": pa.array([episode] * dataset.lengths[episode], pa.int64())}

        root = dataset.write(rows)
        order = [2, 0, 1]
        table = pa.table({"task_index": order, "__index_level_0__": [texts[index] for index in order]})
        pq.write_table(table, root / "meta" / "tasks.parquet")
        run({"dir_type": "lerobot_v3"}, root, tmp_path / "out" / name, engine="inline")
        told = [
            EpisodeReader(tmp_path / "out" / name / f"episode_{number:06d}").language().instruction
            for number in range(3)
        ]
        assert told == texts
        pack(tmp_path / "out" / name, tmp_path / "packed" / name, name, 4, 2, storage_profile="training_fast")
    datasets = [
        (name, {"loader": {"hlp_manifest": str(tmp_path / "packed" / name / "hlp_manifest.json")}, "streams": {}})
        for name in known
    ]
    shared = {"decode_mode": "random_access", "chunk_len": 1, "batch_size": 6}
    seen = set()
    with MultiShardedDataLoader(datasets=datasets, weights=[0.5, 0.5], loader_cfg=shared) as loader:
        for batch in loader:
            rows = zip(batch["_sample_dataset_names"], batch["_episode_ids"], batch["_language"], strict=True)
            for name, episode, text in rows:
                assert text == known[name][int(episode[-1])]
                seen.add((name, episode))
    assert len(seen) == 6


def test_each_dataset_records_the_order_of_its_channels(tmp_path):
    """Two readers of one project took opposite orders for granted, and neither wrote down which."""
    pictures = episode_arrays(0, 3)["cam_0"]
    found = {}
    for order, stored in (("rgb", pictures), ("bgr", pictures[..., ::-1])):
        rows = [np.frombuffer(jpeg(np.ascontiguousarray(picture), quality=95), np.uint8) for picture in stored]
        with h5py.File(tmp_path / f"{order}.hdf5", "w") as file:
            video = file.create_dataset("observations/images/cam", (3,), h5py.vlen_dtype(np.uint8))
            for place, row in enumerate(rows):
                video[place] = row
        raw = tmp_path / order
        raw.mkdir()
        (tmp_path / f"{order}.hdf5").rename(raw / "episode_0.hdf5")
        config = {"dir_type": "episodic", "data_type": "hdf5", "fps": 30, "preset": {"rgb": {"codec": "jpeg"}}}
        run(config | {"jpeg_channel_order": order}, raw, tmp_path / f"out_{order}", engine="inline")
        reader = EpisodeReader(tmp_path / f"out_{order}" / "episode_000000")
        assert reader.metadata.jpeg_channel_order == order
        found[order] = np.stack(list(reader.rgb("cam")))
    assert np.abs(found["rgb"].astype(int) - found["bgr"]).mean() < 4
    assert [read_stamp(picture) for picture in found["bgr"]] == [(0, 0, t) for t in range(3)]


def test_a_file_that_somebody_still_writes(tmp_path):
    """HDF5 locks files; a reader that may not lock (a read-only disk) must read, one that is locked out must say so."""
    for number in range(2):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["action"] = np.zeros((4, 2))
    refs = source(tmp_path, data_type="hdf5").episodes()
    with (tmp_path / "episode_0.hdf5").open("rb") as held, (tmp_path / "episode_1.hdf5").open("rb") as shared:
        fcntl.flock(held, fcntl.LOCK_EX)
        fcntl.flock(shared, fcntl.LOCK_SH)
        with pytest.raises(EpisodeError, match=r"episode_0\.hdf5: .*lock"):
            source(tmp_path, data_type="hdf5").open(refs[0])
        with source(tmp_path, data_type="hdf5").open(refs[1]) as episode:
            assert len(episode.numeric(stream(episode, "action"))) == 4
    with source(tmp_path, data_type="hdf5").open(refs[0]) as episode:
        assert len(episode.numeric(stream(episode, "action"))) == 4


def test_demos_whose_convention_is_turned_are_turned_once(tmp_path):
    """A set that somebody turned already and that still calls itself upside down is turned only when asked."""
    pictures = episode_arrays(0, 3)["cam_0"]
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        group = file.create_group("data/demo_0")
        group["obs/agentview_rgb"], group["actions"] = pictures, np.zeros((3, 7))
        file["data"].attrs["macros_image_convention"] = "opengl"
    config = {"dir_type": "hdf5", "fps": 20, "preset": {"rgb": {"codec": "jpeg", "quality": 95}}}
    run(config, tmp_path / "demos.hdf5", tmp_path / "as_stored", engine="inline")
    run(config | {"orientation": "flip_vertical"}, tmp_path / "demos.hdf5", tmp_path / "turned", engine="inline")
    stored, turned = (EpisodeReader(tmp_path / out / "episode_000000") for out in ("as_stored", "turned"))
    assert (stored.metadata.orientation, turned.metadata.orientation) == ("as_stored", "flip_vertical")
    name = stored.metadata.rgb_streams[0]
    assert [read_stamp(picture)[2] for picture in stored.rgb(name)] == [0, 1, 2]
    assert [read_stamp(picture[::-1])[2] for picture in turned.rgb(name)] == [0, 1, 2]
