"""Objects of a real S3 server: listed, staged whole, uploaded in parts, put on a condition."""

import os
import pickle
import threading
from datetime import timedelta

import obstore
import pytest

from knonik_assets.storage import ConflictError, Lease, ObjectFolder, Place
from knonik_assets.storage import objects as module
from knonik_loader.engine import objects as loader_objects
from knonik_loader.errors import StorageError
from tests.support.proxy import FaultyProxy


@pytest.fixture
def folder(s3):
    return ObjectFolder(Place.of(f"{s3}/lake/a", "out"))


def test_objects_are_listed_with_what_they_are(folder):
    for key in ("b/two words+ü%20#.bin", "a.txt", "b/c/d"):
        folder.put_bytes(key, key.encode())
    ObjectFolder(folder.place.parent).put_bytes("ab/other", b"not below a")
    found = folder.objects()
    assert [info.key for info in found] == ["a.txt", "b/c/d", "b/two words+ü%20#.bin"]
    assert [info.size for info in found] == [len(info.key.encode()) for info in found]
    assert all(info == folder.head(info.key) for info in found)
    assert [info.key for info in folder.objects("b")] == ["b/c/d", "b/two words+ü%20#.bin"]
    assert folder.folders() == ["b"]
    assert folder.folders("b") == ["c"]
    assert folder.read_bytes("b/c/d") == b"b/c/d"
    assert folder.objects("nothing") == folder.folders("nothing") == []
    folder.delete(["a.txt", "b/c/d", "never there"])
    assert [info.key for info in pickle.loads(pickle.dumps(folder)).objects()] == ["b/two words+ü%20#.bin"]


def test_what_is_not_there(folder, s3, tmp_path):
    assert folder.head("x") is None
    assert folder.get("x") is None
    with pytest.raises(StorageError, match=f"{folder.place}/x does not exist"):
        folder.read_bytes("x")
    elsewhere = ObjectFolder(Place.of(f"{s3}-of-nobody/lake", "out"))
    bucket = elsewhere.place.bucket
    (tmp_path / "file").write_bytes(b"1")
    for ask in (
        elsewhere.objects,
        elsewhere.folders,
        lambda: elsewhere.put_bytes("x", b"1"),
        lambda: elsewhere.put_bytes("x", b"1", if_none_match=True),
        lambda: elsewhere.upload(tmp_path / "file", "x"),
        Lease(elsewhere).__enter__,
    ):
        with pytest.raises(
            StorageError, match=rf"^s3://{bucket}/lake: the bucket '{bucket}' does not exist; create it"
        ):
            ask()


def test_a_lost_file_or_upload_is_not_called_a_lost_bucket(folder, tmp_path):
    def of_nothing(store, path):
        obstore.put(store, path, tmp_path / "gone")

    def ended(_store, path):
        raise FileNotFoundError(f"Object at location {path} not found: 404 Not Found: <Code>NoSuchUpload</Code>")

    for put in (of_nothing, ended):
        with pytest.raises(StorageError, match=rf"^{folder.place}/x cannot be written: .* try again"):
            folder._ask(folder.url("x"), put, "written")


@pytest.mark.parametrize("size", [0, 1, 4096, 3 * 4096 + 5])
def test_files_go_up_and_come_back_in_parts(folder, tmp_path, monkeypatch, size):
    monkeypatch.setattr(module, "_PART", 4096 if size < 9000 else 5 << 20)
    size = size if size < 9000 else 11 << 20
    data = os.urandom(size)
    (tmp_path / "up").write_bytes(data)
    info = folder.upload(tmp_path / "up", "big/file")
    assert (info.size, info.key) == (size, "big/file")
    monkeypatch.setattr(module, "_PART", 4096 if size < 9000 else 1 << 20)
    assert folder.download("big/file", tmp_path / "down", info) == info
    assert (tmp_path / "down").read_bytes() == data


def test_a_file_replaced_while_it_is_read_is_refused(folder, tmp_path, monkeypatch):
    listed = folder.put_bytes("x", b"old and long")
    folder.put_bytes("x", b"new and long")
    with pytest.raises(StorageError, match=r"lake/a/x was replaced while it was read"):
        folder.download("x", tmp_path / "x", listed)
    assert not (tmp_path / "x").exists()
    folder.put_bytes("y", b"listed")
    (listed,) = (one for one in folder.objects() if one.key == "y")
    folder.delete(["y"])
    with pytest.raises(StorageError, match=r"lake/a/y was removed before it was read; try again"):
        folder.download("y", tmp_path / "y", listed)
    with pytest.raises(StorageError, match="cannot write"):
        folder.download("x", tmp_path / "no such folder" / "x")


def test_what_is_created_or_copied_replaces_nothing(folder, tmp_path):
    (tmp_path / "file").write_bytes(b"first")
    assert folder.create(tmp_path / "file", "c/x") == folder.head("c/x").etag
    folder.copy("c/x", "c/y")
    for call in (lambda: folder.create(tmp_path / "other", "c/x"), lambda: folder.copy("c/z", "c/y")):
        (tmp_path / "other").write_bytes(b"other")
        folder.put_bytes("c/z", b"other")
        with pytest.raises(ConflictError, match=r"lake/a/c/[xy] was written by another run"):
            call()
    assert [folder.read_bytes(key) for key in ("c/x", "c/y")] == [b"first"] * 2
    with pytest.raises(StorageError, match=r"lake/a/c/none vanished before it was copied to .*lake/a/c/new"):
        folder.copy("c/none", "c/new")
    with pytest.raises(StorageError, match="cannot read"):
        folder.create(tmp_path / "gone", "c/new")
    assert folder.head("c/new") is None


def test_a_put_on_a_condition_has_one_winner(folder):
    first = folder.put_bytes("m", b"first", if_none_match=True)
    with pytest.raises(ConflictError, match=r"lake/a/m was written by another run"):
        folder.put_bytes("m", b"other", if_none_match=True)
    assert folder.put_bytes("m", b"first", if_none_match=True) == first  # our own, whose answer was lost
    second = folder.put_bytes("m", b"second", if_match=first)
    with pytest.raises(ConflictError):
        folder.put_bytes("m", b"third", if_match=first)
    assert folder.read_bytes("m") == b"second"
    folder.delete(["m"])
    with pytest.raises(ConflictError):
        folder.put_bytes("m", b"third", if_match=second)


def test_racing_writers_have_one_winner(folder):
    outcomes, gate = [], threading.Barrier(6)

    def write(number):
        gate.wait()
        try:
            folder.put_bytes("m", f"writer {number}".encode(), if_none_match=True)
            outcomes.append(number)
        except ConflictError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 1
    assert folder.read_bytes("m") == f"writer {outcomes[0]}".encode()


@pytest.mark.parametrize("fault", ["503", "cut", "reset", "short"])
def test_a_bad_network_costs_repetitions_only(folder, s3_server, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(loader_objects, "_BACKOFF_S", 0.01)
    quick = {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20), "base": 2}
    monkeypatch.setattr(loader_objects, "_RETRY", loader_objects._RETRY | {"backoff": quick})
    monkeypatch.setattr(module, "_PART", 1000)
    seen, lock = set(), threading.Lock()

    def first_time(request):
        with lock:
            known = (request.method, request.seen) in seen
            seen.add((request.method, request.seen))
        # of a shorter body that is called whole, only who asked for a range can tell
        spared = request.method == "HEAD" or (fault == "short" and not request.range)
        return None if known or spared else fault

    data = os.urandom(3500)
    with FaultyProxy(s3_server, first_time) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        folder.put_bytes("x", data, if_none_match=True)
        folder.download("x", tmp_path / "x")
        assert proxy.count(fault) >= 4
    assert (tmp_path / "x").read_bytes() == data
