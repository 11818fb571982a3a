"""A mistake in a card is told with the line where it stands."""

import pytest

from knonik_assets.configs.card import load_card
from knonik_loader.errors import ConfigError

CARD = """# a comment
raw: ../raw
ingest:
  dir_type: episodic
  data_type: hdf5
  layout:
    images:
      top: {key: cameras.top}
pack:
  profiles: [training_fast]
  split: {train: 0.9, val: 0.1}
owners: [team:arms]
"""

MISTAKES = {
    "top level": ("owners:", "onwers:", 12, "'onwers'"),
    "ingest key": ("  layout:", "  layuot:", 6, "'layuot'"),
    "ingest value": ("dir_type: episodic", "dir_type: epsodic", 4, "dir_type"),
    "deep": ("{key: cameras.top}", "{kye: cameras.top}", 8, "kye"),
    "profile": ("[training_fast]", "[training_quick]", 10, "training_quick"),
    "pack option": ("  split:", "  spilt:", 11, "'spilt'"),
    "list item": ("[team:arms]", "[arms]", 12, "'arms'"),
}


@pytest.mark.parametrize(("old", "new", "line", "said"), MISTAKES.values(), ids=MISTAKES)
def test_the_line_of_a_mistake(tmp_path, old, new, line, said):
    path = tmp_path / "set.yaml"
    path.write_text(CARD.replace(old, new))
    with pytest.raises(ConfigError) as raised:
        load_card(path)
    assert str(raised.value).startswith(f"{path}, line {line}: ")
    assert said in str(raised.value)


def test_what_is_missing_has_no_line(tmp_path):
    path = tmp_path / "set.yaml"
    path.write_text("ingest: {dir_type: mcap}\n")
    with pytest.raises(ConfigError, match=r"set\.yaml: raw is required"):
        load_card(path)
