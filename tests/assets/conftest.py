"""Fixtures of the pipeline's tests."""

import pytest

from tests.support.buckets import downloaded_keys


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of what is downloaded in this process."""
    return downloaded_keys(monkeypatch)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The folder that staged data goes through, which must be empty again in the end."""
    folder = tmp_path / "scratch"
    monkeypatch.setenv("KNONIK_SCRATCH", str(folder))
    yield folder
    assert not list(folder.glob("room-*")), "staged data is gone when the work is"
