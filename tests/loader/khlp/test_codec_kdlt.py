"""KDLT: which frames are keys, which blocks a delta holds, and that neither light nor damage shows a wrong frame."""

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st

from knonik_loader.errors import DecodeError, PackError
from knonik_loader.khlp.codec_contract import decode_rows
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.codecs.exposure import IDENTITY, Exposure, apply, plan_of, table_of
from knonik_loader.khlp.codecs.kdlt import HEAD
from knonik_loader.khlp.types import Record
from tests.loader.khlp.video import flicker, jpegs, luma_psnr, rgb, video
from tests.support.stamps import read_stamp


def test_a_source_jpeg_becomes_the_key_itself():
    sources = jpegs(video(12), 88, "420")
    records = make_codec(rgb("kdlt", gop=6)).encode(sources)
    assert records[0].data == sources[0]
    assert records[6].data == sources[6]
    # unless it is finer than asked for
    finer = jpegs(video(12), 99, "444")
    records = make_codec(rgb("kdlt", gop=6)).encode(finer)
    assert len(records[0].data) < len(finer[0])
    assert [read_stamp(image)[2] for image in decode_rows(rgb("kdlt", gop=6), records, range(12))] == list(range(12))


@pytest.mark.parametrize("codec", ["kdlt", "shdr"])
def test_a_damaged_jpeg_is_named(codec):
    sources = jpegs(video(4))
    sources[2] = sources[2][:700] + bytes(200) + sources[2][900:]
    with pytest.raises(PackError, match="frame 2 of the shard"):
        make_codec(rgb(codec)).encode(sources)


def test_is_smaller_where_little_moves_and_never_larger():
    frames = video(20, 240, 320, stamped=False)
    plain = [len(data) for data in jpegs(frames, 90, "420")]
    records = make_codec(rgb("kdlt", 240, 320)).encode(frames)
    for row, record in enumerate(records):
        if row % 10:
            assert len(record.data) <= plain[row]
    assert sum(len(record.data) for record in records) < 0.4 * sum(plain)


@pytest.mark.parametrize("quality", [85, 90, 95])
def test_noise_of_recordings_that_were_jpegs_is_no_movement(quality):
    """Their own JPEG loses next to nothing, which says nothing about the camera's noise; what moves is still seen."""
    rng = np.random.default_rng(4)
    scene = rng.integers(60, 190, (30, 40, 3)).repeat(8, 0).repeat(8, 1)  # (240, 320, 3)
    frames = []
    for step in range(10):
        frame = np.clip(np.rint(scene + rng.normal(0, 1.5, scene.shape)), 0, 255).astype(np.uint8)
        frame[100:140, 20 * step : 20 * step + 40] = (230, 30, 30)
        frames.append(frame)
    sources = jpegs(frames, quality, "420")
    info = rgb("kdlt", 240, 320)
    records = make_codec(info).encode(sources)
    assert [record.key_back for record in records] == list(range(10))
    assert sum(len(record.data) for record in records) < 0.5 * sum(map(len, sources))
    for step, image in enumerate(decode_rows(info, records, range(10))):
        patch = image[104:136, 20 * step + 4 : 20 * step + 36].reshape(-1, 3).mean(0)
        np.testing.assert_allclose(patch, (230, 30, 30), atol=12)
        left = image[104:136, : max(0, 20 * step - 4)]
        assert not ((left[..., 0] > 215) & (left[..., 1] < 60)).any()
        assert luma_psnr(image, simplejpeg.decode_jpeg(sources[step])) > 37


def test_stores_a_frame_whole_when_everything_changed():
    rng = np.random.default_rng(9)
    frames = [rng.integers(0, 255, (96, 112, 3), dtype=np.uint8) for _ in range(4)]
    records = make_codec(rgb("kdlt")).encode(frames)
    assert [record.intra for record in records] == [True] * 4
    assert [record.key_back for record in records] == [0, 0, 0, 0]


def test_mixes_whole_frames_and_deltas_of_one_key():
    frames = video(8)
    frames[3] = np.random.default_rng(9).integers(0, 255, frames[3].shape, dtype=np.uint8)
    info = rgb("kdlt")
    records = make_codec(info).encode(frames)
    assert [record.key_back for record in records] == [0, 1, 2, 0, 4, 5, 6, 7]
    whole = decode_rows(info, records, range(8))
    assert [read_stamp(whole[row])[2] for row in (0, 1, 2, 4, 5, 6, 7)] == [0, 1, 2, 4, 5, 6, 7]


def test_takes_a_key_that_the_caller_decoded():
    frames, info = video(8), rgb("kdlt")
    records = make_codec(info).encode(frames)
    whole = decode_rows(info, records, range(8))
    key, before = whole[0].copy(), whole[0].copy()
    out = {5: np.zeros(info.shape, np.uint8)}
    make_codec(info).decode({5: memoryview(records[5].data)}, [5], out, key=key)
    np.testing.assert_array_equal(out[5], whole[5])
    np.testing.assert_array_equal(key, before)


def test_strip_wraps_past_the_widest_jpeg():
    from knonik_loader.khlp.codecs.kdlt import MAX_ROW_BLOCKS, runs

    # 65 x 132 = 8580 blocks; the upper 32 rows of them change but for one: 4223, more than one strip row holds
    info = rgb("kdlt", 1040, 2112, quality=90)
    still = np.full((1040, 2112, 3), 60, np.uint8)
    moved = still.copy()
    moved[:512] = (80, 150, 200)
    moved[496:512, 2000:2016] = (200, 40, 40)
    moved[:16, :16] = 60
    records = make_codec(info).encode([still, moved])
    assert [record.key_back for record in records] == [0, 1]
    decoded = decode_rows(info, records, [1])[0]
    assert np.abs(decoded.astype(int) - moved).max() <= 4
    pieces = runs(np.arange(4225), 65)
    assert sum(piece[4] for piece in pieces) == 4225 * 16
    assert max(piece[3] + piece[4] for piece in pieces) == MAX_ROW_BLOCKS * 16


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:11], "cut off"),
        (lambda data: data[:6] + b"\xff" * 6 + data[12:], "decode|marks"),
        (lambda data: data[:6] + bytes(6) + data[12:], "behind its bitmap"),
        (lambda data: data[:11] + bytes([data[11] | 1]) + data[12:], "marks block"),
    ],
)
def test_damaged_bitmaps_are_errors(damage, message):
    # 96 x 112: 6 x 7 blocks, 42 bits in 6 bytes
    info = rgb("kdlt")
    records = make_codec(info).encode(video(3))
    data = damage(records[2].data)
    with pytest.raises(DecodeError, match=message):
        make_codec(info).decode(
            {0: memoryview(records[0].data), 2: memoryview(data)}, [2], {2: np.zeros(info.shape, np.uint8)}
        )


def exposures(records: list[Record]) -> list[Exposure]:
    """Those of the deltas among records."""
    return [Exposure(*HEAD.unpack_from(record.data)[1:]) for record in records if record.key_back]


def test_flicker_is_told_by_exposure():
    still = video(20, 240, 320, stamped=False)
    frames, info = flicker(still), rgb("kdlt", 240, 320)
    records = make_codec(info).encode(frames)
    assert [record.key_back for record in records] == [row % 10 for row in range(20)]
    found = exposures(records)
    gains = 1 + 0.02 * np.sin(2.3 * np.arange(20))
    wanted = [gains[row] / gains[row - record.key_back] for row, record in enumerate(records) if record.key_back]
    middle = np.array([1 + light.gain / 2048 + light.offset / 64 / 125 for light in found])
    assert np.abs(middle - wanted).max() < 0.006
    # as small as in steady light, and nearer than what the light does
    steady = make_codec(info).encode(still)
    assert sum(len(record.data) for record in records) < 1.1 * sum(len(record.data) for record in steady)
    for frame, decoded in zip(frames, decode_rows(info, records, range(20)), strict=True):
        assert luma_psnr(decoded, frame) > 44  # 2 % of a grey are 40 dB


@pytest.mark.parametrize(("height", "width"), [(96, 112), (97, 121)])
def test_deltas_decode_as_the_format_page_says(height, width):
    info = rgb("kdlt", height, width, chroma=444)
    records = make_codec(info).encode(flicker(video(10, height, width, stamped=False), 0.04))
    assert any(light != IDENTITY for light in exposures(records))
    decoded = decode_rows(info, records, range(10))
    down, across = -(-height // 16), -(-width // 16)
    for row, record in enumerate(records):
        if not record.key_back:
            continue
        _, gain, offset = HEAD.unpack_from(record.data)
        key = decoded[row - record.key_back].astype(int)
        picture = np.clip(key + (key * gain + 32 * offset + 1024 >> 11), 0, 255)
        picture = np.pad(picture, ((0, down * 16 - height), (0, across * 16 - width), (0, 0)))
        bits = -(-down * across // 8)
        changed = np.unpackbits(np.frombuffer(record.data, np.uint8, bits, 6))[: down * across]
        if changed.any():
            strip = simplejpeg.decode_jpeg(record.data[6 + bits :], "RGB", False, True)
            for at, block in enumerate(np.flatnonzero(changed)):
                y, x = block // across * 16, block % across * 16
                picture[y : y + 16, x : x + 16] = strip[:, 16 * at : 16 * at + 16]
        np.testing.assert_array_equal(decoded[row], picture[:height, :width], err_msg=f"row {row}")


def test_a_scene_cut_begins_a_new_key():
    first, second = video(6, stamped=False), [frame[::-1, ::-1].copy() for frame in video(7, stamped=False)]
    records = make_codec(rgb("kdlt")).encode(first + second)
    assert [record.key_back for record in records] == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6]
    assert not any(record.intra for record in records)


def test_a_jump_of_exposure_begins_a_new_key():
    frames = video(12, stamped=False)
    frames[5:] = [np.clip(frame * 1.35, 0, 255).astype(np.uint8) for frame in frames[5:]]
    records = make_codec(rgb("kdlt")).encode(frames)
    assert [record.key_back for record in records] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]


def test_where_all_moves_nothing_is_larger_than_a_jpeg():
    rng = np.random.default_rng(4)
    scene = rng.integers(0, 255, (40, 60, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    frames = [np.ascontiguousarray(scene[4 * t : 4 * t + 160, 6 * t : 6 * t + 240]) for t in range(20)]
    records = make_codec(rgb("kdlt", 160, 240)).encode(frames)
    assert [record.data for record in records] == jpegs(frames, 90, "420")
    assert all(record.intra and not record.key_back for record in records)


def test_a_lone_frame_is_a_jpeg():
    (frame,) = video(1)
    for source in (frame, jpegs([frame], 80, "420")[0]):
        (record,) = make_codec(rgb("kdlt")).encode([source])
        assert record.data == (source if isinstance(source, bytes) else jpegs([frame], 90, "420")[0])
        assert record.intra


def test_a_key_that_no_delta_came_to_refer_to_is_a_whole_frame():
    """The next frame is near enough, but its only other block costs as much as both do."""
    flat = np.full((16, 32, 3), 128, np.uint8)
    noisy = flat.copy()
    noisy[:, 16:] = np.random.default_rng(3).integers(0, 256, (16, 16, 3), np.uint8)
    records = make_codec(rgb("kdlt", 16, 32)).encode([flat, noisy, flat[::-1].copy()])
    assert records[1].key_back == 0
    referred = {row - record.key_back for row, record in enumerate(records) if record.key_back}
    assert [record.intra for record in records] == [
        record.key_back == 0 and row not in referred for row, record in enumerate(records)
    ]
    records = make_codec(rgb("kdlt", 16, 32)).encode([flat, noisy])
    assert [record.intra for record in records] == [True, True]


def test_a_flat_scene_costs_a_bitmap():
    frames = [np.full((96, 112, 3), 128, np.uint8)] * 10
    records = make_codec(rgb("kdlt")).encode(frames)
    assert [len(record.data) for record in records[1:]] == [12] * 9
    assert all((decoded == 128).all() for decoded in decode_rows(rgb("kdlt"), records, range(10)))


def test_no_frames_are_no_records():
    assert make_codec(rgb("kdlt")).encode([]) == []


@given(gain=st.integers(-(1 << 15), (1 << 15) - 1), offset=st.integers(-(1 << 15), (1 << 15) - 1))
def test_any_exposure_moves_values_by_its_formula(gain, offset):
    check_exposure(Exposure(gain, offset))


@given(gain=st.integers(-250, 250), offset=st.integers(-640, 640))
def test_weak_exposures_move_values_by_the_formula(gain, offset):
    check_exposure(Exposure(gain, offset))
    if abs(gain) <= 200 and abs(offset) <= 320:
        assert plan_of(Exposure(gain, offset)) is not None


def check_exposure(light: Exposure) -> None:
    values = np.arange(256)
    wanted = np.clip(values + (values * light.gain + 32 * light.offset + 1024 >> 11), 0, 255)
    np.testing.assert_array_equal(table_of(light), wanted)
    source = values.astype(np.uint8).reshape(2, 128)
    out = np.full_like(source, 7)
    apply(light, source, out)
    np.testing.assert_array_equal(out.ravel(), wanted)
    apply(light, source, source)
    np.testing.assert_array_equal(source, out)


def test_exposure_of_a_picture_larger_than_one_chunk():
    rng = np.random.default_rng(2)
    picture = rng.integers(0, 256, (301, 199, 3), dtype=np.uint8)
    for light in (Exposure(-9, 20), Exposure(61, -7), Exposure(6000, 0)):
        out = np.empty_like(picture)
        apply(light, picture, out)
        np.testing.assert_array_equal(out, table_of(light)[picture])
