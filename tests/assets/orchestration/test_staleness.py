"""What turns stale when something changes, and what does not."""

import os
import shutil

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from knonik_assets.configs.cards import load_cards
from knonik_assets.orchestration.inputs import announce, input_versions
from tests.assets.orchestration.conftest import PACK, Workshop

ASSETS = ("raw_dataset", "ingested_episodes", "dataset_config", "khlp_training_fast")


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
            workshop.card()
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


CHANGES = {
    "a new raw file": (lambda shop: shop.record(2), {"raw_dataset"}),
    "a changed raw file": (lambda shop: shop.record(1, frames=14), {"raw_dataset"}),
    "how episodes are written": (lambda shop: rewrite(shop, "quality: 95", "quality: 90"), {"ingested_episodes"}),
    "the layout": (
        lambda shop: rewrite(shop, ", cam_1: observations.images.cam_1", ""),
        {"raw_dataset", "ingested_episodes"},
    ),
    "a threshold": (lambda shop: shop.card(PACK + "checks: {min_frames: 2}\n"), {"ingested_episodes"}),
    "an answer": (lambda shop: shop.card(PACK + "config: {robot_type: arm}\n"), {"dataset_config"}),
    "an excluded episode": (
        lambda shop: shop.card(PACK + "exclude: {episode_000001: blurred}\n"),
        {"dataset_config", "khlp_training_fast"},
    ),
    "a pack option": (lambda shop: rewrite(shop, "seed: 1", "seed: 2"), {"khlp_training_fast"}),
    "another profile's options": (
        lambda shop: rewrite(
            shop, "profiles: [training_fast]", "profiles: {training_fast: {}, compact_video: {gop: 5}}"
        ),
        set(),
    ),
    "the description": (lambda shop: shop.card(PACK + "description: new words\n"), set()),
    "a comment": (lambda shop: shop.card(PACK + "# nothing\n"), set()),
    "the engine": (lambda shop: rewrite(shop, "engine: inline", "engine: processes"), set()),
}


@pytest.mark.parametrize(("change", "wanted"), CHANGES.values(), ids=CHANGES)
def test_what_a_change_makes_stale(built, change, wanted):
    workshop, instance = built
    assert stale(workshop, instance) == set()
    change(workshop)
    assert stale(workshop, instance) == wanted


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
