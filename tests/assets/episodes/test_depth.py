"""Depth: quantised metres, one chunk a frame, 0 for "no reading"."""

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knonik_assets.configs.presets import DepthPreset, Preset
from knonik_assets.episodes.depth import quantise
from knonik_assets.episodes.reader import EpisodeReader
from knonik_loader.errors import EpisodeError
from tests.assets.episodes.support import open_writer

NAN, INF = float("nan"), float("inf")


def write(tmp_path, frames, **depth):
    with open_writer(tmp_path, preset=Preset.model_validate({"depth": depth})) as writer:
        writer.add_depth("top")
        for frame in frames:
            writer.depth("top", frame)
        return writer.commit().stream_params["depth_top"]


def test_values_and_counts(tmp_path):
    row = np.array([[0, NAN, INF, -INF, -1, 0.0004, 0.0005, 0.0015, 1.0, 65.535, 65.5354, 65.536]], np.float64)
    params = write(tmp_path, [row])
    reader = EpisodeReader(tmp_path / "episode_000000")
    (frame,) = reader.depth("top")
    assert frame.dtype == np.uint16
    assert frame.tolist() == [[0, 0, 0, 0, 0, 0, 1, 2, 1000, 65535, 65535, 0]]
    assert (params["above_max"], params["below_quantum"], params["no_reading"]) == (1, 1, 7)
    assert reader.depth_shape("top") == (1, 12)
    assert reader.depth_quantization_mm("top") == 1.0


def test_quantum_and_maximum_of_the_preset(tmp_path):
    params = write(tmp_path, [np.array([[0.125, 1.5, 3.0, 3.001]])], quantization_mm=2.0, max_m=3.0)
    (frame,) = EpisodeReader(tmp_path / "episode_000000").depth("top")
    assert frame.tolist() == [[63, 750, 1500, 0]]
    assert (params["above_max"], params["quantization_mm"], params["max_m"]) == (1, 2.0, 3.0)


@given(st.integers(1, 65535), st.sampled_from([1.0, 0.5, 2.0, 0.1]))
def test_multiples_of_the_quantum_survive_float32(steps, quantum):
    metres = np.full((1, 1), steps * quantum / 1000, np.float32)
    out, above, below = quantise(metres, DepthPreset(quantization_mm=quantum))
    assert (int(out[0, 0]), above, below) == (steps, 0, 0)


@given(st.floats(2**-10, 60, width=32), st.sampled_from([1.0, 2.0, 0.9]))
def test_the_error_is_half_a_quantum_at_most(metres, quantum):
    out, _, _ = quantise(np.full((1, 1), metres, np.float32), DepthPreset(quantization_mm=quantum))
    if out[0, 0] or metres * 1000 >= quantum / 2:
        assert abs(int(out[0, 0]) * quantum - metres * 1000) <= quantum / 2 + 1e-9 or metres * 1000 > 65535.5 * quantum


def test_any_range_and_the_file_as_others_read_it(tmp_path):
    rng = np.random.default_rng(1)
    frames = rng.uniform(0.1, 5, (9, 12, 17)).astype(np.float32)
    write(tmp_path, frames)
    reader = EpisodeReader(tmp_path / "episode_000000")
    wanted = np.floor(frames.astype(np.float64) * 1000 + 0.5).astype(np.uint16)
    assert np.array_equal(np.stack(list(reader.depth("top"))), wanted)
    assert np.array_equal(np.stack(list(reader.depth("top", 4, 7))), wanted[4:7])
    assert list(reader.depth("top", 3, 3)) == []
    with h5py.File(tmp_path / "episode_000000" / "depth_top.hdf5") as file:
        data = file["depth"]
        assert (data.chunks, data.dtype, data.compression, data.shuffle) == ((1, 12, 17), np.uint16, "gzip", True)
        assert data.attrs["quantization_mm"] == 1.0
        assert np.array_equal(data[:], wanted)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (np.zeros((4, 5), np.float32), r"\(4, 5\).*\(4, 6\)"),
        (np.zeros((4, 6), np.uint16), r"uint16 \(4, 6\)"),
        (np.zeros((4, 6, 1), np.float32), r"float32 \(4, 6, 1\)"),
        ([[1.0]], "a list"),
    ],
)
def test_a_wrong_frame_is_refused_and_the_next_one_taken(tmp_path, frame, message):
    with open_writer(tmp_path) as writer:
        writer.add_depth("top")
        writer.depth("top", np.ones((4, 6), np.float32))
        with pytest.raises(EpisodeError, match=f"'depth_top', frame 1.*{message}"):
            writer.depth("top", frame)
        writer.depth("top", np.ones((4, 6), np.float32))
        assert writer.commit().episode_length == 2


def test_a_damaged_file_is_an_episode_error(tmp_path):
    write(tmp_path, np.ones((3, 40, 40), np.float32))
    path = tmp_path / "episode_000000" / "depth_top.hdf5"
    data = path.read_bytes()
    reader = EpisodeReader(path.parent)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(EpisodeError, match=r"depth_top\.hdf5 is missing or damaged"):
        list(reader.depth("top"))
    path.unlink()
    with pytest.raises(EpisodeError, match=r"depth_top\.hdf5 is missing or damaged"):
        list(reader.depth("top"))
