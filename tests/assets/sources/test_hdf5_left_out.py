"""Nothing found in an HDF5 dataset is left behind in silence."""

import h5py
import numpy as np
import pytest

from knonik_assets.configs.load import load_ingest_config
from knonik_assets.sources.registry import open_source
from knonik_loader.errors import EpisodeError

ROWS = 5
CONFIG = load_ingest_config({"dir_type": "episodic", "data_type": "hdf5"})


def write(folder, **datasets):
    folder.mkdir(exist_ok=True)
    with h5py.File(folder / "episode_0.hdf5", "w") as file:
        file["action"] = np.zeros((ROWS, 2), np.float32)
        for name, value in datasets.items():
            file[f"observations/{name}"] = value
    return folder


def warnings_of(folder):
    source = open_source(CONFIG, folder)
    with source.open(source.episodes()[0]) as episode:
        return [spec.name for spec in episode.streams], episode.facts.warnings


UNREAD = {
    "16-bit colour": np.zeros((ROWS, 80, 96, 3), np.uint16),
    "booleans as pictures": np.zeros((ROWS, 80, 96, 3), bool),
    "five channels": np.zeros((ROWS, 80, 96, 5), np.uint8),
    "texts": np.array([b"grasp"] * ROWS),
    "complex numbers": np.zeros((ROWS, 2), np.complex64),
}


@pytest.mark.parametrize("value", UNREAD.values(), ids=UNREAD)
def test_a_dataset_that_is_no_stream_is_named(tmp_path, value):
    names, warnings = warnings_of(write(tmp_path / "raw", odd=value))
    assert names == ["action"]
    assert any("observations.odd" in text and "left out" in text for text in warnings)


def test_a_second_clock_is_named(tmp_path):
    names, warnings = warnings_of(write(tmp_path / "raw", timestamps=np.arange(ROWS) / 30))
    assert names == ["action"]
    assert any("observations.timestamps" in text for text in warnings)


def test_texts_that_do_not_run_along_time_are_no_news(tmp_path):
    _, warnings = warnings_of(write(tmp_path / "raw", note=np.array([b"one", b"two"])))
    assert not any("note" in text for text in warnings)


def test_numbers_beyond_float32_are_told(tmp_path):
    folder = write(tmp_path / "raw", force=np.array([[1.0], [1e300], [np.inf], [2.0], [-1e300]]))
    source = open_source(CONFIG, folder)
    with source.open(source.episodes()[0]) as episode:
        (spec,) = [spec for spec in episode.streams if spec.name == "force"]
        rows = episode.numeric(spec)
        assert any("observations.force: 2 values" in text for text in episode.facts.warnings)
    assert rows[0, 0] == 1


def test_an_episode_without_a_frame_is_not_called_damaged(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    with h5py.File(folder / "episode_0.hdf5", "w") as file:
        file["action"] = np.zeros((0, 2), np.float32)
        file["timestamps"] = np.zeros(0)
    source = open_source(CONFIG, folder)
    with source.open(source.episodes()[0]) as episode:
        assert [spec.length for spec in episode.streams] == [0]


def test_entries_that_are_no_files_are_told_and_a_dead_link_fails(tmp_path):
    folder = write(tmp_path / "raw")
    (folder / "episode_1.hdf5").mkdir()
    (folder / "episode_2.hdf5").symlink_to(tmp_path / "unmounted.hdf5")
    source = open_source(CONFIG, folder)
    refs = source.episodes()
    assert [ref.source_id for ref in refs] == ["episode_0", "episode_2"]
    assert any("episode_1.hdf5" in text for text in source.warnings)
    with pytest.raises(EpisodeError, match=r"episode_2\.hdf5"):
        source.open(refs[1])
