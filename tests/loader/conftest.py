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
