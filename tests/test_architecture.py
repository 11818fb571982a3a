"""Imports run one way, public names are what they say, and importing the loader stays light."""

import importlib
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    "dagster",
    "torch",
    "pandas",
    "knonik_assets",
    "av",
    "obstore",
    "zarr",
    "h5py",
    "pyarrow",
    "great_expectations",
)


def test_imports_run_one_way():
    run = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:]


def test_importing_the_loader_loads_nothing_heavy():
    code = f"import sys, knonik_loader; print([name for name in {HEAVY} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert run.stdout.strip() == "[]"


def modules():
    for package in ("knonik_loader", "knonik_assets"):
        yield package
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not found.name.endswith(("__main__", ".demo")):
                yield found.name


@pytest.mark.parametrize("name", sorted(modules()))
def test_public_names_exist(name):
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None)
    for public in names or ():
        assert hasattr(module, public), public


def test_the_guides_names_are_the_same_objects():
    import knonik.ingest
    import knonik_assets.ingest
    import knonik_assets.live.protocol
    import knonik_assets.live.session
    import knonik_assets.pack
    import knonik_ingest
    import knonik_loader
    from knonik_multidataloader.api.sharded_dataloader import ShardedDataLoader

    assert knonik.ingest.run is knonik_ingest.run is knonik_assets.ingest.run
    assert knonik.ingest.pack is knonik_ingest.pack is knonik_assets.pack.pack
    assert knonik.ingest.live_session is knonik_assets.live.session.live_session
    assert knonik.ingest.run_live is knonik_assets.live.protocol.run_live
    assert ShardedDataLoader is knonik_loader.ShardedDataLoader


def test_the_compat_names_hold_no_logic():
    for path in (ROOT / "compat").rglob("*.py"):
        text = path.read_text()
        assert "def " not in text, path
        assert "class " not in text, path


def test_what_ends_workers_is_installed_with_them():
    """Loky can do without psutil, but not on a system without pgrep; there an ingest never ended."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert any(one.startswith("loky") for one in needed)
    assert any(one.startswith("psutil") for one in needed)
