"""Pictures and depth in every form that recordings hold them."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from knonik_assets.sources import images
from knonik_assets.sources.base import EncodedImage
from knonik_assets.sources.images import (
    _MARKER_IN_SCAN,
    _scan_reaches,
    cut_encoded,
    decode_depth,
    decode_image,
    depth_to_m,
    image_shape,
    to_rgb,
    turn,
)
from knonik_loader.errors import EpisodeError
from tests.assets.sources.support import jpeg, png
from tests.support.stamps import episode_arrays, read_stamp


@pytest.fixture(scope="module")
def picture():
    return episode_arrays(3, 2)["cam_0"][1]


def pil_jpeg(picture, **options) -> bytes:
    buffer = io.BytesIO()
    picture = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    picture.save(buffer, "JPEG", quality=95, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("tail", [b"", b"\0" * 500, b"\0\0stale bytes \xff\xd9 of a longer picture\xff\xd9\0\0"])
@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_padding_behind_a_picture_is_cut(picture, kind, tail):
    data = jpeg(picture) if kind == "jpeg" else png(picture)
    found = cut_encoded(data + tail, "row")
    assert found == EncodedImage(data, kind)
    assert read_stamp(decode_image(found)) == (0, 3, 1)


def test_a_thumbnail_inside_a_jpeg_is_not_its_end(picture):
    thumbnail = jpeg(picture[::8, ::8])
    data = jpeg(picture)
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    with_thumbnail = data[:2] + segment + data[2:]
    assert thumbnail.endswith(b"\xff\xd9")
    assert cut_encoded(with_thumbnail + b"\0" * 9, "row").data == with_thumbnail


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"optimize": True}])
def test_jpeg_flavours_decode(picture, options):
    found = cut_encoded(pil_jpeg(picture, **options) + b"\0\0", "row")
    assert read_stamp(decode_image(found)) == (0, 3, 1)


def test_restart_markers_are_no_end(picture):
    data = pil_jpeg(picture, restart_marker_rows=1)
    assert b"\xff\xd0" in data
    assert cut_encoded(data + b"\0" * 5, "row").data == data


def test_grey_and_transparent_pictures_come_out_rgb(picture):
    grey = np.ascontiguousarray(picture[..., 0])
    for data in (pil_jpeg(grey), png(grey)):
        found = decode_image(cut_encoded(data, "row"))
        assert found.shape == (*grey.shape, 3)
        assert np.abs(found.astype(int) - grey[..., None]).mean() < 3
    clear = np.dstack([picture, np.full(grey.shape, 128, np.uint8)])
    np.testing.assert_array_equal(decode_image(cut_encoded(png(clear), "row")), picture)


def test_cmyk_is_refused(picture):
    data = pil_jpeg(Image.fromarray(picture).convert("CMYK"))
    with pytest.raises(EpisodeError, match="CMYK"):
        decode_image(cut_encoded(data, "row 3"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0" * 64, "nothing but zeros"),
        (b"GIF89a" + b"\1" * 40, "no JPEG or PNG"),
        (b"", "no JPEG or PNG"),
    ],
)
def test_other_bytes_are_refused(data, message):
    with pytest.raises(EpisodeError, match=message):
        cut_encoded(data, "row")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.98])
@pytest.mark.parametrize("make", [jpeg, png])
def test_a_picture_that_was_cut_off_is_refused(picture, make, share):
    data = make(picture)
    with pytest.raises(EpisodeError, match="cut off"):
        cut_encoded(data[: int(len(data) * share)], "episode_3.hdf5: top, row 7")


def test_an_absurd_size_is_refused_before_anything_is_allocated(picture):
    data = bytearray(png(picture))
    data[16:24] = struct.pack(">II", 1 << 20, 1 << 20)
    with pytest.raises(EpisodeError, match="1048576 x 1048576"):
        image_shape(EncodedImage(bytes(data), "png"), "row")


def test_sixteen_bit_grey_is_no_colour_picture():
    with pytest.raises(EpisodeError, match="depths"):
        decode_image(EncodedImage(png(np.full((20, 30), 900, np.uint16)), "png"))


@pytest.mark.parametrize("layout", ["hwc", "chw"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.float16, np.int64, "unit"])
def test_arrays_of_every_layout_and_type(picture, layout, channels, dtype):
    value = np.dstack([picture, picture[..., :1]])[..., :channels]
    wanted = value[..., :3] if channels > 1 else np.repeat(value, 3, 2)
    value = value / 255 if dtype == "unit" else value.astype(dtype)
    if layout == "chw":
        value = np.moveaxis(value, -1, 0)
    found = to_rgb(value)
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous


@pytest.mark.parametrize(
    "value",
    [
        np.full((9, 9, 3), np.nan, np.float32),
        np.full((9, 9, 3), -0.5, np.float32),
        np.full((9, 9, 3), 300, np.float32),
        np.full((9, 9, 3), 256, np.uint16),
        np.full((9, 9, 3), -1, np.int32),
        np.ones((9, 9, 3), bool),
        np.ones((9, 9, 6), np.uint8),
        np.ones((2, 9, 9, 3), np.uint8),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(value):
    with pytest.raises(EpisodeError):
        to_rgb(value, "here")


def test_a_known_scale_is_kept_to():
    dark = np.full((9, 9, 3), 1.0, np.float32)
    assert to_rgb(dark, scale=255.0).max() == 255
    assert to_rgb(dark, scale=1.0).max() == 1
    with pytest.raises(EpisodeError, match="outside 0 to 1"):
        to_rgb(dark * 2, scale=255.0)


def test_turning():
    value = np.arange(24).reshape(2, 4, 3)
    np.testing.assert_array_equal(turn(value, "flip_vertical"), value[::-1])
    np.testing.assert_array_equal(turn(value, "rotate_180"), value[::-1, ::-1])
    assert turn(value, "as_stored") is value


@pytest.mark.parametrize(
    ("value", "unit", "wanted"),
    [
        (np.array([[0, 1500, 65535]], np.uint16), None, [0, 1.5, 65.535]),
        (np.array([[0, 1500, -3]], np.int32), None, [0, 1.5, 0]),
        (np.array([[0, 1500, 4]], np.uint16), 0.00025, [0, 0.375, 0.001]),
        (np.array([[0.5, np.nan, np.inf]], np.float32), None, [0.5, 0, 0]),
        (np.array([[0.5, -1, -np.inf]], np.float16), None, [0.5, 0, 0]),
        (np.array([[500.0, 250.0, 0]], np.float32), 0.001, [0.5, 0.25, 0]),
    ],
)
def test_depth_comes_out_in_metres(value, unit, wanted):
    for shaped in (value, value[..., None], value[None]):
        found = depth_to_m(shaped, unit)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, [wanted], rtol=1e-6)


@pytest.mark.parametrize("value", [np.ones((4, 4, 3), np.uint16), np.ones((4, 4), bool), np.ones(4, np.uint16)])
def test_what_is_no_depth_map_is_refused(value):
    with pytest.raises(EpisodeError, match="no depth map"):
        depth_to_m(value, None)


def test_encoded_depth_keeps_its_sixteen_bits():
    value = np.arange(600, dtype=np.uint16).reshape(20, 30) * 100
    np.testing.assert_array_equal(decode_depth(png(value), "row"), value)
    buffer = io.BytesIO()
    Image.fromarray(value.astype(np.float32) / 7).save(buffer, "TIFF")
    np.testing.assert_array_equal(decode_depth(buffer.getvalue(), "row"), value.astype(np.float32) / 7)
    with pytest.raises(EpisodeError, match="RGB picture"):
        decode_depth(png(np.zeros((4, 4, 3), np.uint8)), "row")
    with pytest.raises(EpisodeError, match="damaged"):
        decode_depth(b"garbage", "row")


def test_damaged_jpegs_are_named(picture):
    data = jpeg(picture)
    with pytest.raises(EpisodeError, match="row 9"):
        decode_image(EncodedImage(data[: len(data) // 2], "jpeg"), "row 9")
    with pytest.raises(EpisodeError, match="row 9"):
        decode_image(EncodedImage(data[:20], "jpeg"), "row 9")


@pytest.mark.parametrize("at", [0, 1, 7])
def test_the_first_marker_of_a_scan_is_found_whatever_is_before_it(at, monkeypatch):
    monkeypatch.setattr(images, "_SCAN_BLOCK", 16)
    rng = np.random.default_rng(at)
    for size in (0, 1, 2, 3, 400):
        for _ in range(50):
            data = rng.choice([0x00, 0x42, 0xD0, 0xD7, 0xD8, 0xD9, 0xFF], size + at, p=[0.3, 0.4] + [0.02] * 4 + [0.22])
            scan = data.astype(np.uint8).tobytes()
            found, reached = _MARKER_IN_SCAN.search(scan, at), _scan_reaches(scan, at)
            again = _MARKER_IN_SCAN.search(scan, reached)
            assert (found and found.span()) == (again and again.span())
