"""Configurations as people write them, many keys at once: every frame is the right one, whatever they combine."""

import numpy as np
import pytest

from knonik_multidataloader.api.multi_sharded_dataloader import MultiShardedDataLoader
from knonik_multidataloader.api.sharded_dataloader import ShardedDataLoader
from tests.support.packed import check_frames, write_packed

FPS = 50
OFFSETS = [0.0, 0.1, 0.2, 0.3]
AHEAD = {"rgb_cam_0": OFFSETS, "state": OFFSETS, "action": OFFSETS}


def mirrored(sample):
    streams = dict(sample["streams"])
    streams["mirrored"] = streams["rgb_cam_0"][..., ::-1, :]
    return {**sample, "streams": streams}


def as_floats(sample):
    return {**sample, "streams": {**sample["streams"], "floats": sample["streams"]["rgb_cam_0"].float()}}


RECIPES = {
    "few keys": {},
    "arrays": {"augment_execution": "threaded", "augment_workers": 4, "precollate_batches": 2},
    "tensors": {"framework": "torch", "augment_execution": "threaded", "augment_workers": 4, "precollate_batches": 2},
    "mirrored arrays": {"augment_fn": mirrored, "augment_execution": "threaded", "augment_workers": 4},
    "tensors as floats": {
        "framework": "torch",
        "augment_fn": as_floats,
        "augment_execution": "threaded",
        "augment_workers": 4,
    },
    "queue of ready batches": {"batch_prefetch_timeout_s": 0.1, "batch_prefetch_daemon": True, "precollate_batches": 2},
    "little memory": {
        "planner_locality": "hlp_bounded",
        "ram_cache_bytes": 0,
        "prefetch_shards": 4,
        "num_decoders": 4,
        "hlps_in_flight": 2,
        "low_memory": True,
    },
    "much of everything": {
        "framework": "torch",
        "planner_locality": "global",
        "num_decoders": 16,
        "hlps_in_flight": 8,
        "prefetch_shards": 16,
        "ram_cache_bytes": 32 << 30,
        "precollate_batches": 3,
    },
    "single frames": {
        "chunk_len": 1,
        "batch_size": 16,
        "planner_locality": "low_mem",
        "low_memory": True,
        "ram_cache_bytes": 16 << 30,
    },
    "history and lookahead": {
        "chunk_len": 6,
        "delta_timestamps": {"state": [-0.1, -0.04, 0.0, 0.04, 0.1], "action": [step / FPS for step in range(6)]},
        "pad_missing": True,
    },
    "sparse reads": {"shuffle_mode": "global_triplet_fast", "num_decoders": 8},
    "sparse windows": {
        "chunk_len": 1,
        "shuffle_mode": "global_triplet_fast",
        "kdelta_direct_local_decode": True,
        "delta_timestamps": AHEAD,
        "pad_missing": True,
    },
    "without copies": {
        "framework": "torch",
        "shuffle_mode": "global_triplet_fast",
        "zerocopy": True,
        "zerocopy_frame_shapes": {"rgb_cam_0": [80, 80, 3]},
    },
}


@pytest.fixture(scope="module", params=["training_fast", "training_compressed", "compact_video"])
def dataset(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return write_packed(folder, (31, 12, 20), request.param, cameras=1, depth=False, fps=float(FPS))


def frames_asked_for(batch, keys):
    anchors = np.asarray(batch["_frame_indices"])[:, None]
    offsets = {
        key: np.round(np.array(values) * FPS).astype(np.int64)
        for key, values in (keys.get("delta_timestamps") or {}).items()
    }
    return {
        key: anchors + offsets.get(key, np.arange(keys["chunk_len"]))[None] for key in ("rgb_cam_0", "state", "action")
    }


@pytest.mark.parametrize("name", RECIPES)
def test_it_gives_the_right_frames(dataset, name):
    keys = {"chunk_len": 4, "batch_size": 8, "framework": "numpy", "fs_type": "local", "fs_params": {"root": "/"}}
    keys |= RECIPES[name]
    if keys["framework"] == "torch":
        pytest.importorskip("torch")
    seen = 0
    loader = ShardedDataLoader(loader_cfg=dataset.config(**keys), stream_cfg={}, dataset_name="mine")
    try:
        for batch in loader:
            seen += len(batch["_episode_ids"])
            assert (type(batch["state"]).__module__ == "torch") == (keys["framework"] == "torch")
            check_frames(dataset, batch, frames_asked_for(batch, keys))
            if "mirrored" in batch:
                np.testing.assert_array_equal(batch["mirrored"], batch["rgb_cam_0"][:, :, :, ::-1])
            if "floats" in batch:
                np.testing.assert_array_equal(batch["floats"].numpy(), np.asarray(batch["rgb_cam_0"]).astype("f4"))
        assert set(loader.stats()["inactive"]) <= {*RECIPES[name], "fs_params"}
    finally:
        loader.shutdown()
    short = 0 if keys.get("pad_missing") else keys["chunk_len"] - 1
    assert seen == sum(length - short for length in dataset.lengths)


@pytest.mark.usefixtures("credentials")
def test_one_kept_on_s3_and_cached(packed, bucket):
    keys = {"chunk_len": 4, "batch_size": 8, "fs_type": "s3", "fs_params": bucket, "hlp_manifest": "hlp_manifest.json"}
    keys |= {"io_loops": 4, "hlps_in_flight": 16, "num_decoders": 16, "ram_cache_bytes": 1 << 30}
    loader = ShardedDataLoader(loader_cfg=packed.config(**keys), stream_cfg={}, dataset_name="mine")
    try:
        for batch in loader:
            asked = np.asarray(batch["_frame_indices"])[:, None] + np.arange(4)
            check_frames(packed, batch, dict.fromkeys(("rgb_cam_0", "rgb_cam_1", "state", "depth_cam_0"), asked))
    finally:
        loader.shutdown()


def test_two_datasets_mixed(tmp_path):
    made = {
        name: write_packed(tmp_path / name, (25, 9), cameras=1, depth=False, fps=float(FPS), tag=tag)
        for name, tag in (("a", 0), ("b", 10))
    }
    local = {"fs_type": "local", "fs_params": {"root": "/"}}
    loader = MultiShardedDataLoader(
        datasets=[
            (name, {"loader": {"hlp_manifest": str(packed.manifest), **local}, "streams": {}})
            for name, packed in made.items()
        ],
        weights=[0.7, 0.3],
        loader_cfg={
            "decode_mode": "random_access",
            "chunk_len": 4,
            "batch_size": 10,
            "framework": "numpy",
            "shuffle_mode": "global_triplet",
            "planner_locality": "hlp_bounded",
            "num_decoders": 8,
            "ram_cache_bytes": 16 << 30,
            "augment_execution": "threaded",
            "precollate_batches": 2,
            "rank": 0,
            "world_size": 1,
        },
    )
    try:
        assert len(loader) > 3
        for batch in loader:
            names = batch["_sample_dataset_names"]
            assert (names.count("a"), names.count("b")) == (7, 3)
            for name, packed in made.items():
                mine = [at for at, other in enumerate(names) if other == name]
                part = {
                    key: value[mine] if isinstance(value, np.ndarray) else [value[at] for at in mine]
                    for key, value in batch.items()
                    if not isinstance(value, str) and len(value) == len(names)
                }
                check_frames(packed, part, frames_asked_for(part, {"chunk_len": 4}))
        assert set(loader.stats()["inactive"]) == {"ram_cache_bytes", "augment_execution"}
    finally:
        loader.shutdown()
