"""Peak memory of reading a long episode: at 6,000 frames of 480x640 hardly more than at 1,500.

For every format that holds a long episode in one file. Each measurement is a process of its own that reads every frame
once, as ingest does; its peak is compared, so what Python and the libraries take is in both. ``KNONIK_SOURCES`` names
some of the formats.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.common import ROOT, Ratio

__all__ = ["run"]

SHORT, LONG = 1500, 6000
HEIGHT, WIDTH = 480, 640


def _frame(index: int) -> np.ndarray:
    """(H, W, 3): flat, so that files stay small, and of its own colour."""
    return np.full((HEIGHT, WIDTH, 3), index % 251, np.uint8)


def _jpeg(index: int) -> bytes:
    import simplejpeg

    return bytes(simplejpeg.encode_jpeg(_frame(index)))


def _hdf5(root: Path, frames: int) -> dict[str, str]:
    import h5py

    with h5py.File(root / "episode_0.hdf5", "w") as file:
        shape = (frames, HEIGHT, WIDTH, 3)
        video = file.create_dataset(
            "cam", shape, np.uint8, chunks=(1, *shape[1:]), compression="gzip", compression_opts=1
        )
        for index in range(frames):
            video[index] = _frame(index)
        file["action"] = np.zeros((frames, 7))
    return {"dir_type": "episodic", "data_type": "hdf5"}


def _npz(root: Path, frames: int) -> dict[str, str]:
    import zipfile

    from numpy.lib import format as npy

    with zipfile.ZipFile(root / "episode_0.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("cam.npy", "w", force_zip64=True) as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (frames, HEIGHT, WIDTH, 3)}
            npy.write_array_header_1_0(file, header)
            for index in range(frames):
                file.write(_frame(index).tobytes())
        with archive.open("action.npy", "w") as file:
            npy.write_array(file, np.zeros((frames, 7)))
    return {"dir_type": "episodic", "data_type": "npy"}


def _zarr_array(path: Path, frames: int, version: int, chunk: int = 1, shard: int | None = None) -> None:
    import numcodecs
    import zarr

    codecs = {"compressors": numcodecs.Zstd(level=1)} if version == 2 else {}
    video = zarr.create_array(
        str(path),
        shape=(frames, HEIGHT, WIDTH, 3),
        dtype="u1",
        chunks=(chunk, HEIGHT, WIDTH, 3),
        shards=None if shard is None else (shard, HEIGHT, WIDTH, 3),
        zarr_format=version,  # type: ignore[arg-type]
        config={"write_empty_chunks": True},
        **codecs,
    )
    step = shard or chunk
    for start in range(0, frames, step):
        video[start : start + step] = np.stack([_frame(index) for index in range(start, min(start + step, frames))])


def _zarr2(root: Path, frames: int) -> dict[str, str]:
    _zarr_array(root / "episode_0" / "cam", frames, 2)
    return {"dir_type": "episodic", "data_type": "zarr"}


def _zarr3(root: Path, frames: int) -> dict[str, str]:
    _zarr_array(root / "episode_0" / "cam", frames, 3, 16)
    return {"dir_type": "episodic", "data_type": "zarr"}


def _zarr_shards(root: Path, frames: int) -> dict[str, str]:
    _zarr_array(root / "episode_0" / "cam", frames, 3, 4, 100)
    return {"dir_type": "episodic", "data_type": "zarr"}


def _zarr_zip(root: Path, frames: int) -> dict[str, str]:
    import zipfile

    _zarr_array(root / "store" / "cam", frames, 2, 4)
    with zipfile.ZipFile(root / "episode_0.zip", "w") as archive:
        for path in sorted((root / "store").rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(root / "store").as_posix())
    shutil.rmtree(root / "store")
    return {"dir_type": "episodic", "data_type": "zarr"}


def _replay(root: Path, frames: int) -> dict[str, str]:
    import zarr

    _zarr_array(root / "a.zarr" / "data" / "cam", frames, 2, 8)
    ends = zarr.create_array(str(root / "a.zarr" / "meta" / "episode_ends"), shape=(1,), dtype="i8", zarr_format=2)
    ends[:] = frames
    return {"dir_type": "zarr"}


def _rlds(root: Path, frames: int) -> dict[str, str]:
    from tests.support.rlds_data import dataset, image, tensor

    record = {
        "steps/cam": [_jpeg(index) for index in range(frames)],
        "steps/is_first": [1, *[0] * (frames - 1)],
        "steps/action": [0.0] * 7 * frames,
    }
    step = {"cam": image(HEIGHT, WIDTH, 3, form="jpeg"), "is_first": tensor("bool"), "action": tensor("float32", 7)}
    dataset(root, [[record]], step)
    return {"dir_type": "rlds"}


def _hdf5_jpeg(root: Path, frames: int) -> dict[str, str]:
    """Rows of JPEG bytes, each of its own length."""
    import h5py

    with h5py.File(root / "episode_0.hdf5", "w") as file:
        video = file.create_dataset("cam", (frames,), h5py.vlen_dtype(np.uint8))
        for index in range(frames):
            video[index] = np.frombuffer(_jpeg(index), np.uint8)
    return {"dir_type": "episodic", "data_type": "hdf5"}


def _demos(root: Path, frames: int) -> dict[str, str]:
    import h5py

    _hdf5(root, frames)
    with h5py.File(root / "episode_0.hdf5", "r+") as file:
        file.move("cam", "data/demo_0/obs/cam")
        file.move("action", "data/demo_0/actions")
    return {"dir_type": "hdf5"}


class _Frames:
    """The frames of an episode, made one by one."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> np.ndarray:
        if index >= self._count:
            raise IndexError
        return _frame(index)


def _lerobot_dataset(version: str, root: Path, frames: int, *, pictures: bool = True) -> Any:
    """A dataset of one episode that is as long as wanted."""
    from tests.assets.sources.support import V2, V3

    cameras = ("cam",) if pictures else ()
    dataset: Any = V2(root, [1], cameras, size=(8, 8)) if version == "v2" else V3(root, [1], {"cam": [1]}, size=(8, 8))
    dataset.lengths = [frames]
    numbers = np.zeros((frames, 4), np.float32)
    dataset.episodes = [{"cam_0": _Frames(frames), "state": numbers, "action": numbers}]
    if version == "v2":
        dataset.hints[0]["length"] = frames
    else:
        dataset.meta = dataset._meta()
    return dataset


def _lerobot(version: str) -> Callable[[Path, int], dict[str, str]]:
    def write(root: Path, frames: int) -> dict[str, str]:
        _lerobot_dataset(version, root, frames).write()
        return {"dir_type": f"lerobot_{version}"}

    return write


def _lerobot_pictures(root: Path, frames: int) -> dict[str, str]:
    """JPEGs within the parquet file, in groups of rows as the recorder's library makes them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    dataset = _lerobot_dataset("v2", root, frames, pictures=False)
    feature = {"dtype": "image", "shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channel"]}
    dataset.info["features"]["observation.images.cam"] = feature
    dataset.write()
    columns = dataset.rows(0)
    columns["observation.images.cam"] = pa.array(
        [{"bytes": _jpeg(index), "path": f"{index}.jpg"} for index in range(frames)],
        pa.struct({"bytes": pa.binary(), "path": pa.string()}),
    )
    pq.write_table(pa.table(columns), dataset.data_path(0), row_group_size=500)
    return {"dir_type": "lerobot_v2"}


def _bag(how: str) -> Callable[[Path, int], dict[str, str]]:
    """Raw pictures and joints; written while they are made, as they don't fit memory."""

    def write(root: Path, frames: int) -> dict[str, str]:
        from tests.assets.sources.bags import at, bag_of

        bag = bag_of(how)
        one = bag_of(how)

        def messages() -> Iterator[tuple[str, str, int, object]]:
            for index in range(frames):
                one.rgb("/cam/image_raw", at(index), _frame(index))
                one.joints("/joints", at(index), np.zeros(7))
                yield from one.messages
                one.messages.clear()

        bag.messages = messages()  # type: ignore[assignment]
        bag.write(root / "run", how)
        return {"dir_type": "rosbag"}

    return write


FORMATS: dict[str, Callable[[Path, int], dict[str, str]]] = {
    "hdf5": _hdf5,
    "npz": _npz,
    "zarr_2": _zarr2,
    "zarr_3": _zarr3,
    "zarr_shards": _zarr_shards,
    "zarr_zip": _zarr_zip,
    "replay": _replay,
    "rlds": _rlds,
    "hdf5_jpeg": _hdf5_jpeg,
    "demos": _demos,
    "lerobot_v2": _lerobot("v2"),
    "lerobot_v3": _lerobot("v3"),
    "lerobot_pictures": _lerobot_pictures,
    "bag": _bag("bag"),
    "bag_lz4": _bag("bag lz4"),
    "mcap": _bag("mcap"),
    "mcap_chunks": _bag("mcap storage"),
    "sqlite3": _bag("sqlite3"),
}
WANTED = {"rlds": "bounded by its largest record"}


def run() -> list[Ratio]:
    """Measure every format, or those named."""
    named = [name for name in os.environ.get("KNONIK_SOURCES", "").split(",") if name]
    return [_format(name) for name in named or FORMATS]


def _format(name: str) -> Ratio:
    short, long = (_peak(name, frames) for frames in (SHORT, LONG))
    detail = f"{short / 2**20:.0f} and {long / 2**20:.0f} MiB"
    sys.stderr.write(f"{name}: {detail}\n")
    return Ratio(f"{name}: peak at {LONG} frames", f"at {SHORT}", long / short, WANTED.get(name, "< 1.10"), detail)


def _peak(name: str, frames: int) -> int:
    """Bytes that a process holds at most while it reads the episode."""
    with TemporaryDirectory(dir=os.environ.get("KNONIK_BENCH_FOLDER")) as folder:
        write = [sys.executable, "-m", "benchmarks.sources_memory", "write", name, str(frames), folder]
        subprocess.run(write, cwd=ROOT, check=True)
        read = [sys.executable, "-m", "benchmarks.sources_memory", "read", name, str(frames), folder]
        done = subprocess.run(read, cwd=ROOT, check=True, capture_output=True, text=True)
    return int(done.stdout)


def _write(name: str, frames: int, folder: Path) -> None:
    import json

    config = FORMATS[name](folder, frames)
    (folder / "config.json").write_text(json.dumps(config))


def _read(frames: int, folder: Path) -> None:
    from knonik_assets.configs.load import load_ingest_config
    from knonik_assets.sources.base import EncodedImage
    from knonik_assets.sources.images import decode_image
    from knonik_assets.sources.registry import open_source

    source = open_source(load_ingest_config(folder / "config.json"), folder)
    with source.open(source.episodes()[0]) as episode:
        for spec in episode.streams:
            if spec.kind == "numeric":
                episode.numeric(spec)
                continue
            count = 0
            for frame in episode.frames(spec):
                picture = decode_image(frame) if isinstance(frame, EncodedImage) else frame
                away = abs(int(picture[0, 0, 0]) - count % 251)
                if away > 2:
                    raise AssertionError(f"frame {count} is {away} away")
                count += 1
            if count != frames:
                raise AssertionError(f"{count} of {frames} frames")
    # not ru_maxrss: it begins with what the parent held
    status = Path("/proc/self/status").read_text()
    sys.stdout.write(str(1024 * int(status.split("VmHWM:")[1].split()[0])))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        _write(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        _read(int(sys.argv[3]), Path(sys.argv[4]))
