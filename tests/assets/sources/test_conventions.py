"""Colours and orientation in every family: what the config says of the pictures happens to each of them, or is told."""

import numpy as np
import pytest

from knonik_assets.sources.base_contract import as_array
from knonik_loader.errors import ConfigError
from tests.assets.sources.bags import Bag, at
from tests.assets.sources.support import jpeg, only_episode, source
from tests.support.mutations import FAMILIES
from tests.support.stamps import episode_arrays, read_stamp

TURNS = {"flip_vertical": np.s_[:, ::-1], "rotate_180": np.s_[:, ::-1, ::-1]}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    made = {}

    def dataset(family):
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            FAMILIES[family].write(made[family])
        return made[family] / FAMILIES[family].root

    return dataset


def pictures(root, family, **keys):
    """(episode, kind, stream) → whether the source holds encoded pictures, and (T, H, W[, 3]) what they show."""
    found = source(root, **FAMILIES[family].config, **keys)
    shown, warnings = {}, []
    for ref in found.episodes():
        with found.open(ref) as episode:
            for spec in episode.streams:
                if spec.kind != "numeric":
                    frames = [as_array(frame) for frame in episode.frames(spec)]
                    shown[ref.source_id, spec.kind, spec.name] = spec.encoding in ("jpeg", "png"), np.stack(frames)
            warnings += episode.facts.warnings
    assert shown
    return shown, warnings + found.warnings


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_picture_and_depth_map_is_turned(datasets, family, orientation):
    plain, _ = pictures(datasets(family), family)
    turned, _ = pictures(datasets(family), family, orientation=orientation)
    assert turned.keys() == plain.keys()
    for key, (_, shown) in plain.items():
        assert not turned[key][0], f"{key}: bytes that nobody turned"
        np.testing.assert_array_equal(turned[key][1], shown[TURNS[orientation]], err_msg=str(key))


@pytest.mark.parametrize("family", FAMILIES)
def test_channels_are_exchanged_in_encoded_pictures_alone(datasets, family):
    plain, _ = pictures(datasets(family), family)
    if family in ("calvin", "npy_separate"):  # never hold an encoded picture
        with pytest.raises(ConfigError, match="jpeg_channel_order bgr has no meaning"):
            pictures(datasets(family), family, jpeg_channel_order="bgr")
        return
    exchanged, warnings = pictures(datasets(family), family, jpeg_channel_order="bgr")
    assert exchanged.keys() == plain.keys()
    for key, (encoded, shown) in plain.items():
        wanted = shown[..., ::-1] if encoded and key[1] == "rgb" else shown
        np.testing.assert_array_equal(exchanged[key][1], wanted, err_msg=str(key))
    told = any("jpeg_channel_order has no effect" in text for text in warnings)
    if not any(encoded for (_, kind, _), (encoded, _) in plain.items() if kind == "rgb"):
        assert told, "an option that does nothing, and nobody says so"


@pytest.mark.parametrize("right", [True, False])
def test_a_bag_whose_driver_encoded_exchanged_channels(tmp_path, right):
    bag, video = Bag(), episode_arrays(1, 3)["cam_0"]
    for t, picture in enumerate(video):
        bag.compressed("/cam/compressed", at(t), jpeg(picture, colorspace="RGB" if right else "BGR"), "jpeg")
    with only_episode(bag.write2(tmp_path / "run"), "rosbag", jpeg_channel_order="rgb" if right else "bgr") as episode:
        (spec,) = episode.streams
        assert [read_stamp(as_array(one)) for one in episode.frames(spec)] == [(0, 1, t) for t in range(3)]
        assert not episode.facts.warnings


def test_a_bag_without_encoded_pictures_has_no_channels_to_exchange(tmp_path):
    bag = Bag()
    for t, picture in enumerate(episode_arrays(1, 3)["cam_0"]):
        bag.rgb("/cam/image_raw", at(t), picture)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag", jpeg_channel_order="bgr") as episode:
        (spec,) = episode.streams
        assert [read_stamp(as_array(one)) for one in episode.frames(spec)] == [(0, 1, t) for t in range(3)]
        assert any("jpeg_channel_order has no effect" in text for text in episode.facts.warnings)
