import urllib.request

import pytest

from tests.support.packed import PROFILES, Packed, write_packed


@pytest.fixture(scope="session", params=PROFILES)
def every_profile(request, tmp_path_factory) -> Packed:
    """Three regular episodes in each profile, not to be changed."""
    return write_packed(tmp_path_factory.mktemp(request.param), profile=request.param)


@pytest.fixture(scope="session")
def packed(tmp_path_factory) -> Packed:
    """The same of single JPEGs, not to be changed."""
    return write_packed(tmp_path_factory.mktemp("fast"))


@pytest.fixture
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")


@pytest.fixture(scope="session")
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
