"""Samples and facts as LeRobot's training code wants them."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from knonik_loader import ConfigError
from knonik_loader.torch import KhlpDataset, KhlpIterableDataset, normalization_stats
from tests.support.packed import write_packed
from tests.support.stamps import read_stamp

DELTAS = {
    "observation.images.cam_0": [-0.1, 0.0],
    "observation.state": [-0.1, 0.0],
    "action": [frame / 30 for frame in range(5)],
}
LANGUAGE = ["stack", "pick", "stack"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lerobot")
    return write_packed(folder, [40, 25, 12], splits=["train", "train", "val"], language=LANGUAGE)


def test_keys_shapes_and_types(packed):
    sample = KhlpDataset(packed.manifest, keys="lerobot", delta_timestamps=DELTAS)[0]
    expected = {
        "observation.images.cam_0": ((2, 3, 80, 80), torch.float32),
        "observation.images.cam_0_is_pad": ((2,), torch.bool),
        "observation.images.cam_1": ((3, 80, 80), torch.float32),
        "observation.depths.cam_0": ((1, 12, 16), torch.float32),
        "observation.state": ((2, 4), torch.float32),
        "observation.state_is_pad": ((2,), torch.bool),
        "action": ((5, 4), torch.float32),
        "action_is_pad": ((5,), torch.bool),
        "episode_index": ((), torch.int64),
        "frame_index": ((), torch.int64),
        "index": ((), torch.int64),
        "task_index": ((), torch.int64),
        "timestamp": ((), torch.float32),
    }
    assert {k: (tuple(v.shape), v.dtype) for k, v in sample.items() if torch.is_tensor(v)} == expected
    assert sample.keys() - expected == {"task"}


def check(batch, packed, dtype):
    frames, episodes = batch["frame_index"].tolist(), batch["episode_index"].tolist()
    for at, (frame, episode) in enumerate(zip(frames, episodes, strict=True)):
        length = packed.lengths[episode]
        images = batch["observation.images.cam_0"][at]
        assert images.dtype == dtype
        asked = np.array([frame - 3, frame])
        for image, number in zip(images, np.clip(asked, 0, length - 1), strict=True):
            pixels = image.permute(1, 2, 0).numpy()
            pixels = np.rint(pixels * 255).astype(np.uint8) if dtype == torch.float32 else pixels
            assert read_stamp(pixels) == (0, episode, number)
        # True is padded: the opposite of the loaders' masks.
        np.testing.assert_array_equal(batch["observation.images.cam_0_is_pad"][at], asked < 0)
        ahead = frame + np.arange(5)
        np.testing.assert_array_equal(batch["action_is_pad"][at], ahead >= length)
        np.testing.assert_array_equal(batch["action"][at][:, 0], np.minimum(ahead, length - 1))
        assert batch["timestamp"][at] == pytest.approx(frame / 30, abs=1e-5)
        assert batch["task"][at] == LANGUAGE[episode]
        assert int(batch["task_index"][at]) == {"stack": 0, "pick": 1}[LANGUAGE[episode]]
        assert int(batch["index"][at]) == sum(packed.lengths[:episode]) + frame


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_values_and_masks(packed, dtype):
    name = str(dtype).removeprefix("torch.")
    keys = {"keys": "lerobot", "delta_timestamps": DELTAS, "image_dtype": name}
    dataset = KhlpDataset(packed.manifest, **keys)
    assert len(dataset) == sum(packed.lengths)  # every frame is a sample there
    for batch in DataLoader(dataset, batch_size=16, num_workers=2):
        check(batch, packed, dtype)
    for batch in KhlpIterableDataset(packed.manifest, batch_size=7, rank=0, world_size=1, **keys):
        check(batch, packed, dtype)


def test_its_own_names_are_understood_too(packed):
    one = KhlpDataset(packed.manifest, keys="lerobot", delta_timestamps=DELTAS)[9]
    own = {"rgb_cam_0": DELTAS["observation.images.cam_0"], "state": DELTAS["observation.state"]}
    other = KhlpDataset(packed.manifest, keys="lerobot", delta_timestamps={**own, "action": DELTAS["action"]})[9]
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one if torch.is_tensor(one[key]))


def test_cameras_and_state_by_either_name(packed):
    keys = {"keys": "lerobot", "state_key": "state", "image_key": "observation.images.cam_1"}
    dataset = KhlpDataset(packed.manifest, **keys)
    assert {name for name in dataset[4] if name.startswith("observation")} == {
        "observation.images.cam_1",
        "observation.depths.cam_0",
        "observation.state",
    }
    with pytest.raises(ConfigError, match="one name"):
        KhlpDataset(packed.manifest, keys="lerobot", state_key="action")


def test_meta(packed):
    dataset = KhlpDataset(packed.manifest, keys="lerobot", split="val")
    meta = dataset.meta
    assert (meta.fps, meta.total_episodes, meta.total_frames) == (30, 1, 12)
    assert meta.tasks == {"stack": 0, "pick": 1}
    assert meta.camera_keys == ["observation.images.cam_0", "observation.images.cam_1"]
    assert meta.features["observation.state"] == {"dtype": "float32", "shape": (4,), "names": None}
    assert meta.features["observation.images.cam_0"]["shape"] == (80, 80, 3)
    # Of the train split, whichever split the dataset is of.
    train = normalization_stats(packed.manifest)
    np.testing.assert_allclose(meta.stats["action"]["mean"], train["action"].mean, rtol=1e-6)
    np.testing.assert_allclose(meta.stats["observation.state"]["std"], train["state"].std, rtol=1e-6)
    frames = KhlpDataset(packed.manifest, keys="lerobot", split="train", streams=["rgb_cam_0"])
    pixels = torch.stack([sample["observation.images.cam_0"] for sample in frames]).double()  # (65, 3, H, W)
    stats = meta.stats["observation.images.cam_0"]
    assert stats["mean"].shape == (3, 1, 1)
    np.testing.assert_allclose(stats["mean"].ravel(), pixels.mean((0, 2, 3)), atol=2e-3)
    np.testing.assert_allclose(stats["std"].ravel(), pixels.std((0, 2, 3)), atol=2e-3)
    assert stats["min"].min() >= 0
    assert stats["max"].max() <= 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"chunk_len": 4}, "delta_timestamps"),
        ({"image_dtype": "float16"}, "'float32' or 'uint8'"),
        ({"delta_timestamps": {"observation.images.cam_9": [0.0]}}, r"did you mean 'observation.images.cam_"),
        ({"state_key": "sate"}, "did you mean 'state'"),
    ],
)
def test_mistakes_have_names(packed, options, named):
    with pytest.raises(ConfigError, match=named):
        KhlpDataset(packed.manifest, keys="lerobot", **options)
    with pytest.raises(ConfigError, match="keys='lerobot'"):
        _ = KhlpDataset(packed.manifest).meta
