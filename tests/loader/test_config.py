import sys
import types
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from knonik_loader.config import (
    LoaderConfig,
    load_loader_config,
    load_stream_config,
    resolve_stream,
    select_streams,
)
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.types import StreamInfo
from tests.support.plans import STREAMS

BASE = {"decode_mode": "random_access", "hlp_manifest": "/data/m/hlp_manifest.json", "chunk_len": 4, "batch_size": 8}


@pytest.fixture(autouse=True)
def _no_ranks_around(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def load(profile="training_fast", streams=STREAMS, **keys):
    return load_loader_config(BASE | keys, profile=profile, streams=streams)


class TestValues:
    def test_four_keys_are_enough(self):
        config = load()
        assert (config.framework, config.shuffle_mode, config.seed, config.prefetch_shards) == (
            "numpy",
            "global_triplet",
            0,
            12,
        )
        assert config.topology == (0, 1)
        assert config.inactive == []

    @pytest.mark.parametrize("key", list(BASE))
    def test_and_each_of_them_is_needed(self, key):
        with pytest.raises(ConfigError, match=f"loader_cfg: the key '{key}' is required"):
            load_loader_config({name: value for name, value in BASE.items() if name != key})

    @pytest.mark.parametrize("key", [key for key in LoaderConfig.model_fields if key not in BASE])
    def test_null_means_the_default(self, key):
        assert load(**{key: None}) == load()
        assert load(**{key: None}).inactive == []

    @pytest.mark.parametrize(
        ("key", "value", "message"),
        [
            ("batch_size", 0, "batch_size: must be greater than or equal to 1, got 0"),
            ("batch_size", True, "batch_size: must be a valid integer, got True"),
            ("batch_size", 2.5, "batch_size: must be a valid integer"),
            ("chunk_len", "4", "chunk_len: must be a valid integer, got '4'"),
            ("pad_missing", "yes", "pad_missing: must be a valid boolean, got 'yes'"),
            ("shuffle_mode", "global", "shuffle_mode: must be 'none', 'global_triplet' or 'global_triplet_fast'"),
            ("fs_type", "ftp", "fs_type: must be 'local', 's3'"),
            ("fs_params", {"rot": "/"}, r"fs_params \(fs_type 'local'\): unknown key 'rot' \(did you mean 'root'\?\)"),
            ("fs_params", {"bucket": "b"}, "unknown key 'bucket'"),
            ("fs_params", "/", "fs_params: a mapping"),
            ("delta_timestamps", {"state": []}, "delta_timestamps.state: "),
            ("delta_timestamps", {"state": [float("nan")]}, "must be a finite number"),
            ("delta_timestamps", {"state": [1e9]}, "offsets of 'state' are in seconds"),
            ("delta_timestamps", {"state": ["soon"]}, "must be a valid number"),
            ("seed", -(2**64), "seed"),
            ("epoch", -1, "epoch"),
            ("zerocopy_frame_shapes", {"cam": [96, 96]}, "zerocopy_frame_shapes.cam: has 2 items, which are too few"),
            ("zerocopy_frame_shapes", {"cam": [9, 9, 3, 1]}, "zerocopy_frame_shapes.cam: "),
            ("augment_fn", "flip", "augment_fn: must be callable"),
            ("on_error", "ignore", "on_error: must be 'raise' or 'skip'"),
        ],
    )
    def test_wrong_values_say_what_is_right(self, key, value, message):
        with pytest.raises(ConfigError, match=message):
            load(**{key: value})

    def test_unknown_keys_name_the_nearest(self):
        with pytest.raises(
            ConfigError, match=r"loader_cfg: unknown key 'shufle_mode' \(did you mean 'shuffle_mode'\?\)"
        ):
            load(shufle_mode="none")
        with pytest.raises(ConfigError, match=r"unknown key 'inactive'"):
            load(inactive=[])
        with pytest.raises(ConfigError, match="keys are strings, got 3"):
            load_loader_config({**BASE, 3: 4})
        with pytest.raises(ConfigError, match="loader_cfg is a mapping"):
            load_loader_config([("chunk_len", 3)])

    def test_values_of_other_libraries_are_taken(self):
        config = load(
            batch_size=np.int64(3),
            hlp_manifest=Path("/data/x.json"),
            delta_timestamps=types.MappingProxyType({"state": np.array([0.0, 0.1])}),
            image_key=("cam", "rgb_wrist"),
        )
        assert config.batch_size == 3
        assert config.hlp_manifest == "/data/x.json"
        assert config.delta_timestamps == {"state": [0.0, 0.1]}
        assert config.image_key == ["rgb_cam", "rgb_wrist"]

    def test_yaml_truth_values_and_auto(self):
        assert load(delta_cache_block_planning=True).delta_cache_block_planning == "on"
        assert load(delta_cache_block_planning=False).delta_cache_block_planning == "off"
        assert load(num_decoders="auto", io_loops="auto", hlps_in_flight="auto").num_decoders is None
        with pytest.raises(ConfigError, match="batch_size"):
            load(batch_size="auto")

    def test_a_config_is_frozen(self):
        with pytest.raises(ValidationError):
            load().seed = 3

    def test_storage_follows_the_url(self):
        assert load(hlp_manifest="s3://b/p/hlp_manifest.json").fs_type == "s3"
        params = load(fs_type="s3", fs_params={"bucket": "b", "prefix": "", "max_pool_connections": 64}).fs_params
        assert (params.bucket, params.max_pool_connections) == ("b", 64)
        with pytest.raises(ConfigError, match="not a path of fs_type='local'; use fs_type='s3'"):
            load(hlp_manifest="s3://b/m.json", fs_type="local")
        with pytest.raises(ConfigError, match="URLs begin with s3://"):
            load(hlp_manifest="http://b/m.json")


class TestContradictions:
    @pytest.mark.parametrize("mode", ["global_triplet", "global_triplet_fast"])
    def test_episodes_in_order_are_not_shuffled(self, mode):
        with pytest.raises(ConfigError, match="use shuffle_mode='none', or decode_mode='random_access'"):
            load(decode_mode="sequential", shuffle_mode=mode)
        assert load(decode_mode="sequential").shuffle_mode == "none"
        assert not load(decode_mode="sequential", shuffle_mode=None).shuffled

    @pytest.mark.parametrize("keys", [{"multi_epoch": "longest"}, {"multi_mix": "per_sample"}])
    def test_keys_of_mixes(self, keys):
        with pytest.raises(ConfigError, match=f"{next(iter(keys))} is about a mix.*reads one"):
            load(**keys)

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"rank": 2}, "rank is given without world_size"),
            ({"world_size": 2}, "world_size is given without rank"),
            ({"rank": 2, "world_size": 2}, "rank=2 must be below world_size=2"),
            ({"payload": "shdr"}, "payload='shdr'.*stores 'kimg' .training_fast."),
            ({"action_key": "actions"}, r"action_key: .*no numeric stream 'actions' \(did you mean 'action'\?\)"),
            ({"action_key": "rgb_cam"}, "no numeric stream 'rgb_cam'"),
            ({"image_key": "depth_cam"}, "image_key: the dataset has no rgb stream 'depth_cam'"),
            ({"delta_timestamps": {"cam": [0.0]}}, "'cam' can mean 'rgb_cam' or 'depth_cam'; write the one you mean"),
            ({"delta_timestamps": {"wrist": [0.0], "rgb_wrist": [0.0]}}, "'rgb_wrist' is there twice"),
            ({"delta_timestamps": {"gripper": [0.0]}}, "no stream 'gripper'; it has rgb_cam, rgb_wrist, depth_cam"),
        ],
    )
    def test_with_the_dataset_and_each_other(self, keys, message):
        with pytest.raises(ConfigError, match=message):
            load(**keys)

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"augment_fn": dict}, "augment_fn can't run with zerocopy=true"),
            ({"shuffle_mode": "none"}, "needs shuffle_mode='global_triplet' or 'global_triplet_fast'"),
            ({"decode_mode": "sequential"}, "needs shuffle_mode"),
            ({"zerocopy_frame_shapes": None}, r"'rgb_cam'\] is missing; the dataset's frames are \[96, 96, 3\]"),
            ({"zerocopy_frame_shapes": {"rgb_cam": [96, 96, 3]}}, r"'rgb_wrist'\] is missing"),
            ({"zerocopy_frame_shapes": {"rgb_cam": [96, 90, 3]}}, r"'rgb_cam'\] is \[96, 90, 3\]; the dataset's"),
            ({"precollate_batches": 5, "zerocopy_slots": 6}, "zerocopy_slots=6 is too few.*use at least 7"),
        ],
    )
    def test_zerocopy(self, keys, message):
        shapes = {"cam": [96, 96, 3], "rgb_wrist": [64, 80, 3]}
        assert load(zerocopy=True, zerocopy_frame_shapes=shapes).zerocopy
        with pytest.raises(ConfigError, match=message):
            load(**{"zerocopy": True, "zerocopy_frame_shapes": shapes} | keys)

    def test_pinned_memory_is_ignored_under_zerocopy_with_a_warning(self):
        with pytest.warns(UserWarning, match="pin_memory is ignored"):
            config = load(
                zerocopy=True,
                zerocopy_frame_shapes={"cam": [96, 96, 3]},
                image_key="cam",
                pin_memory=True,
                framework="torch",
            )
        assert config.inactive == ["pin_memory"]


class TestInactive:
    @pytest.mark.parametrize(
        ("keys", "inactive"),
        [
            ({"io_loops": 4, "num_orch_threads": 2}, ["io_loops", "num_orch_threads"]),
            ({"batch_prefetch_timeout_s": 0.1, "batch_prefetch_daemon": True}, None),
            ({"kdelta_direct_local_decode": False, "kdelta_direct_bundle_target_frames": 48}, None),
            ({"augment_execution": "threaded", "augment_workers": 4}, None),
            ({"augment_fn": dict, "augment_execution": "threaded", "augment_workers": 4}, []),
            ({"augment_fn": dict, "augment_execution": "inline", "augment_workers": 4}, ["augment_workers"]),
            ({"ram_cache_bytes": 1 << 30}, ["ram_cache_bytes"]),
            ({"planner_recent_batches": 8, "planner_locality": "global"}, ["planner_recent_batches"]),
            ({"shuffle_mode": "none", "planner_locality": "global"}, ["planner_locality"]),
            ({"delta_cache_block_planning": "auto", "delta_cache_block_max_shards": 16}, None),
            ({"zerocopy_slots": 4, "zerocopy_frame_shapes": {"cam": [96, 96, 3]}}, None),
            ({"pin_memory": True}, ["pin_memory"]),
            ({"pin_memory": True, "framework": "torch"}, []),
            ({"pin_memory": True, "framework": "torch", "augment_fn": dict}, ["pin_memory"]),
            ({"delta_rounding": "floor"}, ["delta_rounding"]),
            ({"delta_rounding": "floor", "delta_timestamps": {"state": [0.0]}}, []),
            ({"num_decoders": 4, "num_fetchers": 2, "decode_concurrency": 2}, ["num_decoders"]),
            ({"num_decoders": 4, "num_fetchers": 2}, []),
            ({"io_loops": None, "stride": 2, "prefetch_shards": 3}, []),
        ],
    )
    def test_keys_without_effect_are_listed(self, keys, inactive):
        expected = list(keys) if inactive is None else inactive
        assert sorted(load(**keys).inactive) == sorted(expected)

    def test_the_profile_decides_too(self):
        assert load(profile="training_compressed", ram_cache_bytes=9).inactive == []
        assert load(profile="training_compressed", kdelta_direct_bundle_target_frames=48).inactive == []
        assert load(profile="compact_video", ram_cache_bytes=9).inactive == []


class TestStreams:
    def test_names_with_or_without_prefix(self):
        assert resolve_stream("wrist", STREAMS) == "rgb_wrist"
        assert resolve_stream("rgb_cam", STREAMS) == "rgb_cam"
        assert resolve_stream("depth_cam", STREAMS) == "depth_cam"
        assert resolve_stream("state", STREAMS) == "state"
        assert resolve_stream("cam", STREAMS, kind="rgb") == "rgb_cam"

    def test_a_whole_key_is_stronger_than_a_bare_name(self):
        streams = [*STREAMS, StreamInfo(5, "numeric", "wrist", "numeric", (3,), "float32", 30.0)]
        assert resolve_stream("wrist", streams) == "wrist"
        assert resolve_stream("rgb_wrist", streams) == "rgb_wrist"

    def test_the_choice_follows_the_manifest(self):
        options = load_stream_config({"action": {}, "wrist": None, "rgb_cam": {}}, STREAMS)
        assert list(options) == ["action", "rgb_wrist", "rgb_cam"]
        assert [stream.key for stream in select_streams(load(), options, STREAMS)] == ["rgb_cam", "rgb_wrist", "action"]
        chosen = select_streams(load(image_key="wrist"), {}, STREAMS)
        assert [stream.key for stream in chosen] == ["rgb_wrist", "depth_cam", "state", "action"]
        assert select_streams(load(), {}, STREAMS) == STREAMS

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ({"action_key": "action"}, "action_key: stream 'action' is not loaded"),
            ({"delta_timestamps": {"action": [0.0]}}, "delta_timestamps: stream 'action' is not loaded"),
            ({"image_key": ["cam", "wrist"]}, "image_key: stream 'rgb_wrist' is not loaded"),
        ],
    )
    def test_keys_about_streams_that_are_not_loaded(self, keys, message):
        options = load_stream_config({"rgb_cam": {}, "state": {}}, STREAMS)
        with pytest.raises(ConfigError, match=message):
            select_streams(load(**keys), options, STREAMS)

    @pytest.mark.parametrize(
        ("stream_cfg", "message"),
        [
            ({"statee": {}}, r"stream_cfg: the dataset has no stream 'statee' \(did you mean 'state'\?\)"),
            ({"state": {"resise": [3, 3]}}, r"stream_cfg.state: unknown key 'resise' \(did you mean 'resize'\?\)"),
            ({"state": {"dtype": "int3"}}, "stream_cfg.state.dtype: must be 'uint8'"),
            ({"state": 3}, "stream_cfg.state: options are a mapping"),
            ({"wrist": {}, "rgb_wrist": {}}, "'rgb_wrist' names the stream 'rgb_wrist', which is there already"),
            ({"cam": {}}, "'cam' can mean 'rgb_cam' or 'depth_cam'"),
            (["state"], "stream_cfg is a mapping"),
        ],
    )
    def test_mistakes(self, stream_cfg, message):
        with pytest.raises(ConfigError, match=message):
            load_stream_config(stream_cfg, STREAMS)

    def test_before_the_manifest_is_read_names_stay_as_given(self):
        config = load_loader_config(BASE | {"delta_timestamps": {"whatever": [0.0]}, "payload": "shdr"})
        assert config.delta_timestamps == {"whatever": [0.0]}


class TestTopology:
    def test_the_config_is_stronger_than_the_environment(self, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "3")
        assert load().topology == (1, 3)
        assert load(rank=0, world_size=2).topology == (0, 2)

    @pytest.mark.parametrize(
        ("rank", "world_size", "message"),
        [("1", "", "both be whole numbers"), ("x", "2", "RANK='x'"), ("2", "2", r"RANK=2, which must lie in \[0, ")],
    )
    def test_a_broken_environment_is_not_guessed_at(self, monkeypatch, rank, world_size, message):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world_size)
        with pytest.raises(ConfigError, match=message):
            load()

    def test_a_running_torch_distributed_is_asked(self, monkeypatch):
        distributed = types.SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 2, get_world_size=lambda: 4
        )
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(distributed=distributed))
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        assert load().topology == (2, 4)
        distributed.is_initialized = lambda: False
        assert load().topology == (0, 1)


def test_the_guides_training_block_is_taken_as_it_stands():
    block = {
        "framework": "torch",
        "action_key": "action",
        "image_key": "cam",
        "payload": "kdelta",
        "num_fetchers": 8,
        "num_decoders": 8,
        "decode_concurrency": 8,
        "prefetch_shards": 12,
        "precollate_batches": 4,
        "batch_prefetch_timeout_s": 0.1,
        "batch_prefetch_daemon": True,
        "io_loops": 1,
        "num_orch_threads": None,
        "delta_cache_block_planning": "on",
        "delta_cache_block_max_shards": 16,
        "partial_decode_coalesce_batches": 8,
        "partial_decode_window_prefetch": 2,
        "pad_missing": True,
        "delta_rounding": "nearest",
        "max_steps": 4000,
        "shuffle_mode": "global_triplet_fast",
        "planner_locality": "hlp_bounded",
        "kdelta_direct_local_decode": True,
        "kdelta_direct_bundle_decode": True,
        "kdelta_direct_bundle_target_frames": 48,
        "kdelta_direct_single_consumer": False,
    }
    config = load(profile="training_compressed", **block)
    assert (config.planner_locality, config.max_steps, config.image_key) == ("hlp_bounded", 4000, ["rgb_cam"])
    assert set(config.inactive) == {
        "batch_prefetch_timeout_s",
        "batch_prefetch_daemon",
        "io_loops",
        "num_decoders",
        "kdelta_direct_local_decode",
        "kdelta_direct_bundle_decode",
        "kdelta_direct_single_consumer",
        "delta_rounding",
    }
