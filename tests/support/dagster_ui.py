"""Dagster's own web interface on a real instance, and a browser to use it with: for tests and for screenshots."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
EXPANDED = "asset-groups?expanded=global@global:episodes,global@global:packed"
"""Page of the asset graph with the groups of what is made opened."""
PATIENCE_S = 240
"""For a start or a run on a machine that does much else; nothing waits for longer than it takes."""


@contextmanager
def web_interface(home: Path, cards: Path, lake: Path, workspace: Path = ROOT / "workspace.yaml") -> Iterator[str]:
    """``dagster-webserver`` with no daemon beside it; yields its address. No process of it is left afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    said = home / "webserver.log"
    command = [str(Path(sys.executable).with_name("dagster-webserver")), "-w", str(workspace)]
    places = {"DAGSTER_HOME": str(home), "KNONIK_DATASETS": str(cards), "KNONIK_LAKE": str(lake)}
    with said.open("w") as log:
        server = subprocess.Popen(
            [*command, "-h", "127.0.0.1", "-p", str(port)],
            cwd=ROOT,
            env={**os.environ, **places},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_for(f"{address}/server_info", server, said)
            yield address
        finally:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(30)
            _end(processes_of(home))


def processes_of(home: Path) -> list[psutil.Process]:
    """Every process that works for the instance at ``home``: server, code server, runs and their workers."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("DAGSTER_HOME") == str(home):
                found.append(process)
    return found


def _wait_for(address: str, server: "subprocess.Popen[bytes]", said: Path) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while server.poll() is None and time.monotonic() < give_up:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except (urllib.error.URLError, OSError):
            with suppress(subprocess.TimeoutExpired):
                server.wait(0.1)
        else:
            return
    raise RuntimeError(f"the webserver did not come up:\n{said.read_text()}")


def _end(left: list[psutil.Process]) -> None:
    """Code servers follow their webserver by themselves within seconds; what doesn't is ended here."""
    _, alive = psutil.wait_procs(left, timeout=30)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=10)


@contextmanager
def browser_page(width: int = 1600, height: int = 1000):
    """A page of the system's Chromium, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        try:
            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(60_000)
            yield page
        finally:
            browser.close()


def materialise_all(page, address: str, partition: str) -> str:
    """Materialise every asset for one partition by clicking in the asset graph; returns the run's address."""
    page.goto(f"{address}/{EXPANDED}")
    page.get_by_role("button", name="Materialize all").click()
    page.get_by_text("Select a partition or create one").click()
    page.locator("span").filter(has_text=partition).click()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Launch 1 run").click()
    link = page.get_by_role("link", name="View", exact=True)
    return address + link.get_attribute("href")


def wait_for_run(page, run: str) -> str:
    """Watch a run's page until it ended; returns how, as the page's title says it: ``SUCCESS``, for instance."""
    page.goto(run)
    # what was waited for is what is returned: the title may fall back to STARTED while the page asks again
    ended = "() => (/\\[(SUCCESS|FAILURE|CANCELED)\\]/.exec(document.title) || [])[1]"
    return page.wait_for_function(ended, timeout=PATIENCE_S * 1000, polling=200).json_value()


def open_markdown(page, address: str, asset: str, partition: str, key: str):
    """Open what a materialisation shows as Markdown under a key; returns the first picture in it."""
    page.goto(f"{address}/assets/{asset}?view=partitions&partition={partition}")
    page.locator("tr").filter(has=page.get_by_text(key, exact=True)).get_by_text("Show Markdown").click()
    picture = page.get_by_role("dialog").locator("img").first
    picture.wait_for()
    return picture
