"""One staged episode of ``.npy`` files, as the guide's script stages it."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

from knonik.ingest import run
from knonik_assets.configs.load import load_ingest_config
from knonik_assets.sources.base_contract import Expected, SourceContract
from knonik_assets.sources.detect import detect
from knonik_assets.sources.registry import open_source
from knonik_loader.errors import ConfigError, EpisodeError, SourceError
from tests.assets.sources.support import frames, stream
from tests.support.stamps import episode_arrays, read_stamp
from tests.support.zarr_data import near_depth

ROWS = 6


def identities(pictures):
    return [read_stamp(picture) for picture in pictures]


def stage(root, number=0, rows=ROWS):
    found = episode_arrays(number, rows)
    for camera, values in (("top", found["cam_0"]), ("side", found["cam_1"]), ("near", near_depth(rows, number))):
        (root / camera).mkdir(parents=True, exist_ok=True)
        for place, frame in enumerate(values):
            np.save(root / camera / f"frame_{place:06d}.npy", frame)
    np.save(root / "state.npy", found["state"].astype(np.float64))
    np.save(root / "action.npy", found["action"])
    np.save(root / "timestamps.npy", found["timestamps"] + 1.7e9)
    return root


def config(root, **more):
    streams = {
        "rgb": {name: {"dir": str(root / name), "pattern": "frame_%06d.npy", "fps": 30} for name in ("top", "side")},
        "depth": {"near": {"dir": str(root / "near"), "pattern": "frame_%06d.npy"}},
        "numeric": {"state": {"path": str(root / "state.npy")}, "action": {"path": str(root / "action.npy")}},
    }
    return {"dir_type": "npy_separate", "timestamps": str(root / "timestamps.npy"), "streams": streams, **more}


def staged(root, **more):
    return open_source(load_ingest_config(config(root, **more)), ".")


class TestStaged(SourceContract):
    def make_data(self, folder):
        return stage(folder)

    def make_source(self, root):
        return staged(root)

    def expected(self):
        found = episode_arrays(0, ROWS)
        return {
            self.home: Expected(
                numeric={"state": found["state"], "action": found["action"]},
                pictures={"top": found["cam_0"], "side": found["cam_1"]},
                depth={"near": near_depth(ROWS, 0).astype(np.float32) / np.float32(1000)},
                tolerance=1e-6,
                timestamps=found["timestamps"] + 1.7e9,
            )
        }

    @pytest.fixture(autouse=True)
    def _home(self, tmp_path):
        self.home = str(tmp_path.resolve() / "raw")

    def change(self, root, source_id):
        action = np.load(root / "action.npy")
        action[2, 1] += 1
        np.save(root / "action.npy", action)

    def test_fingerprints_follow_content_not_place_or_time(self, tmp_path):
        """A staging folder names its episode, so only the fingerprint itself stays when it moves."""
        first = list(self.fingerprints(self.make_source(stage(tmp_path / "a"))).values())
        assert list(self.fingerprints(self.make_source(stage(tmp_path / "b"))).values()) == first
        self.change(tmp_path / "b", "")
        assert list(self.fingerprints(self.make_source(tmp_path / "b")).values()) != first


def test_another_folder_appends_and_the_same_one_replaces(tmp_path):
    for number in (0, 1):
        run(config=config(stage(tmp_path / f"stage_{number}", number)), output=tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").glob("episode_*")) == ["episode_000000", "episode_000001"]
    report = run(config=config(stage(tmp_path / "stage_0", 7)), output=tmp_path / "out")
    assert [episode.episode_id for episode in report.written] == ["episode_000000"]
    action = zarr.open_array(str(tmp_path / "out/episode_000000/action"), mode="r")[:]
    np.testing.assert_array_equal(action, episode_arrays(7, ROWS)["action"])
    action = zarr.open_array(str(tmp_path / "out/episode_000001/action"), mode="r")[:]
    np.testing.assert_array_equal(action, episode_arrays(1, ROWS)["action"])
    assert run(config=config(tmp_path / "stage_0"), output=tmp_path / "out").skipped


def test_the_working_directory_is_no_raw_data(tmp_path, monkeypatch):
    """Staged data and output below the folder in which it is run, as in a home directory."""
    stage(tmp_path / "staged")
    monkeypatch.chdir(tmp_path)
    said = config(Path("staged"), preset={"rgb": {"codec": "jpeg"}})
    assert len(run(said, output="data/out", engine="inline").written) == 1
    for inside in ("staged/top", "staged/near/out", "staged"):
        with pytest.raises(ConfigError, match="never writes into raw data"):
            run(said, output=inside, engine="inline")
    with pytest.raises(ConfigError, match="lies inside input"):
        run(said, tmp_path, "data/out", engine="inline")


def test_chunk_len_is_that_of_the_output(tmp_path):
    chosen = config(stage(tmp_path / "stage"))
    chosen["streams"]["numeric"]["action"]["chunk_len"] = 4
    run(config=chosen, output=tmp_path / "out")
    episode = tmp_path / "out/episode_000000"
    assert zarr.open_array(str(episode / "action"), mode="r").chunks == (4, 4)
    assert zarr.open_array(str(episode / "state"), mode="r").chunks == (ROWS, 4)
    assert json.loads((episode / "metadata.json").read_text())["stream_params"]["action"]["chunk_len"] == 4


def test_relative_places_go_from_the_input(tmp_path):
    stage(tmp_path)
    streams = {"rgb": {"top": {"dir": "top"}}, "numeric": {"a": {"path": "action.npy"}}}
    found = open_source(load_ingest_config({"dir_type": "npy_separate", "streams": streams}), tmp_path)
    (ref,) = found.episodes()
    assert ref.source_id == str(tmp_path.resolve())
    with found.open(ref) as opened:
        assert identities(frames(opened, "top")) == [(0, 0, frame) for frame in range(ROWS)]
        assert opened.facts.timestamps is None


def test_single_numbers_a_row_and_units_of_depth(tmp_path):
    stage(tmp_path)
    np.save(tmp_path / "grip.npy", np.arange(ROWS))
    chosen = config(tmp_path)
    chosen["streams"]["numeric"]["grip"] = {"path": str(tmp_path / "grip.npy")}
    chosen["streams"]["depth"]["near"]["unit_m"] = 0.01
    found = open_source(load_ingest_config(chosen), ".")
    with found.open(found.episodes()[0]) as opened:
        np.testing.assert_array_equal(opened.numeric(stream(opened, "grip"))[:, 0], np.arange(ROWS))
        np.testing.assert_allclose(frames(opened, "near"), near_depth(ROWS, 0) * 0.01, rtol=1e-6)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_frames_whose_files_begin_otherwise_than_the_first(tmp_path, version, order):
    root = stage(tmp_path / "raw")
    pictures = episode_arrays(0, ROWS)["cam_0"]
    with (root / "top" / "frame_000003.npy").open("wb") as file:
        np.lib.format.write_array(file, np.asarray(pictures[3], order=order), version)
    found = staged(root)
    with found.open(found.episodes()[0]) as opened:
        assert identities(frames(opened, "top")) == identities(pictures)


def test_a_first_frame_in_fortran_order(tmp_path):
    root = stage(tmp_path / "raw")
    pictures = episode_arrays(0, ROWS)["cam_0"]
    for place in (0, 2):
        np.save(root / "top" / f"frame_{place:06d}.npy", np.asfortranarray(pictures[place]))
    found = staged(root)
    with found.open(found.episodes()[0]) as opened:
        np.testing.assert_array_equal(frames(opened, "top"), pictures)


def broken(root, change):
    change(stage(root))
    found = staged(root)
    with found.open(found.episodes()[0]) as opened:
        for spec in opened.streams:
            opened.numeric(spec) if spec.kind == "numeric" else list(opened.frames(spec))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda root: (root / "top/frame_000003.npy").unlink(), EpisodeError, r"frame_000003\.npy is missing"),
        (lambda root: (root / "top/frame_000000.npy").unlink(), EpisodeError, r"frame_000000\.npy is missing"),
        (lambda root: (root / "state.npy").unlink(), SourceError, r"state\.npy: there is no such file"),
        (
            lambda root: np.save(root / "top/frame_000002.npy", np.zeros((9, 9, 3), np.uint8)),
            EpisodeError,
            "frame_000002",
        ),
        (lambda root: (root / "top/frame_000002.npy").write_bytes(b"\x93NUMPY"), EpisodeError, "frame_000002"),
        (lambda root: np.save(root / "action.npy", np.array([{}] * ROWS)), SourceError, "numeric.action is listed as"),
        (lambda root: np.save(root / "timestamps.npy", np.full(ROWS, np.nan)), EpisodeError, "time stamps are NaN"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, error, message):
    with pytest.raises(error, match=message):
        broken(tmp_path, change)


def test_folders_and_patterns_that_lead_nowhere(tmp_path):
    stage(tmp_path)
    chosen = config(tmp_path)
    chosen["streams"]["rgb"]["top"]["dir"] = str(tmp_path / "absent")
    with pytest.raises(SourceError, match="absent: there is no such folder"):
        open_source(load_ingest_config(chosen), ".").episodes()
    chosen = config(tmp_path)
    chosen["streams"]["rgb"]["top"]["pattern"] = "img_%04d.npy"
    found = open_source(load_ingest_config(chosen), ".")
    with pytest.raises(SourceError, match=r"img_0000\.npy, img_0001\.npy, …\); it has: frame_000000"):
        found.open(found.episodes()[0])


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        ({}, "names no stream"),
        ({"rgb": {"top": {"dir": "x", "pattern": "frame.npy"}}}, "pattern"),
        ({"rgb": {"top": {"dir": "x", "pattern": "../%d.npy"}}}, "pattern"),
        ({"rgb": {"top": {"dir": "x", "patern": "%d.npy"}}}, "pattern"),
        ({"numeric": {"a": {"dir": "x"}}}, "path"),
        ({"colour": {}}, "colour"),
    ],
)
def test_mistakes_in_the_block(streams, words):
    with pytest.raises(ConfigError, match=words):
        load_ingest_config({"dir_type": "npy_separate", "streams": streams})


def test_staged_streams_are_recognised_and_described(tmp_path):
    found = detect(stage(tmp_path))
    assert (found.dir_type, found.episodes) == ("npy_separate", 1)
    assert found.config["streams"] == {
        "rgb": {name: {"dir": name, "pattern": "frame_%06d.npy"} for name in ("side", "top")},
        "depth": {"near": {"dir": "near", "pattern": "frame_%06d.npy"}},
        "numeric": {"action": {"path": "action.npy"}, "state": {"path": "state.npy"}},
    }
    assert found.config["timestamps"] == "timestamps.npy"
    report = run(config=found.config, output=tmp_path.parent / f"{tmp_path.name}_out")
    assert [episode.frames for episode in report.written] == [ROWS]
