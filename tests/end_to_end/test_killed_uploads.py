"""``kill -9`` while episodes are uploaded: half an episode is never visible, and the rerun equals an undisturbed run."""

import sys
from pathlib import Path

import pytest

from knonik_assets.episodes.metadata import EpisodeMetadata
from knonik_assets.episodes.remote import list_remote
from tests.end_to_end.test_killed_runs import kill_when
from tests.support.buckets import bucket_tree, folder_at, upload_tree
from tests.support.road import ingest_config, knonik, tree, write_json, write_raw

LENGTHS = [60, 50, 40, 30]


def command(config, raw, out) -> list[str]:
    return ["ingest", "--config", str(config), "--input", raw, "--output", out, "--quiet", "--workers", "1"]


def visible(url):
    return {
        key: data
        for key, data in bucket_tree(url).items()
        if not key.startswith(".knonik") and key != "ingest_report.json"
    }


def check_whole(url) -> int:
    """Every episode that a reader sees has all of its files; returns how many there are."""
    folder = folder_at(url)
    found = list_remote(folder).episodes
    for name, files in found.items():
        metadata = EpisodeMetadata.model_validate_json(folder.read_bytes(f"{name}/metadata.json"))
        assert {file: entry.bytes for file, entry in metadata.files.items()} == {
            file: one.size for file, one in files.items() if file != "metadata.json"
        }
    return len(found)


@pytest.mark.parametrize("what", ["new", "replaced"])
def test_killed_during_an_upload(tmp_path, s3, what):
    raw = write_raw(tmp_path / "stamped", LENGTHS, cameras=2)
    url, out = upload_tree(raw, f"{s3}/lake/stamped"), f"{s3}/lake/episodes"
    config = write_json(tmp_path / "config.json", ingest_config(cameras=2))
    if what == "replaced":
        before = ingest_config(cameras=2, preset={"rgb": {"codec": "jpeg", "quality": 50}})
        knonik(*command(write_json(tmp_path / "before.json", before), url, out), check=True)
    knonik(*command(config, raw, tmp_path / "undisturbed"), check=True)

    program = str(Path(sys.executable).with_name("knonik"))
    folder = folder_at(out)
    kill_when([program, *command(config, url, out)], lambda: bool(list_remote(folder).halves))
    assert check_whole(out) < len(LENGTHS)
    knonik(*command(config, url, out), check=True)
    assert check_whole(out) == len(LENGTHS)
    assert not list_remote(folder).halves
    wanted = tree(tmp_path / "undisturbed")
    if what == "replaced":
        wanted.pop("config.json")  # an older one is kept
    assert {key: data for key, data in visible(out).items() if key in wanted} == wanted
    assert visible(out).keys() - wanted.keys() <= {"config.json"}
