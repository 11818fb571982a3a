import pytest

from tests.support.packed import Packed, write_packed

pytest.importorskip("torch")


@pytest.fixture(scope="session")
def long(tmp_path_factory) -> Packed:
    """Episodes of 300 frames (and a shorter one), not to be changed."""
    folder = tmp_path_factory.mktemp("long")
    return write_packed(folder, [300, 300, 70], shard_size=50, splits=["train", "train", "val"])


@pytest.fixture(scope="session")
def many(tmp_path_factory) -> Packed:
    """Ten short episodes without pictures, with splits and instructions."""
    lengths = [17, 9, 23, 11, 30, 8, 14, 21, 12, 19]
    splits = ["train"] * 7 + ["val"] * 3
    language = ["pick", "place"] * 4 + ["", "stack"]
    folder = tmp_path_factory.mktemp("many")
    return write_packed(folder, lengths, cameras=0, depth=False, splits=splits, language=language)
