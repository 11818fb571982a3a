"""Videos with B-frames, H.265 and uneven times: every range of frames against PyAV's decode of the whole file in order."""

import av
import numpy as np
import pytest

from knonik_assets.sources.video_files import decode_range, index_video

FILES = {
    # file: (codec, frames, steps of its clock in units of its time base, seconds of one unit); by PyAV's own demuxing
    "h265_video.mp4": ("hevc", 10, {1024}, 10_240),
    "var_fps_video.mp4": ("h264", 300, {512, 1024, 8192}, 15_360),
}


def decoded(path):
    with av.open(str(path)) as container:
        return [(frame.pts, frame.to_ndarray(format="gray")) for frame in container.decode(video=0)]


@pytest.mark.parametrize("name", FILES)
def test_every_frame_at_its_own_time(real_data, name):
    codec, count, steps, base = FILES[name]
    path = real_data / "video" / name
    index = index_video(path)
    assert (index.codec, len(index), index.height, index.width) == (codec, count, 128, 128)
    assert set(np.diff(index.pts).tolist()) == steps
    wanted = decoded(path)
    assert index.pts.tolist() == [pts for pts, _ in wanted]
    np.testing.assert_allclose(index.seconds, [pts / base for pts, _ in wanted])
    for start in range(0, count, max(1, count // 12)):
        stop = min(count, start + 5)
        shown = list(decode_range(index, start, stop, lambda frame: (frame.pts, frame.to_ndarray(format="gray"))))
        assert [pts for pts, _ in shown] == [pts for pts, _ in wanted[start:stop]]
        for (_, ours), (_, theirs) in zip(shown, wanted[start:stop], strict=True):
            np.testing.assert_array_equal(ours, theirs)
