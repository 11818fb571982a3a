"""Fixtures that several folders use."""

import os
import signal
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


def pytest_sessionstart() -> None:
    """A suite that was started in the background has SIGINT ignored, and so would every program that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
