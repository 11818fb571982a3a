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
PAGES = ["README.md", "docs/ingest.md", "docs/packing.md", "docs/pipeline.md", "docs/loading.md", "docs/training.md"]
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
    ran = []
    for page in PAGES:
        for language, name, text in blocks(page):
            where = f"{page}:\n{text}"
            if language == "yaml" and name:
                (tmp_path / name).write_text(text)
            elif language == "python" and name and importlib.util.find_spec(name.removeprefix("needs-")) is None:
                continue  # a recipe for a framework that is not here
            elif language == "python":
                run = subprocess.run(
                    [sys.executable, "-c", text], cwd=tmp_path, text=True, capture_output=True, timeout=300, check=False
                )
                assert run.returncode == 0, where + run.stderr
            elif language == "bash":
                makes, rest = split_make(text)
                for target in makes:
                    run = subprocess.run(["make", "-n", target], cwd=ROOT, text=True, capture_output=True, check=False)
                    assert run.returncode == 0, where + run.stderr
                if rest:
                    run = shell(rest, tmp_path)
                    assert run.returncode == 0, where + run.stdout + run.stderr
            ran.append(language)
    assert ran.count("bash") >= 4
    assert ran.count("python") >= 2


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


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_links_lead_somewhere(page):
    for target in LINK.findall((ROOT / page).read_text()):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), target
