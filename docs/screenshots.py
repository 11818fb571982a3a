"""``python docs/screenshots.py``: makes the README's pictures of the Dagster UI anew, from the sample dataset.

Needs the extra ``dev`` and Debian's chromium. The sample is built by clicking, as in the browser test.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.dagster_ui import (  # noqa: E402 - the tests are no package that is installed
    CHROMIUM,
    EXPANDED,
    browser_page,
    materialise_all,
    open_markdown,
    wait_for_run,
    web_interface,
)

WIDTH = 1400
"""Pixels of a saved picture at most."""
MOST_BYTES = 200_000


def main() -> int:
    """Write the pictures to `docs`, or to the folder that is named."""
    if CHROMIUM is None:
        sys.stderr.write("no chromium here; Debian has it: apt-get install chromium\n")
        return 1
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"
    with tempfile.TemporaryDirectory(prefix="knonik_") as folder:
        home = Path(folder) / "dagster_home"
        home.mkdir()
        shutil.copy(ROOT / "dagster_home" / "dagster.yaml", home)
        for name in ("datasets", "sample"):
            shutil.copytree(ROOT / "dagster_home" / name, home / name)
        with web_interface(home, home / "datasets", home / "lake") as address:
            take(address, out)
    return 0


def take(address: str, out: Path) -> None:
    """Build the sample, and save what the UI shows of it."""
    with browser_page(1250, 800) as page:
        ended = wait_for_run(page, materialise_all(page, address, "aloha_sim"))
        if ended != "SUCCESS":
            raise SystemExit(f"the run ended with {ended}")
        open_markdown(page, address, "ingested_episodes", "aloha_sim", "film_strips")
        save(page, out / "materialisation.png")
        page.goto(f"{address}/assets/ingested_episodes?view=checks")
        page.get_by_text("Latest execution").wait_for()
        save(page, out / "checks.png")
    with browser_page(2500, 1500) as page:  # so large that the nodes of the graph say what they know
        page.goto(f"{address}/{EXPANDED}")
        page.get_by_text(re.compile(r"^\s*(\d+) / \1 Passed")).nth(5).wait_for()  # of every asset
        save(page, out / "asset_graph.png", {"x": 560, "y": 120, "width": 1880, "height": 1320})


def save(page, path: Path, part: dict[str, int] | None = None) -> None:
    """A screenshot of a page or a part of it, small enough for a repository."""
    page.wait_for_load_state("networkidle")
    page.screenshot(path=path, animations="disabled", clip=part)
    picture = Image.open(path).convert("RGB")
    if picture.width > WIDTH:
        picture = picture.resize((WIDTH, round(picture.height * WIDTH / picture.width)), Image.Resampling.LANCZOS)
    picture.save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
