"""Raw datasets written by the formats' own libraries: h5py, and pyarrow with PyAV."""

import io
import json
from fractions import Fraction
from pathlib import Path

import av
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
from PIL import Image

from knonik_assets.configs.ingest import IngestConfig
from knonik_assets.configs.load import load_ingest_config
from knonik_assets.sources.registry import open_source
from tests.support.stamps import episode_arrays


def config(dir_type="episodic", **keys) -> IngestConfig:
    if dir_type == "episodic":
        keys.setdefault("data_type", "hdf5")
    return load_ingest_config({"dir_type": dir_type, **keys})


def source(root: Path, dir_type="episodic", **keys):
    return open_source(config(dir_type, **keys), root)


def only_episode(root: Path, dir_type="episodic", **keys):
    """The first episode of a source, opened."""
    found = source(root, dir_type, **keys)
    return found.open(found.episodes()[0])


def stream(episode, name, kind=None):
    (spec,) = [one for one in episode.streams if one.name == name and kind in (None, one.kind)]
    return spec


def frames(episode, name, kind=None):
    return list(episode.frames(stream(episode, name, kind)))


def jpeg(picture, colorspace="RGB", quality=95) -> bytes:
    return simplejpeg.encode_jpeg(np.ascontiguousarray(picture), quality=quality, colorspace=colorspace)


def png(picture) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()


def padded_rows(pictures: list[bytes], room: int = 32) -> np.ndarray:
    """(T, longest + room) uint8 rows, zeros behind each picture."""
    rows = np.zeros((len(pictures), max(map(len, pictures)) + room), np.uint8)
    for row, data in zip(rows, pictures, strict=True):
        row[: len(data)] = np.frombuffer(data, np.uint8)
    return rows


def write_hdf5(path: Path, **datasets) -> Path:
    """A file of datasets by dotted path; values are arrays or keyword arguments of create_dataset."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            key = name.replace(".", "/")
            if isinstance(value, dict):
                file.create_dataset(key, **value)
            else:
                file.create_dataset(key, data=value)
    return path


def encode_video(path: Path, pictures, fps=30, gop=10, b_frames=0, pts=None, rate=None, codec="libx264") -> None:
    """An mp4 of pictures; ``pts`` in 1/(1000 fps) seconds for uneven or shifted times."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        video = container.add_stream(codec, rate=rate or fps)
        video.height, video.width = pictures[0].shape[:2]
        video.pix_fmt = "yuv420p"
        video.time_base = Fraction(1, 1000 * fps)
        video.codec_context.time_base = Fraction(1, 1000 * fps)
        video.codec_context.gop_size = gop
        video.codec_context.max_b_frames = b_frames
        video.options = {"crf": "18", "preset": "veryfast", "x264-params": f"bframes={b_frames}:scenecut=0"}
        for index, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts = 1000 * index if pts is None else pts[index]
            frame.time_base = Fraction(1, 1000 * fps)
            container.mux(video.encode(frame))
        container.mux(video.encode())


class V3:
    """A LeRobot v3 dataset to be written, and broken, part by part.

    Args:
        root: folder.
        lengths: rows of every episode.
        rolls: camera → how many episodes each of its files holds.
        data_rolls: how many episodes each data file holds.
    """

    def __init__(self, root: Path, lengths, rolls, data_rolls=None, fps=30, size=(96, 112), **video):
        self.root, self.lengths, self.rolls, self.fps = root, list(lengths), dict(rolls), fps
        self.data_rolls = data_rolls or [len(self.lengths)]
        self.episodes = [
            episode_arrays(e, n, cameras=len(self.rolls), height=size[0], width=size[1], fps=fps)
            for e, n in enumerate(self.lengths)
        ]
        self.video = video
        self.tasks = [f"task {e % 2}" for e in range(len(self.lengths))]
        self.info = {
            "codebase_version": "v3.0",
            "robot_type": "tester",
            "fps": fps,
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
            "features": {
                "observation.state": {"dtype": "float32", "shape": [4], "names": ["a", "b", "c", "d"]},
                "action": {"dtype": "float32", "shape": [4], "names": {"w": 3, "x": 0, "y": 1, "z": 2}},
                **{key: {"dtype": "video", "shape": [3, *size], "names": None} for key in map(self.key, self.rolls)},
            },
        }
        self.meta = self._meta()

    def key(self, camera):
        return f"observation.images.{camera}"

    def video_path(self, camera, file):
        return self.root / f"videos/{self.key(camera)}/chunk-000/file-{file:03d}.mp4"

    def data_path(self, file):
        return self.root / f"data/chunk-000/file-{file:03d}.parquet"

    def _meta(self):
        rows = []
        for e, n in enumerate(self.lengths):
            row = {"episode_index": e, "length": n, "tasks": [self.tasks[e]], "data/chunk_index": 0}
            row["data/file_index"] = self._file_of(e, self.data_rolls)[0]
            row["dataset_from_index"] = sum(self.lengths[:e])
            row["dataset_to_index"] = sum(self.lengths[: e + 1])
            for camera, roll in self.rolls.items():
                file, before = self._file_of(e, roll)
                prefix = f"videos/{self.key(camera)}"
                row[f"{prefix}/chunk_index"], row[f"{prefix}/file_index"] = 0, file
                row[f"{prefix}/from_timestamp"] = before / self.fps
                row[f"{prefix}/to_timestamp"] = (before + n) / self.fps
            rows.append(row)
        return rows

    def _file_of(self, episode, roll):
        first = 0
        for file, count in enumerate(roll):
            if episode < first + count:
                return file, sum(self.lengths[first:episode])
            first += count
        raise AssertionError("the rolls don't cover every episode")

    def rows(self, episode):
        arrays, n = self.episodes[episode], self.lengths[episode]
        before = sum(self.lengths[:episode])
        return {
            "observation.state": pa.array(list(arrays["state"]), pa.list_(pa.float32(), 4)),
            "action": pa.array(list(arrays["action"]), pa.list_(pa.float32(), 4)),
            "timestamp": pa.array(np.arange(n) / self.fps, pa.float32()),
            "frame_index": pa.array(range(n), pa.int64()),
            "episode_index": pa.array([episode] * n, pa.int64()),
            "index": pa.array(range(before, before + n), pa.int64()),
            "task_index": pa.array([episode % 2] * n, pa.int64()),
        }

    def write(self, rows=None):
        """Everything; ``rows`` replaces the method that makes an episode's columns."""
        (self.root / "meta" / "episodes" / "chunk-000").mkdir(parents=True, exist_ok=True)
        (self.root / "meta" / "info.json").write_text(json.dumps(self.info))
        self.write_meta()
        tasks = pa.table({"task_index": [1, 0], "__index_level_0__": ["task 1", "task 0"]})
        pq.write_table(tasks, self.root / "meta" / "tasks.parquet")
        first = 0
        for file, count in enumerate(self.data_rolls):
            tables = [pa.table((rows or self.rows)(e)) for e in range(first, first + count)]
            self.data_path(file).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.concat_tables(tables), self.data_path(file), row_group_size=7)
            first += count
        for number, (camera, roll) in enumerate(self.rolls.items()):
            first = 0
            for file, count in enumerate(roll):
                self.write_video(camera, number, file, range(first, first + count))
                first += count
        return self.root

    def write_video(self, camera, number, file, episodes):
        pictures = [picture for e in episodes for picture in self.episodes[e][f"cam_{number}"]]
        encode_video(self.video_path(camera, file), pictures, self.fps, **self.video)

    def write_meta(self):
        path = self.root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        pq.write_table(pa.Table.from_pylist(self.meta), path)

    def cell(self, episode, camera, column, value):
        """Break one cell of the metadata."""
        self.meta[episode][f"videos/{self.key(camera)}/{column}"] = value


class V2:
    """A LeRobot v2 dataset to be written, and broken: a parquet file and videos an episode."""

    def __init__(self, root: Path, lengths, cameras=("left", "right"), fps=30, size=(96, 112), version="v2.1", **video):
        self.root, self.lengths, self.cameras, self.fps, self.video = root, list(lengths), list(cameras), fps, video
        self.episodes = [
            episode_arrays(e, n, cameras=max(1, len(self.cameras)), height=size[0], width=size[1], fps=fps)
            for e, n in enumerate(self.lengths)
        ]
        self.info = {
            "codebase_version": version,
            "robot_type": "tester",
            "total_episodes": len(self.lengths),
            "chunks_size": 1000,
            "fps": fps,
            "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
            "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
            "features": {
                "observation.state": {"dtype": "float32", "shape": [4], "names": {"motors": ["a", "b", "c", "d"]}},
                "action": {"dtype": "float32", "shape": [4], "names": None},
                **{key: {"dtype": "video", "shape": [3, *size]} for key in map(self.key, self.cameras)},
            },
        }
        self.hints = [{"episode_index": e, "tasks": [f"task {e % 2}"], "length": n} for e, n in enumerate(self.lengths)]

    def key(self, camera):
        return f"observation.images.{camera}"

    def data_path(self, episode):
        return self.root / f"data/chunk-000/episode_{episode:06d}.parquet"

    def video_path(self, camera, episode):
        return self.root / f"videos/chunk-000/{self.key(camera)}/episode_{episode:06d}.mp4"

    def rows(self, episode):
        return V3.rows(self, episode)

    def write_data(self, episode, rows=None):
        self.data_path(episode).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table((rows or self.rows)(episode)), self.data_path(episode), row_group_size=7)

    def write(self, rows=None):
        (self.root / "meta").mkdir(parents=True, exist_ok=True)
        self.write_meta()
        for episode in range(len(self.lengths)):
            self.write_data(episode, rows)
            for number, camera in enumerate(self.cameras):
                pictures = self.episodes[episode][f"cam_{number}"]
                encode_video(self.video_path(camera, episode), pictures, self.fps, **self.video)
        return self.root

    def write_meta(self):
        meta = self.root / "meta"
        (meta / "info.json").write_text(json.dumps(self.info))
        (meta / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.hints))
        tasks = [{"task_index": 1, "task": "task 1"}, {"task_index": 0, "task": "task 0"}]
        (meta / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tasks))
