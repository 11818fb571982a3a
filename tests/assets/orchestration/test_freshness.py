"""How old a dataset may become: what its card says, or its schedule."""

import asyncio
import datetime

import dagster as dg
import pytest
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.definitions.freshness_evaluator import FRESHNESS_EVALUATORS_BY_POLICY_TYPE
from dagster._core.loader import LoadingContextForTest
from dagster._core.test_utils import freeze_time

from knonik_assets.orchestration.freshness import longest_pause

MADE_FROM_RAW = ("raw_dataset", "ingested_episodes", "dataset_config")


def hours(workshop):
    """Asset → hours after which it is overdue."""
    graph = workshop.definitions().get_repository_def().asset_graph
    nodes = {key.to_user_string(): graph.get(key) for key in graph.get_all_asset_keys()}
    return {
        name: node.freshness_policy.fail_window.to_timedelta() / datetime.timedelta(hours=1)
        for name, node in nodes.items()
        if node.freshness_policy is not None
    }


def limits(workshop):
    """Asset → whose limit its page says counts."""
    graph = workshop.definitions().get_repository_def().asset_graph
    metadata = {key.to_user_string(): graph.get(key).metadata for key in graph.get_all_asset_keys()}
    return {name: found["overdue"] for name, found in metadata.items() if "overdue" in found}


def test_without_a_word_nothing_is_overdue(workshop):
    workshop.card()
    assert hours(workshop) == limits(workshop) == {}


def test_a_schedule_says_when_its_packs_are_overdue(workshop):
    workshop.card("schedule: 0 3 * * *\npack: {profiles: [training_fast]}\n")
    assert hours(workshop) == {"khlp_training_fast": 30}
    said = "30 hours after the newest build of any dataset (schedule '0 3 * * *' of 'stamps')"
    assert limits(workshop) == {"khlp_training_fast": said}
    workshop.card("schedule: 0 3 * * mon\npack: {profiles: [training_fast, compact_video]}\n")
    assert hours(workshop) == {"khlp_training_fast": 210, "khlp_compact_video": 210}


def test_the_card_has_the_last_word(workshop):
    workshop.card("schedule: 0 3 * * *\nfresh_hours: 48\npack: {profiles: [training_fast]}\n")
    assert hours(workshop) == dict.fromkeys([*MADE_FROM_RAW, "khlp_training_fast"], 48)


def test_a_time_that_no_clock_counts_breaks_its_own_card_alone(workshop):
    workshop.card("fresh_hours: 1.0e+300\npack: {profiles: [training_fast]}\n", "wild")
    workshop.card("fresh_hours: 1000000\npack: {profiles: [training_fast]}\n", "patient")
    assert hours(workshop) == dict.fromkeys([*MADE_FROM_RAW, "khlp_training_fast"], 1_000_000)


def test_the_most_impatient_card_counts(workshop):
    workshop.card("fresh_hours: 48\npack: {profiles: [training_fast]}\n", "slow")
    workshop.card("fresh_hours: 2.5\npack: {profiles: [compact_video]}\n", "quick")
    assert hours(workshop) == {**dict.fromkeys([*MADE_FROM_RAW, "khlp_compact_video"], 2.5), "khlp_training_fast": 48}
    build = "hours after the newest build of any dataset"
    quick = f"2.5 {build} (the shortest of 2 cards' limits: fresh_hours of 'quick')"
    assert limits(workshop) == {
        **dict.fromkeys(MADE_FROM_RAW, quick),
        "khlp_compact_video": f"2.5 {build} (fresh_hours of 'quick')",
        "khlp_training_fast": f"48 {build} (fresh_hours of 'slow')",
    }


@pytest.mark.parametrize(
    ("cron", "pause"), [("0 3 * * *", 24), ("*/15 * * * *", 0.25), ("0 0 1 * *", 31 * 24), ("0 9,17 * * mon-fri", 64)]
)
def test_the_longest_pause_of_a_schedule(cron, pause):
    assert longest_pause(cron) == pause


def test_dagster_calls_an_old_dataset_overdue(workshop, instance):
    """By Dagster's own evaluator, an hour and three hours after a real materialisation."""
    workshop.card("fresh_hours: 2\npack: {profiles: []}\n")
    workshop.record(0)
    node = workshop.definitions().get_repository_def().asset_graph.get(dg.AssetKey("raw_dataset"))

    def state(after):
        with freeze_time(datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=after)):
            evaluator = FRESHNESS_EVALUATORS_BY_POLICY_TYPE[type(node.freshness_policy)]()
            return asyncio.run(evaluator.evaluate_freshness(LoadingContextForTest(instance), node))

    assert state(0) == FreshnessState.UNKNOWN
    assert workshop.build(instance).success
    assert [state(hours) for hours in (1, 3)] == [FreshnessState.PASS, FreshnessState.FAIL]
