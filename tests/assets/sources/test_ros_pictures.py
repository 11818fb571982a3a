"""Every encoding in which ROS messages hold pictures, against arrays that are known."""

import io
import struct
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from knonik.ingest import run
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.sources.base import EncodedImage
from knonik_assets.sources.images import decode_other
from knonik_assets.sources.ros.pictures import RawPicture, compressed_depth, kind_of_encoding, raw_depth, raw_rgb
from knonik_loader.errors import EpisodeError
from tests.assets.sources.bags import Bag, at, bag_of, png16
from tests.assets.sources.support import frames, jpeg, only_episode, png, source, stream
from tests.support.stamps import episode_arrays, read_stamp

H, W = 96, 112
STAMPED = episode_arrays(3, 4)["cam_0"]
PICTURE = STAMPED[2]
GREY = PICTURE.mean(2).round().astype(np.uint8)


def raw(encoding, array, *, height=H, width=W, pad=0, big=False):
    """Rows of an array with padding behind each."""
    rows = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1)
    padded = np.concatenate([rows, np.full((len(rows), pad), 99, np.uint8)], 1)
    return RawPicture(height, width, encoding, padded.shape[1], big, memoryview(padded.tobytes()))


def with_alpha(picture):
    return np.concatenate([picture, np.full((H, W, 1), 200, np.uint8)], 2)


def wide(picture, order):
    return (picture.astype(np.uint16) * 256 + 77).astype(order)


ORDERED = {
    "rgb8": PICTURE,
    "bgr8": PICTURE[..., ::-1],
    "rgba8": with_alpha(PICTURE),
    "bgra8": with_alpha(PICTURE[..., ::-1]),
    "8UC3": PICTURE[..., ::-1],
    "8UC4": with_alpha(PICTURE[..., ::-1]),
    "rgb16": wide(PICTURE, "<u2"),
    "bgr16": wide(PICTURE[..., ::-1], "<u2"),
    "rgba16": wide(with_alpha(PICTURE), "<u2"),
    "bgra16": wide(with_alpha(PICTURE[..., ::-1]), "<u2"),
}


@pytest.mark.parametrize("pad", [0, 5])
@pytest.mark.parametrize("encoding", ORDERED)
def test_orders_of_channels(encoding, pad):
    assert kind_of_encoding(encoding) == "rgb"
    np.testing.assert_array_equal(raw_rgb(raw(encoding, ORDERED[encoding], pad=pad), "x"), PICTURE)


def test_sixteen_bits_of_either_byte_order():
    np.testing.assert_array_equal(raw_rgb(raw("rgb16", wide(PICTURE, ">u2"), big=True), "x"), PICTURE)


@pytest.mark.parametrize("encoding", ["mono8", "8UC1"])
def test_grey(encoding):
    out = raw_rgb(raw(encoding, GREY, pad=3), "x")
    np.testing.assert_array_equal(out, np.repeat(GREY[..., None], 3, 2))


def yuv(picture):
    """(Y, U, V) of BT.601 in limited range, by the formula."""
    r, g, b = picture.astype(float).transpose(2, 0, 1)
    y = 16 + 65.481 / 255 * r + 128.553 / 255 * g + 24.966 / 255 * b
    u = 128 - 37.797 / 255 * r - 74.203 / 255 * g + 112 / 255 * b
    v = 128 + 112 / 255 * r - 93.786 / 255 * g - 18.214 / 255 * b
    return tuple(plane.round().astype(np.uint8) for plane in (y, u, v))


def in_yuv(name):
    y, u, v = yuv(PICTURE)
    if name in ("uyvy", "yuyv"):
        half_u, half_v = u[:, ::2], v[:, ::2]
        quads = (half_u, y[:, ::2], half_v, y[:, 1::2]) if name == "uyvy" else (y[:, ::2], half_u, y[:, 1::2], half_v)
        return np.stack(quads, 2).reshape(H, 2 * W)
    if name == "nv24":
        return np.concatenate([y, np.stack([u, v], 2).reshape(2 * H, W)])
    pair = (u, v) if name == "nv12" else (v, u)
    below = np.stack([plane[::2, ::2] for plane in pair], 2).reshape(H // 2, W)
    return np.concatenate([y, below])


@pytest.mark.parametrize(
    ("encoding", "layout", "pad"),
    [
        *((name, "uyvy", pad) for name in ("yuv422", "uyvy", "UYVY") for pad in (0, 4)),
        *((name, "yuyv", pad) for name in ("yuv422_yuy2", "yuyv", "yuv422_yuyv") for pad in (0, 4)),
        *((name, name, pad) for name in ("nv12", "nv21") for pad in (0, 4)),
        ("nv24", "nv24", 0),
    ],
)
def test_yuv(encoding, layout, pad):
    array = in_yuv(layout)
    out = raw_rgb(raw(encoding, array, pad=pad), "x")
    assert read_stamp(out) == (0, 3, 2)
    assert np.abs(out.astype(int) - PICTURE).mean() < (1 if layout == "nv24" else 6)  # the others halve the colours


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_bayer(pattern, bits):
    """Pixels of a colour keep their value, and what lies between them is near."""
    mosaic = np.empty((H, W), np.uint8)
    for place, colour in enumerate(pattern):
        mosaic[place // 2 :: 2, place % 2 :: 2] = PICTURE[place // 2 :: 2, place % 2 :: 2, "rgb".index(colour)]
    array = mosaic if bits == 8 else wide(mosaic, "<u2")
    out = raw_rgb(raw(f"bayer_{pattern}{bits}", array, pad=2), "x")
    assert read_stamp(out) == (0, 3, 2)
    for place, colour in enumerate(pattern):
        rows, columns = slice(place // 2, None, 2), slice(place % 2, None, 2)
        channel = "rgb".index(colour)
        np.testing.assert_array_equal(out[rows, columns, channel], PICTURE[rows, columns, channel])
    assert np.abs(out.astype(int) - PICTURE).mean() < 12


def test_bayer_of_one_colour_is_that_colour():
    mosaic = np.tile(np.array([[220, 90], [90, 30]], np.uint8), (5, 4))[:9, :7]
    out = raw_rgb(raw("bayer_rggb8", mosaic, height=9, width=7), "x")
    assert (out == (220, 90, 30)).all()


@pytest.mark.parametrize("encoding", ["16UC1", "mono16"])
@pytest.mark.parametrize("big", [False, True])
def test_integer_depth(encoding, big):
    values = (np.arange(12).reshape(3, 4) * 100).astype(">u2" if big else "<u2")
    assert kind_of_encoding(encoding) == "depth"
    out = raw_depth(raw(encoding, values, height=3, width=4, pad=6, big=big), "x")
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize("big", [False, True])
def test_float_depth(big):
    values = np.array([[0.5, np.nan, np.inf], [-np.inf, 0, 3.25]], ">f4" if big else "<f4")
    out = raw_depth(raw("32FC1", values, height=2, width=3, pad=4, big=big), "x")
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize("encoding", ["64FC1", "16SC1", "8UC2", "jpeg", "", "rgb", "bayer_rgbg8", "\x00"])
def test_encodings_that_nobody_knows(encoding):
    assert kind_of_encoding(encoding) is None
    with pytest.raises(EpisodeError, match="not understood"):
        raw_rgb(raw(encoding, GREY), "x")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"height": H + 1}, "rows of"),
        ({"width": W + 9}, "rows of"),
        ({"height": 0}, "0 x 112"),
        ({"height": 1 << 30, "width": 1 << 30}, "pixels"),
        ({"step": 7}, "rows of 7"),
        ({"data": memoryview(b"abc")}, "3 bytes"),
    ],
)
def test_sizes_that_lie(change, words):
    made = raw("rgb8", PICTURE)
    members = {name: getattr(made, name) for name in ("height", "width", "encoding", "step", "big_endian", "data")}
    with pytest.raises(EpisodeError, match=words):
        raw_rgb(RawPicture(**{**members, **change}), "x")


def test_a_last_row_without_its_padding():
    made = raw("rgb8", PICTURE, pad=10)
    cut = RawPicture(H, W, "rgb8", made.step, False, made.data[:-10])
    np.testing.assert_array_equal(raw_rgb(cut, "x"), PICTURE)


def rvl(values) -> bytes:
    """The paper's encoder, number by number."""
    nibbles: list[int] = []

    def number(value):
        while True:
            digit, value = value & 7, value >> 3
            nibbles.append(digit | (8 if value else 0))
            if not value:
                return

    flat, at, last = [int(value) for value in values.ravel()], 0, 0
    while at < len(flat):
        zeros = 0
        while at < len(flat) and flat[at] == 0:
            at, zeros = at + 1, zeros + 1
        number(zeros)
        run = at
        while run < len(flat) and flat[run]:
            run += 1
        number(run - at)
        for value in flat[at:run]:
            step = value - last
            number((step << 1) ^ (step >> 31))
            last = value
        at = run
    nibbles += [0] * (-len(nibbles) % 8)
    words = [
        sum(digit << (28 - 4 * place) for place, digit in enumerate(nibbles[i : i + 8]))
        for i in range(0, len(nibbles), 8)
    ]
    return struct.pack("<II", values.shape[1], values.shape[0]) + struct.pack(f"<{len(words)}I", *words)


RNG = np.random.default_rng(5)
MILLIMETRES = np.where(RNG.random((24, 32)) < 0.3, 0, RNG.integers(1, 65535, (24, 32))).astype(np.uint16)
A, B = 1000.0, 3.0
CODES = np.where(MILLIMETRES == 0, 0, MILLIMETRES % 900 + 100).astype(np.uint16)
METRES = np.where(CODES == 0, 0, A / (np.maximum(CODES, 1).astype(np.float32) - B)).astype(np.float32)


@pytest.mark.parametrize("how", ["png", "rvl"])
@pytest.mark.parametrize("pixel", ["16UC1", "32FC1"])
@pytest.mark.parametrize("form", ["{p}; compressedDepth {h}", "{p};compressedDepth {h}", "{p}; compressedDepth", "{p}"])
def test_compressed_depth(pixel, how, form):
    """The words of the format differ between versions and drivers; absent ones mean PNG."""
    values = MILLIMETRES if pixel == "16UC1" else CODES
    payload = png16(values) if how == "png" else rvl(values)
    data = memoryview(struct.pack("<iff", 0, A, B) + payload)
    text = form.format(p=pixel, h=how)
    if how == "rvl" and "rvl" not in text:
        with pytest.raises(EpisodeError, match="neither PNG nor RVL"):
            compressed_depth(text, data, "x")
        return
    out = compressed_depth(text, data, "x")
    np.testing.assert_array_equal(out, MILLIMETRES if pixel == "16UC1" else METRES)


@pytest.mark.parametrize("how", ["bag", "mcap", "sqlite3"])
@pytest.mark.parametrize(
    ("form", "named"),
    [
        ("16UC1; compressedDepth png", False),
        ("16UC1; compressedDepth rvl", False),
        ("16UC1; compressedDepth", False),
        ("16UC1", True),
        ("png", True),
        ("", True),
        ("32FC1; compressedDepth png", False),
        ("32FC1; compressedDepth rvl", False),
        ("32FC1; compressedDepth", False),
        ("32FC1", True),
    ],
)
def test_compressed_depth_in_recordings_is_in_metres_once_ingested(tmp_path, how, form, named):
    """``named``: nothing but the topic's name says what the bytes are."""
    bag = bag_of(how)
    stored = CODES if form.startswith("32FC1") else np.minimum(MILLIMETRES, 9000)
    metres = METRES.astype(np.float64) if form.startswith("32FC1") else stored / 1000
    topic = "/cam/depth/image_raw/compressedDepth" if named else "/cam/depth/image_raw/packed"
    for t in range(3):
        values = np.roll(stored, t, axis=1)
        payload = rvl(values) if "rvl" in form else png16(values)
        bag.rgb("/cam/image_raw", at(t), STAMPED[t])
        bag.compressed(topic, at(t), struct.pack("<iff", 0, A, B) + payload, form)
    config = {"dir_type": "rosbag", "preset": {"rgb": {"codec": "jpeg"}, "depth": {"quantization_mm": 1}}}
    (written,) = run(config, bag.write(tmp_path / "run", how), tmp_path / "out", engine="inline").written
    reader = EpisodeReader(tmp_path / "out" / written.episode_id)
    (name,) = reader.metadata.depth_streams
    found = np.stack(list(reader.depth(name))).astype(np.float64)
    wanted = np.stack([np.roll(metres, t, axis=1) for t in range(3)])
    np.testing.assert_array_equal(found == 0, wanted == 0)
    np.testing.assert_allclose(found * reader.depth_quantization_mm(name) / 1000, wanted, atol=6e-4)


def test_compressed_depth_of_drivers_without_the_header():
    np.testing.assert_array_equal(compressed_depth("16UC1", memoryview(png16(MILLIMETRES)), "x"), MILLIMETRES)
    with pytest.raises(EpisodeError, match="quantised"):
        compressed_depth("32FC1; compressedDepth", memoryview(png16(CODES)), "x")


@pytest.mark.parametrize("values", [np.zeros((3, 4)), np.ones((3, 4)), np.eye(5, 8) * 65535, np.eye(4)[::-1]])
def test_runs_of_every_kind(values):
    values = values.astype(np.uint16)
    data = memoryview(bytes(12) + rvl(values))
    np.testing.assert_array_equal(compressed_depth("16UC1; compressedDepth rvl", data, "x"), values)


def test_damaged_runs_are_refused_or_of_the_right_size():
    good = bytes(12) + rvl(MILLIMETRES)
    for cut in range(0, len(good), 97):
        with pytest.raises(EpisodeError):
            compressed_depth("16UC1; compressedDepth rvl", memoryview(good[:cut]), "x")
    for place in range(20, len(good), 61):
        flipped = bytearray(good)
        flipped[place] ^= 0x88
        with suppress(EpisodeError):
            assert compressed_depth("16UC1; compressedDepth rvl", memoryview(bytes(flipped)), "x").shape == (24, 32)
    huge = bytes(12) + struct.pack("<II", 1 << 20, 1 << 20) + good[20:]
    with pytest.raises(EpisodeError, match="pixels"):
        compressed_depth("16UC1; compressedDepth rvl", memoryview(huge), "x")


FORMATS = [
    "jpeg", "jpg", "", "rgb8; jpeg compressed bgr8", "bgr8; jpeg compressed bgr8", "bayer_rggb8; jpeg compressed bgr8",
    "rgb8; jpeg compressed ",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_words_around_a_jpeg_mean_nothing(tmp_path, form):
    bag = Bag()
    for t, picture in enumerate(STAMPED):
        bag.compressed("/cam/image_raw/compressed", at(t), jpeg(picture), form)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        found = frames(episode, "cam")
        assert all(isinstance(one, EncodedImage) for one in found)
        assert [one.data for one in found] == [jpeg(picture) for picture in STAMPED]


@pytest.mark.parametrize("form", ["png", "rgb8; png compressed bgr8", "png compressed"])
def test_png_pictures(tmp_path, form):
    bag = Bag()
    for t, picture in enumerate(STAMPED):
        bag.compressed("/cam/compressed", at(t), png(picture), form)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        assert stream(episode, "cam").encoding == "png"
        assert len(frames(episode, "cam")) == 4


def test_sixteen_bit_png_as_compressed_image_is_depth(tmp_path):
    bag = Bag()
    for t in range(3):
        bag.compressed("/cam/image_raw/compressed", at(t), jpeg(STAMPED[t]), "jpeg")
        bag.compressed("/cam/depth/image_raw/compressed", at(t), png16(MILLIMETRES), "16UC1; png compressed ")
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        for one in frames(episode, "cam", "depth"):
            np.testing.assert_array_equal(one, MILLIMETRES.astype(np.float32) / np.float32(1000))


@pytest.mark.parametrize("form", ["png", "", "bgr8; png compressed bgr8"])
def test_a_sixteen_bit_grey_png_is_depth_whatever_its_words_say(tmp_path, form):
    bag = Bag()
    for t in range(3):
        bag.rgb("/cam/color/image_raw", at(t), STAMPED[t])
        bag.compressed("/cam/depth/image_raw/compressed", at(t), png16(MILLIMETRES), form)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        for one in frames(episode, "cam", "depth"):
            np.testing.assert_array_equal(one, MILLIMETRES.astype(np.float32) / np.float32(1000))
        assert any("taken as depth" in warning for warning in episode.facts.warnings)


@pytest.mark.parametrize(("kind", "form"), [("TIFF", "rgb8; tiff compressed rgb8"), ("TIFF", "tiff"), ("WEBP", "webp")])
def test_tiff_and_webp(tmp_path, kind, form):
    bag = Bag()
    for t, picture in enumerate(STAMPED):
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, kind, lossless=True)
        bag.compressed("/cam/compressed", at(t), buffer.getvalue(), form)
    path = bag.write2(tmp_path / "run")
    with only_episode(path, "rosbag") as episode:
        np.testing.assert_array_equal(frames(episode, "cam"), STAMPED)
    with only_episode(path, "rosbag", orientation="rotate_180") as episode:
        np.testing.assert_array_equal(frames(episode, "cam"), STAMPED[:, ::-1, ::-1])


@pytest.mark.parametrize(("values", "form"), [("u2", "16UC1; tiff compressed "), ("f4", "32FC1; tiff compressed ")])
def test_depth_in_tiff(tmp_path, values, form):
    bag, depth = Bag(), MILLIMETRES.astype(values) / (1 if values == "u2" else np.float32(1000))
    buffer = io.BytesIO()
    Image.fromarray(depth.astype(values)).save(buffer, "TIFF")
    bag.compressed("/cam/depth/compressed", at(0), buffer.getvalue(), form)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        np.testing.assert_allclose(frames(episode, "cam", "depth")[0], MILLIMETRES / 1000, rtol=1e-6)


def test_a_tiff_of_no_colours_or_of_too_many_pixels_is_refused(tmp_path, monkeypatch):
    buffer = io.BytesIO()
    Image.fromarray(MILLIMETRES.astype(np.uint16)).save(buffer, "TIFF")
    with pytest.raises(EpisodeError, match="of mode I"):
        decode_other(buffer.getvalue(), "x")
    buffer = io.BytesIO()
    Image.fromarray(PICTURE).save(buffer, "TIFF")
    with pytest.raises(EpisodeError, match="damaged"):
        decode_other(buffer.getvalue()[:900], "x")
    monkeypatch.setattr("knonik_assets.sources.images.MAX_PIXELS", 1000)
    with pytest.raises(EpisodeError, match="96 x 112 pixels"):
        decode_other(buffer.getvalue(), "x")


def test_depth_in_another_unit_and_turned(tmp_path):
    bag = Bag()
    values = np.arange(12, dtype=np.uint16).reshape(3, 4)
    bag.rgb("/cam/color/image_raw", at(0), PICTURE)
    bag.image("/cam/depth/image_raw", at(0), values.tobytes(), "16UC1", height=3, width=4)
    layout = {"images": {"c": "cam"}, "depths": {"d": {"key": "cam", "unit_m": 0.00025}}}
    path = bag.write2(tmp_path / "run")
    with only_episode(path, "rosbag", layout=layout, orientation="rotate_180") as episode:
        (one,) = frames(episode, "d")
        np.testing.assert_allclose(one, values[::-1, ::-1] * 0.00025)
        (one,) = frames(episode, "c")
        np.testing.assert_array_equal(one, PICTURE[::-1, ::-1])


def test_a_topic_that_cannot_be_decoded_is_left_out_with_its_reason(tmp_path):
    bag = Bag()
    bag.rgb("/good/image_raw", at(0), PICTURE)
    bag.image("/odd/image_raw", at(0), GREY.tobytes(), "16SC1", height=H, width=W // 2)
    bag.image("/short/image_raw", at(0), b"ab", "rgb8", height=H, width=W, step=3 * W)
    bag.compressed("/webp/compressed", at(0), b"RIFFxxxxWEBP", "webp")
    found = source(bag.write2(tmp_path / "run"), "rosbag")
    with found.open(found.episodes()[0]) as episode:
        assert [spec.name for spec in episode.streams] == ["good"]
        text = "\n".join(episode.facts.warnings)
        assert "'16SC1'" in text
        assert "/short/image_raw: left out" in text
        assert "/webp/compressed: left out" in text
        skipped = episode.facts.attributes["ros_skipped"]
        assert skipped == {"/odd/image_raw": 1, "/short/image_raw": 1, "/webp/compressed": 1}


def test_channels_in_no_said_order_are_taken_as_opencv_means_them_and_told_of(tmp_path):
    bag = Bag()
    bag.image("/cam/image_raw", at(0), PICTURE[..., ::-1].tobytes(), "8UC3", height=H, width=W)
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode:
        np.testing.assert_array_equal(frames(episode, "cam")[0], PICTURE)
        assert any("8UC3" in warning for warning in episode.facts.warnings)


def test_a_damaged_picture_in_the_middle_fails_by_name(tmp_path):
    bag = Bag()
    for t, picture in enumerate(STAMPED):
        data = jpeg(picture)
        bag.compressed("/cam/compressed", at(t), data if t != 2 else data[:100], "jpeg")
    words = r"run: /cam/compressed, message 2.*cut off"
    with only_episode(bag.write2(tmp_path / "run"), "rosbag") as episode, pytest.raises(EpisodeError, match=words):
        frames(episode, "cam")
