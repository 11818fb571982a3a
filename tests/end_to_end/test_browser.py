"""The sample dataset as a person builds it: in the browser, by clicking, on a real instance of Dagster."""

import base64
import io
import shutil
from collections import Counter

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


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(ROOT / "dagster_home" / "dagster.yaml", home)
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
        web_interface(home, ROOT / "dagster_home" / "datasets", tmp_path / "lake") as address,
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
    red, green, blue = np.moveaxis(np.asarray(Image.open(io.BytesIO(picture))).astype(int), -1, 0)
    cube = (red > 150) & (green < 90) & (blue < 90)
    assert cube.sum() > 60, "the cube is red in the strip too"
    assert (tmp_path / "lake" / "aloha_sim" / "packed" / "training_fast" / "hlp_manifest.json").exists()
    assert processes_of(home) == []
