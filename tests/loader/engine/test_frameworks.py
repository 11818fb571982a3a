"""Torch output, and augmentation in every execution."""

import sys

import numpy as np
import pytest

from knonik_loader import ConfigError, ShardedDataLoader
from tests.support.augments import (
    another_mask,
    different,
    fail_at_twenty,
    forget,
    mirror,
    odd_masks,
    say,
    scale,
    streams_alone,
    uneven,
)
from tests.support.packed import check_frames


def test_torch_batches_are_tensors_that_share_memory(packed):
    torch = pytest.importorskip("torch")
    with ShardedDataLoader(packed.config(framework="torch", pad_missing=True)) as loader:
        run = iter(loader)
        for batch in run:
            for key in (
                "rgb_cam_0",
                "depth_cam_0",
                "state",
                "_frame_indices",
                "_timestamps",
                "_hlp_ids",
                "state_valid_mask",
            ):
                assert isinstance(batch[key], torch.Tensor), key
            assert batch["rgb_cam_0"].dtype == torch.uint8
            assert batch["state_valid_mask"].dtype == torch.bool
            assert isinstance(batch["_episode_ids"], list)
            anchors = batch["_frame_indices"].numpy()[:, None]
            check_frames(packed, batch, {key: anchors + np.arange(4) for key in batch["_stream_names"]})
        memory = loader.stats()["memory"]
        assert memory["reused"] > 0  # a tensor that is gone gives its memory back


def test_tensors_that_are_kept_stay_as_they_were(packed):
    pytest.importorskip("torch")
    with ShardedDataLoader(packed.config(framework="torch")) as loader:
        kept = [(batch["rgb_cam_1"], batch["rgb_cam_1"].clone()) for batch in loader]
    assert all(bool((one == other).all()) for one, other in kept)


def test_torch_is_asked_for_by_name(packed, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match="torch"):
        ShardedDataLoader(packed.config(framework="torch"))


@pytest.mark.parametrize("execution", ["inline", "threaded", "process"])
def test_augmentation_keeps_order_and_seeds(packed, execution):
    with ShardedDataLoader(packed.config()) as loader:
        plain = list(loader)
        seeds = [loader._sampler.batch(0, step).sample_seeds for step in range(len(loader))]
    for keys in ({}, {"num_decoders": 1, "precollate_batches": 0, "augment_workers": 1}):
        config = packed.config(augment_fn=mirror, augment_execution=execution, **keys)
        with ShardedDataLoader(config) as loader:
            batches = list(loader)
        assert len(batches) == len(plain)
        for batch, other, seed in zip(batches, plain, seeds, strict=True):
            assert batch["_frame_indices"].tolist() == other["_frame_indices"].tolist()
            assert batch["rgb_cam_0"].dtype == np.float32
            assert "depth_cam_0" not in batch
            assert batch["_stream_names"] == ["rgb_cam_0", "rgb_cam_1", "state", "action", "left"]
            np.testing.assert_array_equal(batch["action"], other["action"])
            for at in range(len(seed)):
                left = int(np.random.default_rng(int(seed[at])).integers(0, 8))
                assert batch["left"][at, 0] == left
                np.testing.assert_array_equal(batch["rgb_cam_0"][at], other["rgb_cam_0"][at][:, :, left : left + 64])


def test_seeds_differ_between_samples_and_epochs(packed):
    with ShardedDataLoader(packed.config()) as loader:
        seeds = [loader._sampler.batch(epoch, step).sample_seeds for epoch in range(2) for step in range(len(loader))]
    flat = np.concatenate(seeds)
    assert len(np.unique(flat)) == len(flat)


@pytest.mark.parametrize("execution", ["inline", "threaded", "process"])
def test_augmentation_sees_tensors_under_torch(packed, execution):
    torch = pytest.importorskip("torch")

    config = packed.config(framework="torch", augment_fn=scale, augment_execution=execution, max_steps=2)
    with ShardedDataLoader(config) as loader:
        first, batch = loader
    assert batch["rgb_cam_0"].dtype == torch.bfloat16
    assert 0.5 < float(batch["rgb_cam_0"].max()) <= 1
    with ShardedDataLoader(packed.config(framework="torch", max_steps=2)) as loader:
        plain, _ = loader
    assert bool((first["rgb_cam_0"] == (plain["rgb_cam_0"].float() / 255).bfloat16()).all())
    assert bool((first["state"] == plain["state"]).all())


@pytest.mark.parametrize("execution", ["inline", "process"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_masks_that_a_function_does_not_return_stay(packed, framework, execution):
    keys = {"pad_missing": True, "framework": framework, "shuffle_mode": "none"}
    with ShardedDataLoader(packed.config(**keys)) as loader:
        expected = [np.asarray(batch["state_valid_mask"]) for batch in loader]
    assert not np.concatenate(expected).all()
    keys |= {"augment_fn": streams_alone, "augment_execution": execution}
    with ShardedDataLoader(packed.config(**keys)) as loader:
        for batch, mask in zip(loader, expected, strict=True):
            assert {f"{key}_valid_mask" for key in batch["_stream_names"]} <= batch.keys()
            np.testing.assert_array_equal(np.asarray(batch["state_valid_mask"]), mask)


def test_a_sample_says_where_it_comes_from(packed):
    seen = []

    def look(sample):
        seen.append(sample)
        return sample

    config = packed.config(augment_fn=look, augment_execution="inline", pad_missing=True, shuffle_mode="none")
    with ShardedDataLoader(config, dataset_name="mine") as loader:
        batch = next(iter(loader))
    for at, sample in enumerate(seen):
        assert sample["dataset_name"] == "mine"
        assert sample["episode_id"] == batch["_episode_ids"][at]
        assert sample["frame_index"] == batch["_frame_indices"][at]
        assert sample["timestamp"] == batch["_timestamps"][at]
        place = (batch["_hlp_ids"][at], batch["_shard_idxs"][at], batch["_chunk_starts"][at])
        assert (sample["hlp_id"], sample["shard_idx"], sample["chunk_start"]) == place
        assert sample["valid_masks"]["state"].shape == (4,)
    np.testing.assert_array_equal(batch["rgb_cam_0"][0], seen[0]["streams"]["rgb_cam_0"])


@pytest.mark.parametrize("execution", ["inline", "threaded", "process"])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (fail_at_twenty, r"batch 5, sample 0 \(episode 'episode_000000', frame 20\): StopIteration"),
        (forget, "frame 20.*returned a NoneType"),
        (say, "frame 20.*returned a str"),
        (uneven, r"'state' is float32 \(3, 4\) in sample 0 and float32 \(4, 4\) in sample 1"),
        (different, "sample 1 no 'extra'"),
        (odd_masks, "frame 20.*returned a str as 'valid_masks'"),
        (another_mask, "sample 1 'extra_valid_mask', which sample 0 does not have"),
    ],
)
def test_mistakes_of_an_augmentation_name_the_sample(packed, execution, function, said):
    config = packed.config(augment_fn=function, augment_execution=execution, shuffle_mode="none")
    with ShardedDataLoader(config) as loader:
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        with pytest.raises(ConfigError, match=said):
            next(iterator)
        assert next(iterator)["_frame_indices"].tolist() == [24, 25, 26, 27]


def adding(value):
    """An ``augment_fn`` that adds a stream."""
    return lambda sample: {**sample, "streams": {**sample["streams"], "more": value}}


ODD = {
    "words": "words",
    "dictionary": {"a": np.ones(2)},
    "objects": np.array([None, 1], object),
    "ragged": [[1], [1, 2]],
    "set": {1, 2},
}


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in ODD.items() if name != "words"])
def test_what_is_no_array_is_one_error(packed, framework, value):
    if framework == "torch":
        pytest.importorskip("torch")
    config = packed.config(framework=framework, augment_fn=adding(value))
    with (
        ShardedDataLoader(config) as loader,
        pytest.raises(ConfigError, match=r"'more' is a .*; return arrays, tensors or numbers"),
    ):
        next(iter(loader))


def test_words_are_arrays_for_numpy_alone(packed):
    with ShardedDataLoader(packed.config(augment_fn=adding("words"))) as loader:
        assert next(iter(loader))["more"].tolist() == ["words"] * 4
    pytest.importorskip("torch")
    config = packed.config(framework="torch", augment_fn=adding("words"))
    with ShardedDataLoader(config) as loader, pytest.raises(ConfigError, match="'more' is a str, which makes no batch"):
        next(iter(loader))


@pytest.mark.parametrize("key", ["_frame_indices", "state_valid_mask", "_dataset_name"])
def test_a_stream_does_not_replace_what_the_batch_says_of_itself(packed, key):
    def replace(sample):
        return {**sample, "streams": {**sample["streams"], key: np.zeros(3)}}

    config = packed.config(augment_fn=replace, pad_missing=True)
    with ShardedDataLoader(config) as loader, pytest.raises(ConfigError, match=f"a stream '{key}'"):
        next(iter(loader))


@pytest.mark.filterwarnings("error")
def test_tensors_are_made_of_any_array(packed):
    """Mirrored, of another byte order, read-only, without axes."""
    torch = pytest.importorskip("torch")

    def change(sample):
        streams = sample["streams"]
        more = {
            "rgb_cam_0": streams["rgb_cam_0"].numpy()[:, :, ::-1],
            "big": streams["state"].numpy().astype(">f4"),
            "broad": np.broadcast_to(np.float32(7), (2, 3)),
            "number": np.array(2.5),
            "half": streams["state"].half(),
        }
        return {**sample, "streams": {**streams, **more}}

    keys = {"framework": "torch", "shuffle_mode": "none"}
    with ShardedDataLoader(packed.config(**keys)) as loader:
        plain = next(iter(loader))
    with ShardedDataLoader(packed.config(augment_fn=change, **keys)) as loader:
        batch = next(iter(loader))
    assert torch.equal(batch["rgb_cam_0"], plain["rgb_cam_0"].flip(3))
    assert torch.equal(batch["big"], plain["state"])
    assert torch.equal(batch["broad"], torch.full((4, 2, 3), 7.0))
    assert (batch["number"].dtype, batch["number"].tolist()) == (torch.float64, [2.5] * 4)
    assert torch.equal(batch["half"], plain["state"].half())


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_batch_takes_no_part_in_what_made_it(packed, framework):
    torch = pytest.importorskip("torch")

    def learn(sample):
        picture = torch.as_tensor(sample["streams"]["rgb_cam_0"]).float()
        weight = torch.ones((), requires_grad=True)
        return {**sample, "streams": {"rgb_cam_0": picture * weight}}

    with ShardedDataLoader(packed.config(framework=framework, augment_fn=learn)) as loader:
        if framework == "torch":
            assert not next(iter(loader))["rgb_cam_0"].requires_grad
        else:
            with pytest.raises(ConfigError, match="requires grad"):
                next(iter(loader))
