"""A workshop with its own cards, raw recordings and lake, and a Dagster instance of its own."""

import os
from pathlib import Path

import dagster as dg
import h5py
import pytest

from knonik_assets.orchestration.definitions import build_definitions
from tests.support.stamps import episode_arrays

CARD = """
raw: ../raw
ingest:
  dir_type: episodic
  data_type: hdf5
  fps: 30
  preset: {rgb: {codec: jpeg, quality: 95}}
  layout:
    images: {cam_0: observations.images.cam_0, cam_1: observations.images.cam_1}
    numeric: {pose: observations.pose, command: command}
    timestamps: timestamps
engine: inline
"""
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
PACK = "pack: {profiles: [training_fast], shard_size: 10, seed: 1}\n"


class Workshop:
    """Everything below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cards = root / "cards"
        self.raw = root / "raw"
        self.episodes = root / "lake" / "stamps" / "episodes"
        self.packed = root / "lake" / "stamps" / "packed"
        for folder in (self.cards, self.raw):
            folder.mkdir()

    def card(self, more: str = PACK, name: str = "stamps") -> None:
        (self.cards / f"{name}.yaml").write_text(CARD + more)

    def record(self, number: int, frames: int = 12, change=None) -> Path:
        arrays = episode_arrays(number, frames, height=96, width=96)
        if change is not None:
            change(arrays)
        path = self.raw / f"episode_{number}.hdf5"
        with h5py.File(path, "w", track_order=False) as file:
            for camera in ("cam_0", "cam_1"):
                file[f"observations/images/{camera}"] = arrays[camera]
            file["observations/pose"] = arrays["state"]  # names that mean no role: nobody has bound one yet
            file["command"] = arrays["action"]
            file["timestamps"] = arrays["timestamps"]
        return path

    def definitions(self) -> dg.Definitions:
        return build_definitions(self.cards)

    def build(self, instance: dg.DagsterInstance, name: str = "stamps", job: str = "build_dataset"):
        """Run a job for one partition and return its result, quietly."""
        return (
            self.definitions()
            .resolve_job_def(job)
            .execute_in_process(
                instance=instance,
                partition_key=name,
                raise_on_error=False,
                run_config=QUIET,
            )
        )


def checks_of(result) -> dict[str, dict[str, dg.AssetCheckEvaluation]]:
    """Asset → check → evaluation."""
    found: dict[str, dict[str, dg.AssetCheckEvaluation]] = {}
    for each in result.get_asset_check_evaluations():
        found.setdefault(each.asset_key.to_user_string(), {})[each.check_name] = each
    return found


def failed(result) -> set[tuple[str, str]]:
    """(asset, check) of every check that failed."""
    return {(asset, name) for asset, each in checks_of(result).items() for name, one in each.items() if not one.passed}


def materialised(result) -> dict[str, dg.AssetMaterialization]:
    """Asset → what was materialised."""
    return {
        event.asset_key.to_user_string(): event.materialization for event in result.get_asset_materialization_events()
    }


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    for name in ("KNONIK_DATASETS", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KNONIK_LAKE", str(tmp_path / "lake"))
    return Workshop(tmp_path)


@pytest.fixture
def instance(tmp_path):
    home = tmp_path / "instance"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"
    with dg.DagsterInstance.local_temp(str(home), overrides={"telemetry": {"enabled": False}}) as made:
        yield made
