"""What reading rates are measured on: an episode of each family, and the family's own library that reads it.

Each function writes an episode below a folder and gives Knonik's config for it and a reader without Knonik, which
yields every picture in RGB or as stored, and reads the numbers on its way where the family has some beside them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FAMILIES", "FRAMES", "Bare", "video"]

FRAMES, HEIGHT, WIDTH = 240, 480, 640
Bare = Callable[[], Iterator[np.ndarray]]
Made = tuple[dict[str, Any], Bare]


def video(frames: int = FRAMES, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """(T, H, W, 3) that compresses about as pictures do."""
    rng = np.random.default_rng(3)
    base = rng.integers(60, 190, (-(-height // 8), -(-width // 8), 3)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
    base = base[:height, :width]
    noise = rng.integers(0, 3, (8, height, width, 3)).astype(np.uint8)
    return np.stack([np.roll(base, index, 0) + noise[index % 8] for index in range(frames)])


def _hdf5(root: Path, pictures: np.ndarray) -> Made:
    import h5py

    path = root / "episode_0.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("cam", data=pictures, chunks=(1, *pictures.shape[1:]), compression="lzf")

    def bare() -> Iterator[np.ndarray]:
        with h5py.File(path) as file:
            cam = file["cam"]
            for index in range(len(cam)):
                yield cam[index]

    return {"dir_type": "episodic", "data_type": "hdf5"}, bare


def _zarr(chunk: int, version: int, shard: int | None = None, *, packed: bool = False) -> Callable[..., Made]:
    def make(root: Path, pictures: np.ndarray) -> Made:
        import shutil

        import numcodecs
        import zarr

        codecs: dict[str, Any] = {"compressors": numcodecs.Blosc()} if version == 2 else {}
        if shard is not None:
            codecs["shards"] = (shard, *pictures.shape[1:])
        path = root / "episode_0" / "cam"
        array = zarr.create_array(
            str(path),
            shape=pictures.shape,
            dtype="u1",
            chunks=(chunk, *pictures.shape[1:]),
            zarr_format=version,  # type: ignore[arg-type]
            **codecs,
        )
        array[:] = pictures
        if packed:
            from tests.support.zarr_data import zipped

            zipped(root / "episode_0", root / "episode_0.zip")
            shutil.rmtree(root / "episode_0", ignore_errors=True)

        def bare() -> Iterator[np.ndarray]:
            store = zarr.storage.ZipStore(root / "episode_0.zip", mode="r") if packed else str(path)
            opened = zarr.open_array(store, path="cam" if packed else None, mode="r")
            for start in range(0, FRAMES, 16):  # as many at once as fit the same memory
                yield from opened[start : start + 16]

        return {"dir_type": "episodic", "data_type": "zarr"}, bare

    return make


def _npz(root: Path, pictures: np.ndarray) -> Made:
    path = root / "episode_0.npz"
    np.savez(path, cam=pictures)

    def bare() -> Iterator[np.ndarray]:
        with np.load(path) as archive:
            yield from archive["cam"]

    return {"dir_type": "episodic", "data_type": "npy"}, bare


def _npy_separate(root: Path, pictures: np.ndarray) -> Made:
    """A file a frame, and one of numbers; by `numpy.load`."""
    (root / "cam").mkdir()
    for index, picture in enumerate(pictures):
        np.save(root / "cam" / f"{index:06d}.npy", picture)
    np.save(root / "state.npy", np.zeros((len(pictures), 7)))

    def bare() -> Iterator[np.ndarray]:
        np.load(root / "state.npy")
        for index in range(FRAMES):
            yield np.load(root / "cam" / f"{index:06d}.npy")

    streams = {
        "rgb": {"cam": {"dir": "cam", "pattern": "%06d.npy", "fps": 30}},
        "numeric": {"state": {"path": "state.npy"}},
    }
    return {"dir_type": "npy_separate", "streams": streams}, bare


def _calvin(root: Path, _: np.ndarray) -> Made:
    """An archive a step with two cameras, a depth map and four rows of numbers, in CALVIN's sizes; by `numpy.load`."""
    folder = root / "training"
    folder.mkdir()
    static, gripper = video(FRAMES, 200, 200), video(FRAMES, 84, 84)
    rng = np.random.default_rng(5)
    for index in range(FRAMES):
        np.savez_compressed(
            folder / f"episode_{index:07d}.npz",
            rgb_static=static[index],
            rgb_gripper=gripper[index],
            depth_static=static[index, ..., 0].astype(np.float32) / 100,
            actions=rng.normal(size=7),
            rel_actions=rng.normal(size=7),
            robot_obs=rng.normal(size=15),
            scene_obs=rng.normal(size=24),
        )
    np.save(folder / "ep_start_end_ids.npy", np.array([[0, FRAMES - 1]]))

    def bare() -> Iterator[np.ndarray]:
        for index in range(FRAMES):
            with np.load(folder / f"episode_{index:07d}.npz") as step:
                for name in ("actions", "rel_actions", "robot_obs", "scene_obs"):
                    step[name]
                yield from (step[name] for name in ("rgb_static", "rgb_gripper", "depth_static"))

    return {"dir_type": "calvin", "fps": 30}, bare


def _d3il(root: Path, pictures: np.ndarray) -> Made:
    """JPEG files a frame beside a pickle of states; by Pillow, and the pickle by pickle."""
    import pickle

    from PIL import Image

    from tests.support.d3il_data import states

    state = root / "aligning" / "all_data" / "state" / "env_0.pkl"
    state.parent.mkdir(parents=True)
    state.write_bytes(pickle.dumps(states(0, FRAMES + 1)))
    images = root / "aligning" / "all_data" / "images" / "bp-cam" / "env_0"
    images.mkdir(parents=True)
    for index, picture in enumerate(pictures):
        Image.fromarray(picture).save(images / f"{index}.jpg", quality=90)

    def bare() -> Iterator[np.ndarray]:
        pickle.loads(state.read_bytes())
        for index in range(FRAMES):
            with Image.open(images / f"{index}.jpg") as picture:
                yield np.asarray(picture.convert("RGB"))

    return {"dir_type": "d3il", "fps": 30}, bare


def _rlds(root: Path, pictures: np.ndarray) -> Made:
    """One record of JPEGs and numbers; framing by struct, messages by protobuf's own parser, JPEGs by simplejpeg."""
    import simplejpeg

    from tests.support.rlds_data import Example, dataset, image, tensor

    record = {
        "steps/cam": [simplejpeg.encode_jpeg(picture, quality=90) for picture in pictures],
        "steps/is_first": [1, *[0] * (FRAMES - 1)],
        "steps/action": [0.5] * 7 * FRAMES,
    }
    step = {"cam": image(HEIGHT, WIDTH, 3, form="jpeg"), "is_first": tensor("bool"), "action": tensor("float32", 7)}
    (path,) = dataset(root, [[record]], step).glob("*.tfrecord*")

    def bare() -> Iterator[np.ndarray]:
        with path.open("rb") as file:
            length, _ = struct.unpack("<QI", file.read(12))
            feature = Example.FromString(file.read(length)).features.feature
        np.array(feature["steps/action"].float_list.value, np.float32).reshape(-1, 7)
        np.array(feature["steps/is_first"].int64_list.value)
        for data in feature["steps/cam"].bytes_list.value:
            yield simplejpeg.decode_jpeg(data)

    return {"dir_type": "rlds", "fps": 30}, bare


def _lerobot(codec: str) -> Callable[..., Made]:
    """One episode of one camera; by PyAV's decode in order with its own threads, numbers by pyarrow."""

    def make(root: Path, pictures: np.ndarray) -> Made:
        import av
        import pyarrow.parquet as pq

        from tests.assets.sources.support import V2

        dataset: Any = V2(root, [1], ("cam",), size=(HEIGHT, WIDTH), gop=2)
        dataset.lengths = [FRAMES]
        numbers = np.zeros((FRAMES, 4), np.float32)
        dataset.episodes = [{"cam_0": pictures, "state": numbers, "action": numbers}]
        dataset.hints[0]["length"] = FRAMES
        dataset.write()
        if codec != "libx264":
            _encode(dataset.video_path("cam", 0), pictures, codec)

        def bare() -> Iterator[np.ndarray]:
            pq.read_table(dataset.data_path(0))
            with av.open(str(dataset.video_path("cam", 0))) as container:
                container.streams.video[0].thread_type = "AUTO"
                for frame in container.decode(video=0):
                    yield frame.to_ndarray(format="rgb24")

        return {"dir_type": "lerobot_v2"}, bare

    return make


def _encode(path: Path, pictures: np.ndarray, codec: str) -> None:
    import av

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=30, options={"crf": "30", "preset": "10", "g": "2"})
        stream.height, stream.width, stream.pix_fmt = *pictures.shape[1:3], "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def _replay(codec: str) -> Callable[..., Made]:
    """UMI's store of 224 x 224 pictures, a picture a chunk; by zarr-python with imagecodecs' codecs."""

    def make(root: Path, _: np.ndarray) -> Made:
        import imagecodecs.numcodecs as pictures_codecs
        import zarr

        from tests.support.zarr_data import put

        pictures_codecs.register_codecs(verbose=False)
        made = {
            "jpegxl": lambda: pictures_codecs.Jpegxl(level=90, lossless=False),
            "jpeg2k": lambda: pictures_codecs.Jpeg2k(level=40),
        }[codec]()
        store = root / "replay_buffer.zarr"
        pictures = video(FRAMES, 224, 224)
        put(store / "data", "camera0_rgb", pictures, 1, compressors=made)
        put(store / "data", "robot0_eef_pos", np.zeros((FRAMES, 3), np.float32), 100)
        put(store / "meta", "episode_ends", np.array([FRAMES]), 1)

        def bare() -> Iterator[np.ndarray]:
            zarr.open_array(str(store / "data" / "robot0_eef_pos"), mode="r")[:]
            opened = zarr.open_array(str(store / "data" / "camera0_rgb"), mode="r")
            for start in range(0, FRAMES, 16):
                yield from opened[start : start + 16]

        return {"dir_type": "zarr", "fps": 30}, bare

    return make


FAMILIES: dict[str, Callable[[Path, np.ndarray], Made]] = {
    "hdf5, a frame a chunk": _hdf5,
    "zarr 2, a frame a chunk": _zarr(1, 2),
    "zarr 3, 8 frames a chunk": _zarr(8, 3),
    "zarr 3, shards of 40 in chunks of 4": _zarr(4, 3, 40),
    "zarr 2 in a zip, 4 frames a chunk": _zarr(4, 2, packed=True),
    "npz": _npz,
    "npy_separate": _npy_separate,
    "calvin": _calvin,
    "d3il": _d3il,
    "rlds": _rlds,
    "lerobot v2.1, h264": _lerobot("libx264"),
    "lerobot v2.1, av1": _lerobot("libsvtav1"),
    "replay buffer, jpeg xl": _replay("jpegxl"),
    "replay buffer, jpeg 2000": _replay("jpeg2k"),
}
