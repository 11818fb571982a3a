"""SHDR: keys where they are asked for, groups that know nothing of each other."""

import numpy as np
import pytest

from knonik_loader.errors import DecodeError
from knonik_loader.khlp.codecs import make_codec
from tests.loader.khlp.video import rgb, video
from tests.support.stamps import read_stamp


def test_shdr_keys_stand_every_gop_and_decode_alone():
    info = rgb("shdr", gop=5)
    records = make_codec(info).encode(video(12))
    assert [record.key_back for record in records] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    for row in (0, 5, 10):
        out = np.zeros(info.shape, np.uint8)
        make_codec(info).decode({row: memoryview(records[row].data)}, [row], {row: out})
        assert read_stamp(out) == (1, 2, row)


def test_shdr_never_puts_one_groups_frame_into_another():
    info = rgb("shdr", gop=5)
    records = [memoryview(record.data) for record in make_codec(info).encode(video(12))]
    codec = make_codec(info)
    out = {row: np.zeros(info.shape, np.uint8) for row in range(12)}
    for rows, wanted in (([5, 6, 7], [7]), ([0, 1], [1]), ([10], [10]), ([5, 6], [5, 6])):
        codec.decode({row: records[row] for row in rows}, wanted, {row: out[row] for row in wanted})
    assert {row: read_stamp(out[row])[2] for row in (7, 1, 10, 5, 6)} == {7: 7, 1: 1, 10: 10, 5: 5, 6: 6}


def test_shdr_pictures_of_another_size_are_errors():
    small = make_codec(rgb("shdr", 96, 112)).encode(video(1))[0]
    large = make_codec(rgb("shdr", 1080, 1920)).encode([np.zeros((1080, 1920, 3), np.uint8)])[0]
    for data, info in ((small.data, rgb("shdr", 98, 112)), (large.data, rgb("shdr", 96, 112))):
        with pytest.raises(DecodeError):
            make_codec(info).decode({0: memoryview(data)}, [0], {0: np.zeros(info.shape, np.uint8)})
