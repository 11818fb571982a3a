"""Video packets of an episode become records as they are, where that is what was asked for and they decode alone."""

import av
import numpy as np
import pytest

from knonik_assets.episodes import video_read
from knonik_assets.episodes.metadata import METADATA, read_metadata
from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.episodes.video import scan
from knonik_assets.pack import pack
from knonik_assets.packing.existing import read_manifest
from knonik_assets.packing.packets import passed_records
from knonik_assets.packing.stored import open_packed
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.types import StreamInfo
from tests.assets.packing.support import SIZE, read_all, write_episodes
from tests.support.stamps import episode_arrays, read_stamp

GOP = 6
"""Of the episodes."""


def packed_shards(manifest):
    """(first frame, records, key distances) of every shard of the only colour stream, in order."""
    found = []
    for path in sorted(manifest.parent.glob("hlp_*.khlp")):
        with open_packed(path) as file:
            data = path.read_bytes()
            for number in range(file.index.num_shards):
                table = file.index.records(number, 0)
                records = [
                    data[offset : offset + size]
                    for offset, size in zip(table.offsets.tolist(), table.sizes.tolist(), strict=True)
                ]
                found.append((file.index.shard(number).first_frame, records, table.key_back.tolist()))
    return sorted(found, key=lambda shard: shard[0])


def params(manifest):
    return next(stream.params for stream in read_manifest(manifest).streams if stream.kind == "rgb")


def check_frames(manifest, episodes, length):
    """Every frame decodes to the very pixels of the episode, and is the one it should be."""
    frames = read_all(manifest)["episode_000000"]["rgb_cam_0"]
    assert [read_stamp(image)[2] for image in frames] == list(range(length))
    for packed, stored in zip(frames, EpisodeReader(episodes / "episode_000000").rgb("cam_0"), strict=True):
        np.testing.assert_array_equal(packed, stored)


@pytest.mark.parametrize("codec", ["h264", "vp9", "av1"])
def test_packets_pass_byte_for_byte(tmp_path, codec):
    episodes = write_episodes(tmp_path / "episodes", (31,), cameras=1, depth=False, codec=codec, quality=32)
    manifest = pack(episodes, tmp_path / "out", "d", 12, codec=codec, engine="inline")[0]
    assert params(manifest)["passes"] is True
    reader = EpisodeReader(episodes / "episode_000000")
    shards = packed_shards(manifest)
    assert [first for first, _, _ in shards] == [0, 12, 24]
    for first, records, back in shards:
        assert back == [row % GOP for row in range(len(records))]
        assert records == [data for data, _ in reader.rgb_packets("cam_0", first, first + len(records))]
    stored = (episodes / "episode_000000").glob("rgb_cam_0.*")
    whole = next(iter(stored)).read_bytes()
    # H.264 changes its length prefixes for start codes; what they enclose is untouched
    for _, records, _ in shards:
        for record in records:
            assert record[-40:] in whole
    check_frames(manifest, episodes, 31)


def test_a_shard_that_begins_between_keyframes_is_encoded_anew(tmp_path):
    episodes = write_episodes(tmp_path / "episodes", (31,), cameras=1, depth=False, codec="h264", quality=32)
    manifest = pack(episodes, tmp_path / "out", "d", 9, engine="inline")[0]
    shards = packed_shards(manifest)
    assert [first % GOP for first, _, _ in shards] == [0, 3, 0, 3]
    assert [back for _, _, back in shards] == [
        [0, 1, 2, 3, 4, 5, 0, 1, 2],
        [*range(9)],
        [0, 1, 2, 3, 4, 5, 0, 1, 2],
        [*range(4)],
    ]
    frames = read_all(manifest)["episode_000000"]["rgb_cam_0"]
    assert [read_stamp(image)[2] for image in frames] == list(range(31))


@pytest.mark.parametrize(
    "asked",
    [
        {"quality": 22},
        {"gop": GOP},
        {"chroma": "444"},
        {"codec": "vp9"},
        {"resize": "cam_0=80x96"},
    ],
    ids=str,
)
def test_what_is_asked_for_is_encoded(tmp_path, asked):
    episodes = write_episodes(
        tmp_path / "episodes", (14,), cameras=1, depth=False, codec="h264", quality=32, size=(160, 192)
    )
    manifest = pack(episodes, tmp_path / "out", "d", 12, engine="inline", **asked)[0]
    assert "passes" not in params(manifest)
    stored = {data for data, _ in EpisodeReader(episodes / "episode_000000").rgb_packets("cam_0")}
    assert not stored & {record for _, records, _ in packed_shards(manifest) for record in records}
    frames = read_all(manifest)["episode_000000"]["rgb_cam_0"]
    assert [read_stamp(image)[2] for image in frames] == list(range(14))


def test_packets_finer_than_the_profile_are_made_smaller(tmp_path):
    episodes = write_episodes(tmp_path / "episodes", (14,), cameras=1, depth=False, codec="h264", quality=12)
    manifest = pack(episodes, tmp_path / "out", "d", 12, engine="inline")[0]
    assert "passes" not in params(manifest)
    size = sum(len(data) for data, _ in EpisodeReader(episodes / "episode_000000").rgb_packets("cam_0"))
    assert sum(len(record) for _, records, _ in packed_shards(manifest) for record in records) < size


def test_packets_copied_at_ingest_pass_whatever_their_quality(tmp_path):
    episodes = write_episodes(tmp_path / "episodes", (14,), cameras=1, depth=False, codec="h264", quality=12)
    metadata = read_metadata(episodes / "episode_000000")
    stream = metadata.stream_params["rgb_cam_0"]
    # as ``copy`` records it
    metadata.stream_params["rgb_cam_0"] = {
        **{key: stream[key] for key in ("codec", "height", "width", "fps", "pixel_format")},
        "copied": True,
    }
    (episodes / "episode_000000" / METADATA).write_text(metadata.model_dump_json())
    manifest = pack(episodes, tmp_path / "out", "d", 12, engine="inline")[0]
    assert params(manifest)["passes"] is True
    check_frames(manifest, episodes, 14)


def test_packets_of_jpegs_or_between_keyframes_are_none(tmp_path):
    jpegs = write_episodes(tmp_path / "jpegs", (4,), cameras=1, depth=False)
    assert EpisodeReader(jpegs / "episode_000000").rgb_packets("cam_0") is None
    video = write_episodes(tmp_path / "video", (14,), cameras=1, depth=False, codec="vp9")
    reader = EpisodeReader(video / "episode_000000")
    assert reader.rgb_packets("cam_0", 1, 8) is None
    assert [is_key for _, is_key in reader.rgb_packets("cam_0", 6, 14)] == [True] + 5 * [False] + [True, False]


def encode(path, frames, options):
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", 30, options=options)
        stream.height, stream.width, stream.pix_fmt = *frames[0].shape[:2], "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        file.mux(stream.encode())
    return scan(path)


def test_reordered_packets_are_none(tmp_path):
    frames = list(episode_arrays(0, 20, 1)["cam_0"])
    ordered, reordered = (
        (tmp_path / name, {"g": "5", "x264-params": f"bframes={count}:b-adapt=0:scenecut=0"})
        for name, count in (("ordered.mkv", 0), ("reordered.mkv", 2))
    )
    assert len(video_read.packets(ordered[0], encode(ordered[0], frames, ordered[1]), 0, 20)) == 20
    assert video_read.packets(reordered[0], encode(reordered[0], frames, reordered[1]), 0, 20) is None


def test_packets_that_decode_to_other_frames_do_not_pass(tmp_path):
    episodes = write_episodes(tmp_path / "episodes", (18,), cameras=1, depth=False, codec="h264", quality=32)
    reader = EpisodeReader(episodes / "episode_000000")
    stream = StreamInfo(0, "rgb", "cam_0", "shdr", (*SIZE, 3), "uint8", 30.0, params={})
    packets = reader.rgb_packets("cam_0")
    assert len(passed_records(reader, stream, make_codec(stream), 0, 6)) == 6
    for wrong in (
        packets[6:12],
        packets[:5] + packets[6:7],
        [*packets[:3], (b"\0\0\0\1\x41" + bytes(40), False), *packets[4:6]],
    ):
        reader.rgb_packets = lambda name, start, stop, wrong=wrong: wrong
        assert passed_records(reader, stream, make_codec(stream), 0, 6) is None
