"""Episodes and raw data in a bucket are told of as on a disk."""

import json

import pytest

from knonik_assets.ingest import run
from knonik_assets.packing.inspect import inspect_path, save_frames, save_sheet
from knonik_loader.errors import ConfigError
from tests.support.buckets import folder_at, upload_tree
from tests.support.road import ingest_config, write_raw


@pytest.fixture
def raw(tmp_path, monkeypatch):
    monkeypatch.setenv("KNONIK_SCRATCH", str(tmp_path / "scratch"))
    return write_raw(tmp_path / "stamped", [6, 7, 8], cameras=1)


def same(there, here, path, url):
    return json.loads(json.dumps(there)) == json.loads(json.dumps(here).replace(str(path), url))


def test_episodes(raw, tmp_path, s3):
    out, url = tmp_path / "out", f"{s3}/episodes"
    run(ingest_config(cameras=1), raw, out, engine="inline")
    upload_tree(out, url)
    for verify in (False, True):
        assert same(inspect_path(url, verify), inspect_path(out, verify), out, url)
        one, there = out / "episode_000001", f"{url}/episode_000001"
        assert same(inspect_path(there, verify), inspect_path(one, verify), one, there)
    folder_at(url).put_bytes("episode_000002/rgb_cam_0.mkv", b"short")
    short = f"{url}/episode_000002/rgb_cam_0.mkv has 5 bytes instead of"
    assert inspect_path(url)["damage"][0].startswith(short)
    assert inspect_path(url, verify=True)["damage"][0].startswith(short)
    folder_at(url).delete(["episode_000000/metadata.json"])
    assert inspect_path(url)["facts"]["episodes"] == 2
    assert not list((tmp_path / "scratch").glob("room-*"))


def test_raw_data(raw, tmp_path, s3):
    url = upload_tree(raw, f"{s3}/stamped")
    assert same(inspect_path(url), inspect_path(raw), raw, url)
    with pytest.raises(ConfigError, match="no checksums"):
        inspect_path(url, verify=True)
    with pytest.raises(ConfigError, match=f"There is no object {s3}/nothing and none below it"):
        inspect_path(f"{s3}/nothing")


def test_pictures(raw, tmp_path, s3):
    out, url = tmp_path / "out", f"{s3}/episodes"
    run(ingest_config(cameras=1), raw, out, engine="inline")
    upload_tree(out, url)
    pairs = [(raw, upload_tree(raw, f"{s3}/stamped")), (out, url)]
    pairs.append((out / "episode_000001", f"{url}/episode_000001"))
    for number, (here, there) in enumerate(pairs):
        folders = [tmp_path / f"{side}_{number}" for side in ("here", "there")]
        for place, folder in zip((here, there), folders, strict=True):
            save_sheet(place, folder)
            (picture,) = save_frames(place, ["1:5"], folder)
            assert picture.name.endswith("1_000005.png")
        both = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
        assert len(both[0]) == 2
        assert both[0] == both[1]
        with pytest.raises(ConfigError, match="frame 7 of"):
            save_frames(there, ["1:7"], tmp_path)
    assert not list((tmp_path / "scratch").glob("room-*"))
