"""Pictures of a real rig go through the codecs: passed byte for byte, or smaller and near."""

import h5py
import numpy as np
import pytest
import simplejpeg

from knonik_loader.khlp.codec_contract import decode_rows
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.types import StreamInfo


@pytest.fixture(scope="module")
def pictures(real_data) -> list[bytes]:
    """JPEGs of one camera as a rig recorded them; rows are padded behind the end-of-image marker."""
    path = sorted((real_data / "hdf5" / "aloha_sim_jpeg").glob("*.hdf5"))[0]
    with h5py.File(path) as file:
        rows = file["observations/images/top"][:12]
    return [row.tobytes()[: row.tobytes().rindex(b"\xff\xd9") + 2] for row in rows]


def info(codec: str, data: bytes) -> StreamInfo:
    height, width, *_ = simplejpeg.decode_jpeg_header(data)
    return StreamInfo(0, "rgb", "top", codec, (height, width, 3), "uint8", 50.0)


def test_kimg_keeps_the_bytes(pictures):
    stream = info("kimg", pictures[0])
    records = make_codec(stream).encode(pictures)
    assert [record.data for record in records] == pictures
    for row, decoded in enumerate(decode_rows(stream, records, range(12))):
        np.testing.assert_array_equal(decoded, simplejpeg.decode_jpeg(pictures[row], "RGB", False, False))


@pytest.mark.parametrize(("codec", "least", "share"), [("kdlt", 37, 1.0), ("shdr", 35, 0.5)])
def test_the_others_are_smaller_and_near(pictures, codec, least, share):
    stream = info(codec, pictures[0])
    records = make_codec(stream).encode(pictures)
    plain = sum(len(data) for data in pictures)
    assert sum(len(record.data) for record in records) < share * plain
    for row, decoded in enumerate(decode_rows(stream, records, range(12))):
        truth = simplejpeg.decode_jpeg(pictures[row], "RGB", False, False)
        luma = (decoded.astype(float) - truth) @ np.array([0.299, 0.587, 0.114])
        assert 10 * np.log10(255**2 / max(np.mean(luma**2), 1e-9)) >= least, row
