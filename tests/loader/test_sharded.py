import json
import pickle
from itertools import chain, product

import numpy as np
import pytest

from knonik_loader import ConfigError, LoaderClosedError, ResumeMismatchError, ShardedDataLoader, StorageError
from tests.support.packed import check_frames, write_packed
from tests.support.stamps import read_stamp

OFFSETS = {"rgb_cam_0": [-6, -1, 0, 3], "depth_cam_0": [0, 70], "state": [-70, 0], "action": [0, 1, 2, 3, 4]}


def order(batches):
    """What a list of batches holds, without the pictures."""
    return [list(zip(batch["_episode_ids"], batch["_frame_indices"].tolist(), strict=True)) for batch in batches]


def equal(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, other[key], err_msg=key)
        else:
            assert value == other[key], key


@pytest.mark.parametrize("mode", ["none", "global_triplet", "global_triplet_fast"])
def test_every_frame_of_a_chunk_is_the_right_one(every_profile, mode):
    lengths = every_profile.lengths
    with ShardedDataLoader(every_profile.config(shuffle_mode=mode, stride=2)) as loader:
        seen = []
        for batch in loader:
            anchors = batch["_frame_indices"][:, None]
            check_frames(every_profile, batch, {key: anchors + np.arange(4) for key in batch["_stream_names"]})
            assert not any(key.endswith("_valid_mask") for key in batch)
            seen += list(zip(batch["_episode_ids"], batch["_frame_indices"].tolist(), strict=True))
    wanted = [(f"episode_{e:06d}", t) for e, frames in enumerate(lengths) for t in range(0, frames - 3, 2)]
    assert (seen == wanted) is (mode == "none")
    assert sorted(seen) == wanted


@pytest.mark.parametrize("mode", ["none", "global_triplet_fast"])
def test_windows_beyond_both_ends_are_clamped_and_masked(every_profile, mode):
    deltas = {key: [offset / 30 for offset in offsets] for key, offsets in OFFSETS.items()}
    config = every_profile.config(shuffle_mode=mode, delta_timestamps=deltas, pad_missing=True, batch_size=8)
    with ShardedDataLoader(config) as loader:
        samples = 0
        for batch in loader:
            anchors = batch["_frame_indices"][:, None]
            wanted = {key: anchors + np.array(offsets) for key, offsets in OFFSETS.items()}
            wanted["rgb_cam_1"] = anchors + np.arange(4)
            check_frames(every_profile, batch, wanted)
            assert {key for key in batch if key.endswith("_valid_mask")} == {
                f"{key}_valid_mask" for key in batch["_stream_names"]
            }
            samples += len(anchors)
    assert samples == sum(every_profile.lengths)


def test_frames_follow_an_irregular_clock(tmp_path):
    rng = np.random.default_rng(5)
    clock = 3.0 + np.cumsum(rng.uniform(0.01, 0.06, 50))
    clock[30:] += 1.0  # a gap
    packed = write_packed(tmp_path, [20, 50], clocks={1: clock}, depth=False, cameras=1)
    config = packed.config(delta_timestamps={"cam_0": [-0.05, 0.0, 0.05]}, pad_missing=True, chunk_len=1)
    with ShardedDataLoader(config) as loader:
        for batch in loader:
            for sample, name in enumerate(batch["_episode_ids"]):
                times = packed.times[int(name[-1])]
                anchor = batch["_frame_indices"][sample]
                assert batch["_timestamps"][sample] == times[anchor]
                asked = times[anchor] + np.array([-0.05, 0.0, 0.05])
                for step, target in enumerate(asked):
                    _, episode, frame = read_stamp(batch["rgb_cam_0"][sample, step])
                    assert episode == int(name[-1])
                    if batch["rgb_cam_0_valid_mask"][sample, step]:
                        assert abs(times[frame] - target) <= np.abs(times - target).min() + 2e-6


def test_the_metadata_of_a_batch(tmp_path):
    packed = write_packed(tmp_path, [20, 33], language=["pick up", ""], cameras=1)
    with ShardedDataLoader(packed.config(shuffle_mode="none"), dataset_name="mine") as loader:
        batches = list(loader)
    index = loader._index
    for batch in batches:
        size = len(batch["_frame_indices"])
        assert batch["_dataset_name"] == "mine"
        assert batch["_dataset_names"] == ["mine"]
        assert batch["_sample_dataset_names"] == ["mine"] * size
        assert batch["_stream_names"] == ["rgb_cam_0", "depth_cam_0", "state", "action"]
        for key in ("_hlp_ids", "_shard_idxs", "_chunk_starts", "_frame_indices"):
            assert batch[key].shape == (size,)
            assert batch[key].dtype == np.int64
        assert batch["_timestamps"].dtype == np.float64
        assert batch["rgb_cam_0"].shape == (size, 4, 80, 80, 3)
        assert batch["rgb_cam_0"].dtype == np.uint8
        assert batch["depth_cam_0"].dtype == batch["state"].dtype == np.float32
        triplets = zip(batch["_hlp_ids"], batch["_shard_idxs"], batch["_chunk_starts"], strict=True)
        for sample, (hlp, shard, row) in enumerate(triplets):
            at = np.flatnonzero((index.shards.hlp == hlp) & (index.shards.shard == shard))
            assert index.shards.first_frame[at] + row == batch["_frame_indices"][sample]
            episode = index.shards.episode[at][0]
            assert index.episodes.episode_id[episode] == batch["_episode_ids"][sample]
            assert batch["_language"][sample] == ["pick up", ""][episode]


def test_only_the_streams_that_are_asked_for(packed):
    with ShardedDataLoader(packed.config(), {"cam_1": {}, "action": {}}) as loader:
        batch = next(iter(loader))
        assert batch["_stream_names"] == ["rgb_cam_1", "action"]
        assert not {"rgb_cam_0", "state", "depth_cam_0", "_language"} & batch.keys()


def test_sizes_of_stages_change_nothing(every_profile):
    packed = every_profile
    with ShardedDataLoader(packed.config(pad_missing=True)) as loader:
        reference = list(loader)
    for keys in (
        {"num_decoders": 1, "precollate_batches": 0},
        {"num_decoders": 7, "precollate_batches": 8, "prefetch_shards": 1},
        {"num_fetchers": 3, "decode_concurrency": 2, "partial_decode_coalesce_batches": 5},
        {"low_memory": True, "hlps_in_flight": 1, "partial_decode_window_prefetch": 3},
        {"kdelta_direct_bundle_target_frames": 1, "verify_checksums": False},
    ):
        with ShardedDataLoader(packed.config(pad_missing=True, **keys)) as loader:
            batches = list(loader)
        assert len(batches) == len(reference)
        for one, other in zip(batches, reference, strict=True):
            equal(one, other)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_workers_prefetch_and_ranks_change_nothing(packed, world):
    with ShardedDataLoader(packed.config(batch_size=8, stride=3, drop_last=True)) as loader:
        whole = list(loader)
    for workers, ahead in product((1, 2, 7), (0, 2, 8)):
        keys = {"batch_size": 8 // world, "stride": 3, "drop_last": True}
        keys |= {"num_decoders": workers, "precollate_batches": ahead}
        ranks = []
        for rank in range(world):
            with ShardedDataLoader(packed.config(rank=rank, world_size=world, **keys)) as loader:
                ranks.append(list(loader))
        for parts, batch in zip(zip(*ranks, strict=True), whole, strict=True):
            for key in ("rgb_cam_0", "depth_cam_0", "state", "_frame_indices", "_hlp_ids", "_timestamps"):
                np.testing.assert_array_equal(np.concatenate([part[key] for part in parts]), batch[key])
            assert list(chain.from_iterable(part["_episode_ids"] for part in parts)) == batch["_episode_ids"]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_the_global_order(packed, world, drop_last):
    with ShardedDataLoader(packed.config(batch_size=8, drop_last=drop_last)) as loader:
        whole = order(loader)
    ranks = []
    for rank in range(world):
        config = packed.config(batch_size=8 // world, rank=rank, world_size=world, drop_last=drop_last)
        with ShardedDataLoader(config) as loader:
            ranks.append(order(loader))
            assert len(ranks[-1]) == len(loader) == len(whole)
    assert [list(chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)] == whole


def test_passes_go_through_the_epochs(packed):
    with ShardedDataLoader(packed.config(seed=3, stride=5)) as loader:
        first, second = order(loader), order(loader)
        assert first != second
        assert sorted(chain.from_iterable(first)) == sorted(chain.from_iterable(second))
        loader.set_epoch(0)
        assert order(loader) == first
        next(iter(loader))  # an abandoned pass counts
        third = order(loader)
        loader.set_epoch(1)
        assert order(loader) == second
    with ShardedDataLoader(packed.config(seed=3, stride=5, epoch=2)) as loader:
        assert order(loader) == third


def test_max_steps_runs_on_into_the_next_epochs(packed):
    with ShardedDataLoader(packed.config(stride=5)) as loader:
        epochs = [order(loader) for _ in range(3)]
    length = len(epochs[0])
    with ShardedDataLoader(packed.config(stride=5, max_steps=length + 2)) as loader:
        assert len(loader) == length + 2
        assert order(loader) == epochs[0] + epochs[1][:2]
        assert order(loader)[:2] == epochs[2][:2]


def test_resume_from_every_step_equals_the_run_without_a_break(packed):
    config = packed.config(stride=4, batch_size=4)
    states, batches = [], []
    with ShardedDataLoader(config) as loader:
        states.append(loader.state_dict())
        for _ in range(2):
            for batch in loader:
                batches.append(batch)
                states.append(json.loads(json.dumps(loader.state_dict())))
    expected = order(batches)
    length = len(batches) // 2
    for taken, state in enumerate(states):
        with ShardedDataLoader(config) as loader:
            loader.load_state_dict(state)
            loader.set_epoch(state["epoch"])  # as training loops do, which must not lose the step
            rest = []
            while len(rest) < len(batches) - taken:
                rest += list(loader)
            assert order(rest)[: len(batches) - taken] == expected[taken:], taken
            if taken < len(batches):
                equal(rest[0], batches[taken])
    assert (states[length]["epoch"], states[length]["step"]) == (1, 0)


@pytest.mark.parametrize("world", [2, 4])
def test_resume_with_another_world_size(packed, world):
    with ShardedDataLoader(packed.config(batch_size=8)) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        state = loader.state_dict()
        rest = order(iterator)
    ranks = []
    for rank in range(world):
        with ShardedDataLoader(packed.config(batch_size=8 // world, rank=rank, world_size=world)) as loader:
            loader.load_state_dict(state)
            ranks.append(order(loader))
    assert [list(chain.from_iterable(parts)) for parts in zip(*ranks, strict=True)] == rest


@pytest.mark.parametrize(
    ("keys", "named"),
    [({"seed": 1}, "seed"), ({"batch_size": 5}, "batch"), ({"stride": 2}, "stride"), ({"chunk_len": 5}, "windows")],
)
def test_a_state_of_another_order_is_refused_by_name(packed, keys, named):
    with ShardedDataLoader(packed.config()) as loader:
        state = loader.state_dict()
    with ShardedDataLoader(packed.config(**keys)) as loader, pytest.raises(ResumeMismatchError, match=named):
        loader.load_state_dict(state)


def test_a_state_of_another_dataset_or_of_nothing_is_refused(packed, tmp_path):
    other = write_packed(tmp_path, packed.lengths, seed=1)
    with ShardedDataLoader(other.config()) as loader:
        state = loader.state_dict()
    with ShardedDataLoader(packed.config()) as loader:
        with pytest.raises(ResumeMismatchError, match="manifest"):
            loader.load_state_dict(state)
        mine = loader.state_dict()
        for broken in (
            {},
            {**mine, "step": 10**6},
            {**mine, "epoch": -1},
            {**mine, "step": "3"},
            {**mine, "version": 9},
            None,
            [mine],
        ):
            with pytest.raises(ResumeMismatchError):
                loader.load_state_dict(broken)
        assert len(order(loader)) == len(loader)


def test_a_pass_over_several_epochs_does_not_go_on_where_its_epochs_are_shorter(tmp_path):
    """Two of 17 samples are left over by global batches of 15: a batch for one rank, dropped by three."""
    few = write_packed(tmp_path, (17,), depth=False)
    keys = {"chunk_len": 1, "max_steps": 9}
    with ShardedDataLoader(few.config(batch_size=15, **keys)) as loader:
        states = [loader.state_dict()]
        for _ in loader:
            states.append(loader.state_dict())
    with ShardedDataLoader(few.config(batch_size=5, rank=0, world_size=3, **keys)) as loader:
        assert loader.state_dict()["epoch_batches"] == 1
        for state in states[:2]:
            loader.load_state_dict(state)
        for state in states[2:9]:
            with pytest.raises(ResumeMismatchError, match="epoch_batches=2, here they have 1"):
                loader.load_state_dict(state)


def test_prefetched_batches_do_not_count(packed):
    with ShardedDataLoader(packed.config(precollate_batches=8)) as loader:
        iterator = iter(loader)
        assert loader.state_dict()["step"] == 0
        for step in range(1, 4):
            next(iterator)
            assert loader.state_dict()["step"] == step
        loader.set_epoch(7)
        assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (0, 3)


def test_after_shutdown_nothing_runs(packed):
    loader = ShardedDataLoader(packed.config())
    iterator = iter(loader)
    next(iterator)
    loader.shutdown()
    loader.shutdown()
    with pytest.raises(LoaderClosedError):
        next(iterator)
    with pytest.raises(LoaderClosedError):
        iter(loader)


def test_a_new_pass_ends_the_one_before(packed):
    with ShardedDataLoader(packed.config()) as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        with pytest.raises(LoaderClosedError):
            next(old)
        assert len(list(new)) == len(loader)
        with pytest.raises(StopIteration):
            next(new)


def test_a_temporary_loader_lives_as_long_as_its_pass(packed):
    assert len([1 for _ in ShardedDataLoader(packed.config())]) == len(ShardedDataLoader(packed.config()))


def test_a_pickled_loader_goes_on_where_it_was(packed):
    loader = ShardedDataLoader(packed.config())
    data = pickle.dumps(loader)
    assert len(data) < 10_000
    whole = order(loader)
    with pickle.loads(data) as copy:
        assert order(copy) == whole
    iterator = iter(loader)
    next(iterator)
    with pickle.loads(pickle.dumps(loader)) as copy:
        assert order(copy) == order(iterator)
    loader.shutdown()


def test_set_epoch_wants_a_number(packed):
    with ShardedDataLoader(packed.config()) as loader:
        for wrong in (-1, "1", None):
            with pytest.raises(ConfigError, match="epoch"):
                loader.set_epoch(wrong)


def test_a_slot_too_small_names_the_key_and_the_value(packed):
    needed = 16 * 80 * 80 * 3
    with pytest.raises(ConfigError, match=f"shard_max_size.*{needed}"):
        ShardedDataLoader(packed.config(shard_max_size=needed - 1))
    ShardedDataLoader(packed.config(shard_max_size=needed)).shutdown()


def test_the_payload_is_held_against_the_manifest(packed):
    with pytest.raises(ConfigError, match="payload"):
        ShardedDataLoader(packed.config(payload="shdr"))


def test_login_is_asked_for(packed, monkeypatch):
    monkeypatch.setenv("KNONIK_ISSUER", "https://id.example.org")
    with pytest.raises(PermissionError, match="multidataloader"):
        ShardedDataLoader(packed.config())


def test_stats_count_what_happened(packed):
    config = packed.config(io_loops=4, batch_size=8, shuffle_mode="none")
    with ShardedDataLoader(config) as loader:
        batches = list(loader)
        stats = loader.stats()
    assert stats["batches"] == len(batches)
    assert stats["samples"] == sum(len(batch["_frame_indices"]) for batch in batches)
    assert stats["inactive"] == ["io_loops"]
    assert stats["bytes_read"] > 0
    assert stats["diversity"]["near_duplicates"] > 0.9
    assert 1 <= stats["diversity"]["episodes_per_batch"] < 2
    assert {"plan", "fetch", "decode", "augment", "assemble"} == stats["stages"].keys()
    for name, stage in stats["stages"].items():
        assert 0 <= stage["p50_s"] <= stage["p90_s"] <= stage["p99_s"]
        assert 0 <= stage["wait"]["p50_s"] <= stage["wait"]["p99_s"]
        assert 0 <= stage["queue"]["mean"] <= stage["queue"]["max"]
        assert (stage["calls"] > 0) == (name != "augment")
    assert stats["stages"]["decode"]["wait"]["seconds"] > 0
    assert stats["stages"]["fetch"]["queue"]["max"] > 0
    json.dumps(stats)


def test_metrics_are_written_as_json_lines(packed, tmp_path):
    path = tmp_path / "metrics.jsonl"
    with ShardedDataLoader(packed.config(metrics_path=str(path), stride=5)) as loader:
        for _ in range(2):
            for _ in loader:
                pass
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["epoch"], line["step"], line["rank"]) for line in lines] == [(e, len(loader), 0) for e in range(2)]
    assert lines[1]["batches"] == 2 * len(loader)
    assert lines[1]["rss_bytes"] > 1 << 20
    assert lines[1]["throughput"]["samples_per_s"] > 0
    assert lines[1]["stages"]["decode"].keys() >= {"calls", "seconds", "p99_s", "wait", "queue"}
    assert {"hits", "misses", "bytes", "limit_bytes"} <= lines[1]["cache"].keys()
    with pytest.raises(StorageError, match="metrics_path"):
        ShardedDataLoader(packed.config(metrics_path=str(tmp_path / "nope" / "m.jsonl")))
