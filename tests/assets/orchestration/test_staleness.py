"""What turns stale when something changes, and what does not."""

import os
import shutil

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from knonik_assets.configs.cards import load_cards
from knonik_assets.orchestration.context import CODE_VERSIONS
from knonik_assets.orchestration.inputs import announce, input_versions
from tests.assets.orchestration.conftest import PACK, QUIET, Workshop

PACKED = ("khlp_training_fast", "khlp_compact_video")
ASSETS = ("raw_dataset", "ingested_episodes", "dataset_config", *PACKED)
TWO = PACK.replace("[training_fast]", "{training_fast: {}, compact_video: {gop: 5}}")


def stale(workshop, instance, name="stamps"):
    """Assets that Dagster calls stale, after a look at the inputs; those further down follow when these are made."""
    announce(instance, load_cards(workshop.cards)[name])
    graph = workshop.definitions().get_repository_def().asset_graph
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    return {asset for asset in ASSETS if resolver.get_status(dg.AssetKey(asset), name) == StaleStatus.STALE}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One dataset, built once; whoever changes it puts it back."""
    root = tmp_path_factory.mktemp("shared")
    home = root / "instance"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("KNONIK_DATASETS", "DAGSTER_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("KNONIK_LAKE", str(root / "lake"))
        with dg.DagsterInstance.local_temp(str(home), overrides={"telemetry": {"enabled": False}}) as instance:
            workshop = Workshop(root)
            workshop.card(TWO)
            for number in range(2):
                workshop.record(number)
            assert workshop.build(instance).success
            yield workshop, instance


@pytest.fixture
def built(shared, tmp_path):
    workshop, instance = shared
    for name in ("cards", "raw"):
        shutil.copytree(workshop.root / name, tmp_path / name)
    yield workshop, instance
    for name in ("cards", "raw"):
        shutil.rmtree(workshop.root / name)
        shutil.copytree(tmp_path / name, workshop.root / name)
    assert stale(workshop, instance) == set(), "what is as it was is fresh"


def rewrite(workshop, old, new):
    path = workshop.cards / "stamps.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def add(more):
    return lambda shop: shop.card(TWO + more)


def to(old, new):
    return lambda shop: rewrite(shop, old, new)


def drop(shop):
    (shop.raw / "episode_1.hdf5").unlink()


def rename(shop):
    (shop.raw / "episode_1.hdf5").rename(shop.raw / "episode_7.hdf5")


def stray(shop):
    (shop.raw / "notes.txt").write_text("the gripper squeaks")


RAW, EPISODES, CONFIG = {"raw_dataset"}, {"ingested_episodes"}, {"dataset_config"}
CHANGES = {
    # the raw folder: what comes of it is known when it has been looked at
    "a raw file added": (lambda shop: shop.record(2), RAW),
    "a raw file changed": (lambda shop: shop.record(1, frames=14), RAW),
    "a raw file removed": (drop, RAW),
    "a raw file renamed": (rename, RAW),
    "another file beside the recordings": (stray, RAW),
    "another raw folder": (to("raw: ../raw", "raw: ../cards"), RAW),
    # the ingest block
    "preset": (to("quality: 95", "quality: 90"), EPISODES),
    "metadata": (to("fps: 30", "fps: 30\n  metadata: {operator: ana}"), EPISODES),
    "language": (to("fps: 30", "fps: 30\n  language: {instruction: lift it}"), EPISODES),
    "rate": (to("fps: 30", "fps: 25"), EPISODES),
    "layout": (to(", cam_1: observations.images.cam_1", ""), RAW | EPISODES),
    "where episodes go": (add("episodes: ../elsewhere\n"), EPISODES),
    # the checks
    "a threshold": (add("checks: {min_frames: 2}\n"), EPISODES),
    "a severity": (add("checks: {severity: {no_gaps: error}}\n"), EPISODES),
    "a threshold of the packed data": (add("checks: {psnr_floor: {training_fast: 30}, max_packed_gb: 1}\n"), set()),
    # answers and exclusions
    "an answer": (add("config: {robot_type: arm}\n"), CONFIG),
    "roles, which checks use": (add("config: {roles: {state: pose}}\n"), EPISODES | CONFIG),
    "an excluded episode": (add("exclude: {episode_000001: blurred}\n"), CONFIG | set(PACKED)),
    # the pack block
    "an option of all profiles": (to("seed: 1", "seed: 2"), set(PACKED)),
    "an option of one profile": (to("gop: 5", "gop: 3"), {"khlp_compact_video"}),
    "one profile less": (to(", compact_video: {gop: 5}", ""), {"khlp_compact_video"}),
    "one profile more": (to("training_fast: {}", "training_fast: {}, training_compressed: {}"), set()),
    "where packed data goes": (add("packed: ../elsewhere\n"), set(PACKED)),
    # what changes how the work is done, or who hears of it, and not what comes out
    "engine": (to("engine: inline", "engine: processes"), set()),
    "schedule": (add("schedule: 0 3 * * *\n"), set()),
    "days of keeping": (add("keep_days: 3\n"), set()),
    "the rule for bad episodes": (add("on_bad_episode: block\n"), set()),
    "description, owners, tags": (add("description: new\nowners: [team:arms]\ntags: {robot: so101}\n"), set()),
    "a comment": (add("# nothing\n"), set()),
}


@pytest.mark.parametrize(("change", "wanted"), CHANGES.values(), ids=CHANGES)
def test_what_a_change_makes_stale(built, change, wanted):
    workshop, instance = built
    assert stale(workshop, instance) == set()
    change(workshop)
    assert stale(workshop, instance) == wanted


@pytest.mark.parametrize("asset", ASSETS)
def test_a_new_version_of_a_stage_makes_stale_what_it_makes(built, asset, monkeypatch):
    workshop, instance = built
    monkeypatch.setitem(CODE_VERSIONS, asset, "another")
    assert stale(workshop, instance) == {asset}
    monkeypatch.undo()


def test_another_lake_makes_stale_what_lies_in_it(built, monkeypatch):
    workshop, instance = built
    with monkeypatch.context() as patch:
        patch.setenv("KNONIK_LAKE", str(workshop.root / "other_lake"))
        assert stale(workshop, instance) == EPISODES | set(PACKED)


def make(workshop, instance, *assets):
    result = (
        workshop.definitions()
        .resolve_job_def("build_dataset")
        .execute_in_process(
            instance=instance,
            partition_key="stamps",
            asset_selection=[dg.AssetKey(asset) for asset in assets],
            run_config=QUIET,
        )
    )
    assert result.success


def test_a_verdict_travels_down_and_a_threshold_that_changes_none_does_not(workshop, instance):
    workshop.card(TWO)
    for number in range(2):
        workshop.record(number, frames=10 + number)
    assert workshop.build(instance).success
    workshop.card(TWO + "checks: {min_frames: 5}\n")
    assert stale(workshop, instance) == EPISODES
    make(workshop, instance, "ingested_episodes")
    assert stale(workshop, instance) == set()
    workshop.card(TWO + "checks: {min_frames: 11}\n")  # now episode_000000 is bad
    make(workshop, instance, "ingested_episodes")
    assert stale(workshop, instance) == CONFIG | set(PACKED)
    make(workshop, instance, "dataset_config")
    assert stale(workshop, instance) == set(PACKED)
    make(workshop, instance, *PACKED)
    assert stale(workshop, instance) == set()


def test_what_was_made_anew_is_fresh_again(workshop, instance):
    workshop.card()
    workshop.card(name="other")
    workshop.record(0)
    for name in ("stamps", "other"):
        assert workshop.build(instance, name).success
    workshop.record(1)
    rewrite(workshop, "quality: 95", "quality: 90")
    assert stale(workshop, instance) == {"raw_dataset", "ingested_episodes"}
    assert stale(workshop, instance, "other") == {"raw_dataset"}
    assert workshop.build(instance).success
    assert stale(workshop, instance) == set()


def test_a_touched_file_is_looked_at_and_changes_nothing(workshop, instance):
    workshop.card("pack: {profiles: []}\n")
    path = workshop.record(0)
    assert workshop.build(instance).success
    os.utime(path, (1, 1))
    assert stale(workshop, instance) == {"raw_dataset"}
    job = workshop.definitions().resolve_job_def("build_dataset")
    result = job.execute_in_process(
        instance=instance, partition_key="stamps", asset_selection=[dg.AssetKey("raw_dataset")]
    )
    assert result.success
    assert stale(workshop, instance) == set()


def test_a_version_is_reported_once(built):
    workshop, instance = built
    card = load_cards(workshop.cards)["stamps"]
    announce(instance, card)
    assert announce(instance, card) == []
    workshop.record(2)
    assert announce(instance, card) == ["raw_files"]
    assert announce(instance, card) == []


def test_versions_of_a_raw_file_and_of_nothing(workshop):
    path = workshop.record(0)
    workshop.card()
    card = load_cards(workshop.cards)["stamps"]
    one = input_versions(card.model_copy(update={"raw": path}))["raw_files"]
    none = input_versions(card.model_copy(update={"raw": workshop.root / "nothing"}))["raw_files"]
    assert len({one, none, input_versions(card)["raw_files"]}) == 3
