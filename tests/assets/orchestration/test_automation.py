"""Schedules of re-packs."""

import datetime

import dagster as dg

from tests.assets.orchestration.conftest import materialised

NIGHT = datetime.datetime(2030, 1, 2, 3, 0, tzinfo=datetime.UTC)


def tick(workshop, name):
    return evaluate(workshop.definitions().get_repository_def(), name)


def evaluate(repository, name):
    schedule = repository.get_schedule_def(name)
    with dg.build_schedule_context(scheduled_execution_time=NIGHT, repository_def=repository) as context:
        return schedule, schedule.evaluate_tick(context)


def test_a_card_with_a_cron_has_a_schedule(workshop):
    workshop.card("schedule: 30 2 * * mon\ntags: {robot: arm}\n", "my-set")
    workshop.card(name="other")
    repository = workshop.definitions().get_repository_def()
    assert [schedule.name for schedule in repository.schedule_defs] == ["repack_my_set"]
    schedule, ticked = tick(workshop, "repack_my_set")
    assert schedule.cron_schedule == "30 2 * * mon"
    assert schedule.job_name == "repack"
    (request,) = ticked.run_requests
    assert request.partition_key == "my-set"
    assert request.run_key == "my-set 2030-01-02T03:00:00+00:00"
    assert request.tags.items() >= {"dataset": "my-set", "robot": "arm"}.items()


def test_two_names_that_look_alike_have_two_schedules(workshop):
    workshop.card("schedule: 0 0 * * *\n", "a-b")
    workshop.card("schedule: 0 1 * * *\n", "a_b")
    schedules = workshop.definitions().get_repository_def().schedule_defs
    assert sorted(schedule.cron_schedule for schedule in schedules) == ["0 0 * * *", "0 1 * * *"]


def test_a_card_that_broke_meanwhile_is_skipped_with_the_reason(workshop):
    workshop.card("schedule: 0 0 * * *\n", "set")
    repository = workshop.definitions().get_repository_def()
    workshop.card("schedule: 0 0 * * *\noops: 1\n", "set")
    _, ticked = evaluate(repository, "repack_set")
    assert not ticked.run_requests
    assert "unknown key 'oops'" in ticked.skip_message


def test_a_card_without_profiles_is_skipped(workshop):
    workshop.card("schedule: 0 0 * * *\npack: {profiles: []}\n", "set")
    _, ticked = tick(workshop, "repack_set")
    assert "asks for no packed profile" in ticked.skip_message


def test_a_repack_packs_what_is_new_and_nothing_else(workshop, instance):
    workshop.card()
    workshop.record(0)
    assert workshop.build(instance).success
    again = materialised(workshop.build(instance, job="repack"))
    assert set(again) == {"khlp_training_fast"}
    assert again["khlp_training_fast"].metadata["unchanged"].value is True
    assert again["khlp_training_fast"].metadata["generation"].value == 1
