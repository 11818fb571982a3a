"""What `detect` shows of recordings."""

import pytest

from knonik_assets.sources.detect import config_text, detect
from knonik_assets.sources.detect_table import render
from knonik_loader.errors import SourceError
from tests.assets.sources.bags import Bag, at
from tests.assets.sources.test_ros_topics import PICTURES, N, with_camera


def test_detect_shows_the_rate_at_which_each_topic_was_recorded(tmp_path):
    bag = with_camera()
    for t in range(0, N, 2):
        bag.rgb("/side/image_raw", at(t), PICTURES[t])
    for t in range(10 * N):
        bag.floats("/value", at(t, 300), [t])
    found = detect(bag.write2(tmp_path / "run"))
    assert {one["name"]: one["recorded_fps"] for one in found.streams} == {"cam": 30, "side": 15, "value": 300}
    assert {one["fps"] for one in found.streams if one["kind"] == "rgb"} == {30}
    table = render(found).plain
    assert [word in table for word in ("30 fps", "15 fps", "300 Hz")] == [True] * 3
    assert "15 fps" in config_text(found)
    assert "of 4 frames" in config_text(found)


def test_a_bag_without_a_frame_is_told_once(tmp_path):
    bag = Bag()
    bag.floats("/value", at(0), [1])
    found = detect(bag.write2(tmp_path / "run"))
    assert [text for text in found.warnings if "no pictures" in text] == []
    assert found.warnings[-1] == "its one episode has no stream"
    with pytest.raises(SourceError, match="no camera that can be decoded") as caught:
        config_text(found)
    assert ".;" not in str(caught.value)
