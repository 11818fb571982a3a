"""What lies in a bucket is recognised as what lies on a disk is."""

import json

import pytest

from knonik_assets.carding import add_card, check_card
from knonik_assets.configs.card import load_card
from knonik_assets.ingest import run
from knonik_assets.sources.detect import datasets_in, detect
from knonik_loader.errors import SourceError
from tests.assets.sources.remote.test_same_as_local import CASES
from tests.support.buckets import upload_tree
from tests.support.road import ingest_config, knonik, write_raw

pytestmark = pytest.mark.usefixtures("scratch")


@pytest.mark.parametrize(
    "case",
    ["hdf5", "hdf5 demos", "npz", "replay buffer", "lerobot v2", "lerobot v3", "calvin", "rlds", "staged", "mcap"],
)
def test_every_family_is_detected_as_on_a_disk(case, tmp_path, s3):
    root = CASES[case]().make_data(tmp_path / "raw")
    url = upload_tree(root, f"{s3}/{root.parent.name}/{root.name}")
    here, there = detect(root).to_dict(), detect(url).to_dict()
    assert json.loads(json.dumps(there)) == json.loads(json.dumps(here).replace(str(root), url))


def test_several_datasets_below_a_url(tmp_path, s3):
    for name in ("one", "two"):
        upload_tree(write_raw(tmp_path / name, [4], cameras=1), f"{s3}/lake/{name}")
    assert [family.where for family in datasets_in(f"{s3}/lake")] == [f"{s3}/lake/one", f"{s3}/lake/two"]
    with pytest.raises(SourceError, match="holds 2 datasets") as caught:
        detect(f"{s3}/lake")
    assert f"{s3}/lake/one, {s3}/lake/two" in str(caught.value)
    shown = knonik("detect", f"{s3}/lake", "--json")
    assert [one["root"] for one in json.loads(shown.stdout)["datasets"]] == [f"{s3}/lake/one", f"{s3}/lake/two"]
    with pytest.raises(SourceError, match="no known dataset"):
        detect(upload_tree(write_raw(tmp_path / "x", [1], cameras=1) / "episode_0.hdf5", f"{s3}/other/a.bin")[:-6])


def test_what_isnt_raw_data(tmp_path, s3):
    run(ingest_config(cameras=1), write_raw(tmp_path / "raw", [4], cameras=1), f"{s3}/episodes", engine="inline")
    with pytest.raises(SourceError, match="ingested episodes"):
        detect(f"{s3}/episodes")
    with pytest.raises(SourceError, match="no object of this name"):
        detect(f"{s3}/nothing")


def test_from_the_command_line_to_a_card(tmp_path, s3):
    url = upload_tree(write_raw(tmp_path / "raw", [4, 5], cameras=1), f"{s3}/stamped")
    config = tmp_path / "found.yaml"
    shown = knonik("detect", url, "--write", config, check=True)
    assert url in shown.stdout
    knonik("ingest", "--config", config, "--output", tmp_path / "out", "--quiet", check=True)
    assert len(list((tmp_path / "out").glob("episode_*/metadata.json"))) == 2
    path, found = add_card("stamped", url, tmp_path / "cards")
    assert found.episodes == 2
    assert str(load_card(path).raw) == url
    assert (check_card("stamped", tmp_path / "cards").episodes, check_card("stamped", tmp_path / "cards").problems) == (
        2,
        [],
    )
