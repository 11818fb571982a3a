"""The pipeline over many tiny episodes: built once, again with nothing new, and again with one more recording.

Every run is the whole job ``build_dataset`` of one card (raw data, episodes, config, one packed profile, all checks) in
a process of its own that begins with importing everything, as a run that the UI starts does; its seconds are those of
the process by the clock. Beside them: what was ingested, measured, packed. ``KNONIK_PIPELINE_EPISODES`` (1000) chooses
how many, and ``KNONIK_PIPELINE_FOLDER`` a folder that is kept, so that a second call finds the first build done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.common import ROOT, Ratio

BOUND_S = 10.0
CARD = """
raw: ../raw
ingest:
  dir_type: episodic
  data_type: hdf5
  fps: 30
  preset: {rgb: {codec: jpeg}}
  layout:
    images: {cam_0: observations.images.cam_0}
    numeric: {state: observations.qpos, action: action}
    timestamps: timestamps
pack: {profiles: [training_fast]}
"""
_RUN = """
import json, sys
from pathlib import Path
import dagster as dg
from knonik_assets.orchestration.definitions import build_definitions

root = Path(sys.argv[1])
quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
with dg.DagsterInstance.local_temp(str(root / "home"), overrides={"telemetry": {"enabled": False}}) as instance:
    job = build_definitions(root / "cards").resolve_job_def("build_dataset")
    result = job.execute_in_process(instance=instance, partition_key="tiny", run_config=quiet)
    made = {e.asset_key.to_user_string(): e.materialization.metadata for e in result.get_asset_materialization_events()}
    logged = [event.user_message for event in instance.all_logs(result.run_id)]
episodes, packed = made["ingested_episodes"], made["khlp_training_fast"]
print(json.dumps({
    "ok": result.success,
    "ingested": episodes["written"].value,
    "unchanged": episodes["unchanged"].value,
    "measured": sum(text.startswith("measured ") for text in logged),
    "generation": packed["generation"].value,
    "episodes": packed["episodes"].value,
}))
"""


def run() -> list[Ratio]:
    count = int(os.environ.get("KNONIK_PIPELINE_EPISODES", "1000"))
    kept = os.environ.get("KNONIK_PIPELINE_FOLDER")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(kept or folder)
        for name in ("raw", "cards", "home"):
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / "cards" / "tiny.yaml").write_text(CARD)
        there = len(list((root / "raw").iterdir()))
        for number in range(there, count):
            _record(root / "raw", number)
        total = max(there, count)
        first = _row(root, f"{total} episodes, first build", "", {})
        nothing = {"ingested": 0, "unchanged": total, "measured": 0}
        second = _row(root, f"{total} episodes, nothing new", f"<= {BOUND_S:g} s", nothing)
        _record(root / "raw", total)
        one = {"ingested": 1, "unchanged": total, "measured": 1}
        return [first, second, _row(root, f"{total} episodes and one new one", "-", one)]


def _record(raw: Path, number: int) -> None:
    rng = np.random.default_rng(number)
    state = rng.normal(size=(8, 4)).cumsum(0).astype(np.float32)
    with h5py.File(raw / f"episode_{number}.hdf5", "w") as file:
        file["observations/images/cam_0"] = rng.integers(0, 255, (8, 32, 32, 3), dtype=np.uint8)
        file["observations/qpos"], file["action"] = state, state + 0.01
        file["timestamps"] = np.arange(8) / 30


def _row(root: Path, what: str, wanted: str, counts: dict[str, int]) -> Ratio:
    environment = {name: value for name, value in os.environ.items() if name not in ("DAGSTER_HOME", "KNONIK_DATASETS")}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(root)],
        env={**environment, "KNONIK_LAKE": str(root / "lake"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - began
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    wrong = [f"{key} should be {value}" for key, value in counts.items() if said[key] != value]
    detail = ", ".join([*wrong, *(f"{key} {value}" for key, value in said.items())])
    return Ratio(what, "seconds, process and all", seconds, wanted or "-", f"{'WRONG: ' if wrong else ''}{detail}")
