"""Folders whose names look like markup, and names that are empty: an unset variable of the shell must not write anywhere."""

import pytest

from knonik_assets.cli import main, packer_main
from tests.support.road import ingest_config, write_json, write_raw


def test_brackets_in_paths_are_said_as_they_are(tmp_path, capsys):
    home = tmp_path / "lab[" / "b] [red]"
    raw = write_raw(home / "raw", [5], cameras=1)
    config = write_json(tmp_path / "config.json", ingest_config(cameras=1))
    episodes, cards, pictures = home / "episodes", home / "cards", home / "pictures"

    def said(*arguments) -> str:
        assert main([*map(str, arguments)]) == 0
        return "".join(capsys.readouterr())

    run = ("ingest", "--config", config, "--input", raw, "--output", episodes, "--engine", "inline")
    assert f"-> {episodes}\n" in said(*run)
    assert f"-> {cards / 'arms.yaml'}\n" in said("dataset", "add", "arms", "--raw", raw, "--cards", cards)
    assert said("dataset", "list", "--cards", cards).startswith("dataset")
    assert "arms: can be built" in said("dataset", "check", "--cards", cards)
    assert str(episodes) in said("inspect", episodes, "--frames", "0:1", "--out", pictures)
    assert f"config written to {home / 'c.json'}" in said("detect", raw, "--write", home / "c.json")
    packed = home / "packed" / "knonik_[arms]_hlp" / "hlp_manifest.json"
    pack = ("pack", "--input-dir", episodes, "--output-dir", home / "packed", "--dataset-name", "[arms]", "--engine")
    assert f"{packed}\n" in said(*pack, "inline")
    assert "[arms]" in said("inspect", packed)
    assert "knonik_[arms]_hlp" in "".join(said("bench", packed, "--seconds", "0.1", "--quiet").split())


@pytest.mark.parametrize("command", [main, packer_main])
def test_an_empty_output_folder_is_a_mistake_in_the_call(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    assert command(["pack", "--input-dir", str(tmp_path), "--output-dir", "", "--dataset-name", "arms"]) == 2
    assert "empty; name a path" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_empty_split_is_a_mistake_in_the_call(tmp_path, capsys):
    pack = ["pack", "--input-dir", str(tmp_path), "--output-dir", str(tmp_path / "out"), "--dataset-name", "arms"]
    assert main([*pack, "--split", ""]) == 2
    assert "split is empty" in capsys.readouterr().err
