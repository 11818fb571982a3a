"""Every command and snippet of the README and the docs runs, in the order in which a reader meets them."""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/ingest.md", "docs/live.md", "docs/packing.md", "docs/pipeline.md", "docs/loading.md"]
BLOCK = re.compile(r"^```(\w*) ?(\S*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


def blocks(page):
    return [match.groups() for match in BLOCK.finditer((ROOT / page).read_text())]


def shell(script, folder):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        text=True,
        capture_output=True,
        env={**os.environ, "PATH": path},
        timeout=300,
        check=False,
    )


def test_the_pages_run_from_top_to_bottom(tmp_path):
    home = ("lake", "storage", "history", "schedules", "logs")  # what runs of this checkout may have left there
    shutil.copytree(ROOT / "dagster_home", tmp_path / "dagster_home", ignore=shutil.ignore_patterns(*home, ".*"))
    ran = [language for page in PAGES for language in run_page(page, tmp_path)]
    assert ran.count("bash") >= 4
    assert ran.count("python") >= 2


def test_the_training_page_runs(tmp_path):
    """By itself: it needs nothing of the other pages but the ingested sample."""
    pytest.importorskip("torch")
    from knonik.ingest import run

    layout = {
        "images": {"top": "observations.images.top"},
        "numeric": {"qpos": "observations.qpos", "action": "action"},
    }
    config = {"dir_type": "episodic", "data_type": "hdf5", "fps": 50, "jpeg_channel_order": "bgr", "layout": layout}
    config["preset"] = {"rgb": {"codec": "jpeg"}}
    run(config, input=ROOT / "dagster_home/sample/aloha_sim", output=tmp_path / "lake/episodes", engine="inline")
    assert list(run_page("docs/training.md", tmp_path)).count("python") >= 7


def run_page(page, folder):
    """Run a page's blocks one after the other; gives their languages."""
    for language, name, text in blocks(page):
        where = f"{page}:\n{text}"
        if language == "yaml" and name:
            (folder / name).write_text(text)
        elif language == "python":
            if name and importlib.util.find_spec(name.removeprefix("needs-")) is None:
                continue  # a recipe for a framework that is not here
            run = subprocess.run(
                [sys.executable, "-c", text], cwd=folder, text=True, capture_output=True, timeout=300, check=False
            )
            assert run.returncode == 0, where + run.stderr
        elif language == "bash":
            makes, rest = split_make(text)
            for target in makes:
                run = subprocess.run(["make", "-n", target], cwd=ROOT, text=True, capture_output=True, check=False)
                assert run.returncode == 0, where + run.stderr
            if rest:
                run = shell(rest, folder)
                assert run.returncode == 0, where + run.stdout + run.stderr
        yield language


def split_make(script):
    """Targets of ``make`` calls, which the test suite cannot run from inside itself, and the rest of the script."""
    makes, rest = [], []
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "make":
            makes += words[1:]
        elif words:
            rest.append(line)
    return makes, "\n".join(rest)


@pytest.mark.parametrize("page", [*PAGES, "docs/training.md", "docs/scale.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page):
    for target in LINK.findall((ROOT / page).read_text()):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target
