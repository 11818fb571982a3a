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


AS = {
    "rows": lambda pictures: pictures,
    "half": lambda pictures: pictures.half(),
    "bfloat16": lambda pictures: pictures.bfloat16(),
    "bool": lambda pictures: pictures > 100,
    "mirrored array": lambda pictures: pictures.numpy()[:, :, ::-1],
    "channels first": lambda pictures: pictures.permute(0, 3, 1, 2),
    "scaled, channels first": lambda pictures: pictures.permute(0, 3, 1, 2).float() / 255,
    "gray": lambda pictures: pictures[..., :1],
    "smaller": lambda pictures: pictures[:, ::2, 4:],
    "with gradients": lambda pictures: (pictures.float() / 255).requires_grad_(),
}


class Change:
    """One stream of a sample."""

    def __init__(self, change, key="rgb_cam_0"):
        self.change, self.key = change, key

    def __call__(self, sample):
        return {**sample, "streams": {**sample["streams"], self.key: self.change(sample["streams"][self.key])}}


def as_copied(value):
    return value.copy() if isinstance(value, np.ndarray) else value.detach()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", AS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_pictures_as_an_augmentation_makes_them(packed, name, dtype, workers):
    """Of any type, on other axes, in the main process and in a worker: always channel first, scaled where uint8."""
    keys = {"keys": "lerobot", "delta_timestamps": DELTAS, "image_dtype": str(dtype).removeprefix("torch.")}
    stored = KhlpDataset(packed.manifest, delta_timestamps={"rgb_cam_0": [-0.1, 0.0]}, pad_missing=True)
    dataset = KhlpDataset(packed.manifest, augment_fn=Change(AS[name]), **keys)
    how = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 60} if workers else {}
    batch = next(iter(DataLoader(dataset, batch_size=3, **how)))
    made = torch.stack([torch.as_tensor(as_copied(AS[name](stored[at]["rgb_cam_0"]))) for at in range(3)])
    wanted = made if "first" in name else made.permute(0, 1, 4, 2, 3)
    if wanted.dtype == torch.uint8 and dtype == torch.float32:
        wanted = wanted.float() / 255
    got = batch["observation.images.cam_0"]
    assert (got.dtype, got.requires_grad) == (wanted.dtype, False)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    ("key", "change", "named"),
    [
        ("rgb_cam_0", lambda value: value[..., 0], r"'rgb_cam_0' \(2, 80, 80\) in each sample.*\(T, H, W, C\)"),
        ("rgb_cam_1", lambda value: value[0], r"'rgb_cam_1' \(80, 80, 3\)"),
        ("rgb_cam_1", lambda value: value.float().mean(), r"'rgb_cam_1' \(\) "),
        ("depth_cam_0", lambda value: value[0], r"'depth_cam_0' \(12, 16\)"),
        ("state", lambda value: value.mean(), r"'state' \(\) .*its one step is taken"),
        ("state", lambda value: value[0], r"'state' \(4,\) .*its one step is taken"),
        ("state", lambda value: {"left": value}, "'state' is a dict"),
    ],
)
def test_axes_that_an_augmentation_lost_are_one_error(packed, key, change, named):
    deltas = {"observation.images.cam_0": DELTAS["observation.images.cam_0"]}
    dataset = KhlpDataset(packed.manifest, keys="lerobot", delta_timestamps=deltas, augment_fn=Change(change, key))
    with pytest.raises(ConfigError, match=named):
        dataset[0]


def adds(key, value):
    return lambda sample: {**sample, "streams": {**sample["streams"], key: value}}


def test_streams_that_an_augmentation_adds_come_out_as_they_are(packed):
    flow = torch.arange(24.0).reshape(2, 3, 4)
    for key in ("observation.flow", "rgb_flow", "depth_flow", "observation.images.new"):
        sample = KhlpDataset(packed.manifest, keys="lerobot", augment_fn=adds(key, flow))[0]
        assert torch.equal(sample[key], flow)
    for key in ("task", "observation.state", "action_is_pad", "index"):
        with pytest.raises(ConfigError, match=f"a stream '{key}', a name of LeRobot's"):
            _ = KhlpDataset(packed.manifest, keys="lerobot", augment_fn=adds(key, flow))[0]


def test_depth_that_has_its_channel_keeps_it(packed):
    plain = KhlpDataset(packed.manifest, keys="lerobot")[3]["observation.depths.cam_0"]
    half = Change(lambda value: value.unsqueeze(1).bfloat16(), "depth_cam_0")
    made = KhlpDataset(packed.manifest, keys="lerobot", augment_fn=half)[3]["observation.depths.cam_0"]
    assert torch.equal(made, plain.bfloat16())
