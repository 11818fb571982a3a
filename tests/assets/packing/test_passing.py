"""JPEGs that pass untouched: one that no training could decode is refused while packing, named with its frame."""

import hashlib

import numpy as np
import pytest
import simplejpeg

from knonik_assets.episodes.metadata import METADATA, read_metadata
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.pack import pack
from knonik_assets.packing.frames import check_passing
from knonik_assets.packing.stored import open_packed
from knonik_loader.errors import EpisodeError, PackError
from knonik_loader.khlp.types import StreamInfo
from tests.assets.packing.support import read_all, write_episodes
from tests.support.stamps import episode_arrays, read_stamp

STREAM = StreamInfo(0, "rgb", "cam_0", "kimg", (80, 96, 3), "uint8", 30.0, None, {})


@pytest.fixture
def episodes(tmp_path):
    return write_episodes(tmp_path / "episodes", (12, 12), cameras=1, depth=False)


def spoil(episodes, frames, broken):
    """Replace stored JPEGs of the second episode by ``broken(jpeg)``, of the same length."""
    video = episodes / "episode_000001" / "rgb_cam_0.mkv"
    data = video.read_bytes()
    for frame, jpeg in enumerate(EpisodeReader(video.parent).rgb_jpegs("cam_0")):
        if frame in frames:
            assert data.count(jpeg) == 1
            assert len(broken(jpeg)) == len(jpeg)
            data = data.replace(jpeg, broken(jpeg))
    video.write_bytes(data)
    # as if it had been ingested so: with a checksum that fits
    metadata = read_metadata(video.parent)
    metadata.files[video.name].sha256 = hashlib.sha256(data).hexdigest()
    (video.parent / METADATA).write_text(metadata.model_dump_json())


def jpeg(**options):
    return simplejpeg.encode_jpeg(episode_arrays(0, 1, 1, 80, 96)["cam_0"][0], **options)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda data: data[:-2] + b"\0\0", "cut off"),
        (lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2), "cut off"),
        (lambda data: b"\0\0" + data[2:], "not a JPEG"),
    ],
)
def test_a_broken_picture_stops_the_pack_and_is_named(episodes, tmp_path, broken, words):
    spoil(episodes, {10}, broken)
    options = {"storage_profile": "training_fast", "engine": "inline"}
    with pytest.raises(EpisodeError, match=words) as caught:
        pack(episodes, tmp_path / "out", "d", 4, **options)
    for word in ("episode_000001", "'rgb_cam_0'", "frame 10", "--exclude episode_000001"):
        assert word in str(caught.value), str(caught.value)
    assert not list((tmp_path / "out").glob("hlp_manifest*"))
    left = pack(episodes, tmp_path / "out", "d", 4, exclude=["episode_000001"], overwrite=True, **options)[0]
    assert list(read_all(left)) == ["episode_000000"]


def test_damage_that_only_decoding_shows_is_found_in_the_frames_that_are_compared(episodes, tmp_path):
    spoil(episodes, set(range(12)), lambda data: data[:-400] + bytes(398) + data[-2:])
    with pytest.raises(EpisodeError, match=r"episode_000001.*frame \d+.*--exclude episode_000001"):
        pack(episodes, tmp_path / "out", "d", 4, storage_profile="training_fast", engine="inline")
    assert not list((tmp_path / "out").glob("hlp_manifest*"))


def test_what_decodes_passes_whatever_its_kind():
    grey = simplejpeg.encode_jpeg(np.full((80, 96, 1), 90, np.uint8), colorspace="GRAY")
    for data in (jpeg(), jpeg(quality=30, colorsubsampling="420"), grey, jpeg() + b"\0" * 7):
        assert check_passing(STREAM, data, 3) is data


def test_what_does_not_decode_or_has_another_size_does_not_pass():
    data = jpeg()
    for cut in (0, 1, 2, 20, len(data) // 2, len(data) - 1):
        with pytest.raises((EpisodeError, PackError), match=r"stream 'rgb_cam_0', frame 3"):
            check_passing(STREAM, data[:cut], 3)
    small = simplejpeg.encode_jpeg(np.zeros((40, 96, 3), np.uint8))
    with pytest.raises(PackError, match=r"frame 3: the JPEG is 40x96, the stream is 80x96"):
        check_passing(STREAM, small, 3)


def test_jpegs_become_the_keys_and_whole_frames_of_compressed_packs(tmp_path):
    # the stamps of episode_arrays fill half of the picture: some frames are keys, some are whole, some deltas
    episodes = write_episodes(tmp_path / "episodes", (12,), cameras=1, depth=False, quality=85)
    stored = list(EpisodeReader(episodes / "episode_000000").rgb_jpegs("cam_0"))
    options = {"storage_profile": "training_compressed", "engine": "inline"}
    for asked in ({}, {"quality": 95}):
        manifest = pack(episodes, tmp_path / f"out{len(asked)}", "d", 12, **options, **asked)[0]
        with open_packed(manifest.parent / "hlp_000000.khlp") as file:
            data, table = (manifest.parent / "hlp_000000.khlp").read_bytes(), file.index.records(0, 0)
            alone = [
                (row, data[offset : offset + size])
                for row, (offset, size) in enumerate(zip(table.offsets.tolist(), table.sizes.tolist(), strict=True))
                if table.key_back[row] == 0
            ]
        assert alone
        assert all((record == stored[row]) == (not asked) for row, record in alone)
        frames = read_all(manifest)["episode_000000"]["rgb_cam_0"]
        assert [read_stamp(image)[2] for image in frames] == list(range(12))
