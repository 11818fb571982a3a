"""Packs at s3:// (moto's server) that were killed or stood still: what is whole is kept, and nothing late does harm."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from knonik_assets import pack_run
from knonik_assets.pack import pack
from knonik_assets.packing.inspect import inspect_path
from knonik_assets.storage import LEASE
from knonik_loader import ShardedDataLoader
from knonik_loader.errors import PackError, StorageError
from tests.assets.packing.support import four_episodes, stored
from tests.support.buckets import folder_at, upload_tree
from tests.support.proxy import FaultyProxy
from tests.support.road import tree

OPTIONS = {"dataset_name": "d", "shard_size": 7, "window_size": 3}


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    return four_episodes(tmp_path_factory.mktemp("episodes"))


KILLED = """
import sys
from knonik_assets.pack import pack
engine = {"engine": "inline"} if sys.argv[3] == "inline" else {"workers": 2}
pack(sys.argv[1], sys.argv[2], "d", 7, 1, seed=5, storage_profile="training_fast", overwrite=True, **engine)
"""


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_packer_killed_during_an_upload(episodes, s3, s3_server, tmp_path, scratch, monkeypatch, engine):
    """The old manifest reads as before; the next run keeps what is whole, and ends with the same bytes."""
    source, out = upload_tree(episodes, f"{s3}/episodes"), f"{s3}/packed"
    options = {"shard_size": 7, "window_size": 1, "storage_profile": "training_fast"}
    manifest = pack(source, out, "d", engine="inline", **options)[0]
    before = stored(out)
    stalled = threading.Event()

    def fault(request):
        if request.method == "PUT" and request.path.endswith("gen_0002/hlp_000004.khlp"):
            stalled.set()
            return "stall"
        return None

    with FaultyProxy(s3_server, fault) as proxy:
        call = [sys.executable, "-c", KILLED, source, out, engine]
        environment = {**os.environ, "AWS_ENDPOINT_URL": proxy.url}
        with subprocess.Popen(call, start_new_session=True, env=environment) as process:
            assert stalled.wait(120)
            os.killpg(process.pid, signal.SIGKILL)
        left = stored(out)
        assert {name: left[name] for name in before} == before
        assert "gen_0002/hlp_000004.khlp" not in left
        kept = [name for name in left if name.startswith("gen_0002/")]
        assert len(kept) >= (4 if engine == "inline" else 3), "of two workers one may be busy with the file before"
        assert list(scratch.glob("room-*"))
        config = {"decode_mode": "random_access", "hlp_manifest": manifest, "fs_type": "s3", "chunk_len": 1}
        with ShardedDataLoader({**config, "batch_size": 8, "rank": 0, "world_size": 1}) as loader:
            assert sum(len(batch["_episode_ids"]) for batch in loader) == 76
        pack(source, out, "d", engine="inline", seed=5, overwrite=True, **options)
        proxy.release()  # what was on its way arrives after all, and is equal
    pack(episodes, tmp_path / "whole", "d", engine="inline", **options)
    pack(episodes, tmp_path / "whole", "d", engine="inline", seed=5, overwrite=True, **options)
    assert stored(out) == tree(tmp_path / "whole")
    report = json.loads(folder_at(out).read_bytes("pack_report.json"))
    # a file that the killed run had sent in full may have arrived after the look
    assert len(kept) <= report["files_reused"] <= len(kept) + (engine == "processes")


def test_a_damaged_leftover_is_written_again(episodes, s3, tmp_path, scratch):
    out = f"{s3}/packed"
    options = {**OPTIONS, "storage_profile": "training_fast", "engine": "inline"}
    pack(episodes, tmp_path / "whole", **options)
    pack(episodes, out, **options)
    data = bytearray(folder_at(out).read_bytes("hlp_000001.khlp"))
    data[len(data) // 3] ^= 1
    folder_at(out).put_bytes("hlp_000001.khlp", bytes(data))
    folder_at(out).delete(["hlp_manifest.json", "hlp_manifest.1.json", "hlp_000000.khlp"])
    pack(episodes, out, **options)
    assert stored(out) == tree(tmp_path / "whole")
    report = json.loads(folder_at(out).read_bytes("pack_report.json"))
    assert (report["files_written"], report["files_reused"]) == (2, report["files_reused"])
    assert report["files_reused"] >= 1


def test_files_of_a_run_that_may_still_be_alive_are_left_alone(episodes, s3, scratch):
    """A lease that ran out was perhaps a paused machine's: its generation is not written over, the next one is taken."""
    out = f"{s3}/packed"
    options = {**OPTIONS, "storage_profile": "training_fast", "engine": "inline"}
    pack(episodes, out, **options)
    folder_at(out).delete(["hlp_manifest.json", "hlp_manifest.1.json"])
    with pytest.raises(PackError, match=r"holds files that no manifest names.*hlp_000000\.khlp"):
        pack(episodes, out, **options, seed=5)
    gone = {"id": "x", "pid": 1, "host": "far", "process": {"machine": "far"}, "command": "c", "seconds": 0.1}
    info = folder_at(out).put_bytes(LEASE, json.dumps(gone).encode())
    while time.time() < info.modified + 1.2:
        time.sleep(0.05)
    before = stored(out)
    paths = pack(episodes, out, **options, seed=5, overwrite=True)
    assert paths[2] == f"{out}/gen_0002/hlp_000000.khlp"
    assert {name: data for name, data in stored(out).items() if name in before} == before


@pytest.mark.parametrize("same", [True, False])
def test_an_upload_that_outlived_its_lease_hurts_no_later_pack(episodes, s3, s3_server, scratch, monkeypatch, same):
    """Neither the one that took the lease over, which fails here, nor the next, which knows of it by the lease alone."""
    source, out = upload_tree(episodes, f"{s3}/episodes"), f"{s3}/packed"
    options = {"shard_size": 7, "window_size": 1, "storage_profile": "training_fast", "engine": "inline"}
    stalled = threading.Event()

    def fault(request):
        if request.method == "PUT" and request.path.endswith("hlp_000000.khlp"):
            stalled.set()
        return "stall" if request.method == "PUT" and stalled.is_set() else None

    with FaultyProxy(s3_server, fault) as proxy:
        call = [sys.executable, "-c", KILLED, source, out, "inline"]
        environment = {**os.environ, "AWS_ENDPOINT_URL": proxy.url}
        with subprocess.Popen(call, env=environment, stderr=subprocess.PIPE, text=True) as process:
            assert stalled.wait(120)
            held = json.loads(folder_at(out).read_bytes(LEASE))
            far = {**held, "host": "far", "process": {"machine": "far"}, "seconds": 0.1}
            info = folder_at(out).put_bytes(LEASE, json.dumps(far).encode())
            assert not [key for key in stored(out) if key.endswith(".khlp")]
            while time.time() < info.modified + 1.2:
                time.sleep(0.05)

            def refused(*arguments):
                raise StorageError("the store refuses")

            with monkeypatch.context() as patch:
                patch.setattr(pack_run, "publish", refused)
                with pytest.raises(StorageError, match="the store refuses"):
                    pack(source, out, "d", seed=6, **options)
            paths = pack(source, out, "d", seed=5 if same else 7, overwrite=True, **options)
            assert paths[2].removeprefix(out) == ("/hlp_000000.khlp" if same else "/gen_0002/hlp_000000.khlp")
            packed = {path.removeprefix(f"{out}/"): folder_at(out).read_bytes(path[len(out) + 1 :]) for path in paths}
            assert same or folder_at(out).head("hlp_000000.khlp") is None
            proxy.release()
            said = process.communicate(timeout=60)[1]
    assert folder_at(out).head("hlp_000000.khlp") is not None, "it did arrive"
    if not same:  # else all that it wanted to write is there
        assert process.returncode == 1
        assert "was taken over by another run" in said
    assert {key: folder_at(out).read_bytes(key) for key in packed} == packed
    assert inspect_path(out, verify=True)["damage"] == []


def test_what_killed_runs_declared_does_not_pile_up(episodes, s3, scratch):
    """Each of many runs, killed on another machine, declared another plan: the lease keeps what still matters."""
    out, options = f"{s3}/packed", {**OPTIONS, "engine": "inline"}
    works = [{"plan": f"plan {number % 7}", "generation": 1 + number % 5} for number in range(100)]
    text = {"id": "x", "pid": 1, "host": "far", "process": {"machine": "far"}, "command": "c", "seconds": 0.1}
    info = folder_at(out).put_bytes(LEASE, json.dumps({**text, "work": works[-1], "abandoned": works[:-1]}).encode())
    while time.time() < info.modified + 1.2:
        time.sleep(0.05)
    paths = pack(episodes, out, **options)
    assert paths[2] == f"{out}/gen_0006/hlp_000000.khlp"
    said = json.loads(folder_at(out).read_bytes(LEASE))
    assert [work["generation"] for work in said["abandoned"]] == [5, 5]
    assert len({work["plan"] for work in said["abandoned"]}) == 2
    pack(episodes, out, **options, seed=5, overwrite=True)
    assert json.loads(folder_at(out).read_bytes(LEASE))["abandoned"] == said["abandoned"]
