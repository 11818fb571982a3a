"""From raw recordings to batches with an ``s3://`` URL at each stage, through Dagster and through the command line."""

import dagster as dg
import pytest

from knonik_assets.orchestration.definitions import build_definitions
from knonik_loader import ShardedDataLoader
from tests.assets.orchestration.conftest import instance  # noqa: F401 - a fixture
from tests.support.buckets import bucket_tree, upload_tree
from tests.support.road import ingest_config, knonik, write_json, write_raw
from tests.support.stamps import read_stamp

LENGTHS = [14, 9, 11]

CARD = """
raw: {s3}/lake/stamped
episodes: {s3}/lake/episodes
packed: {s3}/lake/packed
ingest:
  dir_type: episodic
  data_type: hdf5
  fps: 30
  preset: {{rgb: {{codec: jpeg, quality: 92}}}}
  metadata: {{dataset: stamped, robot_type: none}}
  layout:
    images: {{cam_0: observations.images.cam_0, cam_1: observations.images.cam_1}}
    numeric: {{state: observations.qpos, action: action}}
    timestamps: timestamps
pack: {{profiles: [training_fast], shard_size: 5, seed: 2}}
engine: inline
"""


@pytest.fixture
def raw(tmp_path, s3, monkeypatch):
    monkeypatch.setenv("KNONIK_SCRATCH", str(tmp_path / "scratch"))
    return upload_tree(write_raw(tmp_path / "stamped", LENGTHS), f"{s3}/lake/stamped")


def check_batches(manifest: str) -> None:
    """Every frame of every camera is there once, and is the one that it is said to be."""
    settings = {"decode_mode": "sequential", "hlp_manifest": manifest, "chunk_len": 1, "batch_size": 4}
    seen = []
    with ShardedDataLoader(settings) as loader:
        for batch in loader:
            for sample, frame in enumerate(batch["_frame_indices"]):
                episode = int(batch["_episode_ids"][sample][-6:])
                for camera in (0, 1):
                    assert read_stamp(batch[f"rgb_cam_{camera}"][sample, 0]) == (camera, episode, frame)
                assert tuple(batch["state"][sample, 0][:2]) == (episode, frame)
                assert abs(float(batch["_timestamps"][sample]) - frame / 30) < 1e-6
                seen.append((episode, int(frame)))
    assert sorted(seen) == [(episode, frame) for episode, length in enumerate(LENGTHS) for frame in range(length)]


def test_through_dagster(raw, s3, tmp_path, instance, monkeypatch):  # noqa: F811
    cards = tmp_path / "cards"
    cards.mkdir()
    (cards / "stamped.yaml").write_text(CARD.format(s3=s3))
    definitions = build_definitions(cards)
    assets = [one for one in definitions.assets or () if isinstance(one, dg.AssetsDefinition)]
    resources = definitions.resources

    def materialize():
        return dg.materialize(assets, partition_key="stamped", instance=instance, resources=resources)

    result = materialize()
    assert result.success
    manifest = f"{s3}/lake/packed/training_fast/hlp_manifest.json"
    made = {e.asset_key.to_user_string(): e.materialization.metadata for e in result.get_asset_materialization_events()}
    assert made["khlp_training_fast"]["manifest"].value == manifest
    assert made["khlp_training_fast"]["frames"].value == sum(LENGTHS)
    check_batches(manifest)
    before = bucket_tree(f"{s3}/lake/packed")
    assert materialize().success
    after = bucket_tree(f"{s3}/lake/packed")
    kept = [key for key in before if key.endswith((".khlp", ".khli")) or "manifest" in key]
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}, "nothing new: the same generation"


def test_through_the_command_line(raw, s3, tmp_path):
    config = write_json(tmp_path / "config.json", ingest_config())
    episodes, packed = f"{s3}/lake/by_hand", f"{s3}/lake/packed_by_hand"
    knonik("ingest", "--config", config, "--input", raw, "--output", episodes, "--quiet", check=True)
    arguments = ("--input-dir", episodes, "--output-dir", packed, "--dataset-name", "stamped", "--shard-size", 5)
    shown = knonik("pack", *arguments, "--quiet", check=True, module="knonik_ingest")
    assert shown.stdout.strip().splitlines()[-1] == f"{packed}/hlp_manifest.json"
    check_batches(f"{packed}/hlp_manifest.json")
    looked = knonik("inspect", episodes, "--verify", check=True)
    assert "3" in looked.stdout
    assert "verified" in looked.stdout
