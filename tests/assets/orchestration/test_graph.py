"""The asset graph as people see it, and what loading it costs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

from knonik_assets.configs.card import EPISODE_CHECKS
from knonik_assets.orchestration.definitions import build_definitions
from knonik_assets.quality.versions import ROWS_VERSION, SUITE_VERSION

ROOT = Path(__file__).parents[3]
PACKED_CHECKS = ["frames_conserved", "intact", "loadable", "psnr", "size"]
PROFILES = ("compact_video", "training_compressed", "training_fast")
GRAPH = {
    "raw_dataset": ("episodes", ["inputs/raw_files", "inputs/source"], ["layout_found", "not_empty", "readable"]),
    "ingested_episodes": (
        "episodes",
        ["inputs/checks", "inputs/ingest", "raw_dataset"],
        sorted([*EPISODE_CHECKS, "fit_to_pack"]),
    ),
    "dataset_config": (
        "episodes",
        ["ingested_episodes", "inputs/config", "inputs/exclude"],
        ["no_placeholders", "schema_valid", "streams_agree"],
    ),
    **{
        f"khlp_{profile}": (
            "packed",
            ["dataset_config", "ingested_episodes", "inputs/exclude", f"inputs/pack_{profile}"],
            PACKED_CHECKS,
        )
        for profile in PROFILES
    },
    **{
        f"inputs/{name}": ("inputs", [], [])
        for name in ("raw_files", "source", "ingest", "checks", "config", "exclude", *(f"pack_{p}" for p in PROFILES))
    },
}
MADE = {name for name in GRAPH if not name.startswith("inputs/")}
"""Asset → group, what it comes from, its checks."""
NOT_BLOCKING = {
    ("dataset_config", "no_placeholders"),
    *(("ingested_episodes", check) for check in EPISODE_CHECKS),
    *((asset, check) for asset in GRAPH if asset.startswith("khlp_") for check in PACKED_CHECKS),
}


@pytest.fixture
def repository(workshop):
    workshop.card("owners: [team:arms]\nschedule: 0 3 * * *\n", "one")
    workshop.card("owners: [ana@lab.org]\n", "two")
    return workshop.definitions().get_repository_def()


def test_the_graph(repository):
    graph = repository.asset_graph
    found = {}
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        checks = sorted(check.name for check in graph.asset_check_keys if check.asset_key == key)
        found[key.to_user_string()] = (
            node.group_name,
            sorted(parent.to_user_string() for parent in node.parent_keys),
            checks,
        )
    assert found == GRAPH


def test_every_asset_and_check_has_the_cards_as_partitions(repository):
    graph = repository.asset_graph
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.partitions_def.get_partition_keys() == ["one", "two"]
        assert node.description
        if node.is_external:
            continue
        assert node.owners == ["ana@lab.org", "team:arms"]
        assert node.code_version
    for key in graph.asset_check_keys:
        assert graph.get(key).partitions_def.get_partition_keys() == ["one", "two"]


def test_what_every_asset_says_about_itself(repository):
    """Code version, kinds, pool and retries: a change of one of these is meant, and seen here."""
    graph = repository.asset_graph
    said = {}
    for name in MADE:
        node = graph.get(dg.AssetKey(name))
        step = repository.assets_defs_by_key[dg.AssetKey(name)].op
        retries = step.retry_policy.max_retries if step.retry_policy else 0
        said[name] = (node.code_version, sorted(node.kinds), step.pool, retries)
    assert said == {
        "raw_dataset": ("1", ["file"], None, 0),
        "ingested_episodes": (f"1.{ROWS_VERSION}.{SUITE_VERSION}", ["python"], "ingest", 3),
        "dataset_config": ("1", ["json"], None, 0),
        "khlp_compact_video": ("1", ["khlp"], "pack", 3),
        "khlp_training_compressed": ("1", ["khlp"], "pack", 3),
        "khlp_training_fast": ("1", ["khlp"], "pack", 3),
    }


def test_every_check_says_what_it_asks(repository):
    graph = repository.asset_graph
    checks = [graph.get(key) for key in graph.asset_check_keys]
    assert len(checks) == 3 + len(EPISODE_CHECKS) + 1 + 3 + 3 * len(PACKED_CHECKS)
    assert all(check.description.endswith(".") for check in checks)


def test_which_checks_block(repository):
    graph = repository.asset_graph
    loose = {
        (key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys if not graph.get(key).blocking
    }
    assert loose == NOT_BLOCKING


def test_automation(repository):
    graph = repository.asset_graph
    automatic = {key.to_user_string() for key in graph.get_all_asset_keys() if graph.get(key).automation_condition}
    assert automatic == MADE - {"raw_dataset"}


def test_a_broken_card_shows_up_and_breaks_nothing(workshop, caplog, instance):
    workshop.card(name="good")
    workshop.card("oops: 1\n", "broken")
    definitions = workshop.definitions()
    assert "unknown key 'oops'" in caplog.text
    graph = definitions.get_repository_def().asset_graph
    raw = graph.get(dg.AssetKey("raw_dataset"))
    assert raw.partitions_def.get_partition_keys() == ["broken", "good"]
    states = {record.data["dataset"]: record.data["state"] for record in raw.metadata["cards"].records}
    assert states == {"broken": "broken", "good": "ready"}
    result = workshop.build(instance, "broken")
    failure = result.get_step_failure_events()[0].step_failure_data
    assert "unknown key 'oops'" in failure.user_failure_data.description


def test_no_cards_at_all(tmp_path):
    assert build_definitions(tmp_path).get_repository_def().asset_graph.get_all_asset_keys()


def test_loading_the_definitions_imports_nothing_heavy():
    code = (
        "import json, sys; import dagster; before = set(sys.modules); "
        "from knonik_assets.orchestration.definitions import defs; defs(); "
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(json.loads(out.stdout))
    heavy = {
        "pandas",
        "great_expectations",
        "av",
        "h5py",
        "zarr",
        "torch",
        "matplotlib",
        "PIL",
        "loky",
        "pyarrow",
        "ray",
        "obstore",
        "boto3",
        "dagster_aws",
        "rosbags",
    }
    assert not loaded & heavy


@pytest.mark.parametrize(
    ("card", "status", "said"), [("", 0, "Validation successful"), ("oops: 1\n", 0, "unknown key")]
)
def test_dagster_validates_the_definitions(workshop, card, status, said):
    """Dagster's own command, over the repository's workspace; a broken card is told and breaks nothing."""
    workshop.card(card, "one")
    home = workshop.root / "home"
    home.mkdir()
    run = subprocess.run(
        [str(Path(sys.executable).with_name("dagster")), "definitions", "validate", "-w", str(ROOT / "workspace.yaml")],
        cwd=ROOT,
        env={**os.environ, "KNONIK_DATASETS": str(workshop.cards), "DAGSTER_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == status, run.stderr
    assert said in run.stdout + run.stderr


def test_the_workspace_names_the_definitions():
    entry = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"][0]["python_module"]
    module = __import__(entry["module_name"], fromlist=[entry["attribute"]])
    assert isinstance(getattr(module, entry["attribute"])(), dg.Definitions)
