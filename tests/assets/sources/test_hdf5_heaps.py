"""Heaps that would send the HDF5 library in circles are refused; sound ones pass."""

import h5py
import numpy as np
import pytest

from knonik_loader.errors import EpisodeError
from tests.assets.sources.support import frames, jpeg, only_episode, source
from tests.support.stamps import episode_arrays


def write(path, pictures=True, libver="latest"):
    known = episode_arrays(0, 5)
    with h5py.File(path, "w", libver=libver) as file:
        file["action"] = known["action"]
        file.attrs["language_instruction"] = "go"
        file["notes"] = ["a", "bc", "def"]
        if pictures:
            rows = file.create_dataset("top", (5,), h5py.vlen_dtype(np.uint8))
            for place, picture in enumerate(known["cam_0"]):
                rows[place] = np.frombuffer(jpeg(picture), np.uint8)
    return path


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_sound_heaps_pass(tmp_path, libver):
    path = write(tmp_path / "episode_0.hdf5", libver=libver)
    with h5py.File(path, "r+") as file:
        for number in range(200):
            file.attrs[f"note_{number}"] = "x" * number
        for number in range(0, 200, 3):
            del file.attrs[f"note_{number}"]
    with only_episode(tmp_path) as opened:
        assert len(frames(opened, "top")) == 5


@pytest.mark.parametrize(
    "value", [b"\0" * 16, b"\0\0\0\0\0\0\0\0" + b"\xf8" + b"\xff" * 7, b"\1\0\1\0\0\0\0\0" + b"\xff" * 8]
)
def test_heaps_that_lead_nowhere_are_refused(tmp_path, value):
    path = write(tmp_path / "episode_0.hdf5", pictures=False)
    write(tmp_path / "episode_1.hdf5")
    data = bytearray(path.read_bytes())
    at = data.index(b"GCOL")
    data[at + 16 : at + 16 + len(value)] = value
    path.write_bytes(data)
    found = source(tmp_path)
    refs = found.episodes()
    with pytest.raises(EpisodeError, match=r"episode_0\.hdf5: damaged.*heap at byte"):
        found.open(refs[0])
    with found.open(refs[1]) as opened:
        assert len(frames(opened, "top")) == 5


def test_a_picture_that_looks_like_a_heap_is_none(tmp_path):
    known = episode_arrays(0, 5)
    video = known["cam_0"].copy()
    video[0, 0].reshape(-1)[:32] = np.frombuffer(b"GCOL\1\0\0\0" + (4096).to_bytes(8, "little") + b"\0" * 16, np.uint8)
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["top"], file["action"] = video, known["action"]
        file.create_dataset("side", data=video, chunks=(1, 96, 112, 3))
    with only_episode(tmp_path) as opened:
        np.testing.assert_array_equal(frames(opened, "top")[0], video[0])
