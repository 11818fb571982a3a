"""Every codec keeps the contract, on plain and awkward sizes, and does what only it does."""

import subprocess
import sys

import numpy as np
import pytest
import simplejpeg

from knonik_loader.errors import ConfigError, DecodeError, FormatError, PackError, UnsupportedFeatureError
from knonik_loader.khlp.codec_contract import CodecContract, decode_rows
from knonik_loader.khlp.codecs import CODECS, dependency_of, make_codec
from knonik_loader.khlp.codecs.numeric import numeric_block
from knonik_loader.khlp.types import StreamInfo
from tests.loader.khlp.video import jpegs, rgb, video
from tests.support.stamps import episode_arrays, read_stamp


class RgbContract(CodecContract):
    def frames(self):
        return video(23, *self.info.shape[:2])

    def test_stamps_survive(self):
        frames = self.frames()
        decoded = decode_rows(self.info, make_codec(self.info).encode(frames), range(len(frames)))
        assert [read_stamp(image) for image in decoded] == [(1, 2, t) for t in range(len(frames))]


class TestKimg(RgbContract):
    info = rgb("kimg")
    least_psnr = 40.0


class TestKimgChroma444(RgbContract):
    info = rgb("kimg", 97, 113, chroma="444", quality=90)


class TestKdlt(RgbContract):
    info = rgb("kdlt")


class TestKdltOddSize(RgbContract):
    info = rgb("kdlt", 97, 121, gop=7, chroma=444)


class TestShdr(RgbContract):
    info = rgb("shdr")
    least_psnr = 35.0


class TestShdrOddSize(RgbContract):
    info = rgb("shdr", 97, 121, gop=4, chroma="444")
    least_psnr = 35.0


class TestShdrVp9(RgbContract):
    info = rgb("shdr", codec="vp9")
    least_psnr = 35.0
    detects_cuts = False  # FFmpeg's VP9 decoder reads zeros past the end


class TestShdrAv1(RgbContract):
    info = rgb("shdr", codec="av1")
    least_psnr = 35.0


class TestDepth(CodecContract):
    info = StreamInfo(0, "depth", "cam", "depth", (31, 45), "float32", 30.0, params={"quantization_mm": 0.5})

    def frames(self):
        rng = np.random.default_rng(1)
        frames = rng.integers(0, 65_536, (12, *self.info.shape), dtype=np.uint16)
        frames[:, :5] = 0
        return list(frames)

    def expected(self, frame):
        return frame.astype(np.float32) * np.float32(0.0005)


class TestNumeric(CodecContract):
    info = StreamInfo(0, "numeric", "state", "numeric", (7,), "float32", 30.0)

    def frames(self):
        rows = np.random.default_rng(2).normal(size=(15, 7)).astype(np.float32)
        rows[3, 2], rows[4, 1] = np.nan, np.inf
        return list(rows)


def test_names_and_dependencies():
    assert {name: dependency_of(name) for name in CODECS} == {
        "numeric": "none",
        "depth": "none",
        "kimg": "none",
        "kdlt": "key",
        "shdr": "chain",
    }
    for call in (dependency_of, lambda name: make_codec(rgb(name))):
        with pytest.raises(UnsupportedFeatureError, match="kimgg"):
            call("kimgg")


@pytest.mark.parametrize(
    ("codec", "params"),
    [
        ("kimg", {"quality": 0}),
        ("kimg", {"quality": "95"}),
        ("kimg", {"quality": True}),
        ("kimg", {"chroma": 422}),
        ("kdlt", {"gop": 0}),
        ("kdlt", {"threshold": float("nan")}),
        ("shdr", {"codec": "mpeg2"}),
        ("shdr", {"quality": 60}),
        ("shdr", {"codec": "av1", "chroma": 444}),
        ("shdr", {"codec": "vp9", "ceiling": 46}),
        ("shdr", {"ceiling": 10}),
    ],
)
def test_parameters_out_of_range_are_named(codec, params):
    with pytest.raises(ConfigError, match=list(params)[-1]):
        make_codec(rgb(codec, **params))


@pytest.mark.parametrize("codec", ["kimg", "kdlt", "shdr"])
def test_a_colour_codec_refuses_other_streams(codec):
    with pytest.raises(FormatError, match="state"):
        make_codec(StreamInfo(0, "numeric", "state", codec, (3,), "float32", 30.0))


def test_jpegs_pass_through_kimg_byte_for_byte():
    sources = jpegs(video(12))
    records = make_codec(rgb("kimg")).encode(sources)
    assert [record.data for record in records] == sources
    for source, decoded in zip(sources, decode_rows(rgb("kimg"), records, range(12)), strict=True):
        np.testing.assert_array_equal(decoded, simplejpeg.decode_jpeg(source, "RGB", False, False))


def test_grey_and_progressive_jpegs_pass_through():
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(video(1)[0]).save(buffer, "JPEG", quality=90, progressive=True)
    grey = simplejpeg.encode_jpeg(np.full((96, 112, 1), 77, np.uint8), 90, "GRAY", "Gray")
    records = make_codec(rgb("kimg")).encode([buffer.getvalue(), grey])
    colour, flat = decode_rows(rgb("kimg"), records, [0, 1])
    assert read_stamp(colour) == (1, 2, 0)
    assert flat.shape == (96, 112, 3)
    assert (np.abs(flat.astype(int) - 77) <= 1).all()


def test_jpegs_that_do_not_fit_are_refused():
    codec = make_codec(rgb("kimg"))
    good = jpegs(video(1))[0]
    bad = {
        "48x64": simplejpeg.encode_jpeg(np.zeros((48, 64, 3), np.uint8)),
        "not a JPEG": b"\x89PNG\r\n\x1a\n" + bytes(40),
        "frame header": good[:30],
        "components": simplejpeg.encode_jpeg(np.zeros((96, 112, 4), np.uint8), colorspace="CMYK"),
        "arithmetic": good.replace(b"\xff\xc0", b"\xff\xc9", 1),
    }
    for message, data in bad.items():
        with pytest.raises(PackError, match=message):
            codec.encode([data])


@pytest.mark.parametrize("codec", ["kdlt", "shdr"])
def test_jpeg_sources_are_decoded_for_video_like_codecs(codec):
    frames = video(12)
    records = make_codec(rgb(codec)).encode(jpegs(frames))
    assert [read_stamp(image)[2] for image in decode_rows(rgb(codec), records, range(12))] == list(range(12))


def test_depth_zero_is_no_reading_and_values_are_exact():
    info = StreamInfo(0, "depth", "cam", "depth", (2, 3), "float32", 30.0, params={"quantization_mm": 1.0})
    frame = np.array([[0, 1, 65_535], [1000, 2500, 0]], np.uint16)
    records = make_codec(info).encode([frame])
    (decoded,) = decode_rows(info, records, [0])
    np.testing.assert_allclose(decoded, [[0, 0.001, 65.535], [1, 2.5, 0]], rtol=1e-6)
    assert decoded[0, 0] == 0


def test_depth_of_another_size_is_an_error_before_it_is_unpacked():
    info = StreamInfo(0, "depth", "cam", "depth", (4, 4), "float32", 30.0)
    big = StreamInfo(0, "depth", "cam", "depth", (512, 512), "float32", 30.0)
    record = make_codec(big).encode([np.zeros((512, 512), np.uint16)])[0]
    with pytest.raises(DecodeError, match="pixels"):
        make_codec(info).decode({0: memoryview(record.data)}, [0], {0: np.zeros((4, 4), np.float32)})


def test_numeric_block_is_a_view():
    data = np.arange(12, dtype="<f4").tobytes()
    block = numeric_block(data, 4)
    assert block.shape == (3, 4)
    assert not block.flags.owndata
    with pytest.raises(DecodeError, match="rows of 5"):
        numeric_block(data, 5)


def test_episode_arrays_of_several_cameras_keep_their_identity():
    arrays = episode_arrays(7, 12)
    for camera in (0, 1):
        for codec in ("kimg", "kdlt", "shdr"):
            records = make_codec(rgb(codec)).encode(list(arrays[f"cam_{camera}"]))
            decoded = decode_rows(rgb(codec), records, range(12))
            assert [read_stamp(image) for image in decoded] == [(camera, 7, t) for t in range(12)]


def test_container_and_plain_codecs_load_no_video_library():
    code = (
        "import sys, knonik_loader.khlp.writer, knonik_loader.khlp.verify, knonik_loader.khlp.index\n"
        "import knonik_loader.khlp.manifest, knonik_loader.khlp.planning, knonik_loader.khlp.codec_contract\n"
        "import knonik_loader.khlp.codecs.kdlt, knonik_loader.khlp.codecs.depth\n"
        "sys.exit(', '.join({'av', 'obstore', 'torch'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
