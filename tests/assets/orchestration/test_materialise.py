"""A card from raw recordings to loaded batches, and what happens to bad episodes on the way."""

import hashlib
import importlib
import os
from collections import Counter
from functools import wraps
from pathlib import Path

import numpy as np
import pytest

from knonik_assets.configs.card import EPISODE_CHECKS
from knonik_loader import ShardedDataLoader
from tests.assets.orchestration.conftest import PACK, checks_of, failed, materialised
from tests.support.stamps import read_stamp


def freeze(arrays):
    arrays["cam_1"][:] = arrays["cam_1"][3]


def spoil(arrays):
    arrays["action"][5, 1] = np.nan


def batches(manifest):
    settings = {"decode_mode": "sequential", "hlp_manifest": str(manifest), "chunk_len": 1, "batch_size": 4}
    with ShardedDataLoader(settings) as loader:
        yield from loader


def test_a_card_becomes_three_datasets_that_load(workshop, instance):
    workshop.card(PACK.replace("[training_fast]", "[compact_video, training_fast, training_compressed]"))
    for number in range(2):
        workshop.record(number)
    result = workshop.build(instance)
    assert result.success
    assert failed(result) == {("dataset_config", "no_placeholders")}
    assert {asset: len(each) for asset, each in checks_of(result).items()} == {
        "raw_dataset": 3,
        "ingested_episodes": 16,
        "dataset_config": 3,
        "khlp_compact_video": 5,
        "khlp_training_fast": 5,
        "khlp_training_compressed": 5,
    }
    for profile in ("compact_video", "training_fast", "training_compressed"):
        seen = set()
        for batch in batches(workshop.packed / profile / "hlp_manifest.json"):
            for sample, frame in enumerate(batch["_frame_indices"]):
                owner = int(batch["_episode_ids"][sample][-6:])
                for camera in (0, 1):
                    assert read_stamp(batch[f"rgb_cam_{camera}"][sample, 0]) == (camera, owner, frame)
                seen.add((owner, int(frame)))
        assert len(seen) == 24


def test_what_a_run_shows(workshop, instance):
    workshop.card(PACK + "config: {roles: {state: pose, action: command}}\n")
    workshop.record(0)
    made = materialised(workshop.build(instance))
    raw, episodes, packed = (made[name].metadata for name in ("raw_dataset", "ingested_episodes", "khlp_training_fast"))
    assert raw["episodes"].value == 1
    assert len(raw["streams"].records) == 4
    assert [next(iter(metadata)) for metadata in (raw, episodes, packed)] == [
        "source_format",
        "film_strips",
        "film_strip",
    ]
    assert episodes["film_strips"].value.startswith("![film strip of episode_000000](data:image/jpeg;base64,")
    assert episodes["state_and_action"].value.startswith("![state and action of episode_000000](data:image/png;base64,")
    assert episodes["episode_table"].records[0].data["verdict"] == "ok"
    assert episodes["frames"].value == 12
    assert [(row.data["stream"], row.data["kind"], row.data["shape"]) for row in episodes["streams"].records] == [
        ("cam_0", "rgb", "96 x 96 x 3"),
        ("cam_1", "rgb", "96 x 96 x 3"),
        ("pose", "state", "4"),
        ("command", "action", "4"),
    ]
    asked = {row.data["check"]: row.data["asks"] for row in episodes["checks"].records}
    assert set(asked) == set(EPISODE_CHECKS)
    assert asked["no_gaps"] == "max_gap at most 1.5"
    assert asked["cameras_alive"] == "dimmest at least 16, frozen at most 0.5"
    assert packed["film_strip"].value.startswith("![film strip of the pack](data:image/jpeg;base64,")
    rgb, _, numbers, _ = (row.data for row in packed["streams"].records)
    assert (rgb["stream"], rgb["raw"], rgb["shape"]) == ("rgb_cam_0", "331.8\N{NO-BREAK SPACE}KB", "96 x 96 x 3")
    assert rgb["times_smaller"] > 1
    assert (numbers["raw"], numbers["packed"], numbers["times_smaller"]) == (
        "192\N{NO-BREAK SPACE}B",
        "192\N{NO-BREAK SPACE}B",
        1.0,
    )
    assert sum(row.data["percent_of_pack"] for row in packed["streams"].records) == pytest.approx(100, abs=0.2)
    assert packed["manifest"].value == str(workshop.packed / "training_fast" / "hlp_manifest.json")
    assert packed["generation"].value == 1
    assert packed["frames_per_second"].value > 0


def test_nothing_new_costs_nothing_and_keeps_every_data_version(workshop, instance):
    workshop.card()
    workshop.record(0)
    first = materialised(workshop.build(instance))
    second = materialised(workshop.build(instance))
    assert second["ingested_episodes"].metadata["unchanged"].value == 1
    assert second["ingested_episodes"].metadata["written"].value == 0
    for asset in first:
        version = [made[asset].tags["dagster/data_version"] for made in (first, second)]
        assert version[0] == version[1]


def test_a_run_with_nothing_new_does_none_of_the_work_and_one_new_recording_is_all_that_is_done(
    workshop, instance, monkeypatch
):
    """Counted where the work is done: raw bytes read, episodes ingested and measured, expectations, files packed."""
    workshop.card()
    for number in range(4):
        # a file that was written in this very moment is read again next time
        os.utime(workshop.record(number), (number + 1, number + 1))
    assert workshop.build(instance).success
    done, read = Counter(), set()
    for place in (
        "knonik_assets.ingest.ingest_episode",
        "knonik_assets.quality.episode_table.examine",
        "knonik_assets.quality.expectations._validate",
        "knonik_assets.pack_run.write_files",
    ):
        module, _, function = place.rpartition(".")
        monkeypatch.setattr(place, counted(getattr(importlib.import_module(module), function), function, done))
    digest = hashlib.file_digest

    def noted(file, *arguments):
        read.add(Path(file.name))
        return digest(file, *arguments)

    monkeypatch.setattr("hashlib.file_digest", noted)
    assert workshop.build(instance).success
    assert done == {}
    assert read == set()
    path = workshop.record(4)
    os.utime(path, (9, 9))
    assert workshop.build(instance).success
    assert done == {"ingest_episode": 1, "examine": 1, "_validate": 1, "write_files": 1}
    assert {each for each in read if each.parent == workshop.raw} == {path}


def counted(function, name, done):
    @wraps(function)
    def call(*arguments, **options):
        done[name] += 1
        return function(*arguments, **options)

    return call


@pytest.mark.parametrize(("days", "kept"), [("0", {"2"}), ("forever", {"1", "2"})])
def test_generations_are_kept_for_the_days_of_the_card(workshop, instance, days, kept):
    workshop.card(f"{PACK}keep_days: {days}\n")
    workshop.record(0)
    assert workshop.build(instance).success
    workshop.record(1)
    made = materialised(workshop.build(instance))["khlp_training_fast"].metadata
    assert made["generation"].value == 2
    assert (made["collected"].value if "collected" in made else "") == ("1" if days == "0" else "")
    folder = workshop.packed / "training_fast"
    assert {path.name.split(".")[1] for path in folder.glob("hlp_manifest.*.json")} == kept
    assert sum(len(batch["_episode_ids"]) for batch in batches(folder / "hlp_manifest.json")) == 24


def test_what_changed_has_another_data_version(workshop, instance):
    workshop.card()
    workshop.record(0)
    first = materialised(workshop.build(instance))
    workshop.record(1)
    second = materialised(workshop.build(instance))
    for asset in ("raw_dataset", "ingested_episodes", "khlp_training_fast"):
        assert first[asset].tags["dagster/data_version"] != second[asset].tags["dagster/data_version"]
    assert first["dataset_config"].tags["dagster/data_version"] == second["dataset_config"].tags["dagster/data_version"]
    assert second["ingested_episodes"].metadata["written"].value == 1
    assert second["khlp_training_fast"].metadata["generation"].value == 2


def test_a_profile_that_nobody_asks_for_yields_nothing(workshop, instance):
    workshop.card("pack: {profiles: []}\n")
    workshop.record(0)
    result = workshop.build(instance)
    assert result.success
    assert set(materialised(result)) == {"raw_dataset", "ingested_episodes", "dataset_config"}
    assert not any(asset.startswith("khlp") for asset in checks_of(result))
    assert not workshop.packed.exists()


@pytest.mark.parametrize(("change", "check"), [(freeze, "cameras_alive"), (spoil, "finite_values")])
def test_a_bad_episode_is_named_and_left_out(workshop, instance, change, check):
    workshop.card()
    workshop.record(0)
    workshop.record(1, change=change)
    result = workshop.build(instance)
    assert result.success
    assert failed(result) == {("ingested_episodes", check), ("dataset_config", "no_placeholders")}
    found = checks_of(result)["ingested_episodes"][check]
    assert found.severity.value == "WARN"
    assert "episode_000001" in found.description
    # one row says why, more name its frames
    assert {record.data["episode"] for record in found.metadata["details"].records} == {"episode_000001"}
    packed = materialised(result)["khlp_training_fast"].metadata
    assert packed["episodes"].value == 1
    assert check in packed["left_out"].records[0].data["reason"]
    names = {
        name
        for batch in batches(workshop.packed / "training_fast" / "hlp_manifest.json")
        for name in batch["_episode_ids"]
    }
    assert names == {"episode_000000"}


def test_a_bad_episode_blocks_where_the_card_says_so(workshop, instance):
    workshop.card(PACK + "on_bad_episode: block\n")
    workshop.record(0)
    workshop.record(1, change=spoil)
    result = workshop.build(instance)
    assert not result.success
    assert failed(result) == {("ingested_episodes", "finite_values"), ("ingested_episodes", "fit_to_pack")}
    assert "episode_000001: finite_values" in checks_of(result)["ingested_episodes"]["fit_to_pack"].description
    assert set(materialised(result)) == {"raw_dataset", "ingested_episodes"}
    workshop.card(PACK + "on_bad_episode: block\nexclude: {episode_1: the gripper was off}\n")
    result = workshop.build(instance)
    assert result.success
    assert materialised(result)["khlp_training_fast"].metadata["left_out"].records[0].data == {
        "episode": "episode_000001",
        "reason": "the gripper was off",
    }


def test_a_repaired_recording_heals_with_one_run(workshop, instance):
    workshop.card()
    workshop.record(0)
    workshop.record(1, change=spoil)
    workshop.build(instance)
    workshop.record(1)
    result = workshop.build(instance)
    assert failed(result) == {("dataset_config", "no_placeholders")}
    made = materialised(result)
    assert made["ingested_episodes"].metadata["written"].value == 1
    assert made["khlp_training_fast"].metadata["episodes"].value == 2


def test_the_pictures_of_a_bad_episode_come_first_and_say_why(workshop, instance):
    workshop.card()
    workshop.record(0)
    workshop.record(1, change=freeze)
    shown = materialised(workshop.build(instance))["ingested_episodes"].metadata
    said, first, second = shown["film_strips"].value.split("\n\n")
    assert said.startswith("**episode_000001**: cameras_alive: ")
    assert first.startswith("![film strip of episode_000001]")
    assert second.startswith("![film strip of episode_000000]")
    assert shown["checks"].records[0].data == {
        "check": "cameras_alive",
        "asks": "dimmest at least 16, frozen at most 0.5",
        "severity": "error",
        "fail_it": 1,
    }


def test_a_failure_says_which_episode_and_why(workshop, instance):
    """In the failed run's log, in the check, and in what the step failed with."""
    workshop.card(PACK + "on_bad_episode: block\n")
    workshop.record(0)
    path = workshop.record(1)
    path.write_bytes(path.read_bytes()[:-3000])
    result = workshop.build(instance)
    assert not result.success
    logged = [event.user_message for event in instance.all_logs(result.run_id)]
    (told,) = [text for text in logged if "was not ingested" in text]
    assert "episode_1.hdf5" in told
    assert "truncated" in told
    check = checks_of(result)["ingested_episodes"]["every_raw_episode_present"]
    assert check.severity.value == "ERROR"
    assert check.metadata["episodes_that_fail"].value == 1
    (offender,) = check.metadata["details"].records
    assert "episode_1.hdf5" in offender.data["reason"]
    failures = [str(event.step_failure_data) for event in result.get_step_failure_events()]
    assert any("every_raw_episode_present" in text for text in failures), failures


def test_a_truncated_recording_among_good_ones(workshop, instance):
    workshop.card()
    workshop.record(0)
    path = workshop.record(1)
    path.write_bytes(path.read_bytes()[:-3000])
    result = workshop.build(instance)
    assert result.success
    found = checks_of(result)["ingested_episodes"]["every_raw_episode_present"]
    assert not found.passed
    assert "episode_1" in found.description
    assert materialised(result)["khlp_training_fast"].metadata["episodes"].value == 1


def test_when_no_episode_is_good_nothing_is_packed(workshop, instance):
    workshop.card()
    workshop.record(0, change=spoil)
    result = workshop.build(instance)
    assert not result.success
    checks = checks_of(result)["ingested_episodes"]
    assert checks["finite_values"].severity.value == "ERROR"
    assert checks["fit_to_pack"].description.startswith("no episode is good: episode_000000: finite_values")
    assert "khlp_training_fast" not in materialised(result)


@pytest.mark.parametrize("there", [True, False])
def test_no_recordings(workshop, instance, there):
    workshop.card()
    if not there:
        workshop.raw.rmdir()
    result = workshop.build(instance)
    assert not result.success
    assert ("raw_dataset", "readable") in failed(result) or ("raw_dataset", "not_empty") in failed(result)
    assert set(materialised(result)) == {"raw_dataset"}


def test_a_camera_that_is_not_there(workshop, instance):
    workshop.card()
    text = (workshop.cards / "stamps.yaml").read_text()
    (workshop.cards / "stamps.yaml").write_text(
        text.replace("cam_1: observations.images.cam_1", "cam_1: observations.images.wrist")
    )
    workshop.record(0)
    result = workshop.build(instance)
    assert failed(result) == {("raw_dataset", "layout_found")}
    assert "wrist" in checks_of(result)["raw_dataset"]["layout_found"].description
    assert set(materialised(result)) == {"raw_dataset"}


def test_answers_of_the_card_stand_in_the_config(workshop, instance):
    workshop.card(
        PACK
        + "config: {robot_type: arm, action_semantics: joint_position, arms: [], roles: {state: pose, action: command}}\n"
        # the stamped numbers are no robot's: some never move, and they don't follow each other
        + "checks: {max_constant_channels: 8, max_offset: 1000}\n"
    )
    workshop.record(0)
    result = workshop.build(instance)
    assert failed(result) == set()
    workshop.card(PACK + "config: {roles: {state: poes}}\n")
    result = workshop.build(instance)
    failure = result.get_step_failure_events()[0]
    assert failure.step_key == "dataset_config"
    assert "'poes'" in failure.step_failure_data.user_failure_data.description


def test_a_misspelt_exclusion_is_warned_of(workshop, instance, caplog):
    workshop.card(PACK + "exclude: {episode_00001: bad}\n")
    workshop.record(0)
    result = workshop.build(instance)
    assert result.success
    messages = [event.message for event in instance.all_logs(result.run_id)]
    assert any("exclude: unknown episode 'episode_00001'" in message for message in messages)
