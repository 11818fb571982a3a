"""Cards whose raw data and episodes lie in a bucket: the same assets, checks and versions as on a disk."""

import numpy as np
import pytest

from knonik_loader.errors import StorageError
from tests.assets.orchestration.conftest import CARD, PACK, checks_of, failed, materialised
from tests.assets.orchestration.test_materialise import batches
from tests.assets.orchestration.test_watching import look  # noqa: F401 - a fixture
from tests.support.buckets import bucket_tree, folder_at, upload_tree
from tests.support.stamps import read_stamp

NO_PACK = "pack: {profiles: []}\n"


@pytest.fixture
def bucket(workshop, s3, scratch):
    """The workshop's card, with URLs; gives a function that records an episode there."""
    text = CARD.replace("raw: ../raw", f"raw: {s3}/raw\nepisodes: {s3}/lake/episodes") + NO_PACK
    (workshop.cards / "stamps.yaml").write_text(text)

    def record(number, frames=12, change=None):
        upload_tree(workshop.record(number, frames, change), f"{s3}/raw/episode_{number}.hdf5")

    return record


def recordings(downloads):
    found = [key for key in downloads if key.endswith(".hdf5")]
    downloads.clear()
    return found


def spoil(arrays):
    arrays["action"][5, 1] = np.nan


def test_from_a_bucket_to_a_bucket(workshop, instance, bucket, s3, downloads):
    for number in range(3):
        bucket(number, change=spoil if number == 1 else None)
    result = workshop.build(instance)
    assert result.success
    assert failed(result) == {("ingested_episodes", "finite_values"), ("dataset_config", "no_placeholders")}
    finite = checks_of(result)["ingested_episodes"]["finite_values"]
    assert "1 values that are no number, the first in row 5, channel 1" in finite.description
    made = materialised(result)
    raw, episodes, config = (made[name].metadata for name in ("raw_dataset", "ingested_episodes", "dataset_config"))
    assert (raw["raw"].value, raw["episodes"].value, raw["files"].value) == (f"{s3}/raw", 3, 3)
    assert len(raw["streams"].records) == 4
    assert (episodes["folder"].value, episodes["written"].value) == (f"{s3}/lake/episodes", 3)
    assert "film strip of episode_000000" in episodes["film_strips"].value
    assert episodes["quality"].value == f"{s3}/lake/episodes/quality.json"
    assert episodes["expectations"].value == f"{s3}/lake/episodes/quality.html"
    assert config["config"].value == f"{s3}/lake/episodes/config.json"
    there = bucket_tree(f"{s3}/lake/episodes")
    assert b"<html" in there["quality.html"]
    assert b'"robot_type"' in there["config.json"]

    # nothing changed: no recording is downloaded, every version stays, and no episode is measured again
    downloads.clear()
    again = workshop.build(instance)
    assert again.success
    shown = {key.partition("/")[0] for key in downloads if key.endswith(".mkv")}
    assert shown == {"episode_000000", "episode_000001"}, "those of the film strips, a bad and a good one"
    assert recordings(downloads) == []
    versions = [
        {name: each.tags["dagster/data_version"] for name, each in materialised(one).items()} for one in (result, again)
    ]
    assert versions[0] == versions[1]


def test_a_new_object_is_ingested_alone(workshop, instance, bucket, downloads, look):  # noqa: F811
    for number in range(2):
        bucket(number)
    assert look()[0] == []
    ((name, _),) = look()[0]
    assert name == "stamps"
    assert workshop.build(instance).success
    assert look() == ([], "nothing new in 1 datasets")
    recordings(downloads)
    bucket(2)
    assert "waiting for it to come to rest" in look()[1]
    ((name, _),) = look()[0]
    result = workshop.build(instance)
    episodes = materialised(result)["ingested_episodes"].metadata
    assert (episodes["written"].value, episodes["unchanged"].value) == (1, 2)
    assert set(recordings(downloads)) == {"episode_2.hdf5"}
    assert look()[0] == []


def test_the_same_verdicts_as_on_a_disk(workshop, instance, bucket, s3):
    for number in range(2):
        bucket(number, change=spoil if number else None)
    workshop.card(NO_PACK, "disk")
    assert workshop.build(instance).success
    assert workshop.build(instance, "disk").success
    local = workshop.root / "lake" / "disk" / "episodes"
    there = bucket_tree(f"{s3}/lake/episodes")
    for path in local.rglob("*"):
        key = path.relative_to(local).as_posix()
        if path.is_file() and not key.startswith(".knonik") and key not in ("ingest_report.json", "quality.html"):
            assert there[key] == path.read_bytes(), key


def test_a_bucket_that_cannot_be_asked_fails_the_run_and_judges_nobody(workshop, instance, bucket, look, monkeypatch):  # noqa: F811
    bucket(0)
    assert workshop.build(instance).success
    monkeypatch.setattr("knonik_assets.sources.remote.listing.ObjectFolder.objects", refuse)
    assert "the network is down" in look()[1]
    result = workshop.build(instance)
    assert not result.success
    (failure,) = result.get_step_failure_events()
    assert "the network is down" in str(failure.step_failure_data)


def test_the_whole_road_at_urls(workshop, instance, bucket, s3):
    """Raw data, episodes and packed data in a bucket: built, checked, loaded, packed again, collected."""
    card = workshop.cards / "stamps.yaml"
    text = card.read_text().replace(NO_PACK, PACK) + f"packed: {s3}/lake/packed\nkeep_days: 0\n"
    card.write_text(text)
    for number in range(2):
        bucket(number)
    result = workshop.build(instance)
    assert result.success
    assert failed(result) == {("dataset_config", "no_placeholders")}
    checks = checks_of(result)["khlp_training_fast"]
    assert {name for name, each in checks.items() if each.passed} == {
        "frames_conserved", "intact", "psnr", "loadable", "size"
    }  # fmt: skip
    made = materialised(result)["khlp_training_fast"].metadata
    manifest = f"{s3}/lake/packed/training_fast/hlp_manifest.json"
    assert made["manifest"].value == manifest
    assert "film strip of the pack" in made["film_strip"].value
    seen = [
        (name, int(frame), read_stamp(image[0]))
        for batch in batches(manifest)
        for name, frame, image in zip(batch["_episode_ids"], batch["_frame_indices"], batch["rgb_cam_1"], strict=True)
    ]
    assert seen == [(f"episode_{n:06d}", t, (1, n, t)) for n in range(2) for t in range(12)]

    again = workshop.build(instance)
    assert materialised(again)["khlp_training_fast"].metadata["unchanged"].value is True
    card.write_text(text.replace("shard_size: 10", "shard_size: 5"))
    repacked = materialised(workshop.build(instance))["khlp_training_fast"].metadata
    assert (repacked["generation"].value, repacked["collected"].value) == (2, "1")
    there = {info.key for info in folder_at(f"{s3}/lake/packed/training_fast").objects()}
    assert "hlp_manifest.1.json" not in there
    assert "gen_0002/hlp_000000.khlp" in there
    data = folder_at(f"{s3}/lake/packed/training_fast")
    spoiled = bytearray(data.read_bytes("gen_0002/hlp_000000.khlp"))
    spoiled[len(spoiled) // 3] ^= 1
    data.put_bytes("gen_0002/hlp_000000.khlp", bytes(spoiled))
    assert ("khlp_training_fast", "intact") in failed(workshop.build(instance))


def refuse(self, prefix=""):
    raise StorageError(f"{self.url(prefix)}: the network is down.")


def test_exclude_by_the_name_in_the_source(workshop, instance, bucket, s3):
    for number in range(2):
        bucket(number, change=spoil if number else None)
    with (workshop.cards / "stamps.yaml").open("a") as card:
        card.write("exclude: {episode_1: the arm hit the table}\n")
    result = workshop.build(instance)
    assert failed(result) == {("dataset_config", "no_placeholders")}
    assert folder_at(f"{s3}/lake/episodes").head("episode_000001/metadata.json") is not None
