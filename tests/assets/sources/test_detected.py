"""What ``detect`` writes for a dataset of any array family ingests as it is."""

import pytest

from knonik.ingest import run
from knonik_assets.configs.load import load_ingest_config
from knonik_assets.sources.detect import detect
from knonik_assets.sources.registry import open_source
from tests.support.mutations import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_that_detect_writes_ingests_as_it_is(tmp_path, family):
    raw = tmp_path / "raw"
    raw.mkdir()
    FAMILIES[family].write(raw)
    found = detect(raw)
    wanted = FAMILIES[family].config
    assert (found.dir_type, found.data_type) in {
        (wanted["dir_type"], wanted.get("data_type")),
        ("episodic", "hdf5") if family == "demos" else (None, None),
    }
    preset = {"rgb": {"codec": "jpeg", "quality": 90}}
    report = run({"preset": preset, **found.config}, output=tmp_path / "out", engine="inline")
    there = open_source(load_ingest_config(wanted), raw / FAMILIES[family].root).episodes()
    assert len(report.written) == len(there) > 0
    assert not report.failed
    again = run({"preset": preset, **found.config}, output=tmp_path / "out", engine="inline")
    assert len(again.skipped) == len(report.written)
