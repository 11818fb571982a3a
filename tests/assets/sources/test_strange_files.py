"""Files that nobody writes by accident: refused in words, without memory or code taken from what they claim."""

import io
import os
import pickle
import zipfile

import numcodecs
import numpy as np
import pytest
import zstandard

from knonik_assets.carding import check_card
from knonik_assets.cli import main
from knonik_assets.ingest import run
from knonik_assets.sources.detect import detect
from knonik_assets.sources.guarded import open_guarded
from knonik_loader.errors import EpisodeError, SourceError
from tests.assets.sources.support import config, jpeg, only_episode, png, source
from tests.support import calvin_data, d3il_data, rlds_data, zarr_data
from tests.support.stamps import episode_arrays


def npy(values) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def test_arrays_of_an_npz_without_a_name_are_passed_over(tmp_path):
    with zipfile.ZipFile(tmp_path / "episode_0.npz", "w") as archive:
        for name in (".npy", "/.npy", "action.npy"):
            archive.writestr(name, npy(np.ones((5, 3))))
    with only_episode(tmp_path, data_type="npy") as episode:
        assert [spec.name for spec in episode.streams] == ["action"]


def test_an_archive_of_endless_folders_is_refused_before_they_are_noted(tmp_path):
    with zipfile.ZipFile(tmp_path / "episode_0.zarr.zip", "w") as archive:
        archive.writestr("a/" * 40 + "x", b"")
    with pytest.raises(EpisodeError, match="40 folders deep"):
        only_episode(tmp_path, data_type="zarr")


def test_what_is_compressed_by_a_filter_is_refused_before_it_is_decoded(tmp_path):
    folder = zarr_data.group(tmp_path / "episode_0.zarr")
    zarr_data.put(
        folder, "action", np.ones((4, 3)), filters=[numcodecs.Zstd()], compressors=numcodecs.Blosc(), fill_value=0
    )
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 20))
    (folder / "action" / "0.0").write_bytes(bomb)
    with pytest.raises(EpisodeError, match="'zstd' is not the last"):
        only_episode(tmp_path, data_type="zarr")


def test_a_check_sum_behind_the_compressor_is_no_second_one(tmp_path):
    from zarr.codecs import Crc32cCodec, ZstdCodec

    folder = zarr_data.group(tmp_path / "episode_0.zarr", 3)
    zarr_data.put(folder, "action", np.ones((4, 3)), version=3, compressors=[ZstdCodec(), Crc32cCodec()])
    with only_episode(tmp_path, data_type="zarr") as episode:
        assert (episode.numeric(episode.streams[0]) == 1).all()
    path = folder / "action" / "c" / "0" / "0"
    path.write_bytes(zstandard.ZstdCompressor().compress(bytes(1 << 20)) + b"none")
    with only_episode(tmp_path, data_type="zarr") as episode, pytest.raises(EpisodeError, match="it claims 1048576"):
        episode.numeric(episode.streams[0])


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"language": {"ann": 5}, "info": {"indx": [(3, 8)]}}, "no language annotations"),
        ({"language": {"ann": ["go"]}, "info": {"indx": [(3.0, float("inf"))]}}, "no language annotations"),
        ({"language": {"ann": [None]}, "info": {"indx": [(3, 8)]}}, "'None', a NoneType; wanted text"),
    ],
)
def test_calvin_language_of_another_kind_is_a_warning(tmp_path, annotations, said):
    calvin_data.calvin(tmp_path / "training", [(3, 8)])
    folder = tmp_path / "training" / "lang_annotations"
    folder.mkdir(exist_ok=True)
    np.save(folder / "auto_lang_ann.npy", np.array(annotations, object), allow_pickle=True)
    with only_episode(tmp_path / "training", "calvin") as episode:
        assert any(said in warning for warning in episode.facts.warnings)
        assert episode.facts.language is None


def test_d3il_without_a_desired_position_has_no_action(tmp_path):
    task = tmp_path / "pushing"
    d3il_data.record(task, 0, 6)
    (file,) = task.rglob("env_0*.pkl")
    states = pickle.loads(file.read_bytes())
    states["robot"]["des_c_pos"] = np.zeros((0, 3))
    file.write_bytes(pickle.dumps(states))
    with only_episode(task, "d3il") as episode:
        assert any("no action" in warning and "empty" in warning for warning in episode.facts.warnings)
        assert "action" not in [spec.name for spec in episode.streams]


@pytest.mark.parametrize("family", ["d3il", "calvin"])
def test_a_pickle_that_no_memory_would_hold_is_not_read(tmp_path, family):
    if family == "d3il":
        d3il_data.record(tmp_path / "pushing", 0, 6)
        (file,) = tmp_path.rglob("env_0*.pkl")
        os.truncate(file, 1 << 40)
        with pytest.raises(EpisodeError, match="1099511627776 bytes"):
            only_episode(tmp_path / "pushing", "d3il")
        return
    calvin_data.calvin(tmp_path / "training", [(3, 8)], [(3, 8, "go")])
    (file,) = tmp_path.rglob("auto_lang_ann.npy")
    os.truncate(file, 1 << 40)
    with only_episode(tmp_path / "training", "calvin") as episode:
        assert any("1099511627776 bytes" in warning for warning in episode.facts.warnings)


def test_a_dataset_that_calls_itself_a_path_reads_no_other_one(tmp_path):
    def leaves(number):
        return rlds_data.step_leaves(number, 4, png, jpeg, zarr_data.near_depth(4, number))

    other = rlds_data.dataset(tmp_path / "other", [[leaves(7)]])
    home = rlds_data.dataset(tmp_path / "mine", [[leaves(0)]])
    info = home / "dataset_info.json"
    info.write_text(info.read_text().replace('"name": "robot"', f'"name": "{other}/robot"'))
    found = source(tmp_path / "mine", "rlds")
    refs = found.episodes()
    assert [ref.source_id for ref in refs] == ["train-00000", "robot-train-00000#0"]  # what is here, and what is not
    with pytest.raises(EpisodeError, match="is missing"):
        found.open(refs[0])


def test_what_no_reader_expected_is_told_in_words(tmp_path):
    """A name that no file system takes is what the disk itself refuses."""
    streams = {"rgb": {"top": {"dir": "a" * 5000}}}
    with pytest.raises(SourceError, match="File name too long"):
        open_guarded(config("npy_separate", streams=streams), tmp_path).episodes()


def test_one_strange_episode_costs_the_others_nothing(tmp_path, monkeypatch):
    """An error that is none of ours, in the first look at a dataset and in every later one."""
    from knonik_assets.sources.episodic_npz import EpisodicNpzSource

    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(2):
        np.savez(raw / f"episode_{number}.npz", **episode_arrays(number, 4))
    real = EpisodicNpzSource.open

    def open_(self, ref):
        if ref.source_id == "episode_0":
            raise ZeroDivisionError("nobody thought of that")
        return real(self, ref)

    monkeypatch.setattr(EpisodicNpzSource, "open", open_)
    chosen = {"dir_type": "episodic", "data_type": "npy", "preset": "low"}
    report = run(chosen, input=raw, output=tmp_path / "out", engine="inline")
    assert [one.status for one in report.episodes] == ["failed", "written"]
    assert "ZeroDivisionError" in report.episodes[0].reason
    assert any("ZeroDivisionError: nobody thought of that" in warning for warning in detect(raw).warnings)
    cards = tmp_path / "cards"
    assert main(["dataset", "add", "strange", "--raw", str(raw), "--cards", str(cards)]) == 0
    (problem,) = check_card("strange", cards).problems
    assert "ZeroDivisionError" in problem
