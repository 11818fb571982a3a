"""Episodes damaged after ingest are never packed, whatever the profile would make of their pictures."""

import pytest

from knonik_assets.episodes.reader import EpisodeReader
from knonik_assets.pack import pack
from knonik_loader.errors import EpisodeError
from tests.assets.packing.support import PROFILES, write_episodes


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("file", ["rgb_cam_0.mkv", "depth_front.hdf5"])
def test_a_flipped_byte_is_refused_by_name(tmp_path, profile, file):
    episodes = write_episodes(tmp_path / "episodes", (12, 12), cameras=1)
    path = episodes / "episode_000001" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(EpisodeError, match=rf"episode_000001/{file}.*checksum.*--exclude episode_000001"):
        pack(episodes, tmp_path / "out", "d", storage_profile=profile, engine="inline")
    assert not (tmp_path / "out").exists()


def test_a_stream_that_is_not_packed_need_not_be_whole(tmp_path):
    episodes = write_episodes(tmp_path / "episodes", (12, 12), cameras=1)
    path = episodes / "episode_000001" / "depth_front.hdf5"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert pack(episodes, tmp_path / "out", "d", engine="inline", streams=["cam_0", "state"])[0].exists()


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return data


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_what_is_copied_beside_its_check_is_not_seen_before_it(tmp_path, engine):
    """A flipped byte inside a picture that passes undecoded: files were written by the time it is found."""
    episodes = write_episodes(tmp_path / "episodes", (12, 12), cameras=2, depth=False)
    options = {"shard_size": 4, "window_size": 2, "storage_profile": "training_fast", "engine": engine}
    out = tmp_path / "out"
    first = {path.name: path.read_bytes() for path in pack(episodes, out, "d", **options)}
    path = episodes / "episode_000001" / "rgb_cam_1.mkv"
    whole = path.read_bytes()
    flip(path)
    for target, more in ((tmp_path / "new", {}), (out, {"overwrite": True, "seed": 1})):
        with pytest.raises(EpisodeError, match=r"episode_000001/rgb_cam_1\.mkv.*checksum.*--exclude episode_000001"):
            pack(episodes, target, "d", **(options | more))
        left = {path.name for path in target.rglob("*") if path.is_file()} - {"lock"}
        assert left == (first.keys() | {"hlp_manifest.1.json", "pack_report.json"} if more else set())
        assert target.exists() == bool(more)
    path.write_bytes(whole)
    again = pack(episodes, tmp_path / "new", "d", **options)
    assert {path.name: path.read_bytes() for path in again} == first


def test_damage_is_told_before_what_became_of_it(tmp_path):
    """A picture that was cut off would be refused as well, but the file is what has to be mended."""
    episodes = write_episodes(tmp_path / "episodes", (12, 12), cameras=1, depth=False)
    path = episodes / "episode_000000" / "rgb_cam_0.mkv"
    jpeg = list(EpisodeReader(path.parent).rgb_jpegs("cam_0"))[5]
    path.write_bytes(path.read_bytes().replace(jpeg, jpeg[:-2] + b"\0\0"))
    with pytest.raises(EpisodeError, match=r"rgb_cam_0\.mkv differs from the checksum"):
        pack(episodes, tmp_path / "out", "d", storage_profile="training_fast", engine="inline")
    assert not list((tmp_path / "out").rglob("*hlp*"))
