"""LeRobot's own writer, cameras that roll to new files at different episodes: every frame through every profile."""

import numpy as np
import pytest

from tests.support.road import PROFILES, loader_config
from tests.support.stamps import read_stamp


@pytest.fixture(scope="module")
def road(real_data, tmp_path_factory):
    from knonik.ingest import pack, run

    root = tmp_path_factory.mktemp("lerobot")
    report = run(
        config={"dir_type": "lerobot_v3", "preset": {"rgb": {"codec": "jpeg", "quality": 92}}},
        input=real_data / "lerobot" / "oracle_v3_many_files",
        output=root / "episodes",
    )
    assert len(report.written) == 5, report
    manifests = {
        profile: pack(root / "episodes", root / profile, "oracle", shard_size=40, storage_profile=profile)[0]
        for profile in PROFILES
    }
    return {episode.episode_id: episode.frames for episode in report.written}, manifests


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("mode", ["none", "global_triplet_fast"])
def test_every_frame_of_every_camera_is_its_own(road, profile, mode):
    from knonik_loader import ShardedDataLoader

    lengths, manifests = road
    config = loader_config(manifests[profile], shuffle_mode=mode, stride=3, pad_missing=True, chunk_len=5)
    count = 0
    with ShardedDataLoader(config) as loader:
        for batch in loader:
            cameras = [key for key in batch if key.startswith("rgb_") and not key.endswith("_mask")]
            assert len(cameras) == 2
            for sample, name in enumerate(batch["_episode_ids"]):
                episode, anchor = int(name[-6:]), int(batch["_frame_indices"][sample])
                frames = np.minimum(np.arange(anchor, anchor + 5), lengths[name] - 1)
                for camera in cameras:
                    stamps = [read_stamp(picture) for picture in batch[camera][sample]]
                    assert stamps == [(int(camera[-1]), episode, frame) for frame in frames]
                np.testing.assert_array_equal(batch["state"][sample][:, 1], frames)
                count += 1
    assert count == sum(-(-length // 3) for length in lengths.values())
