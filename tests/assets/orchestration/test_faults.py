"""Twelve recordings, four of them ill in four ways: who names them, what becomes of the others, how they heal."""

import shutil

import dagster as dg
import numpy as np
import pytest

from knonik_assets.configs.cards import load_cards
from knonik_assets.orchestration.inputs import announce
from knonik_loader import ShardedDataLoader
from tests.assets.orchestration.conftest import PACK, QUIET, checks_of, failed, materialised
from tests.support.stamps import read_stamp

LENGTHS = {number: 8 + number % 3 for number in range(12)}
TRUNCATED, FROZEN, SPOILT, COPY, ORIGINAL = 3, 5, 7, 11, 2
ILL = {
    "every_raw_episode_present": TRUNCATED,
    "cameras_alive": FROZEN,
    "finite_values": SPOILT,
    "no_duplicates": COPY,
}
GOOD = set(LENGTHS) - set(ILL.values())


def freeze(arrays):
    arrays["cam_1"][:] = arrays["cam_1"][2]


def spoil(arrays):
    arrays["action"][5, 1] = np.nan


def record_all(workshop):
    for number, frames in LENGTHS.items():
        workshop.record(number, frames, {FROZEN: freeze, SPOILT: spoil}.get(number))
    path = workshop.raw / f"episode_{TRUNCATED}.hdf5"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    shutil.copy(workshop.raw / f"episode_{ORIGINAL}.hdf5", workshop.raw / f"episode_{COPY}.hdf5")


def name(number):
    return f"episode_{number:06d}"


def named(result):
    """Check of the ingested episodes → episodes that it names, of those that failed."""
    return {
        check: {record.data["episode"] for record in one.metadata["details"].records}
        for check, one in checks_of(result)["ingested_episodes"].items()
        if not one.passed
    }


def assert_packed(workshop, wanted):
    """The packed dataset holds exactly these episodes: every frame once, right picture, rows and time."""
    manifest = workshop.packed / "training_fast" / "hlp_manifest.json"
    settings = {"decode_mode": "sequential", "hlp_manifest": str(manifest), "chunk_len": 1, "batch_size": 1}
    seen = []
    with ShardedDataLoader(settings) as loader:
        for batch in loader:
            number, frame = int(batch["_episode_ids"][0][-6:]), int(batch["_frame_indices"][0])
            for camera in (0, 1):
                assert read_stamp(batch[f"rgb_cam_{camera}"][0, 0]) == (camera, number, frame)
            np.testing.assert_array_equal(batch["pose"][0, 0][:2], (number, frame))
            np.testing.assert_array_equal(batch["command"][0, 0], (frame, frame + 1, number, -1))
            assert float(batch["_timestamps"][0]) == pytest.approx(frame / 30)
            seen.append((number, frame))
    assert sorted(seen) == [(number, frame) for number in sorted(wanted) for frame in range(LENGTHS[number])]


@pytest.fixture
def ill(workshop):
    workshop.card()
    record_all(workshop)
    return workshop


def test_each_fault_is_named_and_the_others_flow_on(ill, instance):
    result = ill.build(instance)
    assert result.success
    assert named(result) == {check: {name(number)} for check, number in ILL.items()}
    checks = checks_of(result)["ingested_episodes"]
    assert {check for check, one in checks.items() if one.severity.value == "ERROR"} == {"fit_to_pack"}
    assert checks["fit_to_pack"].description == "8 of 11 episodes are packed"
    # the truncated one was never an episode; the others are quarantined by name, with the reason
    out = materialised(result)["khlp_training_fast"].metadata["left_out"].records
    assert {record.data["episode"] for record in out} == {name(n) for n in (FROZEN, SPOILT, COPY)}
    assert [record.data["reason"].partition(":")[0] for record in out] == [
        "cameras_alive",
        "finite_values",
        "no_duplicates",
    ]
    table = materialised(result)["ingested_episodes"].metadata["episode_table"].records
    assert {record.data["episode"] for record in table if record.data["verdict"] == "bad"} == {
        name(number) for number in (FROZEN, SPOILT, COPY)
    }
    messages = [event.user_message for event in instance.all_logs(result.run_id)]
    assert any(f"{name(TRUNCATED)} was not ingested: episode_{TRUNCATED}" in message for message in messages)
    assert_packed(ill, GOOD)


def test_repaired_recordings_heal_with_one_run_that_ingests_only_them(ill, instance):
    assert ill.build(instance).success
    before = {path.parent.name: path.stat().st_mtime_ns for path in ill.episodes.glob("episode_*/metadata.json")}
    ill.record(TRUNCATED, LENGTHS[TRUNCATED])
    result = ill.build(instance)
    assert named(result) == {check: {name(n)} for check, n in ILL.items() if n != TRUNCATED}
    made = materialised(result)["ingested_episodes"].metadata
    assert (made["written"].value, made["unchanged"].value, made["failed"].value) == (1, 11, 0)
    messages = [event.user_message for event in instance.all_logs(result.run_id)]
    assert [text for text in messages if text.startswith("measured")] == [f"measured {name(TRUNCATED)} (1 of 1)"]
    after = {path.parent.name: path.stat().st_mtime_ns for path in ill.episodes.glob("episode_*/metadata.json")}
    assert {episode for episode in after if after[episode] != before.get(episode)} == {name(TRUNCATED)}
    assert_packed(ill, GOOD | {TRUNCATED})
    for number in (FROZEN, SPOILT, COPY):
        ill.record(number, LENGTHS[number])
    result = ill.build(instance)
    assert failed(result) == {("dataset_config", "no_placeholders")}
    made = materialised(result)["ingested_episodes"].metadata
    assert (made["written"].value, made["unchanged"].value) == (3, 9)
    assert_packed(ill, LENGTHS)


def test_blocking_stops_the_packing_of_that_dataset_alone(workshop, instance):
    workshop.card(PACK + "on_bad_episode: block\n")
    record_all(workshop)
    calm = workshop.root / "calm"
    calm.mkdir()
    for number in GOOD:
        shutil.copy(workshop.raw / f"episode_{number}.hdf5", calm)
    workshop.card(PACK, "calm")
    path = workshop.cards / "calm.yaml"
    path.write_text(path.read_text().replace("raw: ../raw", "raw: ../calm"))
    result = workshop.build(instance)
    assert not result.success
    stops = {"fit_to_pack": {name(number) for number in ILL.values()}}
    assert named(result) == {check: {name(number)} for check, number in ILL.items()} | stops
    severities = {check: one.severity.value for check, one in checks_of(result)["ingested_episodes"].items()}
    assert {check for check, severity in severities.items() if severity == "ERROR"} >= set(ILL)
    assert set(materialised(result)) == {"raw_dataset", "ingested_episodes"}
    assert not workshop.packed.exists()
    assert workshop.build(instance, "calm").success
    assert (workshop.root / "lake/calm/packed/training_fast/hlp_manifest.json").is_file()


class Automation:
    """What Dagster's automation sensor would start, tick by tick."""

    def __init__(self, workshop, instance):
        self.definitions, self.instance = workshop.definitions(), instance
        self.assets = sorted(self.definitions.resolve_asset_graph().executable_asset_keys)
        self.cursor = None

    def tick(self):
        selection = dg.AssetSelection.assets(*self.assets)
        ticked = dg.evaluate_automation_conditions(self.definitions, self.instance, selection, cursor=self.cursor)
        self.cursor = ticked.cursor
        asked = {key.to_user_string(): ticked.get_requested_partitions(key) for key in self.assets}
        return {asset: partitions for asset, partitions in asked.items() if partitions}

    def run(self, partition, *assets):
        return self.definitions.resolve_job_def("build_dataset").execute_in_process(
            instance=self.instance,
            partition_key=partition,
            asset_selection=[dg.AssetKey(asset) for asset in assets] or None,
            raise_on_error=False,
            run_config=QUIET,
        )


PACKED = ("khlp_compact_video", "khlp_training_compressed", "khlp_training_fast")


def test_what_runs_by_itself_respects_the_block(workshop, instance):
    for card, rule in (("stamps", "block"), ("calm", "exclude")):
        workshop.card(f"{PACK}on_bad_episode: {rule}\n", card)
    workshop.record(0)
    workshop.record(1, change=spoil)
    automation = Automation(workshop, instance)
    assert automation.tick() == {}
    for card in ("stamps", "calm"):
        automation.run(card, "raw_dataset")
    assert automation.tick() == {"ingested_episodes": {"calm", "stamps"}}
    for card in ("stamps", "calm"):
        automation.run(card, "ingested_episodes")
    assert automation.tick() == {"dataset_config": {"calm"}}
    automation.run("calm", "dataset_config")
    assert automation.tick() == {asset: {"calm"} for asset in PACKED}
    automation.run("calm", *PACKED)
    assert automation.tick() == {}
    workshop.record(1)
    for card in ("stamps", "calm"):
        automation.run(card, "raw_dataset")
    # where nothing stood in the way, one run does it all: within a run, too, a failed check stops what comes behind it
    flowing = {asset: {"calm"} for asset in ("dataset_config", *PACKED)}
    assert automation.tick() == {"ingested_episodes": {"calm", "stamps"}, **flowing}
    automation.run("stamps", "ingested_episodes")
    assert automation.tick() == {"dataset_config": {"stamps"}}, "what was repaired flows on"


def test_a_changed_card_runs_what_depends_on_it_once(workshop, instance):
    workshop.card()
    workshop.record(0)
    automation = Automation(workshop, instance)
    automation.tick()
    assert automation.run("stamps").success
    # profiles that the card doesn't ask for have made nothing; asked once more, they make nothing again
    assert automation.tick() == {asset: {"stamps"} for asset in PACKED[:2]}
    automation.run("stamps", *PACKED[:2])
    assert automation.tick() == {}
    workshop.card(PACK.replace("seed: 1", "seed: 2"))
    assert automation.tick() == {}, "nobody has looked at the card yet"
    announce(instance, load_cards(workshop.cards)["stamps"])
    assert automation.tick() == {"khlp_training_fast": {"stamps"}}
    assert automation.run("stamps", "khlp_training_fast").success
    assert automation.tick() == {}
    workshop.card(PACK.replace("seed: 1", "seed: 2") + "config: {robot_type: arm}\n")
    announce(instance, load_cards(workshop.cards)["stamps"])
    assert automation.tick() == {asset: {"stamps"} for asset in ("dataset_config", *PACKED)}
