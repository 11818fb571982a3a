"""The commands' start: light, and interrupted without a traceback."""

import subprocess
import sys

import pytest

from knonik_assets import entry

HEAVY = {"typer", "zarr", "av", "h5py", "numpy"}


def loaded(code):
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


def test_nothing_heavy_is_imported_before_ctrl_c_is_looked_after():
    assert not HEAVY & loaded("import knonik_assets.entry, knonik_ingest")
    assert loaded("from knonik_ingest import pack, run") >= {"av", "h5py"}
    with pytest.raises(ImportError, match="nothing"):
        from knonik_ingest import nothing  # noqa: F401


@pytest.mark.parametrize("command", [entry.knonik, entry.packer])
def test_ctrl_c_while_importing_is_an_exit_code(monkeypatch, command):
    def interrupted(name):
        assert name == "knonik_assets.cli"
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "import_module", interrupted)
    assert command() == 130


def test_the_commands_are_those_of_the_command_line(monkeypatch):
    from knonik_assets import cli

    monkeypatch.setattr(sys, "argv", ["knonik", "--version"])
    assert entry.knonik() == 0
    monkeypatch.setattr(cli, "packer_main", lambda: 7)
    assert entry.packer() == 7
