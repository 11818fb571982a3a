"""The engine: outcomes of every item, whatever happens to the others."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from knonik_assets.engine import Engine, map_tasks
from knonik_assets.engine.work import WorkQueue
from knonik_loader.errors import ConfigError, EpisodeError, StorageError


def double(number):
    if number == 3:
        raise EpisodeError("three is damaged")
    if number == 4:
        raise ZeroDivisionError("four")
    return 2 * number


def exit_on_two(number):
    if number == 2:
        os._exit(7)
    return number


def exit_once(path):
    if path.name == "fragile" and not path.exists():
        path.touch()
        os._exit(7)
    return path.name


def wait_for(path):
    """The first item waits until the caller, who has the second's outcome, lets it go."""
    if path.name == "first":
        for _ in range(6000):
            if path.with_name("released").exists():
                return "first"
            time.sleep(0.005)
        return "gave up"
    return "second"


def sleep_long(number):
    time.sleep(60 if number else 0)
    return number


def children():
    return {process.pid for process in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_every_item_has_its_own_outcome(engine):
    outcomes = {o.index: o for o in map_tasks(double, [1, 2, 3, 4, 5], engine=engine)}
    assert {i: o.value for i, o in outcomes.items() if o.ok} == {0: 2, 1: 4, 4: 10}
    assert isinstance(outcomes[2].error, EpisodeError)
    assert str(outcomes[2].error) == "three is damaged"
    assert outcomes[2].details == ""
    assert isinstance(outcomes[3].error, EpisodeError)
    assert "ZeroDivisionError: four" in str(outcomes[3].error)
    assert "in double" in outcomes[3].details
    assert [o.attempts for o in outcomes.values()] == [1] * 5


def test_outcomes_come_as_they_end(tmp_path):
    paths = [tmp_path / "first", tmp_path / "second"]
    outcomes = map_tasks(wait_for, paths, workers=2)
    assert next(outcomes).value == "second"
    (tmp_path / "released").touch()
    assert [o.value for o in outcomes] == ["first"]


def test_a_dead_worker_costs_its_own_item_only():
    outcomes = {o.item: o for o in map_tasks(exit_on_two, [1, 2, 3, 4], workers=2)}
    assert [outcomes[n].value for n in (1, 3, 4)] == [1, 3, 4]
    assert "died 2 times" in str(outcomes[2].error)
    assert {n: o.attempts for n, o in outcomes.items()} == {1: 1, 2: 2, 3: 1, 4: 1}


def test_a_worker_that_dies_once_is_forgiven(tmp_path):
    outcomes = list(map_tasks(exit_once, [tmp_path / "fragile", tmp_path / "sound"], workers=1))
    assert [(o.value, o.attempts) for o in outcomes] == [("fragile", 2), ("sound", 1)]


def test_a_result_that_does_not_pickle_fails_alone():
    outcomes = {o.item: o for o in map_tasks(pickle_probe, [0, 1], workers=1)}
    assert outcomes[0].value == 0
    assert "ickl" in str(outcomes[1].error)


class Stubborn:
    def __reduce__(self):
        raise pickle.PicklingError("this never pickles")


def pickle_probe(number):
    return Stubborn() if number else number


@pytest.mark.parametrize("programs", ["as here", "none"])
def test_closing_early_ends_the_workers(monkeypatch, programs):
    if programs == "none":  # small systems have no pgrep, which the process pool falls back to
        monkeypatch.setenv("PATH", "")
    before = children()
    outcomes = map_tasks(sleep_long, [0, 1, 2], workers=2)
    assert next(outcomes).value == 0
    assert children() - before
    started = time.monotonic()
    outcomes.close()
    assert time.monotonic() - started < 20
    assert not [p for p in children() - before if "resource_tracker" not in " ".join(psutil.Process(p).cmdline())]


def test_no_items_start_no_process():
    before = children()
    assert list(map_tasks(double, [], engine="processes")) == []
    assert children() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "threads"}, "inline, processes or ray"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"engine": "inline", "workers": 2}, "engine inline does one thing at a time"),
        ({"ray_options": {"address": "auto"}}, "engine ray only"),
    ],
)
def test_mistaken_calls_are_refused_at_once(options, words):
    with pytest.raises(ConfigError, match=words):
        map_tasks(double, [1], **options)


def test_ray_that_is_not_installed_is_a_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"knonik\[ray\]"):
        map_tasks(double, [1], engine="ray")


def test_an_unguarded_script_works(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from knonik_assets.engine import map_tasks
            print("once")
            def square(n):
                return n * n
            print(sorted(o.value for o in map_tasks(square, [1, 2, 3], workers=2)))
            """
        )
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.splitlines() == ["once", "[1, 4, 9]"]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="workers watch their parent through a pidfd")
def test_workers_end_with_a_killed_parent(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, pathlib, time
            from knonik_assets.engine import map_tasks
            def work(n):
                pathlib.Path({str(tmp_path)!r}, f"pid_{{n}}").write_text(str(os.getpid()))
                time.sleep(120)
            list(map_tasks(work, [0], workers=1))
            """
        )
    )
    with subprocess.Popen([sys.executable, str(script)], start_new_session=True) as parent:
        file = Path(tmp_path, "pid_0")
        while not (file.exists() and file.read_text()):
            assert parent.poll() is None
            time.sleep(0.01)
        worker = psutil.Process(int(file.read_text()))
        parent.kill()
    worker.wait(timeout=20)


def test_storage_errors_keep_their_type():
    (outcome,) = map_tasks(full_disk, [0], engine="processes", workers=1)
    assert isinstance(outcome.error, StorageError)
    assert str(outcome.error) == "the disk is full"


def full_disk(_):
    raise StorageError("the disk is full")


@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_same_outcomes(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    assert not ray.is_initialized()
    outcomes = {o.item: o for o in map_tasks(ray_probe, [1, 2, 3, 4, 5], engine="ray", workers=2)}
    assert {n: o.value for n, o in outcomes.items()} == {1: 2, 2: None, 3: None, 4: 8, 5: None}
    assert "never pickles" in str(outcomes[5].error)
    assert "died 2 times" in str(outcomes[2].error)
    assert outcomes[2].attempts == 2
    assert str(outcomes[3].error) == "three is damaged"
    assert not ray.is_initialized()


def ray_probe(number):
    if number == 2:
        os._exit(7)
    if number == 5:
        return Stubborn()
    return 8 if number == 4 else double(number)


def test_nothing_is_begun_too_far_ahead():
    queue = WorkQueue(6, ahead=3)
    assert [queue.take() for _ in range(4)] == [(0, 1), (1, 1), (2, 1), None]
    queue.done(1)
    queue.done(2)
    assert queue.take() is None, "item 0 is still to come"
    queue.again(0, 1)
    assert [queue.take(), queue.take()] == [(0, 2), None]
    queue.done(0)
    assert [queue.take() for _ in range(4)] == [(3, 1), (4, 1), (5, 1), None]
    for index in (3, 4, 5):
        assert queue
        queue.done(index)
    assert not queue


@pytest.mark.parametrize("name", ["inline", "processes"])
def test_workers_are_kept_from_one_call_to_the_next(name):
    with Engine(name, 1 if name == "processes" else None) as engine:
        assert engine.lanes == 1
        first, second = ([o.value for o in engine.map(pid_of, [0, 1], ahead=1)] for _ in range(2))
        assert len({*first, *second}) == 1
        assert (first[0] == os.getpid()) == (name == "inline")
    if name == "processes":
        assert not psutil.pid_exists(first[0])


def test_a_worker_that_died_with_nothing_to_do_costs_no_item_an_attempt():
    with Engine("processes", 1) as engine:
        (first,) = engine.map(pid_of, [0])
        os.kill(first.value, signal.SIGKILL)
        for _ in range(6000):  # until the lane knows
            if engine._pool[0]._executor._flags.broken is not None:
                break
            time.sleep(0.005)
        (second,) = engine.map(pid_of, [0], attempts=1)
    assert second.ok
    assert second.value != first.value


def test_workers_leave_the_cores_to_each_other(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")  # what somebody has decided stands
    with Engine("processes", 1) as engine:
        (outcome,) = engine.map(environment, ["_NUM_THREADS"])
    assert outcome.value["OMP_NUM_THREADS"] == "1"
    assert outcome.value["OPENBLAS_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in os.environ


def environment(ending):
    return {name: value for name, value in os.environ.items() if name.endswith(ending)}


def test_workers_never_hear_ctrl_c():
    """A terminal sends it to them too; they are ended by the process that started them."""
    with Engine("processes", 2) as engine:
        assert {o.value for o in engine.map(blocked, [0, 1, 2])} == {(True, True, True)}
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def blocked(_):
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    signal.raise_signal(signal.SIGINT)
    return signal.SIGINT in held, signal.SIGTERM not in held, signal.SIGINT in signal.sigpending()


def pid_of(_):
    return os.getpid()
