import os
import pickle
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from knonik_loader import ConfigError, ShardedDataLoader, StorageError
from knonik_loader.engine.storage import LocalStorage, fs_type_of, open_storage
from knonik_loader.errors import TruncatedError


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_local_paths(tmp_path):
    storage = open_storage("local", {"root": str(tmp_path)})
    assert storage.resolve("a/m.json") == f"{tmp_path}/a/m.json"
    assert storage.resolve("/x/m.json") == "/x/m.json"
    assert storage.resolve("file:///x/m%20m.json") == "/x/m m.json"
    assert storage.resolve("gen_0002/h.khlp", "/x/m.json") == "/x/gen_0002/h.khlp"
    assert storage.resolve("/y/h.khlp", "/x/m.json") == "/y/h.khlp"
    assert open_storage("local").resolve("m.json") == f"{Path.cwd()}/m.json"
    with pytest.raises(ConfigError, match="fs_type: 's3'"):
        storage.resolve("s3://bucket/m.json")


def test_object_urls():
    storage = open_storage("s3", {"bucket": "b", "prefix": "lake/x/"})
    assert storage.resolve("m.json") == "s3://b/lake/x/m.json"
    assert storage.resolve("/m.json") == "s3://b/m.json"
    assert storage.resolve("s3://other/k/m.json") == "s3://other/k/m.json"
    assert storage.resolve("gen_0002/h.khlp", "s3://other/k/m.json") == "s3://other/k/gen_0002/h.khlp"
    assert storage.resolve("../h.khlp", "s3://other/k/m.json") == "s3://other/h.khlp"
    with pytest.raises(ConfigError, match="bucket"):
        open_storage("s3").resolve("m.json")
    with pytest.raises(ConfigError, match="fs_type: 'gcs'"):
        storage.resolve("gs://b/m.json")
    assert fs_type_of("az://c/m") == "azure"
    assert fs_type_of("m.json") is None


def test_unknown_parameters_are_refused():
    with pytest.raises(ConfigError, match="bucket"):
        open_storage("s3", {"buckett": "b"})
    with pytest.raises(ConfigError, match="s3"):
        open_storage("s33")


def test_reads_are_exact(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(bytes(range(256)) * 10)
    storage = LocalStorage()
    assert storage.size(str(path)) == 2560
    assert storage.read(str(path), 250, 10) == bytes([*range(250, 256), *range(4)])
    parts = storage.read_ranges(str(path), [(2559, 1), (0, 2), (5, 0)])
    assert [bytes(part) for part in parts] == [b"\xff", b"\0\1", b""]
    assert storage.read_all(str(path)) == path.read_bytes()
    with pytest.raises(TruncatedError, match="2560"):
        storage.read(str(path), 2550, 20)


def test_descriptors_are_bounded_and_a_storage_travels(tmp_path):
    storage = LocalStorage(tmp_path, open_files=3)
    before = descriptors()
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes([number]))
        assert storage.read(storage.resolve(str(number)), 0, 1) == bytes([number])
    assert descriptors() <= before + 3
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.read(copy.resolve("7"), 0, 1) == b"\7"
    storage.close()
    copy.close()
    assert descriptors() == before


def test_errors_name_the_file(tmp_path):
    storage = LocalStorage()
    with pytest.raises(StorageError, match="nope does not exist"):
        storage.read_all(str(tmp_path / "nope"))
    with pytest.raises(StorageError, match="is a directory"):
        storage.read_all(str(tmp_path))
    with pytest.raises(StorageError, match="does not exist"):
        storage.read_all("/dev/null/x")


@pytest.fixture(scope="module")
def bucket(packed):
    """An S3 bucket (served by moto) with the dataset below ``lake/``; gives fs_params."""
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"

    params = {"endpoint_url": url, "region": "us-east-1", "bucket": "bkt", "prefix": "lake", "max_pool_connections": 4}
    urllib.request.urlopen(urllib.request.Request(f"{url}/bkt", method="PUT"), timeout=30).close()
    for path in packed.folder.iterdir():
        request = urllib.request.Request(f"{url}/bkt/lake/{path.name}", data=path.read_bytes(), method="PUT")
        request.add_header("Content-Type", "application/octet-stream")
        urllib.request.urlopen(request, timeout=30).close()
    yield params
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")


@pytest.mark.parametrize("manifest", ["s3://bkt/lake/hlp_manifest.json", "hlp_manifest.json"])
def test_s3_gives_the_same_batches(packed, bucket, manifest):
    with ShardedDataLoader(packed.config(stride=3)) as loader:
        local = list(loader)
    config = packed.config(stride=3, hlp_manifest=manifest, fs_type="s3", fs_params=bucket)
    with ShardedDataLoader(config) as loader:
        remote = list(loader)
    assert len(remote) == len(local)
    for one, other in zip(remote, local, strict=True):
        for key, value in one.items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(value, other[key])


def test_s3_errors_name_the_object(bucket):
    storage = open_storage("s3", bucket)
    assert pickle.loads(pickle.dumps(storage)).resolve("x") == "s3://bkt/lake/x"
    key = storage.resolve("hlp_manifest.json")
    size = storage.size(key)
    assert len(storage.read_all(key)) == size
    assert [bytes(part) for part in storage.read_ranges(key, [(0, 1), (3, 0), (size - 2, 2)])] == [b"{", b"", b"}\n"]
    with pytest.raises(StorageError, match=r"s3://bkt/lake/nope does not exist"):
        storage.read_all(storage.resolve("nope"))
    with pytest.raises(TruncatedError, match=r"s3://bkt/lake/hlp_manifest\.json"):
        storage.read(key, size - 2, 10)


def test_a_forked_child_is_told_that_connections_do_not_survive(bucket):
    storage = open_storage("s3", bucket)
    storage.size(storage.resolve("hlp_manifest.json"))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            storage.size(storage.resolve("hlp_manifest.json"))
        except StorageError as error:
            status = 0 if "spawn" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_missing_file_is_told_once(tmp_path):
    missing = str(tmp_path / "gone.khlp")
    for call in (lambda storage: storage.size(missing), lambda storage: storage.read(missing, 0, 1)):
        with pytest.raises(StorageError) as caught:
            call(open_storage("local", {}))
        assert str(caught.value).count(missing) == 1
