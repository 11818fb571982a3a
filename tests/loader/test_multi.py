import json
import pickle
from itertools import chain

import numpy as np
import pytest

from knonik_loader import ConfigError, LoaderClosedError, MultiShardedDataLoader, PlanError, ResumeMismatchError
from tests.loader.test_sharded import equal
from tests.support.packed import PROFILES, check_frames, write_packed

SHARED = {"decode_mode": "random_access", "chunk_len": 4, "batch_size": 5, "rank": 0, "world_size": 1}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two datasets that differ in profile, rate and length; episodes of the second are stamped from 20 on."""
    one = write_packed(tmp_path_factory.mktemp("one"), (61, 40, 9), "training_compressed", language=["lift", "", "put"])
    two = write_packed(
        tmp_path_factory.mktemp("two"), (23, 12), "compact_video", fps=10.0, tag=20, language=["shut", ""]
    )
    return {"one": one, "two": two}


def blocks(pair, **own):
    return [
        (name, {"loader": {"hlp_manifest": str(packed.manifest)} | own.get(name, {}), "streams": {}})
        for name, packed in pair.items()
    ]


def mixed(pair, weights=(0.7, 0.3), own=None, **keys):
    return MultiShardedDataLoader(datasets=blocks(pair, **(own or {})), weights=weights, loader_cfg=SHARED | keys)


def split(batch):
    """The samples of each dataset as a batch of its own."""
    names = batch["_sample_dataset_names"]
    for name in dict.fromkeys(names):
        at = [number for number, other in enumerate(names) if other == name]
        yield (
            name,
            {
                key: value[at]
                if isinstance(value, np.ndarray)
                else [value[n] for n in at]
                if len(value) == len(names) and key not in ("_stream_names", "_dataset_names", "_dataset_name")
                else value
                for key, value in batch.items()
            },
        )


def order(batches):
    """What a list of batches holds, without the pictures."""
    keys = ("_sample_dataset_names", "_episode_ids", "_frame_indices")
    return [list(zip(*(list(batch[key]) for key in keys), strict=True)) for batch in batches]


def test_every_frame_is_of_the_dataset_that_the_batch_names(pair):
    with mixed(pair) as loader:
        total = {"one": 0, "two": 0}
        for batch in loader:
            assert batch["_dataset_name"] == "one+two"
            assert batch["_dataset_names"] == list(dict.fromkeys(batch["_sample_dataset_names"]))
            for name, part in split(batch):
                anchors = part["_frame_indices"][:, None]
                check_frames(pair[name], part, {key: anchors + np.arange(4) for key in batch["_stream_names"]})
                total[name] += len(anchors)
                texts = {"one": ["lift", "", "put"], "two": ["shut", ""]}[name]
                told = [texts[int(e[-1])] for e in part["_episode_ids"]]
                assert part["_language"] == told
            counts = [batch["_sample_dataset_names"].count(name) for name in pair]
            assert counts in ([3, 2], [4, 1])
    assert total["one"] >= 58 + 37 + 6
    samples = sum(total.values())
    assert abs(total["one"] - 0.7 * samples) < 1


def test_offsets_in_seconds_fit_each_dataset(pair):
    deltas = {"rgb_cam_0": [-0.1, 0.0], "action": [0.0, 0.2, 0.5], "state": [-0.4]}
    frames = {"one": 30, "two": 10}
    with mixed(pair, delta_timestamps=deltas, pad_missing=True) as loader:
        for batch in loader:
            assert {f"{key}_valid_mask" for key in batch["_stream_names"]} <= batch.keys()
            for name, part in split(batch):
                anchors = part["_frame_indices"][:, None]
                wanted = {
                    key: anchors + np.array([round(offset * frames[name]) for offset in offsets])
                    for key, offsets in deltas.items()
                }
                wanted["rgb_cam_1"] = wanted["depth_cam_0"] = anchors + np.arange(4)
                check_frames(pair[name], part, wanted)


def test_what_a_dataset_says_for_itself_wins(pair):
    own = {"two": {"stride": 5, "delta_timestamps": {"state": [0.1, 0.2, 0.3, 0.4]}, "chunk_len": 4, "seed": 9}}
    with mixed(pair, own=own, chunk_len=4, stride=1) as loader:
        for batch in loader:
            for name, part in split(batch):
                anchors = part["_frame_indices"][:, None]
                wanted = {key: anchors + np.arange(4) for key in batch["_stream_names"]}
                if name == "two":
                    assert (anchors % 5 == 0).all()
                    wanted["state"] = anchors + np.arange(1, 5)
                check_frames(pair[name], part, wanted)


def test_masks_are_there_for_all_where_one_dataset_pads(pair):
    with mixed(pair, own={"two": {"pad_missing": True}}) as loader:
        padded = 0
        for batch in loader:
            for name, part in split(batch):
                mask = part["action_valid_mask"]
                assert name == "two" or mask.all()
                padded += int((~mask).sum())
        assert padded


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_ranks_share_the_global_order(pair, framework):
    with mixed(pair, batch_size=8, framework=framework) as loader:
        whole = list(loader)
    ranks = []
    for rank in range(2):
        with mixed(pair, batch_size=4, rank=rank, world_size=2, framework=framework, num_decoders=3) as loader:
            ranks.append(list(loader))
            for batch in ranks[-1]:
                counts = [batch["_sample_dataset_names"].count(name) for name in pair]
                assert all(abs(count - weight * 4) < 1 for count, weight in zip(counts, (0.7, 0.3), strict=True))
    for parts, batch in zip(zip(*ranks, strict=True), whole, strict=True):
        for key in ("rgb_cam_1", "depth_cam_0", "state", "_frame_indices", "_hlp_ids", "_timestamps"):
            joined = np.concatenate([np.asarray(part[key]) for part in parts])
            np.testing.assert_array_equal(joined, np.asarray(batch[key]))
        names = list(chain.from_iterable(part["_sample_dataset_names"] for part in parts))
        assert names == batch["_sample_dataset_names"]


def test_sizes_of_stages_and_the_read_path_change_nothing(pair):
    with mixed(pair) as loader:
        reference = list(loader)
    for keys in (
        {"num_decoders": 1, "precollate_batches": 0, "shuffle_mode": "global_triplet_fast"},
        {"num_decoders": 7, "precollate_batches": 8, "partial_decode_coalesce_batches": 3},
        {"low_memory": True, "hlps_in_flight": 1},
    ):
        with mixed(pair, **keys) as loader:
            for one, other in zip(list(loader), reference, strict=True):
                equal(one, other)


def test_zerocopy_gives_the_same_batches(pair):
    shapes = {"cam_0": [80, 80, 3], "rgb_cam_1": [80, 80, 3]}
    with mixed(pair) as loader, mixed(pair, zerocopy=True, zerocopy_frame_shapes=shapes) as views:
        assert len(loader) == len(views)
        for one, other in zip(loader, views, strict=True):
            equal(one, other)


@pytest.mark.parametrize("keys", [{}, {"multi_mix": "per_sample"}, {"multi_epoch": "steps", "max_steps": 7}])
def test_resume_from_any_step_equals_the_run_without_a_break(pair, keys):
    states, batches = [], []
    with mixed(pair, own={"one": {"stride": 4}}, image_key="cam_1", **keys) as loader:
        states.append(loader.state_dict())
        for _ in range(2):
            for batch in loader:
                batches.append(batch)
                states.append(json.loads(json.dumps(loader.state_dict())))
    expected = order(batches)
    for taken, state in list(enumerate(states))[::4]:
        with mixed(pair, own={"one": {"stride": 4}}, image_key="cam_1", num_decoders=3, **keys) as loader:
            loader.load_state_dict(state)
            loader.set_epoch(state["epoch"])
            rest = []
            while len(rest) < len(batches) - taken:
                rest += list(loader)
            assert order(rest)[: len(batches) - taken] == expected[taken:], taken
            if taken < len(batches):
                equal(rest[0], batches[taken])


def test_resume_with_another_world_size(pair):
    with mixed(pair, batch_size=8) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        state = loader.state_dict()
        rest = order(iterator)
    ranks = []
    for rank in range(4):
        with mixed(pair, batch_size=2, rank=rank, world_size=4) as loader:
            loader.load_state_dict(state)
            ranks.append(order(loader))
    assert [list(chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)] == rest


def test_a_state_of_another_mix_is_refused_by_name(pair, tmp_path):
    with mixed(pair) as loader:
        state = loader.state_dict()
    other = {**pair, "two": write_packed(tmp_path, (23, 12), "compact_video", fps=10.0, seed=3)}
    for changed, named in (
        (lambda: mixed(pair, weights=(1, 1)), "weights"),
        (lambda: mixed(pair, own={"two": {"stride": 2}}), r"two\.stride"),
        (lambda: mixed(pair, own={"two": {"seed": 9}}), r"two\.seed"),
        (lambda: mixed(dict(reversed(pair.items()))), "datasets"),
        (lambda: mixed(other), r"manifest\.two"),
    ):
        with changed() as loader, pytest.raises(ResumeMismatchError, match=named):
            loader.load_state_dict(state)


def test_epochs_differ_and_set_epoch_chooses(pair):
    with mixed(pair) as loader:
        first, second = order(loader), order(loader)
        assert first != second
        loader.set_epoch(0)
        assert order(loader) == first
        iterator = iter(loader)
        next(iterator)
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (1, 1)


def test_a_pickled_loader_goes_on_where_it_was(pair):
    with mixed(pair) as loader:
        iterator = iter(loader)
        next(iterator)
        data = pickle.dumps(loader)
        assert len(data) < 10_000
        with pickle.loads(data) as copy:
            assert order(copy) == order(iterator)


def test_after_shutdown_nothing_runs(pair):
    loader = mixed(pair)
    iterator = iter(loader)
    next(iterator)
    loader.shutdown()
    loader.shutdown()
    with pytest.raises(LoaderClosedError):
        next(iterator)
    with pytest.raises(LoaderClosedError):
        iter(loader)


def test_augmented_samples_know_their_dataset(pair):
    def mark(sample):
        number = list(pair).index(sample["dataset_name"])
        sample["streams"] = {"state": sample["streams"]["state"][:, :1] * 0 + number}
        return sample

    with mixed(pair, augment_fn=mark) as loader:
        for batch in loader:
            marks = [list(pair)[int(value)] for value in batch["state"][:, 0, 0]]
            assert marks == batch["_sample_dataset_names"]


def test_stats_and_inactive_keys(pair):
    keys = {"io_loops": 2, "multi_epoch": "shortest", "max_steps": 4, "delta_rounding": "floor"}
    with mixed(pair, own={"two": {"delta_timestamps": {"state": [0.0] * 4}}}, **keys) as loader:
        batches = list(loader)
        stats = loader.stats()
    assert len(batches) == 4
    assert stats["samples"] == 20
    # rounding has something to act on in one of the datasets
    assert stats["inactive"] == ["io_loops", "multi_epoch"]
    json.dumps(stats)


def test_one_dataset_alone_is_a_mix(pair):
    with MultiShardedDataLoader(blocks({"one": pair["one"]}), [1], SHARED) as loader:
        batch = next(iter(loader))
    assert batch["_dataset_name"] == "one"
    assert batch["_dataset_names"] == ["one"]


def test_a_dataset_may_be_there_twice_under_two_names(pair):
    with mixed({"kept": pair["one"], "again": pair["one"]}) as loader:
        assert set(next(iter(loader))["_dataset_names"]) == {"kept", "again"}


@pytest.mark.parametrize("profile", PROFILES)
def test_small_datasets_cycle(tmp_path, pair, profile):
    small = write_packed(tmp_path, (6,), profile, tag=30)
    with mixed({"small": small, "two": pair["two"]}, weights=(0.6, 0.4)) as loader:
        seen = [s for batch in order(loader) for s in batch if s[0] == "small"]
    assert len(seen) > 9
    assert all(len(set(seen[first : first + 3])) == 3 for first in range(0, len(seen) - 2, 3))


class TestMistakes:
    @pytest.mark.parametrize(
        ("datasets", "weights", "message"),
        [
            ("one", [1], "datasets is a list"),
            ([], [], "at least one dataset"),
            ([("one",)], [1], r"datasets\[0\]: must be \(name"),
            ([("", {})], [1], r"datasets\[0\]: must be \(name"),
            ([(3, {})], [1], r"datasets\[0\]: must be \(name"),
            ([("one", {}), ("one", {})], [1, 1], r"datasets\[1\]: the name 'one' is there twice"),
            ([("one", "x")], [1], "blocks are a mapping"),
            ([("one", {"lodaer": {}})], [1], r"unknown key 'lodaer' \(did you mean 'loader'\?\)"),
            ([("one", {"loader": 3})], [1], r"\('one'\).loader: must be a mapping, got 3"),
            ([("one", {}), ("two", {})], [1], "one for each of the 2 datasets, got 1 weights"),
            ([("one", {}), ("two", {})], None, "one for each of the 2 datasets, got None"),
            ([("one", {}), ("two", {})], [1, 0], "weights are positive numbers, got 0; leave a dataset out"),
            ([("one", {}), ("two", {})], [1, 1e-300], "at most a factor of 1,000,000,000 apart, got 1e-300 and 1"),
            ([("one", {}), ("two", {})], [1, "x"], "weights are positive numbers, got 'x'"),
            ([("one", {})], [1], "dataset 'one': loader_cfg: the key 'hlp_manifest' is required"),
        ],
    )
    def test_in_datasets_and_weights(self, datasets, weights, message):
        with pytest.raises(ConfigError, match=message):
            MultiShardedDataLoader(datasets, weights, SHARED)

    def test_in_the_shared_keys(self, pair):
        with pytest.raises(
            ConfigError, match=r"^loader_cfg: unknown key 'multi_epcoh' \(did you mean 'multi_epoch'\?\)"
        ):
            mixed(pair, multi_epcoh="longest")
        with pytest.raises(ConfigError, match="multi_mix: must be 'per_batch' or 'per_sample', got 'even'"):
            mixed(pair, multi_mix="even")
        with pytest.raises(ConfigError, match="multi_epoch='steps' needs max_steps"):
            mixed(pair, multi_epoch="steps")
        with pytest.raises(ConfigError, match="loader_cfg is a mapping"):
            MultiShardedDataLoader(blocks(pair), [1, 1], 7)

    def test_in_a_datasets_own_keys(self, pair):
        with pytest.raises(
            ConfigError, match=r"dataset 'two': loader_cfg: unknown key 'strdie' \(did you mean 'stride'"
        ):
            mixed(pair, own={"two": {"strdie": 2}})
        with pytest.raises(PlanError, match=r"dataset 'two': .*split='val'"):
            mixed(pair, own={"two": {"split": "val"}})

    @pytest.mark.parametrize(
        "key",
        [
            "batch_size",
            "rank",
            "precollate_batches",
            "num_decoders",
            "multi_mix",
            "framework",
            "ram_cache_bytes",
            "hlps_in_flight",
        ],
    )
    def test_what_a_mix_has_once(self, pair, key):
        values = {"framework": "torch", "multi_mix": "per_sample", "rank": 1}
        own = {"two": {key: values.get(key, 3), "world_size": 2} if key == "rank" else {key: values.get(key, 3)}}
        with pytest.raises(ConfigError, match=f"{key} is of the whole mix, but it is .* for 'one' and .* for 'two'"):
            mixed(pair, own=own)
        with mixed(pair, own={"two": {"batch_size": 5, "framework": "numpy"}}) as loader:
            assert len(next(iter(loader))["_frame_indices"]) == 5

    def test_streams_that_do_not_go_together(self, pair, tmp_path):
        bare = write_packed(tmp_path / "bare", (20,), depth=False)
        with pytest.raises(ConfigError, match="stream 'depth_cam_0' is in 'one' but not in 'bare'"):
            mixed({"one": pair["one"], "bare": bare})
        large = write_packed(tmp_path / "large", (20,), size=(96, 112))
        with pytest.raises(ConfigError, match=r"'rgb_cam_0' is rgb uint8 \[80, 80, 3\] in 'one' and .*'resize'"):
            mixed({"one": pair["one"], "large": large})
        with pytest.raises(ConfigError, match="'state' has 4 frames a sample in 'one' and 2 in 'two'"):
            mixed(pair, own={"two": {"delta_timestamps": {"state": [0.0, 0.1]}}})

    def test_an_issuer_without_a_login_refuses(self, pair, monkeypatch):
        monkeypatch.setenv("KNONIK_ISSUER", "https://id.example.org")
        with pytest.raises(PermissionError, match="multidataloader"):
            mixed(pair)


def test_the_public_name(pair):
    from knonik_multidataloader.api.multi_sharded_dataloader import MultiShardedDataLoader as Public

    assert Public is MultiShardedDataLoader
