"""Cards from the command line: written from what is found, listed, looked over."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from knonik_assets.carding import add_card, check_card, list_cards
from knonik_assets.cli import main
from knonik_assets.configs.card import card_schema, load_card
from knonik_loader.errors import ConfigError
from tests.support.road import write_raw


@pytest.fixture
def place(tmp_path, monkeypatch):
    write_raw(tmp_path / "raw", [6, 5])
    monkeypatch.setenv("KNONIK_DATASETS", str(tmp_path / "cards"))
    return tmp_path


def test_a_card_from_what_is_found(place):
    path, found = add_card("arms", place / "raw")
    assert found.episodes == 2
    card = load_card(path)
    assert card.raw.path == (place / "raw").resolve()
    assert card.profiles == ("training_fast",)
    assert "split" not in card.pack["training_fast"]  # two episodes may all be hashed into one part
    config = card.ingest_config()
    assert config.dir_type == "episodic"
    assert set(config.layout.images) == {"cam_0", "cam_1"}
    assert config.metadata["dataset"] == "arms"
    written = yaml.safe_load(path.read_text())
    schema = json.loads((path.parent / "card.schema.json").read_text())
    assert path.read_text().startswith("# yaml-language-server: $schema=card.schema.json\n")
    jsonschema.validate(written, schema)


def test_many_episodes_are_split(place):
    write_raw(place / "many", [2] * 20)
    path, _ = add_card("many", place / "many")
    assert load_card(path).pack["training_fast"]["split"] == {"train": 0.9, "val": 0.1}


def test_the_schema_knows_keys_and_refuses_others(place):
    schema = card_schema()
    card = {"raw": "x", "ingest": {"dir_type": "mcap", "preset": "low"}, "pack": {"profiles": ["training_fast"]}}
    jsonschema.validate(card, schema)
    for wrong in ({"onwers": []}, {"ingest": {"dir_type": "mcpa"}}, {"pack": {"shardsize": 1}}, {"path": "x"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**card, **wrong}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"raw": "x"}, schema)


def test_the_samples_schema_is_up_to_date():
    folder = Path(__file__).resolve().parents[2] / "dagster_home" / "datasets"
    schema = json.loads((folder / "card.schema.json").read_text())
    assert schema == card_schema(), "knonik dataset add writes it anew"
    jsonschema.validate(yaml.safe_load((folder / "aloha_sim.yaml").read_text()), schema)


def test_a_name_is_taken_once(place):
    path, _ = add_card("arms", place / "raw")
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"is the card of 'arms' already"):
        add_card("arms", place / "raw")
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="cannot name a dataset"):
        add_card("../arms", place / "raw")


def test_listing_names_broken_cards(place, capsys):
    add_card("arms", place / "raw")
    (place / "cards" / "bad.yaml").write_text("raw: x\nonwers: []\n")
    good, bad = list_cards()
    assert (good.name, good.problems) == ("arms", [])
    assert (bad.name, "did you mean 'owners'" in bad.problems[0]) == ("bad", True)
    assert main(["dataset", "list"]) == 1
    shown = capsys.readouterr()
    assert str(good.path) in shown.out, "in one line, however long"
    assert "line 2" in shown.err


@pytest.mark.parametrize("command", ["list", "check"])
def test_a_folder_without_cards_is_named(place, capsys, command):
    assert main(["dataset", command, "--cards", str(place / "none")]) == 0
    shown = capsys.readouterr().err
    assert str(place / "none") in shown
    assert "knonik dataset add" in shown


def test_a_look_at_the_raw_data(place, capsys):
    path, _ = add_card("arms", place / "raw")
    assert check_card("arms").episodes == 2
    assert check_card("arms").problems == []
    assert main(["dataset", "check"]) == 0
    assert "arms: can be built, 2 raw episodes" in capsys.readouterr().out
    path.write_text(path.read_text().replace("observations.images.cam_0", "observations.images.cam_9"))
    assert "cam_9" in check_card("arms").problems[0]
    assert main(["dataset", "check", "arms", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["problems"]
    with pytest.raises(ConfigError, match="did you mean 'arms'"):
        check_card("amrs")


def test_what_a_card_answers_is_asked_no_more(place):
    path, _ = add_card("arms", Path(__file__).resolve().parents[2] / "dagster_home" / "sample" / "aloha_sim")
    config = yaml.safe_load(path.read_text())
    for fps, asked in ((None, True), (25, False)):
        config["ingest"] = {**config["ingest"], "fps": fps}
        path.write_text(yaml.safe_dump(config))
        assert any("set fps" in note for note in check_card("arms").notes) == asked


def test_a_place_without_data(place, capsys):
    assert main(["dataset", "add", "none", "--raw", str(place / "nothing")]) == 1
    assert "there is no such file or folder" in capsys.readouterr().err
    assert list_cards() == []


def test_nothing_is_written_into_raw_data_or_where_no_folder_can_be(place, capsys):
    path, _ = add_card("arms", place / "raw")
    for key in ("episodes", "packed"):
        path.write_text(path.read_text() + f"{key}: ../raw/deep\n")
        (problem,) = check_card("arms").problems
        assert f"{key}: " in problem
        assert "is in the raw data" in problem
        path.write_text(path.read_text().replace(f"{key}: ../raw/deep\n", ""))
    (place / "file").write_text("")
    assert main(["dataset", "add", "legs", "--raw", str(place / "raw"), "--cards", str(place / "file")]) == 1
    assert main(["dataset", "add", "legs", "--raw", ""]) == 2
    said = capsys.readouterr().err
    assert "cannot write cards to" in said
    assert "raw is empty; name a path" in said
