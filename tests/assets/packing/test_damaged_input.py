"""Episodes damaged after ingest are never packed, whatever the profile would make of their pictures."""

import pytest

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
