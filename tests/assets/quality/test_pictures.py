"""Film strips and plots."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.quality.pictures import draw_strip, episode_plot, episode_strip, markdown_image, png
from tests.support.stamps import read_stamp


def test_a_strip_shows_each_camera_at_evenly_spread_frames(episode):
    reader = EpisodeReader(episode())
    strip = np.asarray(episode_strip(reader, frames=4, width=224))
    scale = 224 / 112
    found = []
    # the cells are found by their height and gap, from the lower right corner
    tall = round(96 * scale)
    for camera in (0, 1):
        bottom = strip.shape[0] - 4 - (1 - camera) * (tall + 4) - 4
        for column in range(4):
            right = strip.shape[1] - 4 - (3 - column) * (224 + 4) - 4
            cell = strip[bottom - tall : bottom, right - 224 : right]
            found.append(read_stamp(cell))
    assert found == [(camera, 0, frame) for camera in (0, 1) for frame in (0, 7, 15, 23)]


def test_a_strip_of_mixed_sizes_keeps_shapes():
    wide, tall = np.zeros((10, 40, 3), np.uint8), np.zeros((40, 20, 3), np.uint8)
    strip = draw_strip({"wide": [wide] * 2, "tall": [tall] * 2}, ["0", "1"], width=80)
    assert strip.height == 20 + (20 + 4) + (160 + 4) + 4
    assert Image.open(io.BytesIO(png(strip))).size == strip.size


def test_a_plot_is_a_png_with_ink_of_every_stream(episode):
    reader = EpisodeReader(episode())
    picture = np.asarray(Image.open(io.BytesIO(episode_plot(reader))).convert("RGB")).astype(int)
    colourful = np.ptp(picture, axis=2) > 60
    half = len(picture) // 2
    assert colourful[:half].sum() > 200
    assert colourful[half:].sum() > 200


def test_no_streams_no_picture(episode):
    reader = EpisodeReader(episode(cameras=0))
    assert episode_strip(reader) is None
    reader.metadata.numeric_streams.clear()
    assert episode_plot(reader) is None


@pytest.mark.parametrize(("data", "kind"), [(b"\x89PNG", "png"), (Image.new("RGB", (8, 8), (200, 0, 0)), "jpeg")])
def test_markdown_holds_the_picture(data, kind):
    text = markdown_image(data, "a strip")
    head, _, body = text.partition("base64,")
    assert head == f"![a strip](data:image/{kind};"
    decoded = base64.b64decode(body.removesuffix(")"))
    assert decoded == data if kind == "png" else Image.open(io.BytesIO(decoded)).size == (8, 8)
