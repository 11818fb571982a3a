"""The sensor: new recordings start one run each, when they have come to rest."""

import dagster as dg
import pytest

from knonik_assets.ingesting.lock import OutputLock


@pytest.fixture
def look(workshop, instance):
    """Evaluates the sensor as the daemon would: with the cursor of the last time, and the definitions of the day."""
    state = {"cursor": None}

    def evaluate():
        repository = workshop.definitions().get_repository_def()
        with dg.build_sensor_context(instance=instance, cursor=state["cursor"], repository_def=repository) as context:
            ticked = repository.get_sensor_def("watch_datasets").evaluate_tick(context)
        state["cursor"] = ticked.cursor
        return [(request.partition_key, request.run_key) for request in ticked.run_requests or []], ticked.skip_message

    return evaluate


def test_new_recordings_start_one_run_when_they_rest(workshop, instance, look):
    workshop.card("pack: {profiles: []}\n")
    workshop.record(0)
    asked, said = look()
    assert asked == []
    assert "waiting for it to come to rest" in said
    workshop.record(1)  # still being copied
    assert look()[0] == []
    (first,), _ = look()
    assert first[0] == "stamps"
    # until that run has looked at it, the key keeps a second one from starting
    assert look()[0] == [first]
    assert workshop.build(instance).success
    asked, said = look()
    assert asked == []
    assert said == "nothing new in 1 datasets"
    workshop.record(2)
    look()
    (second,), _ = look()
    assert second != first
    result = workshop.build(instance)
    metadata = {e.asset_key.to_user_string(): e.materialization for e in result.get_asset_materialization_events()}
    assert metadata["ingested_episodes"].metadata["written"].value == 1
    assert metadata["ingested_episodes"].metadata["unchanged"].value == 2


def test_every_dataset_has_its_turn(workshop, look, monkeypatch):
    for name in ("a", "b", "c"):
        workshop.card(name=name)
    workshop.record(0)
    # no time is left after the first dataset of a tick
    monkeypatch.setattr("knonik_assets.orchestration.watching._BUDGET_S", -1.0)
    assert [look()[1].partition(":")[0] for _ in range(3)] == ["a", "b", "c"]
    assert [[name for name, _ in look()[0]] for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_a_broken_card_is_passed_over(workshop, look):
    workshop.card(name="good")
    workshop.card("oops: 1\n", "broken")
    workshop.record(0)
    look()
    assert [name for name, _ in look()[0]] == ["good"]


def test_a_run_that_meets_another_writer_waits_for_it(workshop, instance, monkeypatch):
    workshop.card("pack: {profiles: []}\n")
    workshop.record(0)
    monkeypatch.setattr("knonik_assets.orchestration.assets.RETRIES", dg.RetryPolicy(max_retries=3, delay=0))
    with OutputLock(workshop.episodes, "knonik ingest by hand"):
        result = workshop.build(instance)
    assert not result.success
    retried = [event for event in result.all_events if event.event_type_value == "STEP_RESTARTED"]
    assert len(retried) == 3
    (failure,) = result.get_step_failure_events()
    assert "knonik ingest by hand" in str(failure.step_failure_data)
    assert workshop.build(instance).success
