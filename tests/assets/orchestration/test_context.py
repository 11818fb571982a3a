"""Progress in Dagster's log, and errors as the UI shows them."""

import logging

import dagster as dg
import pytest

from knonik_assets.orchestration.context import LogProgress, plain_failures
from knonik_loader.errors import PackError


def test_progress_is_thinned_out_but_the_end_always_comes(caplog):
    caplog.set_level(logging.INFO, "progress")
    progress = LogProgress(logging.getLogger("progress"), every_s=3600)
    progress.begin(50, "files")
    for number in range(50):
        progress.advance(f"hlp_{number}")
    progress.end()
    assert caplog.messages == ["files: 0 of 50", "files: 1 of 50 (hlp_0)", "files: 50 of 50 (hlp_49)"]


@pytest.fixture
def slow_work(caplog):
    """Progress over 100 pieces that take 90 seconds each, by a clock of its own."""
    caplog.set_level(logging.INFO, "progress")
    now, reports = [0.0], []

    def work(**more):
        progress = LogProgress(logging.getLogger("progress"), report=reports.append, clock=lambda: now[0], **more)
        progress.begin(100)
        for number in range(100):
            now[0] += 90
            progress.advance(f"episode_{number}")

    return work, reports


def test_the_pace_says_how_long_the_rest_takes(slow_work, caplog):
    work, _ = slow_work
    work()
    assert caplog.messages[1] == "episodes: 1 of 100 (episode_0), about 2 h 28 min left"
    assert caplog.messages[60] == "episodes: 60 of 100 (episode_59), about 60 min left"
    assert caplog.messages[100] == "episodes: 100 of 100 (episode_99)"


def test_progress_is_reported_now_and_then(slow_work):
    work, reports = slow_work
    work(report_every_s=900)
    assert [report["percent"] for report in reports] == list(range(10, 100, 10))
    assert reports[0] == {
        "progress": "10 of 100 episodes, about 2 h 15 min left",
        "percent": 10.0,
        "per_minute": 0.67,
    }


def test_nothing_to_do_is_not_worth_a_line(caplog):
    caplog.set_level(logging.INFO, "progress")
    LogProgress(logging.getLogger("progress")).begin(0)
    assert caplog.messages == []


def test_every_run_is_found_by_its_dataset(workshop, instance):
    workshop.card("pack: {profiles: []}\ntags: {robot: arm, lab: north}\n")
    workshop.record(0)
    run = instance.get_run_by_id(workshop.build(instance).run_id)
    assert run.tags.items() >= {"dataset": "stamps", "robot": "arm", "lab": "north"}.items()


def test_known_errors_become_plain_failures_and_others_pass():
    with pytest.raises(dg.Failure) as caught, plain_failures():
        raise PackError("the disk is full")
    assert caught.value.description == "the disk is full"
    assert caught.value.allow_retries is False
    with pytest.raises(ZeroDivisionError), plain_failures():
        _ = 1 / 0
