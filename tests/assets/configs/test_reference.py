"""The configuration reference is what the models say, and says something of every key."""

import re
from pathlib import Path

from knonik_assets.configs.reference import configuration_reference
from knonik_loader.config_models import LoaderConfig

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == configuration_reference(), (
        "python -m knonik_assets.configs.reference > docs/configuration.md"
    )


def test_every_key_has_type_default_and_meaning():
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \| (.*) \|$", PAGE.read_text(), re.M)
    assert set(LoaderConfig.model_fields) <= {name for name, *_ in rows}
    for name, *cells in rows:
        assert all(cells), name
        assert not any("typing." in cell or "<class" in cell for cell in cells), name


def test_what_a_reader_looks_up():
    text = configuration_reference()
    assert "| `batch_size` | integer ≥ 1 | required |" in text
    assert "| `quality` | integer ≥ 0, ≤ 100 | `18` | CRF" in text
    card = text.split("## Dataset card")[1].split("\n## ")[0]
    assert "`path`" not in card
