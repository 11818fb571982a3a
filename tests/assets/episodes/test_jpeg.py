"""Codec ``jpeg``: the source's own bytes are stored, whatever kind of JPEG they are."""

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.episodes.video import scan
from knonik_assets.episodes.video_read import whole_jpegs
from knonik_assets.sources.base import EncodedImage
from knonik_loader.errors import EpisodeError
from tests.assets.episodes.support import open_writer
from tests.support.stamps import episode_arrays, read_stamp


def encode(image, **options):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", **({"quality": 92} | options))
    return buffer.getvalue()


def with_thumbnail(data):
    """The JPEG with an application segment that holds another JPEG, end marker and all."""
    inner = encode(np.zeros((8, 8, 3), np.uint8))
    return data[:2] + b"\xff\xe5" + (len(inner) + 2).to_bytes(2, "big") + inner + data[2:]


KINDS = {
    "plain": lambda image: encode(image),
    "444": lambda image: encode(image, subsampling=0),
    "422": lambda image: encode(image, subsampling=1),
    "progressive": lambda image: encode(image, progressive=True),
    "restart markers": lambda image: encode(image, restart_marker_blocks=3),
    "exif": lambda image: encode(image, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"),
    "thumbnail": lambda image: with_thumbnail(encode(image)),
    "simplejpeg": lambda image: simplejpeg.encode_jpeg(image, quality=92),
}


@pytest.mark.parametrize("size", [(96, 112), (97, 113)])
def test_source_jpegs_are_stored_byte_for_byte(tmp_path, size):
    pictures = episode_arrays(4, len(KINDS), 1, *size)["cam_0"]
    stored = [make(picture) for make, picture in zip(KINDS.values(), pictures, strict=True)]
    with open_writer(tmp_path, rgb={"codec": "jpeg", "quality": 80}) as writer:
        writer.add_rgb("cam")
        for data in stored:
            writer.rgb("cam", EncodedImage(data, "jpeg"))
        params = writer.commit().stream_params["rgb_cam"]
    reader = EpisodeReader(tmp_path / "episode_000000")
    assert list(reader.rgb_jpegs("cam")) == stored
    assert list(reader.rgb_jpegs("cam", 3, 5)) == stored[3:5]
    assert [read_stamp(image) for image in reader.rgb("cam")] == [(0, 4, index) for index in range(len(stored))]
    assert (params["passed_through"], params["height"], params["width"]) == (len(stored), *size)
    assert params["inactive"] == ["rgb.chroma", "rgb.quality"]


def test_grey_jpegs_come_out_as_rgb(tmp_path):
    grey = np.tile(np.arange(0, 240, 5, dtype=np.uint8), (32, 1))
    with open_writer(tmp_path, rgb={"codec": "jpeg"}) as writer:
        writer.add_rgb("cam")
        writer.rgb("cam", EncodedImage(encode(grey), "jpeg"))
        writer.commit()
    (image,) = EpisodeReader(tmp_path / "episode_000000").rgb("cam")
    assert image.shape == (32, 48, 3)
    assert np.abs(image.astype(int) - grey[..., None]).max() < 6


def test_other_codecs_decode_encoded_pictures(tmp_path):
    picture = episode_arrays(4, 1, 1)["cam_0"][0]
    png = io.BytesIO()
    Image.fromarray(picture).save(png, "PNG")
    with open_writer(tmp_path, rgb={"codec": "vp9", "quality": 10}) as writer:
        writer.add_rgb("cam")
        writer.rgb("cam", EncodedImage(encode(picture), "jpeg"))
        writer.rgb("cam", EncodedImage(png.getvalue(), "png"))
        assert writer.commit().stream_params["rgb_cam"]["decoded_images"] == 2
    reader = EpisodeReader(tmp_path / "episode_000000")
    assert [read_stamp(image) for image in reader.rgb("cam")] == [(0, 4, 0), (0, 4, 0)]
    assert reader.rgb_jpegs("cam") is None


def test_arrays_and_pictures_may_mix_and_png_is_encoded(tmp_path):
    pictures = episode_arrays(4, 3, 1)["cam_0"]
    png = io.BytesIO()
    Image.fromarray(pictures[2]).save(png, "PNG")
    first = encode(pictures[0])
    with open_writer(tmp_path, rgb={"codec": "jpeg", "quality": 90}) as writer:
        writer.add_rgb("cam")
        writer.rgb("cam", EncodedImage(first, "jpeg"))
        writer.rgb("cam", pictures[1])
        writer.rgb("cam", EncodedImage(png.getvalue(), "png"))
        params = writer.commit().stream_params["rgb_cam"]
    reader = EpisodeReader(tmp_path / "episode_000000")
    assert next(reader.rgb_jpegs("cam")) == first
    assert [read_stamp(image)[2] for image in reader.rgb("cam")] == [0, 1, 2]
    assert params["passed_through"] == 1
    assert "inactive" not in params


def cmyk():
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((96, 112, 4), np.uint8), "CMYK").save(buffer, "JPEG")
    return buffer.getvalue()


PICTURE = episode_arrays(4, 1, 1)["cam_0"][0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encode(PICTURE)[:-400], "end marker"),
        (encode(PICTURE) + b"\0\0", "end marker"),
        (b"\xff\xd8\xff nothing", "JPEG"),
        (encode(PICTURE[:90]), "112x90.*112x96"),
        (b"\xff\xd8" + b"\xff\xd9", "JPEG"),
    ],
)
def test_a_picture_that_does_not_fit_is_refused_and_the_next_one_taken(tmp_path, data, message):
    with open_writer(tmp_path, rgb={"codec": "jpeg"}) as writer:
        writer.add_rgb("cam")
        writer.rgb("cam", EncodedImage(encode(PICTURE), "jpeg"))
        with pytest.raises(EpisodeError, match=f"'rgb_cam', frame 1.*{message}"):
            writer.rgb("cam", EncodedImage(data, "jpeg"))
        writer.rgb("cam", EncodedImage(encode(PICTURE), "jpeg"))
        assert writer.commit().episode_length == 2


def test_cmyk_is_refused_because_no_loader_could_decode_it(tmp_path):
    with open_writer(tmp_path, rgb={"codec": "jpeg"}) as writer:
        writer.add_rgb("cam")
        with pytest.raises(EpisodeError, match="CMYK"):
            writer.rgb("cam", EncodedImage(cmyk(), "jpeg"))


def test_a_jpeg_that_would_not_decode_is_refused(tmp_path):
    data = encode(episode_arrays(0, 1, 1)["cam_0"][0])
    start = data.index(b"\xff\xda") + 14  # inside the entropy-coded pixels, which no header tells about
    damaged = data[:start] + bytes(40) + data[start + 40 :]
    with open_writer(tmp_path, rgb={"codec": "jpeg"}) as writer:
        writer.add_rgb("cam")
        writer.rgb("cam", EncodedImage(data, "jpeg"))
        with pytest.raises(EpisodeError, match=r"'rgb_cam', frame 1.*damaged"):
            writer.rgb("cam", EncodedImage(damaged, "jpeg"))
        writer.abort()


def test_one_pass_over_a_whole_file_finds_what_two_find(tmp_path):
    pictures = episode_arrays(4, 9, 1, 96, 112)["cam_0"]
    stored = [encode(picture) for picture in pictures]
    with open_writer(tmp_path, rgb={"codec": "jpeg"}) as writer:
        writer.add_rgb("cam")
        for data in stored:
            writer.rgb("cam", EncodedImage(data, "jpeg"))
        writer.commit()
    path = tmp_path / "episode_000000" / "rgb_cam.mkv"
    tables = []
    assert list(whole_jpegs(path, 9, tables.append)) == stored
    (table,) = tables
    scanned = scan(path)
    np.testing.assert_array_equal(table.pts, scanned.pts)
    np.testing.assert_array_equal(table.is_key, scanned.is_key)
    for length in (8, 10):
        with pytest.raises(EpisodeError, match=rf"holds 9 frames instead of {length}"):
            list(whole_jpegs(path, length, tables.append))
    assert len(tables) == 1
    reader = EpisodeReader(path.parent)
    assert list(reader.rgb_jpegs("cam")) == list(reader.rgb_jpegs("cam")) == stored
