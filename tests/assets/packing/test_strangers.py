"""What is named instead of a folder of episodes: the error says what is there and what to do, at a path and a URL."""

import shutil

import pytest

from knonik_assets.pack import pack
from knonik_loader.errors import ConfigError, EpisodeError, PackError
from tests.assets.packing.support import write_episodes
from tests.support.buckets import upload_tree
from tests.support.road import knonik, write_raw

pytestmark = pytest.mark.usefixtures("scratch")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Everything that somebody may name."""
    lake = tmp_path_factory.mktemp("lake")
    episodes = write_episodes(lake / "episodes", (5, 6), cameras=0, depth=False)
    pack(episodes, lake / "packed", "d", engine="inline")
    write_raw(lake / "raw", [4], cameras=1)
    (lake / "lerobot" / "meta").mkdir(parents=True)
    (lake / "lerobot" / "meta" / "info.json").write_text('{"codebase_version": "v2.1"}')
    shutil.copytree(episodes, lake / "project" / "run" / "episodes")
    shutil.copytree(episodes, lake / "lost")
    for path in lake.glob("lost/*/metadata.json"):
        path.unlink()
    (lake / "left").mkdir()
    (lake / "left" / "ingest_report.json").write_text("{}")
    (lake / "photos" / "day").mkdir(parents=True)
    for name in ("day/a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg"):
        (lake / "photos" / name).write_bytes(b"x")
    (lake / "theirs" / "calibration").mkdir(parents=True)
    (lake / "theirs" / "calibration" / "metadata.json").write_text('{"name": "calibration"}')
    return lake


@pytest.fixture(params=["path", "url"])
def at(request, lake):
    if request.param == "path":
        return lambda name: str(lake / name)
    s3 = request.getfixturevalue("s3")
    return lambda name: upload_tree(lake / name, f"{s3}/{name}") if (lake / name).is_dir() else f"{s3}/{name}"


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        (
            "raw",
            PackError,
            "IN: IN is raw data (HDF5 file per episode), to be ingested first: 'knonik detect IN --write",
        ),
        ("lerobot", PackError, "IN: IN is raw data (LeRobot v2), to be ingested first: 'knonik detect IN --write"),
        (
            "packed",
            PackError,
            "IN: it holds a packed dataset (packed from LAKE/episodes), which a loader reads as it is",
        ),
        (
            "episodes/episode_000001",
            PackError,
            "IN is itself an episode; name the folder that it lies in (UP), and --ep",
        ),
        ("project", PackError, "IN: they are further down; name IN/run/episodes."),
        (
            "lost",
            PackError,
            "IN: episode_000000 and episode_000001 have lost their metadata.json, or are not yet whole",
        ),
        ("left", PackError, "IN: an ingest wrote there and left none; IN/ingest_report.json says why."),
        ("photos", PackError, "IN: it holds b.jpg, c.jpg, d.jpg and 2 more, and no folder with a metadata.json; name"),
        (
            "theirs",
            EpisodeError,
            "IN/calibration/metadata.json is no ingested episode's, or damaged (dataset: Field req",
        ),
    ],
)
def test_a_folder_that_is_none(at, lake, tmp_path, name, error, says):
    folder = at(name)
    with pytest.raises(error) as caught:
        pack(folder, tmp_path / "out", "d")
    expected = says.replace("IN", folder).replace("LAKE", str(lake)).replace("UP", folder.rpartition("/")[0])
    assert expected in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["hlp_000000.khlp", "hlp_manifest.json", "pack_report.json"])
def test_a_file(at, tmp_path, name):
    file = f"{at('packed')}/{name}"
    what = "a file" if name == "pack_report.json" else "a file of a packed dataset, which a loader reads as it is"
    with pytest.raises(ConfigError) as caught:
        pack(file, tmp_path / "out", "d")
    assert str(caught.value) == f"{file} is {what}; name the output directory of an ingest, a folder of episodes."


def test_nothing(lake, s3, tmp_path):
    (tmp_path / "empty").mkdir()
    for place, error, says in (
        (tmp_path / "nowhere", ConfigError, "There is no directory .*nowhere to pack; name the output directory"),
        (tmp_path / "empty", PackError, "the folder is empty; name the output directory of an ingest"),
        (f"{s3}/nowhere", PackError, "nowhere: no object is there; check the URL"),
    ):
        with pytest.raises(error, match=says):
            pack(place, tmp_path / "out", "d")


def test_an_episode_that_lost_its_metadata_is_not_left_out_in_silence(lake, s3, tmp_path):
    folder = shutil.copytree(lake / "episodes", tmp_path / "episodes")
    (folder / "episode_000001" / "metadata.json").unlink()
    for number, source in enumerate((str(folder), upload_tree(folder, f"{s3}/episodes"))):
        said = f"episode_000001 of {source} has lost its metadata.json"
        with pytest.warns(UserWarning, match=said):
            pack(source, tmp_path / f"{number}_warned", "d", engine="inline")
        pack(source, tmp_path / f"{number}_left", "d", engine="inline", exclude=["episode_000001"])
        pack(source, tmp_path / f"{number}_only", "d", engine="inline", episodes=["episode_000000"])
        with pytest.raises(EpisodeError, match=r"episode_000001 has lost its metadata\.json"):
            pack(source, tmp_path / f"{number}_asked", "d", engine="inline", episodes=["episode_000001"])


def test_on_the_command_line(lake, tmp_path):
    call = ["--output-dir", tmp_path / "out", "--dataset-name", "d", "--quiet"]
    found = knonik("pack", "--input-dir", lake / "raw", *call)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("error: No ingested episode in ")
    assert found.stderr.count("\n") == 1
    found = knonik("pack", "--input-dir", lake / "packed" / "hlp_manifest.json", *call)
    assert (found.returncode, found.stdout) == (2, "")
    found = knonik("pack", "--input-dir", lake / "theirs", *call)
    assert (found.returncode, found.stdout) == (1, "")
    assert "move calibration away if another tool put it there" in found.stderr
