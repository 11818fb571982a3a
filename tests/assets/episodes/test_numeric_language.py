"""Numeric streams, the clock, and annotations."""

import numcodecs
import numpy as np
import pytest
import yaml
import zarr

from knonik_assets.configs.presets import NumericPreset, Preset
from knonik_assets.episodes import numeric
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.sources.base import Language
from knonik_loader.errors import EpisodeError
from tests.assets.episodes.support import open_writer


def test_rows_are_kept_exactly_nan_included(tmp_path):
    rows = np.arange(60, dtype=np.float64).reshape(20, 3) / 7
    rows[4] = (np.nan, np.inf, -np.inf)
    rows[5] = 0
    with open_writer(tmp_path, preset=Preset.model_validate({"numeric": {"chunk_len": 8, "level": 3}})) as writer:
        writer.add_numeric("state", 3, role="state", channel_names=["x", "y", "z"])
        writer.numeric("state", rows[:7])
        for row in rows[7:]:
            writer.numeric("state", row[None])
        metadata = writer.commit()
    reader = EpisodeReader(tmp_path / "episode_000000")
    assert np.array_equal(reader.numeric("state"), rows.astype(np.float32), equal_nan=True)
    assert reader.numeric("state").dtype == np.float32
    assert np.array_equal(reader.numeric_time("state"), np.arange(20) / 30)
    stored = zarr.open_array(str(reader.path / "state"), mode="r")
    assert (stored.metadata.zarr_format, stored.chunks, stored.shape) == (2, (8, 3), (20, 3))
    assert sum((reader.path / "state" / f"{chunk}.0").is_file() for chunk in range(3)) == 3
    assert metadata.stream_params["state"] == {
        "dim": 3,
        "codec": "zarr-zstd",
        "level": 3,
        "chunk_len": 8,
        "own_times": False,
    }
    assert metadata.stream_roles == {"state": "state"}
    assert metadata.channel_names == {"state": ["x", "y", "z"]}


def test_an_all_zero_stream_has_its_files(tmp_path):
    with open_writer(tmp_path) as writer:
        writer.add_numeric("zero", 2)
        writer.numeric("zero", np.zeros((5, 2)))
        writer.commit()
    assert EpisodeReader(tmp_path / "episode_000000").numeric("zero").tolist() == [[0.0, 0.0]] * 5
    assert (tmp_path / "episode_000000" / "zero" / "0.0").is_file()


def test_a_clock_and_own_times(tmp_path):
    clock = np.array([1.7e9, 1.7e9 + 0.04, 1.7e9 + 0.03])  # backwards: kept, for others to judge
    own = clock + 0.003
    with open_writer(tmp_path) as writer:
        writer.add_numeric("imu", 1)
        writer.numeric("imu", np.zeros((1, 1)), own[:1])
        writer.numeric("imu", np.zeros((2, 1)), own[1:])
        writer.clock(clock, "source")
        metadata = writer.commit()
    reader = EpisodeReader(tmp_path / "episode_000000")
    assert np.array_equal(reader.frame_time(), clock)
    assert np.array_equal(reader.numeric_time("imu"), own)
    assert (metadata.start_time, metadata.end_time, metadata.timestamps_origin) == (clock[0], clock[2], "source")


def test_without_a_clock_time_is_index_over_fps(tmp_path):
    with open_writer(tmp_path, fps=50) as writer:
        writer.add_numeric("state", 1)
        writer.numeric("state", np.zeros((4, 1)))
        metadata = writer.commit()
    assert EpisodeReader(tmp_path / "episode_000000").frame_time().tolist() == [0.0, 0.02, 0.04, 0.06]
    assert metadata.timestamps_origin == "frame_index"


@pytest.mark.parametrize(
    ("rows", "times", "message"),
    [
        (np.zeros((2, 3)), None, r"\(n, 2\).*\(2, 3\)"),
        (np.zeros(2), None, r"\(n, 2\).*\(2,\)"),
        (np.array([["a", "b"]]), None, r"<U1"),
        (np.zeros((2, 2)), np.zeros(3), "2 finite times"),
        (np.zeros((1, 2)), np.array([np.nan]), "1 finite times"),
    ],
)
def test_wrong_rows_are_refused(tmp_path, rows, times, message):
    with open_writer(tmp_path) as writer:
        writer.add_numeric("state", 2)
        with pytest.raises(EpisodeError, match=f"'state', row 0.*{message}"):
            writer.numeric("state", rows, times)
        writer.numeric("state", np.zeros((1, 2)))
        with pytest.raises(EpisodeError, match="all rows"):
            writer.numeric("state", np.zeros((1, 2)), np.zeros(1))
        with pytest.raises(EpisodeError, match="finite seconds"):
            writer.clock(np.array([np.inf]), "source")
        assert writer.commit().episode_length == 1


LANGUAGE = Language(
    "Stapelt den grünen Würfel: 'links', dann 积木",
    ("pick: up", "- no", "multi\nline", "", "yes", "0123"),
    ((0.0, 0.5, "reach"), (np.float64(0.5), np.float32(1.25), "lift #2")),
)


def test_language_round_trip_and_its_files(tmp_path):
    with open_writer(tmp_path) as writer:
        writer.add_numeric("state", 1)
        writer.numeric("state", np.zeros((4, 1)))
        writer.language(LANGUAGE, "config")
        metadata = writer.commit()
    folder = tmp_path / "episode_000000" / "annotations" / "language"
    assert EpisodeReader(tmp_path / "episode_000000").language() == LANGUAGE
    assert yaml.safe_load((folder / "episode.yaml").read_text("utf-8")) == {
        "instruction": LANGUAGE.instruction,
        "source": "config",
    }
    assert yaml.safe_load((folder / "rephrased.yaml").read_text("utf-8")) == list(LANGUAGE.rephrases)
    assert yaml.safe_load((folder / "timestamps.yaml").read_text("utf-8"))[1] == {
        "start": 0.5,
        "end": 1.25,
        "text": "lift #2",
    }
    assert "annotations/language/rephrased.yaml" in metadata.files


def test_no_language_no_files(tmp_path):
    with open_writer(tmp_path) as writer:
        writer.add_numeric("state", 1)
        writer.numeric("state", np.zeros((4, 1)))
        writer.commit()
    assert EpisodeReader(tmp_path / "episode_000000").language() is None
    assert not (tmp_path / "episode_000000" / "annotations").exists()


@pytest.mark.parametrize("content", ["", "instruction: [", "[1]", "other: 1"])
def test_damaged_annotations_are_an_episode_error(tmp_path, content):
    with open_writer(tmp_path) as writer:
        writer.add_numeric("state", 1)
        writer.numeric("state", np.zeros((4, 1)))
        writer.language(LANGUAGE)
        writer.commit()
    path = tmp_path / "episode_000000" / "annotations" / "language" / "episode.yaml"
    path.write_text(content)
    with pytest.raises(EpisodeError, match="is damaged"):
        EpisodeReader(tmp_path / "episode_000000").language()


@pytest.mark.parametrize("shape", [(7,), (10, 3), (11, 3), (1, 1), (25, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_are_read_without_zarr_as_zarr_reads_them(tmp_path, shape, dtype, monkeypatch):
    values = np.random.default_rng(0).normal(size=shape).astype(dtype)
    values.flat[0] = np.nan
    numeric.write_array(tmp_path / "a", values, NumericPreset(chunk_len=5))
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a", mode="r")[...], values)
    monkeypatch.setattr(zarr, "open_array", None)
    found = numeric.read_array(tmp_path / "a", shape)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("shape", [(7,), (10, 3), (11, 3), (1, 1), (25, 2), (0, 3), (0,), (3, 0), (6, 2, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("level", [1, 9])
def test_arrays_are_written_byte_for_byte_as_zarr_writes_them(tmp_path, shape, dtype, level):
    values = np.random.default_rng(0).normal(size=shape).round(1).astype(dtype)
    numeric.write_array(tmp_path / "ours", values, NumericPreset(chunk_len=5, level=level))
    theirs = zarr.create_array(
        str(tmp_path / "theirs"),
        shape=shape,
        dtype=dtype,
        chunks=(min(5, max(1, len(values))), *(max(1, size) for size in shape[1:])),
        zarr_format=2,
        compressors=numcodecs.Zstd(level=level),
        config={"write_empty_chunks": True},
    )
    theirs[:] = values
    ours, wanted = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("ours", "theirs")
    )
    assert ours == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"zarr_format": 3},
        {"zarr_format": 2, "compressors": None},
        {"zarr_format": 2, "order": "F"},
        {"zarr_format": 2, "chunks": (4, 2)},
        {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    ],
)
def test_arrays_of_another_layout_are_read_by_zarr(tmp_path, options):
    values = np.arange(33, dtype=np.float32).reshape(11, 3)
    settings = {"chunks": (5, 3)} | options
    array = zarr.create_array(str(tmp_path / "a"), shape=values.shape, dtype=values.dtype, **settings)
    array[...] = values
    np.testing.assert_array_equal(numeric.read_array(tmp_path / "a", (11, 3)), values)
