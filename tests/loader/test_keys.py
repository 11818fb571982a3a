"""Every key of ``loader_cfg`` does what it says or is listed inactive, and says what is wrong with a wrong value."""

import threading
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from knonik_loader import ConfigError, MultiShardedDataLoader, ShardedDataLoader
from knonik_loader.config_models import LoaderConfig
from knonik_loader.engine.memory import SlotRing
from knonik_loader.errors import ChecksumError
from tests.support import augments
from tests.support.damage import flip_byte
from tests.support.file_server import FileServer
from tests.support.packed import Packed, write_packed

MIX_KEYS = {"multi_epoch", "multi_mix"}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Packed:
    folder = tmp_path_factory.mktemp("keys")
    return write_packed(folder, (30, 24, 9), splits=["train", "train", "val"], shard_size=6, depth=False)


@pytest.fixture(scope="module")
def deltas(tmp_path_factory) -> Packed:
    folder = tmp_path_factory.mktemp("deltas")
    return write_packed(folder, (30, 24), "training_compressed", shard_size=12, depth=False, cameras=1)


def loaded(packed, streams=None, **keys):
    return ShardedDataLoader(packed.config(chunk_len=2, **keys), streams)


def batches(packed, **keys) -> list[dict]:
    with loaded(packed, **keys) as loader:
        return list(loader)


def order(packed, **keys) -> list[tuple[str, int]]:
    return list(
        chain.from_iterable(
            zip(batch["_episode_ids"], batch["_frame_indices"].tolist(), strict=True)
            for batch in batches(packed, **keys)
        )
    )


def stats(packed, **keys) -> dict:
    with loaded(packed, **keys) as loader:
        list(loader)
        return loader.stats()


def threads(packed, stage, **keys) -> int:
    """Threads of a stage while a pass is under way."""
    with loaded(packed, **keys) as loader:
        before = set(threading.enumerate())
        iterator = iter(loader)
        mine = [thread for thread in set(threading.enumerate()) - before if f"knonik-{stage}-" in thread.name]
        next(iterator)
        return len(mine)


def settled(count, least: int) -> int:
    """What a growing count comes to: waits until it is ``least``, and then a little for what should not come."""
    event, end = threading.Event(), time.monotonic() + 30
    while count() < least and time.monotonic() < end:
        event.wait(0.01)
    event.wait(0.1)
    return count()


def planned(packed, least: int, **keys) -> int:
    """Batches that have been started when the first one was handed out and nothing more happens."""
    with loaded(packed, **keys) as loader:
        iterator = iter(loader)
        next(iterator)
        return settled(lambda: loader.stats()["stages"]["plan"]["calls"], least)


def mix(small, deltas, **keys):
    base = {key: value for key, value in small.config(chunk_len=2).items() if key != "hlp_manifest"}
    datasets = [
        (name, {"loader": {"hlp_manifest": str(packed.manifest)}, "streams": {"rgb_cam_0": {}, "state": {}}})
        for name, packed in (("one", small), ("two", deltas))
    ]
    return MultiShardedDataLoader(datasets=datasets, weights=[0.9, 0.1], loader_cfg=base | keys)


class TestWhatAKeyDoes:
    """One method a key, named after it."""

    def test_decode_mode(self, small):
        frames = order(small, decode_mode="sequential")
        assert frames == sorted(frames)
        assert order(small) != frames

    def test_hlp_manifest(self, small, deltas):
        assert "rgb_cam_1" in batches(small)[0]
        assert "rgb_cam_1" not in batches(deltas)[0]

    def test_chunk_len(self, small):
        with ShardedDataLoader(small.config(chunk_len=3)) as loader:
            assert next(iter(loader))["state"].shape[1] == 3

    def test_batch_size(self, small):
        assert len(batches(small, batch_size=7)[0]["_frame_indices"]) == 7

    def test_framework(self, small):
        torch = pytest.importorskip("torch")
        assert isinstance(batches(small, framework="torch", max_steps=1)[0]["state"], torch.Tensor)
        assert isinstance(batches(small, max_steps=1)[0]["state"], np.ndarray)

    def test_fs_type_and_fs_params(self, small):
        params = {"root": str(small.folder)}
        assert order(small, hlp_manifest="hlp_manifest.json", fs_params=params) == order(small)
        with FileServer({f"/b/{path.name}": path.read_bytes() for path in small.folder.iterdir()}) as server:
            params = {"bucket": "b", "endpoint_url": server.url, "anonymous": True}
            keys = {"hlp_manifest": "hlp_manifest.json", "fs_type": "gcs", "fs_params": params}
            assert order(small, **keys) == order(small)
            assert server.paths

    def test_shuffle_mode(self, small):
        frames = order(small, shuffle_mode="none")
        assert frames == sorted(frames)
        assert order(small, shuffle_mode="global_triplet") == order(small, shuffle_mode="global_triplet_fast") != frames

    def test_seed_and_epoch(self, small):
        found = [order(small), order(small, seed=1), order(small, epoch=1)]
        assert len({tuple(each) for each in found}) == 3
        assert len({tuple(sorted(each)) for each in found}) == 1

    def test_stride(self, small):
        assert {frame % 4 for _, frame in order(small, stride=4)} == {0}

    def test_delta_timestamps_and_delta_rounding(self, small):
        found = {}
        for rounding in ("floor", "ceil"):
            keys = {"delta_timestamps": {"state": [0.05]}, "delta_rounding": rounding}
            batch = batches(small, **keys)[0]
            assert batch["state"].shape[1] == 1
            assert batch["action"].shape[1] == 2
            found[rounding] = (batch["state"][:, 0, 1] - batch["_frame_indices"]).tolist()
        assert set(found["floor"]) == {1.0}
        assert set(found["ceil"]) == {2.0}

    def test_pad_missing(self, small):
        padded, plain = batches(small, pad_missing=True), batches(small)
        assert sum(len(batch["_frame_indices"]) for batch in padded) == sum(small.lengths)
        assert sum(int((~batch["state_valid_mask"]).sum()) for batch in padded) == len(small.lengths)
        assert "state_valid_mask" not in plain[0]

    def test_drop_last(self, small):
        sizes = [
            [len(batch["_frame_indices"]) for batch in batches(small, batch_size=7, drop_last=d)] for d in (False, True)
        ]
        assert set(sizes[1]) == {7}
        assert sizes[0][:-1] == sizes[1]
        assert sizes[0][-1] < 7

    def test_split(self, small):
        assert {name for name, _ in order(small, split="val")} == {"episode_000002"}

    def test_rank_and_world_size(self, small):
        parts = [set(order(small, rank=rank, world_size=2)) for rank in range(2)]
        assert not parts[0] & parts[1]
        assert parts[0] | parts[1] == set(order(small))

    def test_shard_by(self, small):
        keys = {"shard_by": "episode", "world_size": 2}
        parts = [{name for name, _ in order(small, rank=rank, **keys)} for rank in range(2)]
        assert not parts[0] & parts[1]

    def test_max_steps(self, small):
        assert len(batches(small, max_steps=3)) == 3
        assert len(batches(small, max_steps=40)) == 40

    def test_planner_locality_and_planner_recent_batches(self, tmp_path):
        small = write_packed(tmp_path, (40,) * 8, shard_size=4, shards_per_hlp=1, depth=False, cameras=1)
        keys = {"planner_locality": "ultra_low_mem", "batch_size": 1}
        bounded, apart = (order(small, planner_recent_batches=recent, **keys) for recent in (0, 2))
        assert len({tuple(each) for each in (bounded, apart, order(small, batch_size=1))}) == 3
        assert sorted(bounded) == sorted(apart) == sorted(order(small))

    def test_delta_cache_block_planning_and_delta_cache_block_max_shards(self, small):
        found = [
            order(small, delta_cache_block_planning="off"),
            order(small, delta_cache_block_planning="on", delta_cache_block_max_shards=1),
            order(small, delta_cache_block_planning="on", delta_cache_block_max_shards=3),
        ]
        assert found[0] == order(small, delta_cache_block_planning="auto")
        assert len({tuple(each) for each in found}) == 3
        assert len({tuple(sorted(each)) for each in found}) == 1

    def test_hlps_in_flight(self, small):
        with loaded(small, hlps_in_flight=1) as loader:
            list(loader)
            dataset = loader._engine.sources[0].dataset
            assert len(dataset._open) == len(dataset.storage._files) == 1
        with loaded(small) as loader:
            list(loader)
            assert len(loader._engine.sources[0].dataset._open) > 1

    def test_prefetch_shards(self, small, monkeypatch):
        """Nobody decodes: only so many shards are read."""
        from knonik_loader.engine import engine as module

        for number in (1, 4):
            release, taken, lock = threading.Event(), [], threading.Lock()
            real = module.fetch

            def fetch(job, *rest, taken=taken, lock=lock, real=real):
                with lock:
                    taken.append(len(job.shards))
                return real(job, *rest)

            def run(self, task, release=release):
                release.wait(30)
                return 0

            with monkeypatch.context() as patch:
                patch.setattr(module, "fetch", fetch)
                patch.setattr(module.Decoder, "run", run)
                with loaded(small, prefetch_shards=number, num_decoders=1, precollate_batches=8) as loader:
                    iterator = iter(loader)
                    seen = settled(lambda taken=taken: sum(taken), number)
                    release.set()
                    del iterator
            # One task is in the decoder's hands, and what it was the last of waits no more.
            assert number <= seen <= 2 * number + 1

    def test_ram_cache_bytes(self, deltas):
        assert stats(deltas, ram_cache_bytes=1 << 20)["cache"]["hits"] > 0
        assert stats(deltas)["cache"]["hits"] == 0

    def test_low_memory(self, small, deltas):
        for name in ("fetchers", "decoders", "ahead", "shards_ahead", "files", "augment_threads"):
            keys = {"num_decoders": 16, "precollate_batches": 8, "hlps_in_flight": 4, "augment_fn": augments.forget}
            values = []
            for low in (False, True):
                with loaded(small, low_memory=low, **keys) as loader:
                    values.append(getattr(loader._engine.options, name))
            assert values[0] == 2 * values[1], name
        assert stats(deltas, ram_cache_bytes=1 << 20, low_memory=True)["cache"]["limit_bytes"] == 1 << 19

    def test_num_decoders_num_fetchers_and_decode_concurrency(self, small):
        assert threads(small, "decode", num_decoders=5) == 5
        assert threads(small, "fetch", num_decoders=6) == 3
        assert threads(small, "fetch", num_fetchers=7) == 7
        assert threads(small, "decode", num_decoders=5, decode_concurrency=2) == 2

    def test_partial_decode_coalesce_batches(self, small):
        """Frames that several batches of a window share are decoded once."""
        assert stats(small, partial_decode_coalesce_batches=8)["frames"] < stats(small)["frames"]

    def test_partial_decode_window_prefetch_and_precollate_batches(self, small):
        assert planned(small, 1, precollate_batches=0) == 1
        assert planned(small, 4, precollate_batches=3) == 4
        assert planned(small, 6, precollate_batches=0, partial_decode_window_prefetch=5) == 6
        window = {"partial_decode_coalesce_batches": 2, "partial_decode_window_prefetch": 2}
        assert planned(small, 6, precollate_batches=0, **window) == 6

    def test_kdelta_direct_bundle_target_frames(self, deltas):
        """Frames of one decode task."""
        few = stats(deltas, kdelta_direct_bundle_target_frames=1)["stages"]["decode"]["calls"]
        assert few > stats(deltas, kdelta_direct_bundle_target_frames=1000)["stages"]["decode"]["calls"]

    def test_it_is_about_deltas_alone_as_inactive_says(self, small):
        counted = [stats(small, kdelta_direct_bundle_target_frames=frames) for frames in (1, 1000)]
        assert [each["inactive"] for each in counted] == [["kdelta_direct_bundle_target_frames"]] * 2
        assert len({each["stages"]["decode"]["calls"] for each in counted}) == 1

    @pytest.mark.parametrize(
        "key",
        [
            "io_loops",
            "num_orch_threads",
            "batch_prefetch_timeout_s",
            "batch_prefetch_daemon",
            "kdelta_direct_local_decode",
            "kdelta_direct_bundle_decode",
            "kdelta_direct_single_consumer",
        ],
    )
    def test_knobs_of_other_engines(self, small, key):
        value = {"io_loops": 3, "num_orch_threads": 3, "batch_prefetch_timeout_s": 0.5}.get(key, True)
        with loaded(small, **{key: value}) as loader:
            assert loader.stats()["inactive"] == [key]

    def test_shard_max_size(self, small):
        with pytest.raises(ConfigError, match=rf"shard_max_size=1 .*at least {6 * 80 * 80 * 3}"):
            loaded(small, shard_max_size=1)

    @pytest.mark.parametrize("execution", ["inline", "threaded", "process"])
    def test_augment_fn_augment_execution_and_augment_workers(self, small, execution):
        keys = {"augment_fn": augments.who, "augment_execution": execution, "augment_workers": 2, "max_steps": 3}
        pids = {int(pid) for batch in batches(small, **keys) for pid in batch["pid"][:, 0]}
        import os

        assert (os.getpid() in pids) == (execution != "process")
        assert len(pids) <= (2 if execution == "process" else 1)
        if execution != "process":
            expected = 2 if execution == "threaded" else 0
            assert threads(small, "augment", **keys) == expected

    def test_zerocopy_and_zerocopy_slots(self, small):
        shapes = {"cam_0": [80, 80, 3], "cam_1": [80, 80, 3]}
        for slots in (4, 6):
            keys = {"zerocopy": True, "zerocopy_frame_shapes": shapes, "zerocopy_slots": slots}
            with loaded(small, **keys) as loader:
                assert isinstance(loader._engine.memory, SlotRing)
                places = [batch["rgb_cam_0"].ctypes.data for batch in loader]
            assert places[:slots] == places[slots : 2 * slots]
            assert len(set(places)) == slots

    def test_zerocopy_frame_shapes(self, small):
        with pytest.raises(ConfigError, match=r"zerocopy_frame_shapes\['rgb_cam_1'\] is missing; .*\[80, 80, 3\]"):
            loaded(small, zerocopy=True, zerocopy_frame_shapes={"cam_0": [80, 80, 3]})

    def test_pin_memory(self, small):
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            assert batches(small, framework="torch", pin_memory=True, max_steps=1)[0]["state"].is_pinned()
        else:
            with pytest.raises(ConfigError, match="pin_memory: PyTorch sees no CUDA device"):
                loaded(small, framework="torch", pin_memory=True)

    def test_on_error_and_verify_checksums(self, small, tmp_path):
        for path in small.folder.iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        copy = Packed(tmp_path / "hlp_manifest.json", small.lengths, small.times, small.fps)
        flip_byte(copy, "state", 0, 7)
        with pytest.raises(ChecksumError):
            batches(copy)
        assert len(batches(copy, verify_checksums=False)) == len(batches(copy, on_error="skip"))
        assert stats(copy, on_error="skip")["skipped"] > 0

    def test_metrics_path(self, small, tmp_path):
        batches(small, metrics_path=str(tmp_path / "m"))
        assert Path(tmp_path / "m").read_text().count("\n") == 1

    def test_payload(self, small, deltas):
        with pytest.raises(ConfigError, match=r"payload='kdelta', but .* stores 'kimg'"):
            loaded(small, payload="kdelta")
        loaded(deltas, payload="kdelta").shutdown()

    def test_image_key(self, small):
        assert batches(small, image_key="cam_1", max_steps=1)[0]["_stream_names"] == ["rgb_cam_1", "state", "action"]

    def test_action_key(self, small):
        loaded(small, action_key="action").shutdown()
        with pytest.raises(ConfigError, match=r"no numeric stream 'acton' \(did you mean 'action'\?\)"):
            loaded(small, action_key="acton")

    def test_multi_epoch(self, small, deltas):
        lengths = {}
        for mode in ("longest", "shortest"):
            with mix(small, deltas, multi_epoch=mode) as loader:
                lengths[mode] = len(loader)
        assert lengths["longest"] > lengths["shortest"]
        with mix(small, deltas, multi_epoch="steps", max_steps=5) as loader:
            assert len(list(loader)) == 5

    def test_multi_mix(self, small, deltas):
        counts = {}
        for mode in ("per_batch", "per_sample"):
            with mix(small, deltas, multi_mix=mode, batch_size=10, multi_epoch="steps", max_steps=12) as loader:
                counts[mode] = [batch["_sample_dataset_names"].count("two") for batch in loader]
        assert set(counts["per_batch"]) == {1}
        assert len(set(counts["per_sample"])) > 1


def test_every_key_has_its_method():
    known = set(LoaderConfig.model_fields)
    text = " ".join(name for name in dir(TestWhatAKeyDoes) if name.startswith("test_"))
    ones = {"io_loops", "num_orch_threads", "batch_prefetch_timeout_s", "batch_prefetch_daemon"}
    ones |= {"kdelta_direct_local_decode", "kdelta_direct_bundle_decode", "kdelta_direct_single_consumer"}
    missing = []
    for key in sorted(known - ones, key=len, reverse=True):  # the longest first: one name may be part of another
        if key not in text:
            missing.append(key)
        text = text.replace(key, "", 1)
    assert not missing
    assert set(WRONG) == known


AT_LEAST_ONE = "must be greater than or equal to 1, got 0"
NO_FLAG = "must be a valid boolean, got 'no'"
WRONG = {
    "decode_mode": ("random", "decode_mode: must be 'random_access' or 'sequential', got 'random'"),
    "hlp_manifest": ("", "hlp_manifest: must have at least 1 character, got ''"),
    "chunk_len": (0, f"chunk_len: {AT_LEAST_ONE}"),
    "batch_size": (0, f"batch_size: {AT_LEAST_ONE}"),
    "framework": ("jax", "framework: must be 'numpy' or 'torch', got 'jax'"),
    "fs_type": ("gs", "fs_type: must be 'local', 's3', 'gcs' or 'azure', got 'gs'"),
    "fs_params": ({"roots": "/"}, r"unknown key 'roots' \(did you mean 'root'\?\)"),
    "shuffle_mode": (True, "shuffle_mode: must be 'none', 'global_triplet' or 'global_triplet_fast', got True"),
    "seed": ("7", "seed: must be a valid integer, got '7'"),
    "epoch": (-1, "epoch: must be greater than or equal to 0, got -1"),
    "stride": (0, f"stride: {AT_LEAST_ONE}"),
    "delta_timestamps": ({"state": 0.1}, "delta_timestamps.state: must be a valid list, got 0.1"),
    "delta_rounding": ("up", "delta_rounding: must be 'nearest', 'floor' or 'ceil', got 'up'"),
    "pad_missing": ("no", f"pad_missing: {NO_FLAG}"),
    "drop_last": ("no", f"drop_last: {NO_FLAG}"),
    "split": ("test", "split='test': it has the splits 'train', 'val'"),
    "rank": (1, "rank=1 must be below world_size=1"),
    "world_size": (0, f"world_size: {AT_LEAST_ONE}"),
    "shard_by": ("frame", "shard_by: must be 'sample' or 'episode', got 'frame'"),
    "max_steps": (0, f"max_steps: {AT_LEAST_ONE}"),
    "planner_locality": ("low", "planner_locality: must be 'global', 'hlp_bounded', 'low_mem' or 'ultra_low_mem'"),
    "planner_recent_batches": (-1, "planner_recent_batches: must be greater than or equal to 0, got -1"),
    "delta_cache_block_planning": ("yes", "delta_cache_block_planning: must be 'auto', 'on' or 'off', got 'yes'"),
    "delta_cache_block_max_shards": (0, f"delta_cache_block_max_shards: {AT_LEAST_ONE}"),
    "hlps_in_flight": (0, f"hlps_in_flight: {AT_LEAST_ONE}"),
    "prefetch_shards": (0, f"prefetch_shards: {AT_LEAST_ONE}"),
    "ram_cache_bytes": (-1, "ram_cache_bytes: must be greater than or equal to 0, got -1"),
    "low_memory": ("no", f"low_memory: {NO_FLAG}"),
    "num_decoders": (0, f"num_decoders: {AT_LEAST_ONE}"),
    "num_fetchers": (0, f"num_fetchers: {AT_LEAST_ONE}"),
    "decode_concurrency": (0, f"decode_concurrency: {AT_LEAST_ONE}"),
    "partial_decode_coalesce_batches": (0, f"partial_decode_coalesce_batches: {AT_LEAST_ONE}"),
    "partial_decode_window_prefetch": (0, f"partial_decode_window_prefetch: {AT_LEAST_ONE}"),
    "io_loops": (0, f"io_loops: {AT_LEAST_ONE}"),
    "num_orch_threads": (0, f"num_orch_threads: {AT_LEAST_ONE}"),
    "batch_prefetch_timeout_s": (0, "batch_prefetch_timeout_s: must be greater than 0, got 0"),
    "batch_prefetch_daemon": ("no", f"batch_prefetch_daemon: {NO_FLAG}"),
    "kdelta_direct_local_decode": ("no", f"kdelta_direct_local_decode: {NO_FLAG}"),
    "kdelta_direct_bundle_decode": ("no", f"kdelta_direct_bundle_decode: {NO_FLAG}"),
    "kdelta_direct_bundle_target_frames": (0, f"kdelta_direct_bundle_target_frames: {AT_LEAST_ONE}"),
    "kdelta_direct_single_consumer": ("no", f"kdelta_direct_single_consumer: {NO_FLAG}"),
    "shard_max_size": (0, f"shard_max_size: {AT_LEAST_ONE}"),
    "augment_fn": (3, "augment_fn: must be callable, got 3"),
    "augment_execution": ("fork", "augment_execution: must be 'inline', 'threaded' or 'process', got 'fork'"),
    "augment_workers": (0, f"augment_workers: {AT_LEAST_ONE}"),
    "precollate_batches": (-1, "precollate_batches: must be greater than or equal to 0, got -1"),
    "zerocopy": ("no", f"zerocopy: {NO_FLAG}"),
    "zerocopy_frame_shapes": ({"cam_9": [1, 1, 3]}, "zerocopy_frame_shapes: the dataset has no rgb stream 'cam_9'"),
    "zerocopy_slots": (1, "zerocopy_slots: must be greater than or equal to 2, got 1"),
    "pin_memory": ("no", f"pin_memory: {NO_FLAG}"),
    "on_error": ("warn", "on_error: must be 'raise' or 'skip', got 'warn'"),
    "verify_checksums": ("no", f"verify_checksums: {NO_FLAG}"),
    "metrics_path": ("/nowhere/m.jsonl", "metrics_path: /nowhere/m.jsonl cannot be written"),
    "payload": ("jpeg", "payload: must be 'shdr', 'kimg' or 'kdelta', got 'jpeg'"),
    "image_key": ("state", "image_key: the dataset has no rgb stream 'state'"),
    "action_key": ("rgb_cam_0", "action_key: the dataset has no numeric stream 'rgb_cam_0'"),
    "multi_epoch": ("longest", "multi_epoch is about a mix of datasets"),
    "multi_mix": ("per_batch", "multi_mix is about a mix of datasets"),
}
"""Key → a value that can't be meant, and what is said about it."""


@pytest.mark.parametrize("key", list(WRONG))
def test_a_wrong_value_shows_its_message(small, key):
    value, message = WRONG[key]
    with pytest.raises(Exception, match=message) as caught:
        ShardedDataLoader(small.config(**{key: value}))
    assert type(caught.value).__module__ == "knonik_loader.errors"
    assert key in str(caught.value)
