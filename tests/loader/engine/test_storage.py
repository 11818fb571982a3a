import os
import pickle
import socket
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from knonik_loader import ConfigError, ShardedDataLoader, StorageError
from knonik_loader.engine import objects
from knonik_loader.engine.storage import LocalStorage, fs_type_of, open_storage
from knonik_loader.errors import TruncatedError
from tests.support.file_server import FileServer


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
    with pytest.raises(ConfigError, match="names no bucket; write s3://BUCKET"):
        open_storage("s3").resolve("s3:///m.json")
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


pytestmark = pytest.mark.usefixtures("credentials")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(objects, "_BACKOFF_S", 0.01)


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


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9000", "http://", "http://host:port", "http://a b", "ftp://host", "http:///lake"]
)
def test_an_endpoint_that_is_no_address_is_refused(address, monkeypatch, credentials):
    """The client library panics at some of these."""
    with pytest.raises(ConfigError, match="is no address; write http://HOST:PORT"):
        open_storage("s3", {"endpoint_url": address}).size("s3://bkt/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    with pytest.raises(ConfigError, match="is no address"):
        open_storage("s3").read_all("s3://bkt/x")


def test_an_endpoint_that_nobody_serves_is_told_in_a_sentence(monkeypatch, credentials):
    monkeypatch.setattr(objects, "_ATTEMPTS", 1)
    monkeypatch.setattr(objects, "_RETRY", {"max_retries": 0, "retry_timeout": timedelta(seconds=5)})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(StorageError) as told:
        open_storage("s3", {"endpoint_url": f"http://127.0.0.1:{port}", "region": "us-east-1"}).size("s3://bkt/x")
    assert "error sending request (Connection refused); check the network" in str(told.value)
    assert "Debug" not in str(told.value)


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


@pytest.mark.parametrize(
    ("fs_type", "url", "params"),
    [
        ("gcs", "gs://bkt/lake/hlp_manifest.json", {}),
        ("gcs", "hlp_manifest.json", {"bucket": "bkt", "prefix": "lake"}),
        ("azure", "az://bkt/lake/hlp_manifest.json", {"account": "acc"}),
        ("azure", "hlp_manifest.json", {"container": "bkt", "prefix": "lake", "account": "acc"}),
    ],
)
def test_the_clients_of_google_and_azure_read_what_a_plain_server_has(packed, fs_type, url, params):
    """Their own services and emulators are not here: this is their clients' requests, and what becomes of the answers."""
    files = {f"/bkt/lake/{path.name}": path.read_bytes() for path in packed.folder.iterdir()}
    with ShardedDataLoader(packed.config(stride=5)) as loader:
        local = list(loader)
    with FileServer(files) as server:
        params = params | {"endpoint_url": server.url, "anonymous": True}
        config = packed.config(stride=5, hlp_manifest=url, fs_type=fs_type, fs_params=params)
        with ShardedDataLoader(config) as loader:
            remote = list(loader)
        assert "authorization" not in server.headers
        with pytest.raises(StorageError, match=r"(gs|az)://bkt/lake/nope\.json does not exist"):
            ShardedDataLoader(config | {"hlp_manifest": url.replace("hlp_manifest", "nope")})
    for one, other in zip(remote, local, strict=True):
        for key, value in one.items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(value, other[key])


def test_azure_needs_an_account(monkeypatch):
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    storage = open_storage("azure", {"container": "c"})
    with pytest.raises(ConfigError, match=r"fs_params \(fs_type 'azure'\): .*Account must be specified"):
        storage.read_all(storage.resolve("m.json"))


def test_credentials_of_google_come_from_the_environment(tmp_path, monkeypatch):
    """A service account's key is read and used to sign; that the account is no real one is only seen by Google."""
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "nope.json"))
    storage = open_storage("gcs", {"bucket": "b"})
    with pytest.raises(ConfigError, match=r"fs_params \(fs_type 'gcs'\).*nope\.json"):
        storage.read_all(storage.resolve("m.json"))
