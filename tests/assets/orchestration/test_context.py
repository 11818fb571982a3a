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


def test_nothing_to_do_is_not_worth_a_line(caplog):
    caplog.set_level(logging.INFO, "progress")
    LogProgress(logging.getLogger("progress")).begin(0)
    assert caplog.messages == []


def test_known_errors_become_plain_failures_and_others_pass():
    with pytest.raises(dg.Failure) as caught, plain_failures():
        raise PackError("the disk is full")
    assert caught.value.description == "the disk is full"
    assert caught.value.allow_retries is False
    with pytest.raises(ZeroDivisionError), plain_failures():
        _ = 1 / 0
