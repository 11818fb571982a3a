"""Numeric and depth streams come back bit for bit, whatever they hold."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from knonik_loader.khlp.codec_contract import decode_rows
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.codecs.depth import DepthCodec
from knonik_loader.khlp.types import StreamInfo

sizes = st.integers(1, 24)


@given(st.data(), sizes, sizes)
def test_numeric_rows_keep_every_bit(data, rows, dim):
    # as 32 arbitrary bits: subnormal numbers, infinities and every NaN among them
    bits = data.draw(arrays.arrays(np.uint32, (rows, dim)))
    info = StreamInfo(0, "numeric", "x", "numeric", (dim,), "float32", 30.0)
    records = make_codec(info).encode(list(bits.view(np.float32)))
    assert len(records) == 1
    assert len(records[0].data) == 4 * rows * dim
    wanted = sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=1)))
    for row, values in zip(wanted, decode_rows(info, records, wanted), strict=True):
        np.testing.assert_array_equal(values.view(np.uint32), bits[row])


@given(st.data(), sizes, sizes, st.sampled_from([0.1, 0.5, 1.0, 2.0, 7.3]), st.integers(1, 19))
def test_depth_keeps_every_value(data, height, width, step, level):
    frames = [data.draw(arrays.arrays(np.uint16, (height, width))) for _ in range(3)]
    params = {"quantization_mm": step, "level": level}
    info = StreamInfo(0, "depth", "d", "depth", (height, width), "float32", 30.0, params=params)
    codec = DepthCodec(info)
    records = codec.encode(frames)
    for frame, record, metres in zip(frames, records, decode_rows(info, records, range(3)), strict=True):
        np.testing.assert_array_equal(codec.quantised(record.data), frame)
        np.testing.assert_array_equal(metres, frame * np.float32(step / 1000))
        assert ((metres == 0) == (frame == 0)).all()  # no reading stays none, and nothing else becomes none
