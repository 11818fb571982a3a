"""A worker on another machine has no mirror of the driver's: it makes its own, and says when that is another dataset."""

import pickle
import re
from datetime import timedelta
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from knonik.ingest import run
from knonik_assets.sources.base_contract import NoCache, as_array
from knonik_assets.sources.registry import open_source
from knonik_assets.sources.remote.listing import list_raw
from knonik_assets.sources.remote.source import forget_mirrors
from knonik_assets.storage import Place
from knonik_loader.engine import objects
from knonik_loader.errors import EpisodeError, KnonikError, SourceError
from tests.assets.sources.remote.test_same_as_local import CASES
from tests.assets.sources.support import V2
from tests.support.buckets import folder_at, upload_tree
from tests.support.proxy import FaultyProxy


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    monkeypatch.setenv("KNONIK_SCRATCH", str(tmp_path / "driver"))
    return tmp_path


def frames(source, ref):
    with source.open(ref) as episode:
        return {
            (spec.kind, spec.name): episode.numeric(spec)
            if spec.kind == "numeric"
            else np.stack([as_array(frame) for frame in episode.frames(spec)])
            for spec in episode.streams
        }


@pytest.mark.parametrize("case", ["hdf5", "zarr v2", "lerobot v2", "mcap", "calvin", "d3il", "rlds"])
def test_an_episode_is_read_where_its_mirror_is_not(case, tmp_path, s3, monkeypatch, downloads):
    contract = CASES[case]()
    root = contract.make_data(tmp_path / "raw")
    here = contract.make_source(root)
    url = upload_tree(root, f"{s3}/lake/{root.name}")
    driver = open_source(here.config, url)
    refs = pickle.loads(pickle.dumps(list(driver.episodes())))
    driver.close()
    monkeypatch.setenv("KNONIK_SCRATCH", str(tmp_path / "worker"))
    for turn, (local, ref) in enumerate(list(zip(here.episodes(), refs, strict=True))[:2]):
        downloads.clear()
        worker = open_source(here.config, url)
        assert worker.fingerprint(ref, NoCache()) == here.fingerprint(local, NoCache())
        wanted, found = frames(here, local), frames(worker, ref)
        assert found.keys() == wanted.keys()
        for key, values in wanted.items():
            np.testing.assert_array_equal(found[key], values)
        worker.close()
        if turn:
            shared = {key for key in downloads if key not in {one.key for one in ref.locator.own}}
            assert not shared, "what episodes share came with the first of them"
    forget_mirrors()
    assert not list((tmp_path / "worker").glob("room-*"))


def test_what_episodes_share_must_be_as_it_was_listed(tmp_path, s3):
    contract = CASES["rlds"]()
    root = contract.make_data(tmp_path / "raw")
    url = upload_tree(root, f"{s3}/lake/{root.name}")
    config = contract.make_source(root).config
    driver = open_source(config, url)
    refs = list(driver.episodes())
    driver.close()
    folder_at(url).put_bytes("another.txt", b"x")
    worker = open_source(config, url)
    with pytest.raises(EpisodeError, match="changed while it was ingested"):
        worker.open(refs[0])
    worker.close()


@pytest.mark.parametrize("fault", ["403", "503", "deleted"])
def test_a_chunk_that_the_store_does_not_give_is_no_hole(tmp_path, s3, s3_server, monkeypatch, fault):
    """Zarr fills up what is missing: an error of the store, or an object that went away, must not become zeros."""
    contract = CASES["zarr v2"]()
    root = contract.make_data(tmp_path / "raw")
    url = upload_tree(root, f"{s3}/lake/{root.name}")
    config = contract.make_source(root).config
    monkeypatch.setattr("knonik_loader.engine.objects._BACKOFF_S", 0.01)
    quick = {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20), "base": 2}
    monkeypatch.setattr(objects, "_RETRY", objects._RETRY | {"backoff": quick, "retry_timeout": timedelta(seconds=1)})
    driver = open_source(config, url)
    ref = next(iter(driver.episodes()))
    chunk = next(one.key for one in ref.locator.own if one.key.rsplit("/", 1)[-1][0].isdigit())
    if fault == "deleted":
        folder_at(url).delete([chunk])
    refused = None if fault == "deleted" else fault
    with FaultyProxy(s3_server, lambda request: refused if chunk in unquote(request.path) else None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with pytest.raises(KnonikError, match=re.escape(chunk)):
            driver.open(ref)
    driver.close()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["a/../../b.hdf5"], None),
        (["a", "a/b"], "an object and the folder of a/b at once"),
        ([f"{'x' * 300}.hdf5"], "longer than a file's may be"),
    ],
)
def test_names_that_no_file_can_have(s3, keys, words):
    folder = folder_at(f"{s3}/raw")
    for key in keys:
        folder.put_bytes(key, b"x")
    place = Place.of(f"{s3}/raw", "raw")
    if words is None:  # such a key is put where it leads to, inside of the bucket: nothing is left below the dataset
        with pytest.raises(SourceError, match="no object of this name"):
            list_raw(place)
        return
    with pytest.raises(SourceError, match=words):
        list_raw(place)


def test_empty_objects_that_mark_folders_are_none(s3):
    folder = folder_at(f"{s3}/raw")
    folder.put_bytes("a/b", b"x")
    folder.put_bytes("a", b"")
    assert [one.key for one in list_raw(Place.of(f"{s3}/raw", "raw")).objects] == ["a/b"]


def test_a_new_text_of_a_subtask_is_noticed(tmp_path, s3, monkeypatch):
    monkeypatch.setenv("KNONIK_SCRATCH", str(tmp_path / "scratch"))
    dataset = V2(tmp_path / "raw", [5], cameras=())
    root = dataset.write(lambda episode: dataset.rows(episode) | {"subtask_index": pa.array([0] * 5, pa.int64())})
    url = f"{s3}/lake/raw"
    for text, written in (("reach", 1), ("reach", 0), ("grasp", 1)):
        pq.write_table(pa.table({"subtask": [text], "subtask_index": [0]}), root / "meta/subtasks.parquet")
        upload_tree(root, url)
        report = run({"dir_type": "lerobot_v2"}, url, tmp_path / "out", engine="inline")
        assert len(report.written) == written
    (said,) = (tmp_path / "out").glob("episode_000000/annotations/language/timestamps.yaml")
    assert "text: grasp" in said.read_text()
