"""Places as people write them."""

import pickle
from pathlib import Path

import pytest

from knonik_assets.storage import Place
from knonik_loader.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "shown", "bucket", "key", "name"),
    [
        ("s3://bkt/lake/a/", "s3://bkt/lake/a", "bkt", "lake/a", "a"),
        ("S3A://bkt/lake//a/./b/../c", "s3://bkt/lake/a/c", "bkt", "lake/a/c", "c"),
        ("s3://bkt", "s3://bkt", "bkt", "", ""),
        ("gcs://bkt/x", "gs://bkt/x", "bkt", "x", "x"),
        ("azure://bkt/x y", "az://bkt/x y", "bkt", "x y", "x y"),
    ],
)
def test_urls(given, shown, bucket, key, name):
    place = Place.of(given, "input_dir")
    assert place.is_remote
    assert (str(place), place.bucket, place.key, place.name) == (shown, bucket, key, name)
    assert Place.of(str(place), "again") == place == pickle.loads(pickle.dumps(place))
    assert str(place / "d/e.bin").endswith("/d/e.bin")
    assert (place / "d").parent == place
    with pytest.raises(ConfigError, match="local path is needed"):
        _ = place.path


def test_local_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (tmp_path / "a b", str(tmp_path / "a b"), "~/a b", f"file://{tmp_path}/a%20b"):
        place = Place.of(given, "input_dir")
        assert not place.is_remote
        assert place.path == tmp_path / "a b"
        assert place.fs_type == "local"
        assert place.bucket == place.key == ""
        assert (place / "c").path == tmp_path / "a b" / "c"
        assert place.parent.path == tmp_path
    assert Place.of("relative/x", "x").path == Path("relative/x")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "input_dir is empty"),
        ("ftp://host/x", "known schemes are s3, gs, az and file"),
        ("s3://", "names no bucket"),
        ("s3:///key", "names no bucket"),
        (Path("s3://bkt/key"), "give a URL as text"),
        (7, "must be a path or URL"),
        ("a\0b", "zero byte"),
    ],
)
def test_what_is_no_place(given, says):
    with pytest.raises(ConfigError, match=says):
        Place.of(given, "input_dir")
