"""Cutting an episode that is being written: what stays is what an episode of that length would have been."""

import av
import numpy as np
import pytest

from knonik_assets.episodes.reader import EpisodeReader
from knonik_loader.errors import EpisodeError
from tests.assets.episodes.support import open_writer
from tests.assets.episodes.test_copy import X264, make_video, payloads
from tests.support.stamps import episode_arrays


def write(out, pushed, cut=None, depth_above=(), **rgb):
    frames = episode_arrays(1, pushed, 1, 96, 112)["cam_0"]
    with open_writer(out, rgb=rgb) as writer:
        writer.add_rgb("cam")
        writer.add_depth("near")
        writer.add_numeric("own", 2)
        for t in range(pushed):
            writer.rgb("cam", frames[t])
            depth = np.full((4, 5), 0.5 + t, np.float32)
            depth[0, 0] = 99 if t in depth_above else 0
            writer.depth("near", depth)
            writer.numeric("own", np.full((1, 2), t), np.array([t * 0.5]))
        trimmed = writer.cut(cut) if cut is not None else {}
        writer.commit(trimmed=trimmed)
    return EpisodeReader(out / "episode_000000")


@pytest.mark.parametrize("codec", ["vp9", "h264", "av1", "jpeg"])
def test_a_cut_episode_equals_one_that_was_never_longer(tmp_path, codec):
    cut = write(tmp_path / "cut", 11, 7, depth_above=(2, 9), codec=codec)
    short = write(tmp_path / "short", 7, depth_above=(2,), codec=codec)
    assert cut.verify() == []
    assert cut.metadata.trimmed == {"rgb_cam": 4, "depth_near": 4, "own": 4}
    assert payloads(next(cut.path.glob("rgb_cam.*"))) == payloads(next(short.path.glob("rgb_cam.*")))
    assert cut.metadata.stream_params == short.metadata.stream_params
    assert cut.metadata.stream_params["depth_near"]["above_max"] == 1
    for one, other in zip(cut.depth("near"), short.depth("near"), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(cut.numeric("own"), short.numeric("own"))
    np.testing.assert_array_equal(cut.numeric_time("own"), np.arange(7) * 0.5)
    assert sorted(cut.metadata.files) == sorted(short.metadata.files)


def test_what_cannot_be_cut(tmp_path):
    source = make_video(tmp_path / "a.mp4", "libx264", X264)
    with open_writer(tmp_path / "out", rgb={"codec": "copy"}) as writer, av.open(str(source)) as container:
        writer.add_rgb("cam")
        writer.rgb_packets("cam", container.streams.video[0], container.demux(video=0))
        assert writer.cut(24) == {}
        with pytest.raises(EpisodeError, match="cannot be cut to 0 frames"):
            writer.cut(0)
        with pytest.raises(EpisodeError, match="copied as packets"):
            writer.cut(5)
    assert not list((tmp_path / "out").glob("episode_*"))
