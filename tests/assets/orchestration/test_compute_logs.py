"""The lines of the documentation that send the logs of runs to S3: Dagster takes them, and the logs arrive."""

import re
from pathlib import Path

import dagster as dg
import pytest
import yaml

from tests.support.buckets import folder_at

DOCS = Path(__file__).resolve().parents[3] / "docs" / "deploy.md"


def test_the_documented_lines_send_logs_to_a_bucket(tmp_path, s3, s3_server, monkeypatch):
    pytest.importorskip("dagster_aws")
    found = re.search(r"```yaml dagster.yaml compute_logs\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    settings = yaml.safe_load(found[1])
    monkeypatch.setenv("KNONIK_LOG_BUCKET", s3.removeprefix("s3://"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    settings["compute_logs"]["config"]["endpoint_url"] = s3_server
    settings["compute_logs"]["config"]["local_dir"] = str(tmp_path / "logs")
    settings["telemetry"] = {"enabled": False}
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))

    @dg.asset
    def talks() -> None:
        print("a line that was printed")

    with dg.DagsterInstance.local_temp(str(home), overrides=settings) as instance:
        assert dg.materialize([talks], instance=instance).success
        instance.compute_log_manager.dispose()
    folder = folder_at(f"{s3}/dagster-logs")
    keys = [one.key for one in folder.objects()]
    assert any(b"a line that was printed" in folder.read_bytes(key) for key in keys), keys
