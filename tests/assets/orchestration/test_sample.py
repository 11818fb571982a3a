"""The sample dataset that the repository ships, and the demo over it."""

from pathlib import Path

import numpy as np
import pytest

from knonik_assets.configs.cards import load_cards
from knonik_assets.orchestration import demo
from knonik_assets.orchestration.definitions import build_definitions
from knonik_loader import ShardedDataLoader
from tests.assets.orchestration.conftest import PACK, failed

CARDS = Path(__file__).parents[3] / "dagster_home" / "datasets"


@pytest.fixture
def quiet():
    return {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def test_the_red_cube_is_red(tmp_path, monkeypatch, instance, quiet):
    monkeypatch.setenv("KNONIK_LAKE", str(tmp_path / "lake"))
    job = build_definitions(CARDS).resolve_job_def("build_dataset")
    result = job.execute_in_process(
        instance=instance, partition_key="aloha_sim", raise_on_error=False, run_config=quiet
    )
    assert result.success
    assert failed(result) == set()
    card = load_cards(CARDS)["aloha_sim"]
    for profile in card.profiles:
        manifest = card.packed_folder(profile).path / "hlp_manifest.json"
        settings = {"decode_mode": "sequential", "hlp_manifest": str(manifest), "chunk_len": 1, "batch_size": 6}
        with ShardedDataLoader(settings, {"rgb_angle": {}}) as loader:
            pictures = next(iter(loader))["rgb_angle"][:, 0].astype(int)
        assert pictures.shape == (6, 480, 640, 3)
        red, green, blue = np.moveaxis(pictures, -1, 0)
        cube = (red > 150) & (green < 80) & (blue < 80)
        assert (cube.sum((1, 2)) > 50).all()
        assert not ((blue > 150) & (red < 80) & (green < 80)).any()


@pytest.fixture
def home(workshop, tmp_path, monkeypatch):
    """A home of a Dagster instance, with one tiny card."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("KNONIK_DATASETS", str(workshop.cards))
    monkeypatch.chdir(tmp_path)
    workshop.card()
    workshop.record(0)
    return workshop


def test_the_demo_tells_what_came_out(home, capsys):
    assert demo.main(["--dataset", "stamps"]) == 0
    said = capsys.readouterr().out
    for words in (
        "● ingested_episodes",
        "✓ cameras_alive",
        "rgb_cam_0",
        "12 x 4 x 96 x 96 x 3",
        "bare JPEG decoding/s",
        "lake/stamps/packed/training_fast/hlp_manifest.json",
        "lake/stamps/demo_batch.png",
    ):
        assert words in said
    assert (home.root / "lake" / "stamps" / "demo_batch.png").read_bytes().startswith(b"\x89PNG")


def test_the_demo_says_what_is_wrong(home, capsys):
    assert demo.main(["--dataset", "stamp"]) == 2
    assert "unknown dataset 'stamp'; did you mean 'stamps'" in " ".join(capsys.readouterr().out.split())
    home.card(PACK + "oops: 1\n")
    assert demo.main(["--dataset", "stamps"]) == 2
    assert "unknown key 'oops'" in capsys.readouterr().out


def test_the_demo_of_a_card_whose_recordings_are_gone(home, capsys):
    next(home.raw.iterdir()).unlink()
    assert demo.main(["--dataset", "stamps"]) == 1
    said = capsys.readouterr().out
    assert "The run failed" in said
    assert "✗ not_empty" in said
