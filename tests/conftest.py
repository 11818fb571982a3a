"""Fixtures that several folders use."""

import logging
import os
import signal
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is.
settings.register_profile("knonik", deadline=None)
settings.load_profile("knonik")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real recordings (``KNONIK_REAL_DATA``); tests that need it skip without."""
    folder = os.environ.get("KNONIK_REAL_DATA")
    if not folder:
        pytest.skip("KNONIK_REAL_DATA is not set")
    return Path(folder)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """URL of an S3 server (moto's, a real one on loopback)."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for every request
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """``s3://BUCKET`` of an empty bucket, which the environment has the credentials and endpoint of."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_server,
    }.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{uuid.uuid4().hex}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_server}/{bucket}", method="PUT"), timeout=30).close()
    return f"s3://{bucket}"


def pytest_sessionstart() -> None:
    """A suite that was started in the background has SIGINT ignored, and so would every program that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
