"""The sample dataset as a person builds it: in the browser, by clicking, on a real instance of Dagster."""

import base64
import io
import shutil
from collections import Counter

import h5py
import numpy as np
import pytest
from PIL import Image

from tests.support.dagster_ui import (
    CHROMIUM,
    EXPANDED,
    ROOT,
    browser_page,
    materialise_all,
    open_markdown,
    processes_of,
    wait_for_run,
    web_interface,
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; Debian has it: apt-get install chromium")

ASSETS = (
    "raw_dataset",
    "ingested_episodes",
    "dataset_config",
    "khlp_compact_video",
    "khlp_training_fast",
    "khlp_training_compressed",
)
CHECKED = ("raw_dataset", "ingested_episodes", "dataset_config", "khlp_training_fast")
SPOILT = "episode_000000: finite_values: action: 1 values that are no number, the first in row 7, channel 3"


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", home)
    for name in ("datasets", "sample"):
        shutil.copytree(ROOT / "dagster_home" / name, home / name)
    # a card whose one recording holds a number that is none, and that lets nothing bad pass
    card = (home / "datasets" / "aloha_sim.yaml").read_text()
    for here, there in (
        ("name: aloha_sim", "name: spoilt"),
        ("sample/aloha_sim", "sample/spoilt"),
        ("on_bad_episode: exclude", "on_bad_episode: block"),
    ):
        assert here in card
        card = card.replace(here, there, 1)
    (home / "datasets" / "spoilt.yaml").write_text(card)
    (home / "sample" / "spoilt").mkdir()
    shutil.copy(home / "sample" / "aloha_sim" / "episode_0.hdf5", home / "sample" / "spoilt")
    with h5py.File(home / "sample" / "spoilt" / "episode_0.hdf5", "r+") as file:
        file["action"][7, 3] = np.nan
    return home


def checks_of(assets):
    """How many checks each asset has by its definition."""
    from knonik_assets.orchestration.definitions import build_definitions

    graph = build_definitions(ROOT / "dagster_home" / "datasets").resolve_asset_graph()
    counts = Counter(key.asset_key.to_user_string() for key in graph.asset_check_keys)
    assert all(counts[asset] >= 3 for asset in assets)
    return {asset: counts[asset] for asset in assets}


def test_the_sample_is_built_by_clicking(home, tmp_path):
    with (
        web_interface(home, home / "datasets", tmp_path / "lake") as address,
        browser_page() as page,
    ):
        page.goto(f"{address}/{EXPANDED}")
        for asset in ASSETS[:3]:
            page.get_by_text(asset, exact=True).first.wait_for()
        run = materialise_all(page, address, "aloha_sim")
        assert wait_for_run(page, run) == "SUCCESS"
        for asset, count in checks_of(CHECKED).items():
            page.goto(f"{address}/assets/{asset}?view=checks")
            page.get_by_text(f"Checks ({count})").wait_for()
            passed = page.get_by_text("Succeeded", exact=True)
            passed.nth(count - 1).wait_for()
            assert passed.count() == count
        shown = open_markdown(page, address, "ingested_episodes", "aloha_sim", "film_strips")
        assert shown.get_attribute("alt") == "film strip of episode_000000"
        assert shown.evaluate("picture => picture.complete && picture.naturalWidth") > 600
        picture = base64.b64decode(shown.get_attribute("src").partition("base64,")[2])
        run = materialise_all(page, address, "spoilt")
        assert wait_for_run(page, run) == "FAILURE"
        page.get_by_text(SPOILT).first.wait_for()
    red, green, blue = np.moveaxis(np.asarray(Image.open(io.BytesIO(picture))).astype(int), -1, 0)
    cube = (red > 150) & (green < 90) & (blue < 90)
    assert cube.sum() > 60, "the cube is red in the strip too"
    assert (tmp_path / "lake" / "aloha_sim" / "packed" / "training_fast" / "hlp_manifest.json").exists()
    assert processes_of(home) == []
