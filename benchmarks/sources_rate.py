"""Reading rate of array formats against their own libraries reading the same bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.common import Ratio

__all__ = ["run"]

FRAMES, HEIGHT, WIDTH = 240, 480, 640
REPEATS = 9


def _video() -> np.ndarray:
    """(T, H, W, 3) that compresses about as pictures do."""
    rng = np.random.default_rng(3)
    base = rng.integers(60, 190, (HEIGHT // 8, WIDTH // 8, 3)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
    noise = rng.integers(0, 3, (8, HEIGHT, WIDTH, 3)).astype(np.uint8)
    return np.stack([np.roll(base, index, 0) + noise[index % 8] for index in range(FRAMES)])


def _hdf5(root: Path, video: np.ndarray) -> tuple[dict[str, str], Callable[[], Iterator[np.ndarray]]]:
    import h5py

    path = root / "episode_0.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("cam", data=video, chunks=(1, *video.shape[1:]), compression="lzf")

    def bare() -> Iterator[np.ndarray]:
        with h5py.File(path) as file:
            cam = file["cam"]
            for index in range(len(cam)):
                yield cam[index]

    return {"dir_type": "episodic", "data_type": "hdf5"}, bare


def _zarr(
    chunk: int, version: int
) -> Callable[[Path, np.ndarray], tuple[dict[str, str], Callable[[], Iterator[np.ndarray]]]]:
    def make(root: Path, video: np.ndarray) -> tuple[dict[str, str], Callable[[], Iterator[np.ndarray]]]:
        import numcodecs
        import zarr

        codecs = {"compressors": numcodecs.Blosc()} if version == 2 else {}
        path = root / "episode_0" / "cam"
        array = zarr.create_array(
            str(path), shape=video.shape, dtype="u1", chunks=(chunk, *video.shape[1:]), zarr_format=version, **codecs
        )
        array[:] = video

        def bare() -> Iterator[np.ndarray]:
            opened = zarr.open_array(str(path), mode="r")
            for start in range(0, FRAMES, 16):  # as many at once as fit the same memory
                yield from opened[start : start + 16]

        return {"dir_type": "episodic", "data_type": "zarr"}, bare

    return make


def _npz(root: Path, video: np.ndarray) -> tuple[dict[str, str], Callable[[], Iterator[np.ndarray]]]:
    path = root / "episode_0.npz"
    np.savez(path, cam=video)

    def bare() -> Iterator[np.ndarray]:
        with np.load(path) as archive:
            yield from archive["cam"]

    return {"dir_type": "episodic", "data_type": "npy"}, bare


FORMATS = {
    "hdf5, a frame a chunk": _hdf5,
    "zarr 2, a frame a chunk": _zarr(1, 2),
    "zarr 3, 8 frames a chunk": _zarr(8, 3),
    "npz": _npz,
}


def run() -> list[Ratio]:
    """Measure every format."""
    from knonik_assets.configs.load import load_ingest_config
    from knonik_assets.sources.registry import open_source

    video = _video()
    rows = []
    for name, make in FORMATS.items():
        with TemporaryDirectory() as folder:
            config, bare = make(Path(folder), video)
            source = open_source(load_ingest_config(config), folder)

            def ours(source=source) -> float:
                start = time.perf_counter()
                with source.open(source.episodes()[0]) as episode:
                    (spec,) = episode.streams
                    total = sum(int(frame[0, 0, 0]) for frame in episode.frames(spec))
                return _rate(total, time.perf_counter() - start)

            def theirs(bare=bare) -> float:
                start = time.perf_counter()
                total = sum(int(frame[0, 0, 0]) for frame in bare())
                return _rate(total, time.perf_counter() - start)

            pairs = [
                (ours(), theirs()) for _ in range(REPEATS)
            ]  # in turns; the best of each, as others use the machine
            mine, library = (max(rates) for rates in zip(*pairs, strict=True))
            rows.append(Ratio(name, "its own library", mine / library, ">= 0.90", f"{mine:.0f} frames/s"))
    return rows


def _rate(total: int, seconds: float) -> float:
    assert total > 0
    return FRAMES / seconds
