"""Zarr datasets of stamped episodes, written by zarr-python as the formats' own recorders do."""

import json
import shutil
import zipfile
from pathlib import Path

import imagecodecs
import numcodecs
import numpy as np
import zarr

from tests.support.stamps import episode_arrays

BLOSC = numcodecs.Blosc(cname="zstd", clevel=5, shuffle=2)


def put(folder: Path, name: str, values, chunk=7, version=2, **options) -> None:
    """One array, every chunk written."""
    path = folder / name.replace(".", "/")
    if version == 2:
        options.setdefault("compressors", BLOSC)
    array = zarr.create_array(
        str(path),
        shape=values.shape,
        dtype=values.dtype,
        chunks=(chunk, *values.shape[1:]),
        zarr_format=version,
        config={"write_empty_chunks": True},
        **options,
    )
    array[:] = values


def group(folder: Path, version=2, **attributes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        (folder / ".zgroup").write_text('{"zarr_format": 2}')
        if attributes:
            (folder / ".zattrs").write_text(json.dumps(attributes))
    else:
        described = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        (folder / "zarr.json").write_text(json.dumps(described))
    return folder


def zipped(folder: Path, target: Path, below: str = "") -> Path:
    """A folder's files in an archive without compression, as ZipStore writes them; the folder goes."""
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.writestr(zipfile.ZipInfo(below + path.relative_to(folder).as_posix()), path.read_bytes())
    shutil.rmtree(folder)
    return target


def near_depth(rows: int, episode: int) -> np.ndarray:
    """(T, 16, 16) uint16 millimetres."""
    small = np.arange(rows * 16, dtype=np.uint16).reshape(rows, 4, 4) + 700 + episode
    return small.repeat(4, 1).repeat(4, 2)


def episode(folder: Path, number: int, rows: int, version=2) -> Path:
    """One episode's own store."""
    found = episode_arrays(number, rows)
    group(folder, version, language_instruction=f"do {number}", fps=30)
    put(folder, "camera_0.rgb", found["cam_0"], 3, version)
    put(folder, "camera_1.rgb", np.moveaxis(found["cam_1"], -1, 1).astype(np.float32) / 255, 2, version)
    put(folder, "camera_0.depth", near_depth(rows, number), 4, version)
    put(folder, "state", found["state"].astype(np.float64), 100, version)
    put(folder, "action", found["action"], 5, version)
    put(folder, "timestamps", found["timestamps"], 5, version)
    return folder


def replay_buffer(folder: Path, lengths, first=0, pictures="img", chunk=7, **attributes) -> Path:
    """Diffusion policy's consolidated store, every episode's frames stamped."""
    group(folder, **attributes)
    group(folder / "data")
    group(folder / "meta")
    found = [episode_arrays(first + place, rows, cameras=1) for place, rows in enumerate(lengths)]
    put(folder, f"data.{pictures}", np.concatenate([one["cam_0"] for one in found]), chunk)
    for name in ("state", "action"):
        put(folder, f"data.{name}", np.concatenate([one[name] for one in found]), 11)
    put(folder, "meta.episode_ends", np.cumsum(lengths), 100)
    return folder


def picture_array(folder: Path, name: str, pictures, codec: str) -> None:
    """An array whose chunks are pictures, as UMI stores them: (1, H, W, 3) in JPEG XL or JPEG 2000."""
    path = folder / name.replace(".", "/")
    path.mkdir(parents=True)
    compressor = {"id": f"imagecodecs_{codec}", "effort": 3, "distance": 0.3, "photometric": 2}
    described = {
        "zarr_format": 2,
        "shape": list(pictures.shape),
        "chunks": [1, *pictures.shape[1:]],
        "dtype": "|u1",
        "fill_value": 0,
        "order": "C",
        "filters": None,
        "compressor": compressor,
    }
    (path / ".zarray").write_text(json.dumps(described))
    encode = getattr(imagecodecs, f"{codec}_encode")
    options = {"lossless": True} if codec == "jpegxl" else {"reversible": True}
    for place, picture in enumerate(pictures):
        (path / f"{place}.0.0.0").write_bytes(encode(picture, **options))
