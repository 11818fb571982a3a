"""SHDR: keys where they are asked for, groups that know nothing of each other."""

import numpy as np
import pytest

from knonik_loader.errors import DecodeError
from knonik_loader.khlp.codec_contract import decode_rows
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.types import StreamInfo
from tests.loader.khlp.video import luma_psnr, rgb, video
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


def psnr(info: StreamInfo, frames: list[np.ndarray]) -> float:
    decoded = decode_rows(info, make_codec(info).encode(frames), range(len(frames)))
    return float(np.mean([luma_psnr(*pair) for pair in zip(frames, decoded, strict=True)]))


def size(info: StreamInfo, frames: list[np.ndarray]) -> int:
    return sum(len(record.data) for record in make_codec(info).encode(frames))


def test_a_clean_scene_costs_no_more_than_its_ceiling():
    y, x = np.mgrid[:96, :112]
    clean = [np.repeat((100 + 60 * np.sin((x + y + 2 * t) / 9)).astype(np.uint8)[..., None], 3, 2) for t in range(20)]
    free, capped, coarsest = rgb("shdr"), rgb("shdr", ceiling=40), rgb("shdr", quality=26)
    assert psnr(free, clean) > 43
    assert size(capped, clean) < size(free, clean)
    assert 40 < psnr(capped, clean) < psnr(free, clean)
    # never by more than four steps
    assert make_codec(rgb("shdr", ceiling=20)).encode(clean) == make_codec(coarsest).encode(clean)


def test_a_noisy_scene_is_left_alone_by_its_ceiling():
    rng = np.random.default_rng(0)
    frames = [np.clip(frame + rng.normal(0, 6, frame.shape), 0, 255).astype(np.uint8) for frame in video(20)]
    assert make_codec(rgb("shdr", ceiling=46)).encode(frames) == make_codec(rgb("shdr")).encode(frames)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_ceilings_hold_for_the_shortest_shards(count):
    info = rgb("shdr", ceiling=46)
    records = make_codec(info).encode(video(count))
    assert [read_stamp(image)[2] for image in decode_rows(info, records, range(count))] == list(range(count))
