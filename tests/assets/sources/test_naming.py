"""Natural order and safe names."""

import pytest

from knonik_assets.sources.base import StreamSpec
from knonik_assets.sources.naming import check_streams, name_paths, natural_key, nearest, safe_stream_name
from knonik_loader.errors import ConfigError, SourceError


def test_numbers_inside_names_compare_as_numbers():
    names = ["episode_10", "episode_2", "a2b10", "a2b9", "episode_02", "x", "10", "9"]
    assert sorted(names, key=natural_key) == ["9", "10", "a2b9", "a2b10", "episode_02", "episode_2", "episode_10", "x"]


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("cam_high", "cam_high"),
        ("observation.environment_state", "observation.environment_state"),
        ("/camera/front rgb", "_camera_front_rgb"),
        (".hidden", "hidden"),
        ("Kamera ü", "Kamera_"),
        ("n" * 200, "n" * 128),
        ("../../etc", "_.._etc"),
    ],
)
def test_names_are_made_safe(name, safe):
    assert safe_stream_name(name) == safe


@pytest.mark.parametrize("name", ["", "...", "ü", "frame_time", "annotations", "rgb_top_valid_mask"])
def test_names_that_cannot_stand_are_refused(name):
    with pytest.raises(ConfigError):
        safe_stream_name(name)


def test_equal_last_parts_take_parents_along():
    paths = [("obs", "front", "rgb"), ("obs", "wrist", "rgb"), ("obs", "qpos"), ("action",)]
    assert list(name_paths(paths).values()) == ["front_rgb", "wrist_rgb", "qpos", "action"]
    nested = [("action",), ("obs", "action")]
    assert list(name_paths(nested).values()) == ["action", "obs_action"]


def spec(kind, name, source):
    return StreamSpec(kind, name, source, 1, (1,))


@pytest.mark.parametrize(
    "streams",
    [
        [spec("rgb", "a", "x/a"), spec("rgb", "a", "y/a")],
        [spec("rgb", "a", "x"), spec("numeric", "rgb_a", "y")],
        [spec("numeric", "joints", "x"), spec("numeric", "joints_time", "y")],
    ],
)
def test_streams_that_would_share_a_place_are_refused(streams):
    with pytest.raises(SourceError) as caught:
        check_streams(streams, "here")
    assert all(repr(one.source) in str(caught.value) or repr(one.name) in str(caught.value) for one in streams)


def test_streams_of_different_kinds_may_share_a_name():
    check_streams([spec("rgb", "a", "x"), spec("depth", "a", "y"), spec("numeric", "a", "z")], "here")


def test_the_nearest_name_is_named():
    known = ["observations.images.top", "observations.images.angle", "action"]
    assert "nearest is 'observations.images.top'" in nearest("observations.image.top", known)
    assert "nearest is 'action'" in nearest("actoin", known)
    assert "nearest is 'observations.images.top'" in nearest("top", known)
    assert "nearest" not in nearest("zzzz", known)
    assert "the source has none" in nearest("a", [])
