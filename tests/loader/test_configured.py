"""Loaders from configuration blocks, with and without Hydra."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from knonik_loader import ConfigError, from_config
from knonik_loader.config_models import LoaderConfig
from knonik_loader.configured import GROUPS, group
from knonik_loader.khlp.types import PAYLOAD_OF_PROFILE
from tests.support.packed import write_packed

SHARED = {
    "framework": "torch",
    "action_key": "action",
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
}
OWN = {
    "kdelta": {
        "payload": "kdelta",
        "shuffle_mode": "global_triplet_fast",
        "planner_locality": "hlp_bounded",
        "kdelta_direct_local_decode": True,
        "kdelta_direct_bundle_decode": True,
        "kdelta_direct_bundle_target_frames": 48,
        "kdelta_direct_single_consumer": False,
    },
    "shdr": {
        "payload": "shdr",
        "shuffle_mode": "global_triplet",
        "planner_locality": "global",
        "kdelta_direct_local_decode": False,
    },
    "kimg": {"payload": "kimg", "shuffle_mode": "global_triplet_fast", "planner_locality": "global"},
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_groups_hold_what_is_promised(name):
    keys = group(name)
    assert {key: keys[key] for key in SHARED | OWN[name]} == SHARED | OWN[name]
    assert keys.keys() <= LoaderConfig.model_fields.keys()


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_and_a_manifest_make_a_loader(tmp_path, name):
    pytest.importorskip("torch")
    profile = next(profile for profile, payload in PAYLOAD_OF_PROFILE.items() if payload == name)
    packed = write_packed(tmp_path, [30, 12], profile, cameras=1, depth=False)
    keys = {"hlp_manifest": packed.manifest, "rank": 0, "world_size": 1}
    with from_config(name, chunk_len=4, batch_size=8, max_steps=3, dataset_name="mine", **keys) as loader:
        batches = list(loader)
    assert len(batches) == 3
    assert batches[0]["_dataset_name"] == "mine"
    assert tuple(batches[0]["rgb_cam_0"].shape) == (8, 4, 80, 80, 3)
    assert "action_valid_mask" in batches[0]


def test_a_block_is_stronger_than_defaults_and_weaker_than_keywords(packed):
    block = {**packed.config(), "chunk_len": 2, "batch_size": 3, "seed": None}
    del block["decode_mode"]
    with from_config(block, batch_size=5) as loader:
        batch = next(iter(loader))
    assert batch["action"].shape == (5, 2, 4)
    with from_config(block, stream_cfg={"action": {}}) as loader:
        assert next(iter(loader))["_stream_names"] == ["action"]


@pytest.mark.parametrize(
    ("block", "overrides", "named"),
    [
        ("kdlt", {}, r"no group 'kdlt'"),
        ("shdr", {}, "hlp_manifest is neither"),
        ({"hlp_manifest": "x", "chunk_len": 1}, {}, "batch_size is neither"),
        ({"hlp_manifest": "x", "chunk_len": 1, "batch_size": 1, "num_decoder": 3}, {}, "did you mean 'num_decoders'"),
        (["shdr"], {}, "got list"),
        (
            {"hlp_manifest": "x", "chunk_len": 1, "batch_size": 1},
            {"shufle_mode": "none"},
            "did you mean 'shuffle_mode'",
        ),
    ],
)
def test_mistakes_have_names(block, overrides, named):
    with pytest.raises(ConfigError, match=named):
        from_config(block, **overrides)


CONFIG = """
defaults:
  - knonik: kdelta
  - _self_
hydra:
  searchpath: [pkg://knonik_loader.conf]
  run: {dir: .}
  output_subdir: null
max_steps: 2
knonik:
  max_steps: ${max_steps}
  chunk_len: 4
"""
SCRIPT = """
import hydra, knonik_loader

@hydra.main(version_base=None, config_path=".", config_name="train")
def main(cfg):
    with knonik_loader.from_config(cfg.knonik, batch_size=8, rank=0, world_size=1) as loader:
        for batch in loader:
            print(cfg.knonik.payload, len(loader), tuple(batch["action"].shape), "io_loops" in loader.stats()["inactive"])

main()
"""


def test_hydra_composes_them(tmp_path):
    """In a process of its own: Hydra's packages lie aside, where Dagster's don't see them."""
    aside = Path(sys.prefix) / "hydra"
    path = os.pathsep.join([str(aside), str(Path(__file__).parents[2])])
    run = [sys.executable, "-c", "import hydra"]
    environment = {**os.environ, "PYTHONPATH": path}
    if subprocess.run(run, env=environment, capture_output=True, check=False).returncode:
        pytest.skip("Hydra is not installed; make test puts it aside")
    packed = write_packed(tmp_path / "packed", [30, 12], "training_compressed", cameras=1, depth=False)
    (tmp_path / "train.yaml").write_text(CONFIG)
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "train.py", f"knonik.hlp_manifest={packed.manifest}"]
    found = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["kdelta 2 (8, 4, 4) True"] * 2
    other = [*command, "knonik=shdr"]
    found = subprocess.run(other, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert "payload='kdelta'" in found.stderr
