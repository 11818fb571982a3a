"""Scratch space is bounded over all processes of a machine, and what a killed run left is swept."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from knonik_assets.storage import Scratch, ScratchBusyError
from knonik_loader.errors import ConfigError, StorageError

HOLD = """
import sys
from pathlib import Path
from knonik_assets.storage import Scratch
with Scratch(Path(sys.argv[1]), 1000).room(int(sys.argv[2]), "x") as room:
    (room.folder / "data.bin").write_bytes(bytes(int(sys.argv[2])))
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def scratch(tmp_path) -> Scratch:
    return Scratch(tmp_path / "scratch", 1000)


@pytest.fixture
def other(tmp_path):
    """A process that holds a room of so many bytes, until a line comes."""
    running = []

    def hold(size: int) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path / "scratch"), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in running:
        process.kill()
        process.communicate()


def rooms(scratch: Scratch) -> list[Path]:
    return list(scratch.folder.glob("room-*"))


def test_a_room_is_an_empty_folder_that_goes_with_its_block(scratch):
    with scratch.room(400, "x") as room:
        assert list(room.folder.iterdir()) == []
        (room.folder / "sub").mkdir()
        (room.folder / "sub" / "y").write_bytes(b"1")
        with scratch.room(600, "y") as second:
            assert second.folder != room.folder
    assert rooms(scratch) == []
    with pytest.raises(RuntimeError), scratch.room(1, "x"):
        raise RuntimeError
    assert rooms(scratch) == []


def test_what_cannot_fit_says_what_is_needed(scratch):
    with pytest.raises(StorageError, match=r"s3://b/x needs 1,001 bytes .* KNONIK_SCRATCH_BYTES allows 1,000 .*1,001"):
        scratch.room(1001, "s3://b/x").__enter__()
    with scratch.room(700, "x"), pytest.raises(StorageError, match=r"y needs 301 bytes .* beside the 700 .* 1,001"):
        scratch.room(301, "y").__enter__()  # a thread that holds a room never waits
    with pytest.raises(StorageError, match=r"needs 1,000,000,000,000,000,000 bytes .* name a folder on a larger disk"):
        Scratch(scratch.folder).room(10**18, "x").__enter__()
    assert rooms(scratch) == []


def test_rooms_of_other_processes_count_and_are_waited_for(scratch, other):
    process = other(800)
    entered = threading.Event()

    def take() -> None:
        with scratch.room(300, "x"):
            entered.set()

    with scratch.room(200, "small"):
        pass
    thread = threading.Thread(target=take)
    thread.start()
    assert not entered.wait(0.2)
    process.communicate("go\n")
    thread.join(60)
    assert entered.is_set()


def test_a_killed_process_leaves_nothing_that_counts(scratch, other):
    process = other(800)
    (left,) = rooms(scratch)
    assert sum(path.stat().st_size for path in left.rglob("data.bin")) == 800
    process.send_signal(signal.SIGKILL)
    process.wait()
    with scratch.room(1000, "x"):
        assert not left.exists()


def test_growing_rooms_never_wait_for_each_other(scratch):
    with scratch.room(100, "older") as older:
        older.grow(500)
        failed = []

        def younger() -> None:
            with scratch.room(300, "younger") as room:
                with pytest.raises(ScratchBusyError):
                    room.grow(200)
                failed.append(True)

        thread = threading.Thread(target=younger)
        thread.start()
        thread.join(60)
        assert failed
        older.grow(400)
        with pytest.raises(StorageError, match="older needs 1,001"):
            older.grow(1)


def test_the_older_one_grows_when_the_younger_one_left(scratch):
    inside, leave = threading.Event(), threading.Event()

    def younger() -> None:
        with scratch.room(300, "younger"):
            inside.set()
            leave.wait(60)

    with scratch.room(600, "older") as older:
        thread = threading.Thread(target=younger)
        thread.start()
        assert inside.wait(60)
        threading.Timer(0.1, leave.set).start()
        older.grow(400)
        assert older.size == 1000
        thread.join()


def test_a_pinned_room_is_not_waited_for(scratch):
    with scratch.room(900, "file", pinned=True):
        failed = []

        def worker() -> None:
            with pytest.raises(StorageError, match="needs 200 bytes of scratch space beside the 900"):
                scratch.room(200, "episode").__enter__()
            failed.append(True)

        thread = threading.Thread(target=worker)
        thread.start()
        thread.join(60)
        assert failed


def test_the_environment_says_where_and_how_much(tmp_path, monkeypatch):
    monkeypatch.setenv("KNONIK_SCRATCH", str(tmp_path / "here"))
    monkeypatch.setenv("KNONIK_SCRATCH_BYTES", "12")
    scratch = Scratch()
    assert (scratch.folder, scratch.limit) == (tmp_path / "here", 12)
    for wrong in ("12 GB", "0", "-5"):
        monkeypatch.setenv("KNONIK_SCRATCH_BYTES", wrong)
        with pytest.raises(ConfigError, match="KNONIK_SCRATCH_BYTES"):
            Scratch()
    monkeypatch.delenv("KNONIK_SCRATCH_BYTES")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot use the scratch folder"):
        Scratch(tmp_path / "file").room(1, "x").__enter__()
    monkeypatch.delenv("KNONIK_SCRATCH")
    assert str(os.getuid()) in Scratch().folder.name


def test_a_fork_holds_nobody_up(scratch):
    """Whoever waits for a room waits for who took it, not for what that process has forked since."""
    go = os.pipe()
    with scratch.room(50, "a"):
        (room,) = rooms(scratch)
        file = os.open(room / "held", os.O_RDWR)
        child = os.fork()
        if child == 0:
            os.read(go[0], 1)
            os._exit(0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.write(go[1], b"x")
        os.waitpid(child, 0)
        for end in (file, *go):
            os.close(end)
