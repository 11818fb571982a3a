"""Stamped recordings through ingest, each profile and each way of loading: every frame is the right one."""

import numpy as np
import pytest

from tests.support.road import PROFILES, check_batch, ingest_config, loader_config, write_raw

LENGTHS = [300, 313, 326, 339, 352]
FPS = 30.0


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    from knonik.ingest import pack, run

    root = tmp_path_factory.mktemp("road")
    write_raw(root / "raw", LENGTHS)
    report = run(config=ingest_config(), input=root / "raw", output=root / "episodes")
    assert [episode.frames for episode in report.written] == LENGTHS
    return {
        profile: pack(
            input_dir=root / "episodes",
            output_dir=root / profile,
            dataset_name="stamped",
            shard_size=45,
            window_size=8,
            storage_profile=profile,
        )[0]
        for profile in PROFILES
    }


WINDOWS = {
    "chunk": ({}, {key: range(4) for key in ("rgb_cam_0", "rgb_cam_1", "state", "action")}),
    "deltas": (
        {
            "delta_timestamps": {
                "cam_0": [-3.5, -0.1, 0.0, 0.1, 3.5],
                "state": [-0.05, 0.0],
                "action": [i / FPS for i in range(16)],
            }
        },
        # -0.05 s lies exactly between two frames: the earlier one is taken
        {"rgb_cam_0": [-105, -3, 0, 3, 105], "rgb_cam_1": range(4), "state": [-2, 0], "action": range(16)},
    ),
}


@pytest.mark.parametrize("padded", [False, True], ids=["dropped", "padded"])
@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("mode", ["none", "global_triplet", "global_triplet_fast"])
@pytest.mark.parametrize("profile", PROFILES)
def test_every_frame_is_the_one_that_was_asked_for(manifests, profile, mode, windows, padded):
    from knonik_multidataloader.api.sharded_dataloader import ShardedDataLoader

    keys, wanted = WINDOWS[windows]
    config = loader_config(manifests[profile], shuffle_mode=mode, pad_missing=padded, stride=23, **keys)
    seen = set()
    with ShardedDataLoader(loader_cfg=config, stream_cfg={}, dataset_name="stamped") as loader:
        for batch in loader:
            check_batch(batch, LENGTHS, wanted, FPS, padded)
            seen.update(zip(batch["_episode_ids"], np.asarray(batch["_frame_indices"]).tolist(), strict=True))
    low = 0 if padded else max(0, -min(min(offsets) for offsets in wanted.values()))
    high = 0 if padded else max(max(offsets) for offsets in wanted.values())
    expected = {
        (f"episode_{episode:06d}", frame)
        for episode, length in enumerate(LENGTHS)
        for frame in range(0, length, 23)
        if low <= frame < length - high
    }
    if padded:
        assert seen == expected
    else:
        assert {name for name, _ in seen} == {name for name, _ in expected}
        assert all(low <= frame for _, frame in seen)


def test_the_order_is_the_same_for_every_profile_and_read_path(manifests):
    from knonik_loader import ShardedDataLoader

    orders = []
    for profile in PROFILES:
        for mode in ("global_triplet", "global_triplet_fast"):
            with ShardedDataLoader(loader_config(manifests[profile], shuffle_mode=mode, stride=7, seed=3)) as loader:
                orders.append([list(zip(b["_episode_ids"], b["_frame_indices"].tolist(), strict=True)) for b in loader])
    assert all(order == orders[0] for order in orders[1:])
    assert orders[0] != sorted(orders[0])
