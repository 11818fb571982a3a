"""LeRobot's own policies take the batches; runs where LeRobot is installed (extra ``bench``)."""

import pytest
import torch
from torch.utils.data import DataLoader

from knonik_loader.torch import KhlpDataset
from tests.support.packed import write_packed

pytest.importorskip("lerobot", reason="LeRobot is not installed; it is part of the extra 'bench'")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    return write_packed(folder, [30, 20], cameras=2, size=(96, 96), depth=False, language=["pick", "place"]).manifest


def features(dataset):
    from lerobot.configs.types import FeatureType
    from lerobot.datasets.utils import dataset_to_policy_features

    found = dataset_to_policy_features(dataset.meta.features)
    outputs = {key: value for key, value in found.items() if value.type is FeatureType.ACTION}
    return {key: value for key, value in found.items() if key not in outputs}, outputs


def batch_of(dataset):
    return next(iter(DataLoader(dataset, batch_size=4, shuffle=True)))


def step(policy, config, dataset):
    from lerobot.policies.factory import make_pre_post_processors

    before, _ = make_pre_post_processors(config, dataset_stats=dataset.meta.stats)
    loss, _ = policy.forward(before(batch_of(dataset)))
    assert torch.isfinite(loss)
    loss.backward()
    assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in policy.parameters())


def test_act(manifest):
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    deltas = {"action": [at / 30 for at in range(8)]}
    dataset = KhlpDataset(manifest, keys="lerobot", delta_timestamps=deltas)
    inputs, outputs = features(dataset)
    config = ACTConfig(
        input_features=inputs,
        output_features=outputs,
        chunk_size=8,
        n_action_steps=8,
        pretrained_backbone_weights=None,
        dim_model=32,
        n_heads=2,
        dim_feedforward=64,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        device="cpu",
    )
    step(ACTPolicy(config), config, dataset)


def test_diffusion(manifest):
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    now = [-1 / 30, 0.0]
    cameras = {f"observation.images.cam_{number}": now for number in range(2)}
    deltas = {**cameras, "observation.state": now, "action": [at / 30 for at in range(-1, 7)]}
    dataset = KhlpDataset(manifest, keys="lerobot", delta_timestamps=deltas)
    inputs, outputs = features(dataset)
    config = DiffusionConfig(
        input_features=inputs,
        output_features=outputs,
        horizon=8,
        n_action_steps=4,
        crop_shape=(84, 84),
        down_dims=(32, 64, 128),
        num_train_timesteps=10,
        device="cpu",
    )
    step(DiffusionPolicy(config), config, dataset)
