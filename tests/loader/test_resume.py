"""Every kind of loader resumes from every step, also as another one."""

import json
from typing import ClassVar

import pytest

from knonik_loader import MultiShardedDataLoader, ShardedDataLoader
from knonik_loader.testing import ResumeContract, assert_resume_equivalent
from tests.support import augments
from tests.support.packed import write_packed


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_packed(tmp_path_factory.mktemp("small"), (14, 9), depth=False, cameras=1, shard_size=5)


class Small(ResumeContract):
    """Over the small dataset, with these keys."""

    keys: ClassVar = {}
    other: ClassVar = {}

    @pytest.fixture(autouse=True)
    def _dataset(self, small):
        self.small = small

    def make_loader(self):
        return ShardedDataLoader(self.small.config(chunk_len=2, **self.keys))

    def resume_with(self):
        return ShardedDataLoader(self.small.config(chunk_len=2, **self.keys | self.other))


class TestOtherWorkers(Small):
    other: ClassVar = {
        "num_decoders": 5,
        "precollate_batches": 0,
        "partial_decode_coalesce_batches": 3,
        "low_memory": True,
    }


class TestPartialBatches(Small):
    keys: ClassVar = {"batch_size": 6, "stride": 2, "pad_missing": True}


class TestBounded(Small):
    keys: ClassVar = {"planner_locality": "ultra_low_mem"}


class TestZeroCopy(Small):
    keys: ClassVar = {"zerocopy": True, "zerocopy_frame_shapes": {"cam_0": [80, 80, 3]}}
    other: ClassVar = {"zerocopy": False, "zerocopy_frame_shapes": None}


class TestTorchAndAugmentation(Small):
    keys: ClassVar = {"framework": "torch", "augment_fn": augments.scale, "batch_size": 8}
    other: ClassVar = {"augment_execution": "inline"}
    epochs = 1


class TestMoreStepsThanAnEpoch(Small):
    keys: ClassVar = {"max_steps": 8}
    epochs = 1


class TestOtherWorldSize(Small):
    keys: ClassVar = {"batch_size": 6, "drop_last": True}

    def resume_with(self):
        return [
            ShardedDataLoader(
                self.small.config(
                    chunk_len=2, drop_last=True, batch_size=2, rank=rank, world_size=3, num_decoders=rank + 1
                )
            )
            for rank in range(3)
        ]


class TestMix(Small):
    def mix(self, **keys):
        config = {key: value for key, value in self.small.config(chunk_len=2).items() if key != "hlp_manifest"}
        part = {"loader": {"hlp_manifest": str(self.small.manifest)}, "streams": {}}
        datasets = [("one", part), ("two", part)]
        return MultiShardedDataLoader(
            datasets=datasets, weights=[0.7, 0.3], loader_cfg=config | {"batch_size": 6} | keys
        )

    def make_loader(self):
        return self.mix()

    def resume_with(self):
        return [self.mix(batch_size=3, rank=rank, world_size=2, num_decoders=2) for rank in range(2)]


OTHER_VALUES = [
    ({"cam_0": {"resize": [40, 40]}}, r"rgb_cam_0' was rgb_cam_0, uint8 \[80, 80, 3\], here .*resized to \[40, 40\]"),
    ({"cam_0": {"dtype": "float32"}}, r"rgb_cam_0' was .*, here it is rgb_cam_0, float32 \[80, 80, 3\]"),
    ({"state": {"normalize": "min_max"}}, r"state' was .*, here it is state, float32 \[4\], normalized by min_max"),
    ({"action": {"source": "state"}}, r"action' was action, .*, here it is state, float32"),
]


@pytest.mark.parametrize(("change", "said"), OTHER_VALUES, ids=["resize", "dtype", "normalize", "source"])
@pytest.mark.parametrize("kind", ["loader", "mix", "iterable"])
def test_other_values_go_on_in_the_same_order_with_a_warning(small, kind, change, said):
    streams = {"cam_0": {}, "state": {}, "action": {}}

    def make(streams):
        if kind == "loader":
            return ShardedDataLoader(small.config(chunk_len=2), streams)
        if kind == "mix":
            part = {"loader": {}, "streams": streams}
            return MultiShardedDataLoader([("one", part), ("two", part)], [1, 1], small.config(chunk_len=2))
        pytest.importorskip("torch")
        from knonik_loader.torch import KhlpIterableDataset

        return KhlpIterableDataset(small.manifest, batch_size=4, rank=0, world_size=1, chunk_len=2, streams=streams)

    whole = make(streams)
    state = json.loads(json.dumps(whole.state_dict()))
    order = [(batch["_episode_ids"], batch["_frame_indices"].tolist()) for batch in whole]
    make(streams).load_state_dict(state)  # as it was: nothing is said
    other = make(streams | change)
    with pytest.warns(UserWarning, match=f"(?s)goes on in the same order, but with other values.*{said}") as caught:
        other.load_state_dict(state)
    assert len(caught) == 1
    assert all(f"{name}." in str(caught[0].message) for name in ("one", "two") if kind == "mix")
    assert [(batch["_episode_ids"], batch["_frame_indices"].tolist()) for batch in other] == order


def test_a_loader_that_does_not_resume_is_told_apart(small):
    def other():
        loader = ShardedDataLoader(small.config(chunk_len=2))
        real = loader.load_state_dict

        def forget(state):
            real({**state, "step": max(0, state["step"] - 1)})

        loader.load_state_dict = forget
        return loader

    with pytest.raises(AssertionError, match=r"resumed before batch 1: batch 1: 'rgb_cam_0' differs in samples \["):
        assert_resume_equivalent(lambda: ShardedDataLoader(small.config(chunk_len=2)), other)
