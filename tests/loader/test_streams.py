"""What ``stream_cfg`` makes of streams, in loaders of one dataset and of a mix."""

import numpy as np
import pytest
import simplejpeg

from knonik_loader import ConfigError, DecodeError, MultiShardedDataLoader, ShardedDataLoader
from knonik_loader.config_streams import bind_streams, load_stream_config
from knonik_loader.engine.reshape import PictureChange
from knonik_loader.khlp.codecs import jpeg, make_codec
from knonik_loader.khlp.manifest import load_manifest
from knonik_loader.khlp.types import StreamInfo
from tests.loader.test_multi import SHARED, split
from tests.loader.test_sharded import equal
from tests.support.packed import PROFILES, check_frames, depth_of, write_packed
from tests.support.stamps import read_stamp


@pytest.fixture(scope="module", params=PROFILES)
def large(request, tmp_path_factory):
    return write_packed(tmp_path_factory.mktemp("large"), (21, 12), request.param, size=(160, 192), cameras=2)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_packed(tmp_path_factory.mktemp("small"), (30, 12), cameras=2)


def whole(packed, stream_cfg=None, **keys):
    with ShardedDataLoader(packed.config(**keys), stream_cfg) as loader:
        return list(loader)


def area(image, height, width):
    """The mean over each output pixel's area, in double precision."""

    def weights(old, new):
        edges = np.arange(new + 1) * old / new
        low = np.maximum(edges[:-1, None], np.arange(old)[None])
        high = np.minimum(edges[1:, None], np.arange(old)[None] + 1)
        return np.maximum(high - low, 0) * new / old

    rows, columns = weights(image.shape[0], height), weights(image.shape[1], width)
    return np.einsum("jw,iwc->ijc", columns, np.einsum("ih,hwc->iwc", rows, image.astype(float)))


class TestResize:
    @pytest.mark.parametrize("size", [[80, 96], [60, 72], [100, 90], [160, 120], [200, 240]])
    def test_every_frame_is_the_right_one_at_its_new_size(self, large, size):
        batches = whole(large, {"rgb_cam_0": {"resize": size}, "cam_1": {}, "state": {}}, batch_size=6)
        assert sum(len(batch["state"]) for batch in batches) == 18 + 9
        for batch in batches:
            assert batch["rgb_cam_0"].shape[1:] == (4, *size, 3)
            assert batch["rgb_cam_0"].dtype == np.uint8
            anchors = batch["_frame_indices"][:, None]
            check_frames(large, batch, {key: anchors + np.arange(4) for key in batch["_stream_names"]})

    def test_pixels_are_means_over_areas(self, large):
        jpegs = load_manifest(large.manifest.read_bytes(), "m").storage_profile == "training_fast"
        full = whole(large, {"rgb_cam_0": {}}, shuffle_mode="none", stride=6)
        reduced = whole(large, {"rgb_cam_0": {"resize": [70, 90]}}, shuffle_mode="none", stride=6)
        for one, other in zip(full, reduced, strict=True):
            for sample, small in zip(one["rgb_cam_0"][:, 0], other["rgb_cam_0"][:, 0], strict=True):
                error = np.abs(small - area(sample, 70, 90))
                # Rounding is all, but where JPEG's decoder halves: its halved colours differ from the mean at edges.
                assert error.mean() < 2 if jpegs else error.max() < 1.1

    def test_nothing_else_changes_a_bit_of_it(self, large):
        stream_cfg = {
            "rgb_cam_0": {"resize": [70, 90]},
            "cam_1": {"resize": [48, 200], "dtype": "float32"},
            "depth_cam_0": {},
        }
        reference = whole(large, stream_cfg)
        for keys in (
            {"num_decoders": 1, "precollate_batches": 0, "shuffle_mode": "global_triplet_fast"},
            {"num_decoders": 5, "partial_decode_coalesce_batches": 4, "ram_cache_bytes": 1 << 26},
            {"kdelta_direct_bundle_target_frames": 1, "ram_cache_bytes": 1 << 18, "verify_checksums": False},
            {"zerocopy": True, "zerocopy_frame_shapes": {"cam_0": [70, 90, 3], "cam_1": [48, 200, 3]}},
        ):
            for _ in range(2):
                with ShardedDataLoader(large.config(**keys), stream_cfg) as loader:
                    for one, other in zip(loader, reference, strict=True):
                        equal(one, other)

    def test_jpeg_is_reduced_by_its_decoder(self):
        info = StreamInfo(0, "rgb", "cam", "kimg", (161, 203, 3), "uint8", 30.0)
        codec = make_codec(info)
        image = np.random.default_rng(0).integers(0, 255, info.shape).astype(np.uint8)
        (record,) = codec.encode([image])
        for wanted, decoded in (
            ((161, 203), (161, 203)),
            ((90, 100), (161, 203)),
            ((81, 102), (81, 102)),
            ((70, 51), (81, 102)),
            ((41, 20), (41, 51)),
            ((2, 2), (21, 26)),
        ):
            assert codec.reduced(*wanted) == decoded
            out = np.full((*decoded, 3), 7, np.uint8)
            codec.decode({0: memoryview(record.data)}, [0], {0: out})
            expected = simplejpeg.decode_jpeg(record.data, min_height=decoded[0], min_width=decoded[1])
            np.testing.assert_array_equal(out, expected)

    def test_a_jpeg_of_another_size_is_no_frame(self):
        data = jpeg.encode(np.zeros((100, 100, 3), np.uint8), 90, "420")
        with pytest.raises(DecodeError, match=r"the JPEG is \(100, 100\), not \(99, 100\)"):
            jpeg.decode_reduced(data, (99, 100), np.empty((50, 50, 3), np.uint8), "here")

    def test_depth_takes_what_was_measured(self, small):
        for batch in whole(small, {"depth_cam_0": {"resize": [5, 24], "dtype": "float64"}}):
            assert batch["depth_cam_0"].shape[1:] == (4, 5, 24)
            assert batch["depth_cam_0"].dtype == np.float64
            for sample, (name, anchor) in enumerate(zip(batch["_episode_ids"], batch["_frame_indices"], strict=True)):
                stored = depth_of(int(name[-1]), anchor).astype(np.float32) * np.float32(0.001)
                rows, columns = (np.arange(5) + 0.5) * 12 // 5, (np.arange(24) + 0.5) * 16 // 24
                wanted = stored[rows.astype(int)][:, columns.astype(int)]
                np.testing.assert_array_equal(batch["depth_cam_0"][sample, 0], wanted)

    def test_the_shapes_of_zerocopy_are_those_of_the_batch(self, small):
        keys = {"zerocopy": True, "zerocopy_frame_shapes": {"cam_0": [80, 80, 3]}}
        with pytest.raises(ConfigError, match=r"zerocopy_frame_shapes\['rgb_cam_0'\] is \[80, 80, 3\].* \[40, 48, 3\]"):
            ShardedDataLoader(small.config(**keys), {"rgb_cam_0": {"resize": [40, 48]}})


class TestValues:
    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_pictures_as_floats_lie_between_0_and_1(self, small, dtype):
        plain = whole(small, {"rgb_cam_0": {}})
        for one, other in zip(plain, whole(small, {"rgb_cam_0": {"dtype": dtype}}), strict=True):
            assert other["rgb_cam_0"].dtype == dtype
            wanted = (one["rgb_cam_0"] / np.result_type(dtype, np.float32).type(255)).astype(dtype)
            np.testing.assert_array_equal(other["rgb_cam_0"], wanted)
            assert other["rgb_cam_0"].max() <= 1

    def test_white_is_1_and_black_0(self):
        info = StreamInfo(0, "rgb", "cam", "kimg", (8, 8, 3), "uint8", 30.0)
        for dtype in ("float16", "float32", "float64"):
            (loaded,) = bind_streams(load_stream_config({"cam": {"dtype": dtype}}, [info]), [info], {})
            out = np.full((8, 8, 3), 9, dtype)
            PictureChange(loaded, make_codec(info)).write(np.full((8, 8, 3), 255, np.uint8), out)
            assert (out == 1).all()

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_numbers_keep_their_values(self, small, dtype):
        for one, other in zip(whole(small, {"state": {}}), whole(small, {"state": {"dtype": dtype}}), strict=True):
            assert other["state"].dtype == dtype
            np.testing.assert_array_equal(other["state"], one["state"].astype(dtype))

    @pytest.mark.parametrize("how", ["mean_std", "min_max", "quantile"])
    @pytest.mark.parametrize("dtype", [None, "float64"])
    def test_numbers_are_scaled_by_the_manifests_statistics(self, small, how, dtype):
        stats = load_manifest(small.manifest.read_bytes(), "m").stats
        options = {"normalize": how, "dtype": dtype}
        plain = whole(small, {"state": {}, "action": {}})
        scaled = whole(small, {"state": options, "action": options})
        for key in ("state", "action"):
            low, high = {
                "mean_std": (np.subtract(stats[key].mean, stats[key].std), np.add(stats[key].mean, stats[key].std)),
                "min_max": (stats[key].min, stats[key].max),
                "quantile": (stats[key].q01, stats[key].q99),
            }[how]
            centre, scale = np.add(low, high) / 2, np.subtract(high, low) / 2
            for one, other in zip(plain, scaled, strict=True):
                assert other[key].dtype == (dtype or np.float32)
                wanted = np.where(scale > 1e-9, (one[key] - centre) / np.where(scale > 1e-9, scale, 1), 0)
                np.testing.assert_allclose(other[key], wanted, atol=1e-4 if dtype is None else 1e-12)
                if how == "min_max":
                    assert np.abs(other[key]).max() <= 1 + 1e-5
        # The last channel of an action never changes.
        assert all((batch["action"][..., 3] == 0).all() for batch in scaled)

    def test_rows_and_pictures_are_filled_up_with_zeros(self, small):
        stream_cfg = {
            "state": {"pad_to": 7, "normalize": "min_max"},
            "rgb_cam_0": {"pad_to": [90, 100]},
            "cam_1": {"resize": [40, 60], "pad_to": [60, 60], "dtype": "float32"},
            "depth_cam_0": {"pad_to": [12, 20]},
        }
        plain = whole(small, {"state": {"normalize": "min_max"}, "rgb_cam_0": {}, "cam_1": {}, "depth_cam_0": {}})
        for one, other in zip(plain, whole(small, stream_cfg), strict=True):
            np.testing.assert_array_equal(other["state"][..., :4], one["state"])
            assert other["state"].shape[-1] == 7
            assert not other["state"][..., 4:].any()
            np.testing.assert_array_equal(other["rgb_cam_0"][:, :, :80, :80], one["rgb_cam_0"])
            assert not other["rgb_cam_0"][:, :, 80:].any()
            assert not other["rgb_cam_0"][:, :, :, 80:].any()
            assert other["rgb_cam_0"].shape[2:] == (90, 100, 3)
            assert other["rgb_cam_1"].shape[2:] == (60, 60, 3)
            assert other["rgb_cam_1"][:, :, :40].any((-1, -2)).all()
            assert not other["rgb_cam_1"][:, :, 40:].any()
            np.testing.assert_array_equal(other["depth_cam_0"][..., :16], one["depth_cam_0"])
            assert not other["depth_cam_0"][..., 16:].any()

    def test_padding_is_zero_in_memory_that_is_used_again(self, small):
        stream_cfg = {"rgb_cam_0": {"pad_to": [90, 90]}}
        keys = {"zerocopy": True, "zerocopy_frame_shapes": {"cam_0": [90, 90, 3]}}
        with ShardedDataLoader(small.config(**keys), stream_cfg) as loader:
            for batch in loader:
                assert not batch["rgb_cam_0"][:, :, 80:].any()
                assert not batch["rgb_cam_0"][:, :, :, 80:].any()
                batch["rgb_cam_0"][:] = 255

    def test_torch_gets_the_same(self, small):
        torch = pytest.importorskip("torch")
        stream_cfg = {"rgb_cam_0": {"resize": [40, 40], "dtype": "float16"}, "state": {"pad_to": 6}}
        for one, other in zip(whole(small, stream_cfg), whole(small, stream_cfg, framework="torch"), strict=True):
            assert other["rgb_cam_0"].dtype == torch.float16
            for key in ("rgb_cam_0", "state"):
                np.testing.assert_array_equal(other[key].numpy(), one[key])

    def test_augmentation_sees_the_changed_streams(self, small):
        shapes = []

        def look(sample):
            shapes.append({key: (value.shape, str(value.dtype)) for key, value in sample["streams"].items()})
            return sample

        stream_cfg = {"top": {"source": "cam_1", "resize": [30, 50], "dtype": "float32"}, "state": {"pad_to": 5}}
        whole(small, stream_cfg, augment_fn=look)
        assert all(shape == {"rgb_top": ((4, 30, 50, 3), "float32"), "state": ((4, 5), "float32")} for shape in shapes)


class TestNames:
    def test_streams_under_other_names_keep_windows_and_masks(self, small):
        deltas = {"rgb_top": [-0.1, 0.0], "command": [0.0, 0.5]}
        stream_cfg = {
            "top": {"source": "cam_1"},
            "command": {"source": "action"},
            "depth_far": {"source": "depth_cam_0"},
        }
        seen = False
        for batch in whole(small, stream_cfg, delta_timestamps=deltas, pad_missing=True):
            assert batch["_stream_names"] == ["rgb_top", "depth_far", "command"]
            assert {key for key in batch if key.endswith("_valid_mask")} == {
                "rgb_top_valid_mask",
                "depth_far_valid_mask",
                "command_valid_mask",
            }
            anchors = batch["_frame_indices"][:, None]
            back = {"rgb_cam_1": "rgb_top", "action": "command", "depth_cam_0": "depth_far"}
            known = {old: batch[new] for old, new in back.items()}
            known |= {f"{old}_valid_mask": batch[f"{new}_valid_mask"] for old, new in back.items()}
            wanted = {
                "rgb_cam_1": anchors + np.array([-3, 0]),
                "action": anchors + np.array([0, 15]),
                "depth_cam_0": anchors + np.arange(4),
            }
            check_frames(small, {**batch, **known}, wanted)
            seen = seen or not batch["command_valid_mask"].all()
        assert seen

    def test_one_source_may_serve_twice(self, small):
        stream_cfg = {"rgb_cam_0": {}, "tiny": {"source": "rgb_cam_0", "resize": [40, 40]}, "raw": {"source": "state"}}
        stream_cfg["state"] = {"normalize": "mean_std"}
        for batch in whole(small, stream_cfg):
            assert batch["_stream_names"] == ["rgb_cam_0", "rgb_tiny", "raw", "state"]
            assert batch["rgb_tiny"].shape[2:] == (40, 40, 3)
            assert (batch["raw"][..., 1].astype(int) == batch["_frame_indices"][:, None] + np.arange(4)).all()
            assert not np.array_equal(batch["raw"], batch["state"])

    def test_keys_of_the_loader_speak_of_the_batch(self, small):
        keys = {"image_key": "top", "action_key": "command", "delta_timestamps": {"top": [0.0]}}
        stream_cfg = {"rgb_top": {"source": "rgb_cam_1"}, "rgb_cam_0": {}, "command": {"source": "action"}}
        for batch in whole(small, stream_cfg, **keys):
            assert batch["_stream_names"] == ["rgb_top", "command"]
            assert read_stamp(batch["rgb_top"][0, 0])[0] == 1
        with pytest.raises(ConfigError, match="action_key: stream 'action' is not loaded"):
            whole(small, stream_cfg, action_key="action")


class TestOptional:
    def test_what_is_lacking_is_zero_and_not_valid(self, small):
        stream_cfg = {
            "rgb_cam_0": {"optional": True},
            "rgb_side": {"optional": True, "resize": [20, 30]},
            "force": {"optional": True, "pad_to": 6, "dtype": "float64"},
            "state": {},
        }
        for batch in whole(small, stream_cfg, delta_timestamps={"force": [0.0, 0.1]}, batch_size=5):
            size = len(batch["state"])
            assert batch["_stream_names"] == ["rgb_cam_0", "state", "rgb_side", "force"]
            assert batch["rgb_side"].shape == (size, 4, 20, 30, 3)
            assert batch["force"].shape == (size, 2, 6)
            assert (batch["rgb_side"].dtype, batch["force"].dtype) == (np.uint8, np.float64)
            for key in ("rgb_side", "force"):
                assert not batch[key].any()
                assert not batch[f"{key}_valid_mask"].any()
            # What may be lacking always says whether it is there; what may not, says so only where windows are clamped.
            assert batch["rgb_cam_0_valid_mask"].all()
            assert "state_valid_mask" not in batch
            anchors = batch["_frame_indices"][:, None]
            check_frames(small, batch, {key: anchors + np.arange(4) for key in ("rgb_cam_0", "state")})

    def test_a_stream_that_nobody_has_needs_a_shape(self, small):
        for name, needed in (("rgb_side", r"resize \(\[H, W\]\)"), ("force", "pad_to")):
            with pytest.raises(ConfigError, match=f"stream_cfg.{name}: .*nothing says its shape; give {needed}"):
                whole(small, {name: {"optional": True}, "state": {}})


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """Three robots: other names, sizes, rates, widths and profiles; the third has neither depth nor a second camera."""
    make = tmp_path_factory.mktemp
    return {
        "aloha": write_packed(make("aloha"), (40, 12), "training_fast", size=(160, 160), fps=50.0),
        "franka": write_packed(make("franka"), (31, 12), "training_compressed", fps=10.0, tag=10, state_dim=3),
        "umi": write_packed(make("umi"), (25,), "compact_video", size=(96, 128), cameras=1, depth=False, tag=20),
    }


STREAMS = {
    "aloha": {
        "rgb_main": {"source": "rgb_cam_0", "resize": [80, 80]},
        "rgb_hand": {"source": "cam_1", "resize": [80, 96], "optional": True},
        "depth": {"source": "depth_cam_0", "optional": True},
        "state": {},
    },
    "franka": {
        "main": {"source": "rgb_cam_0"},
        "hand": {"source": "rgb_cam_1", "resize": [80, 96]},
        "depth": {"source": "depth_cam_0"},
        "state": {"pad_to": 4},
    },
    "umi": {"main": {"source": "rgb_cam_0", "resize": [80, 80]}, "state": {}},
}


def mix(family, streams=None, own=None, **keys):
    datasets = [
        (
            name,
            {
                "loader": {"hlp_manifest": str(p.manifest)} | (own or {}).get(name, {}),
                "streams": (streams or STREAMS)[name],
            },
        )
        for name, p in family.items()
    ]
    return MultiShardedDataLoader(datasets, [2, 2, 1], SHARED | keys)


class TestMix:
    def test_different_robots_in_one_batch(self, family):
        deltas = {"main": [-0.2, 0.0, 0.1], "state": [0.0, 0.3]}
        frames = {"aloha": 50, "franka": 10, "umi": 30}
        stored = {"rgb_main": "rgb_cam_0", "rgb_hand": "rgb_cam_1", "depth_depth": "depth_cam_0", "state": "state"}
        seen = set()
        with mix(family, delta_timestamps=deltas, pad_missing=True) as loader:
            for batch in loader:
                assert batch["_stream_names"] == ["rgb_main", "rgb_hand", "depth_depth", "state"]
                assert batch["rgb_main"].shape == (5, 3, 80, 80, 3)
                assert batch["rgb_hand"].shape == (5, 4, 80, 96, 3)
                assert batch["state"].shape == (5, 2, 4)
                for name, part in split(batch):
                    seen.add(name)
                    present = list(stored) if name != "umi" else ["rgb_main", "state"]
                    for key in set(stored) - set(present):
                        assert not part[key].any()
                        assert not part[f"{key}_valid_mask"].any()
                    if name == "franka":
                        assert not part["state"][..., 3].any()
                    anchors = part["_frame_indices"][:, None]
                    asked = {"rgb_main": deltas["main"], "state": deltas["state"]}
                    wanted, renamed = {}, {}
                    for key in present:
                        offsets = [round(o * frames[name]) for o in asked[key]] if key in asked else np.arange(4)
                        wanted[stored[key]] = anchors + np.array(offsets)
                        renamed[stored[key]] = part[key]
                        renamed[f"{stored[key]}_valid_mask"] = part[f"{key}_valid_mask"]
                    check_frames(family[name], {**part, **renamed}, wanted)
        assert seen == set(family)

    def test_each_dataset_is_scaled_by_its_own_statistics(self, family):
        streams = {name: {"state": {"normalize": "min_max", "pad_to": 4}} for name in family}
        with mix(family, streams) as loader:
            for batch in loader:
                for name, part in split(batch):
                    longest = max(family[name].lengths) - 1
                    frame = part["_frame_indices"][:, None] + np.arange(4)
                    np.testing.assert_allclose(part["state"][..., 1], frame / longest * 2 - 1, atol=1e-5)

    def test_zerocopy_and_cache_change_nothing(self, family):
        shapes = {"main": [80, 80, 3], "rgb_hand": [80, 96, 3]}
        with mix(family) as loader:
            reference = list(loader)
        for keys in (
            {"zerocopy": True, "zerocopy_frame_shapes": shapes},
            {"ram_cache_bytes": 1 << 24, "num_decoders": 4},
        ):
            with mix(family, **keys) as loader:
                for one, other in zip(loader, reference, strict=True):
                    equal(one, other)

    def test_image_key_leaves_out_what_does_not_go_together(self, family):
        streams = {"rgb_cam_0": {"resize": [80, 80]}, "cam_1": {}, "action": {}}
        datasets = [
            (name, {"loader": {"hlp_manifest": str(family[name].manifest)}, "streams": streams})
            for name in ("aloha", "franka")
        ]
        with MultiShardedDataLoader(datasets, [1, 1], SHARED | {"image_key": "rgb_cam_0"}) as loader:
            assert next(iter(loader))["_stream_names"] == ["rgb_cam_0", "action"]
        with pytest.raises(ConfigError, match=r"'rgb_cam_1' is rgb uint8 .*'resize'"):
            MultiShardedDataLoader(datasets, [1, 1], SHARED)

    @pytest.mark.parametrize(
        ("franka", "message"),
        [
            ({"state": {}}, r"'state' is numeric float32 \[4\] in 'aloha' and numeric float32 \[3\] .*'pad_to'"),
            ({"state": {"pad_to": 4, "dtype": "float64"}}, r"'state' is .* one 'dtype'"),
            (
                {"rgb_main": {"source": "rgb_cam_0"}, "state": {"pad_to": 4}},
                "'rgb_main' is in 'franka' but not in 'aloha'",
            ),
            ({}, "'rgb_cam_0' is in 'franka' but not in 'aloha'"),
            ({"state": {"normalise": "mean_std"}}, r"dataset 'franka': stream_cfg.state: unknown key 'normalise'"),
            (
                {"sate": {}},
                r"dataset 'franka': stream_cfg: the dataset has no stream 'sate' \(did you mean 'state'\?\)",
            ),
        ],
    )
    def test_streams_that_do_not_go_together_say_what_to_do(self, family, franka, message):
        two = {name: family[name] for name in ("aloha", "franka")}
        datasets = [
            (
                name,
                {"loader": {"hlp_manifest": str(p.manifest)}, "streams": franka if name == "franka" else {"state": {}}},
            )
            for name, p in two.items()
        ]
        with pytest.raises(ConfigError, match=message):
            MultiShardedDataLoader(datasets, [1, 1], SHARED)


@pytest.mark.parametrize(
    ("stream_cfg", "message"),
    [
        ({"rgb_cam_0": {"resize": 224}}, r"stream_cfg.rgb_cam_0.resize: must be \[H, W\].*got 224"),
        ({"rgb_cam_0": {"resize": [0, 3]}}, r"resize: must be \[H, W\]"),
        ({"rgb_cam_0": {"resize": [3, 3, 3]}}, r"resize: must be \[H, W\]"),
        ({"rgb_cam_0": {"resize": [True, 3]}}, r"resize: must be \[H, W\]"),
        ({"rgb_cam_0": {"resize": [3.5, 3]}}, r"resize: must be \[H, W\]"),
        ({"rgb_cam_0": {"resize": [70_000, 3]}}, r"resize: must be \[H, W\], two whole numbers from 1 to 65535"),
        ({"rgb_cam_0": {"resize": [20_000, 20_000]}}, "resize: .* at most 134217728 pixels"),
        ({"rgb_cam_0": {"pad_to": [60_000, 60_000]}}, "pad_to: .* at most 134217728 pixels"),
        ({"state": {"resize": [3, 3]}}, "stream_cfg.state.resize: is about pictures, and 'state' is numeric"),
        ({"state": {"dtype": "uint8"}}, "stream_cfg.state.dtype: 'uint8' can't hold a numeric stream; use 'float16'"),
        ({"depth_cam_0": {"dtype": "uint8"}}, "dtype: 'uint8' can't hold a depth stream"),
        ({"state": {"dtype": "int8"}}, "stream_cfg.state.dtype: must be 'uint8', 'float16', 'float32' or 'float64'"),
        ({"rgb_cam_0": {"normalize": "mean_std"}}, r"rgb_cam_0.normalize: only numeric streams .*dtype='float32'"),
        ({"depth_cam_0": {"normalize": "min_max"}}, "depth_cam_0.normalize: only numeric streams"),
        ({"state": {"normalize": "zscore"}}, "stream_cfg.state.normalize: must be 'mean_std', 'min_max' or 'quantile'"),
        ({"state": {"pad_to": 3}}, "stream_cfg.state.pad_to: 3 is less than the stream has, 4; pad_to only adds"),
        ({"state": {"pad_to": [3, 3]}}, r"pad_to: must be a width for a numeric stream, got \(3, 3\)"),
        ({"rgb_cam_0": {"pad_to": 90}}, r"pad_to: must be \[H, W\] for pictures, got 90"),
        (
            {"rgb_cam_0": {"pad_to": [90, 70]}},
            r"pad_to: \(90, 70\) is less than the stream has, \[80, 80\].*resize makes",
        ),
        ({"rgb_cam_0": {"pad_to": "big"}}, "pad_to: must be a width or, for pictures"),
        ({"state": {"optional": "yes"}}, "stream_cfg.state.optional: must be a valid boolean"),
        ({"top": {"source": "cam_9"}}, r"stream_cfg.top.source: the dataset has no stream 'cam_9' \(did you mean"),
        ({"top": {"source": "cam_0"}}, "stream_cfg.top.source: 'cam_0' can mean 'rgb_cam_0' or 'depth_cam_0'"),
        ({"depth_top": {"source": "rgb_cam_0"}}, "'rgb_cam_0' is a rgb stream, whose name can't begin with 'depth_'"),
        ({"rgb_x": {"source": "state"}}, "'state' is a numeric stream, whose name can't begin with 'rgb_'"),
        ({"_x": {"source": "state"}}, "'_x' can't be a stream's name"),
        ({"x_valid_mask": {"source": "state"}}, "'x_valid_mask' can't be a stream's name"),
        ({"top": {"source": "rgb_cam_0"}, "rgb_top": {"source": "cam_1"}}, "'rgb_top', which is there already"),
        ({"top": {"source": ""}}, "stream_cfg.top.source: must have at least 1 character"),
    ],
)
def test_mistakes_say_what_is_wrong_and_where(small, stream_cfg, message):
    with pytest.raises(ConfigError, match=message):
        ShardedDataLoader(small.config(), stream_cfg)


def test_what_is_no_mapping(small):
    with pytest.raises(ConfigError, match="stream_cfg is a mapping of streams to options, got list"):
        ShardedDataLoader(small.config(), ["state"])
    with pytest.raises(ConfigError, match="loader_cfg is a mapping of keys to values, got int"):
        ShardedDataLoader(5)


def test_statistics_that_are_not_there(tmp_path):
    packed = write_packed(tmp_path, (12,), cameras=1, depth=False)
    manifest = load_manifest(packed.manifest.read_bytes(), "m")
    packed.manifest.write_text(manifest.model_copy(update={"stats": {"action": manifest.stats["action"]}}).to_json())
    with pytest.raises(ConfigError, match=r"no statistics of 'state' \(it has: action\)"):
        ShardedDataLoader(packed.config(), {"state": {"normalize": "mean_std"}})
